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
    Plan,
    PlanHead,
    ShardHead,
    describe_roots,
    read_inputs,
    read_plan,
    read_plan_head,
    write_plan,
)
from ingest.errors import CorruptShardError, NotSealedError, StoreError
from ingest.forgotten import read_forgotten
from ingest.index import read_index
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
    if not reshuffle and read_inputs(plan) == inputs:
        return Planned(read_plan_head(plan), None, changed=False)
    roots, files = read_manifest(manifest)
    before = read_history(plan, settings)
    warn_of_other_source(before.head if before else None, roots, settings.dataset)
    after = make_plan(roots, files, settings, before, forgotten=forgotten, reshuffle=reshuffle)
    changes = compare(before, after, files)
    if not allow_delete and settings.missing == "drop":
        require_few_vanished(changes, describe_roots(roots))
    _say_mixing(after)
    changed = not dry and write_plan(plan, after, inputs)
    return Planned(after.head, changes if before else None, changed=changed)


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


def read_history(plan: Path, settings: PlanSettings) -> Plan | None:
    """Return the plan before: from its file or, where that is lost, from the receipts of the dataset.

    Raises:
        StoreError: the dataset cannot be read at the moment.
    """
    if plan.exists():
        try:
            return read_plan(plan)
        except StoreError as error:
            logger.warning("plan: the dataset is asked for its history instead: %s", error)
    try:
        index = read_index(settings.dataset)
        return _from_receipts(index, settings)
    except NotSealedError:
        return None
    except CorruptShardError as error:
        logger.warning("plan: all files are dealt anew: %s", error)
        return None


def _from_receipts(index: Index, settings: PlanSettings) -> Plan:
    names = [(split, shard.name) for split, shards in sorted(index.splits.items()) for shard in shards]
    logger.info("plan: reading the history of %s from %s", settings.dataset, count(len(names), "receipt"))
    receipts = [read_receipt(settings.dataset, name)[1].select(_RECEIPT_COLUMNS) for _, name in names]
    roots = sorted({root or "" for receipt in receipts for root in receipt["root"].unique().to_pylist()})
    tables = [_planned_rows(receipt, roots) for receipt in receipts]
    head = PlanHead(
        roots=tuple(roots),
        dataset=settings.dataset,
        recipe=index.recipe,
        classes=index.classes,
        shards=tuple(_heads(names, tables)),
        dealing=tuple(settings.dealing),
    )
    return Plan(head, pa.concat_tables([PLAN_SCHEMA.empty_table(), *tables]))


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
