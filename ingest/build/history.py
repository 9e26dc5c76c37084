"""The plan before, and the step from it to the next: what is read and written around the pure `make_plan`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from ingest.build.changes import Changes, compare, require_few_vanished
from ingest.build.manifest import read_manifest
from ingest.build.mixing import WELL_MIXED, mixing
from ingest.build.plan import PlanSettings, make_plan, warn_of_other_source
from ingest.build.planned import (
    PLAN_SCHEMA,
    Origin,
    Plan,
    PlanHead,
    ShardHead,
    describe_roots,
    read_origin,
    read_plan,
    read_plan_head,
    write_plan,
)
from ingest.errors import BuildError, CorruptShardError, NotSealedError, StoreError
from ingest.forgotten import read_forgotten
from ingest.index import last_kept_index, read_index
from ingest.shard import read_receipt
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ingest.index import Index

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A new plan.

    Attributes:
        head: what it says of itself.
        changes: how it differs from the one before; None where nothing that it is made from changed.
        changed: whether its file is new.
    """

    head: PlanHead
    changes: Changes | None
    changed: bool


def update_plan(
    manifest: Path,
    plan: Path,
    settings: PlanSettings,
    *,
    allow_delete: bool = False,
    reshuffle: bool = False,
    dry: bool = False,
) -> Planned:
    """Make the next plan from a manifest and the plan before, and write it.

    Args:
        manifest: what scan left.
        plan: file of the plan before, if there is one, and of the next one.
        settings: how to plan.
        allow_delete: plan even though many files have vanished.
        reshuffle: deal all files anew.
        dry: write nothing.

    Raises:
        BuildError: many files have vanished, two have the same key, or the sample photos would take the place
            of a dataset of something else.
        StoreError: manifest, plan or dataset cannot be read, or the plan cannot be written.
    """
    forgotten = read_forgotten(settings.dataset)
    inputs = fingerprint(manifest, settings, forgotten)
    index = _last_index(settings.dataset)
    is_current = _is_current(plan, index)
    if not reshuffle and is_current and read_origin(plan).inputs == inputs:
        return Planned(read_plan_head(plan), None, changed=False)
    roots, files = read_manifest(manifest)
    before = read_history(plan if is_current else None, index, settings)
    warn_of_other_source(before.head if before else None, roots, settings.dataset)
    after = make_plan(roots, files, settings, before, forgotten=forgotten, reshuffle=reshuffle)
    changes = compare(before, after, files)
    if not allow_delete and settings.missing == "drop":
        require_few_vanished(changes, describe_roots(roots))
    if settings.missing == "keep":
        _say_moved(changes.moved)
    _say_mixing(after)
    changed = not dry and write_plan(plan, after, Origin(inputs, index.version if index else ""))
    return Planned(after.head, changes if before else None, changed=changed)


def _say_moved(number: int) -> None:
    if number:
        what = f"{count(number, 'photo')} moved or renamed: the samples under the old names stay too"
        logger.warning("plan: %s ('missing' is 'keep'): `ingest forget` removes what must go", what)


def _say_mixing(plan: Plan) -> None:
    """Say how well the classes of each split are mixed, and what helps where they are not."""
    places = plan.places()
    classes = plan.rows["class_id"].fill_null(-1).to_numpy()
    for split in sorted({shard.split for shard in plan.head.shards}) if plan.head.classes else []:
        mine = pa.compute.equal(places.splits, split).to_numpy(zero_copy_only=False)
        value = mixing(places.numbers[mine], classes[mine])
        remedy = "" if value < WELL_MIXED else ": `ingest plan --reshuffle` deals all files anew, by copying"
        logger.info(
            "plan: %s: classes lie over shards %.2f times as unevenly as by lot%s", split, value, remedy
        )


def fingerprint(manifest: Path, settings: PlanSettings, forgotten: frozenset[str]) -> str:
    """Return a hash of all that a plan is made from, but for the plan before.

    Raises:
        StoreError: there is no manifest.
    """
    try:
        with manifest.open("rb") as file:
            listed = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"{manifest}: no manifest that can be read ({error}): run `ingest scan`") from error
    values = {**dataclasses.asdict(settings), "recipe": settings.recipe.to_dict()}
    text = json.dumps([listed, values, sorted(forgotten)], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _last_index(dataset: str) -> Index | None:
    """Return the index of a dataset, or where that is lost or broken the last that was kept of it.

    Raises:
        StoreError: the dataset cannot be read at the moment.
    """
    try:
        return read_index(dataset)
    except (NotSealedError, CorruptShardError) as error:
        index = last_kept_index(dataset)
        if index is not None:
            logger.warning(
                "plan: %s; its history is that of index %s, the last one kept", error, index.version
            )
        elif isinstance(error, CorruptShardError):
            logger.warning("plan: all files are dealt anew unless there is a plan: %s", error)
        return index


def _is_current(plan: Path, index: Index | None) -> bool:
    """Return whether the dataset is as the build of `plan` left it, or found it.

    It is not once somebody has built it from elsewhere: with another work folder, on another machine. What
    was published counts then, or class ids would move and samples vanish that were added there.
    """
    if not plan.exists():
        return False
    if index is None or read_origin(plan).base == index.version:
        return True
    try:
        head = read_plan_head(plan)
    except StoreError:
        return False
    sealed = {shard.name for shards in index.splits.values() for shard in shards}
    if head.classes == index.classes and sealed <= {shard.name for shard in head.shards}:
        return True
    logger.warning("plan: %s was built from elsewhere since: its own history counts", head.dataset)
    return False


def read_history(plan: Path | None, index: Index | None, settings: PlanSettings) -> Plan | None:
    """Return the plan before.

    Args:
        plan: its file; None where there is none that counts.
        index: of the dataset, whose receipts are read where there is no plan; None: it has none.
        settings: how to plan.

    Raises:
        BuildError: a receipt is broken whose samples cannot be made anew.
        StoreError: the dataset cannot be read at the moment.
    """
    if plan is not None:
        try:
            return read_plan(plan)
        except StoreError as error:
            logger.warning("plan: the dataset is asked for its history instead: %s", error)
    return None if index is None else _from_receipts(index, settings)


def _from_receipts(index: Index, settings: PlanSettings) -> Plan:
    names = [(split, shard.name) for split, shards in sorted(index.splits.items()) for shard in shards]
    logger.info("plan: reading the history of %s from %s", settings.dataset, count(len(names), "receipt"))
    read = {name: receipt for name in names if (receipt := _read_receipt(name[1], settings)) is not None}
    roots = sorted({root or "" for receipt in read.values() for root in receipt["root"].unique().to_pylist()})
    tables = [_planned_rows(receipt, roots) for receipt in read.values()]
    head = PlanHead(
        roots=tuple(roots),
        dataset=settings.dataset,
        recipe=index.recipe,
        classes=index.classes,
        shards=tuple(_heads(read, tables)),
        dealing=tuple(settings.dealing),
    )
    return Plan(head, pa.concat_tables([PLAN_SCHEMA.empty_table(), *tables]))


def _read_receipt(name: str, settings: PlanSettings) -> pa.Table | None:
    """Return what a receipt says of its files; None for a broken one, whose files count as new."""
    try:
        return read_receipt(settings.dataset, name)[1].select(_RECEIPT_COLUMNS)
    except CorruptShardError as error:
        if settings.missing == "keep":
            remedy = "bring it back from a copy, or set 'missing' to 'drop' if no raw photo is archived"
            raise BuildError(f"{error}; samples of archived photos would be lost: {remedy}") from error
        logger.warning("plan: the files of this shard count as new: %s", error)
        return None


_RENAMED = {"size": "source_bytes", "version": "source_version"}
_RECEIPT_COLUMNS = [_RENAMED.get(name, name) for name in PLAN_SCHEMA.names]


def _planned_rows(receipt: pa.Table, roots: Sequence[str]) -> pa.Table:
    """Return the rows of a receipt, which has the URL of each root, as those of a plan."""
    places = pa.compute.index_in(receipt["root"].fill_null(""), value_set=pa.array(roots, pa.string()))
    receipt = receipt.set_column(receipt.schema.get_field_index("root"), "root", places)
    return receipt.rename_columns(PLAN_SCHEMA.names).cast(PLAN_SCHEMA)


def _heads(names: Iterable[tuple[str, str]], tables: Iterable[pa.Table]) -> Iterable[ShardHead]:
    for (split, name), table in zip(names, tables, strict=True):
        yield ShardHead(name, split, len(table), pa.compute.sum(table["size"]).as_py() or 0)
