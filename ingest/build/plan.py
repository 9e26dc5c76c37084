"""plan: which sample goes to which shard. Pure: manifest, settings and the plan before decide it alone.

A shard's name carries a hash of its sample list and of the recipe, so a shard that need not change keeps its
name, and one that must change gets a new one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest import store
from ingest.build.artifact import DEMO_FOLDER
from ingest.build.deal import choose_shard_size, deal, extend_classes, in_order, rank
from ingest.build.planned import EXTRAS, PLAN_SCHEMA, Plan, PlanHead, ShardHead, describe_roots, one_array
from ingest.build.splits import Shares, settle
from ingest.errors import BuildError
from ingest.index import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ingest.recipe import Recipe

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What a plan depends on beside the manifest; meanings as in `ingest.build.config.Settings`."""

    dataset: str
    recipe: Recipe
    samples_per_shard: int | Literal["auto"] = "auto"
    seed: int = 0
    limit: int | None = None
    missing: Literal["drop", "keep"] = "drop"
    split: Shares = ()
    duplicates: Literal["drop", "keep"] = "keep"
    splits: tuple[str, ...] | None = None

    @property
    def dealing(self) -> list[Any]:
        """What decides the order: where that changed, all files are dealt anew."""
        return [self.samples_per_shard, self.seed]


def make_plan(
    roots: Sequence[str],
    manifest: pa.Table,
    settings: PlanSettings,
    before: Plan | None = None,
    *,
    forgotten: frozenset[str] = frozenset(),
    reshuffle: bool = False,
) -> Plan:
    """Deal the files of a manifest to shards.

    New files are dealt in the order of a hash of seed and key: mixed over all of them, whatever the order of
    the listing, so that files sorted by class do not make shards of one class.

    Args:
        roots: folders of the raw files, in the order that the manifest numbers them in.
        manifest: columns of `ingest.build.manifest.MANIFEST_SCHEMA`.
        settings: how to plan.
        before: the plan before this one, whose places and class ids are kept.
        forgotten: keys of files that must not be in the dataset.
        reshuffle: deal all files anew; class ids are kept all the same.

    Raises:
        BuildError: two files have the same key.
    """
    classes = extend_classes(before.head.classes if before else (), manifest["label"].unique().to_pylist())
    known = before.places() if before else None
    settled = settle(manifest, settings.split, drop=settings.duplicates == "drop", before=known)
    for sentence in settled.sentences():
        logger.warning("plan: %s", sentence)
    files = _with_classes(settled.files, classes).select([*PLAN_SCHEMA.names, "split"])
    if before is not None and settings.missing == "keep":
        gone = _missing(before, files.schema, manifest["key"])
        roots, numbers = join_roots(roots, before.head.roots)
        files = pa.concat_tables([files, _with_roots(gone, numbers)])
    files = _without(_of_splits(files, settings.splits), forgotten)
    _require_distinct(files["key"])
    extras = tuple(field for field, name in EXTRAS.items() if files[name].null_count < len(files))
    files, ranks = _chosen(files, settings)
    kept = before if before and not reshuffle and before.head.dealing == tuple(settings.dealing) else None
    places = deal(
        one_array(files["key"]),
        one_array(files["split"]),
        ranks,
        shard_size=choose_shard_size(len(files), settings.samples_per_shard),
        before=known if kept else None,
    )
    order = in_order(places)
    rows = files.take(pa.array(order)).combine_chunks()
    salt = " ".join([settings.recipe.hash(), "labelled" if classes else "unlabelled", *extras])
    head = PlanHead(
        roots=tuple(roots),
        dataset=settings.dataset,
        recipe=settings.recipe,
        classes=classes,
        shards=tuple(_heads(rows, places.numbers[order], salt)),
        dealing=tuple(settings.dealing),
        extras=extras,
    )
    return Plan(head, rows.select(PLAN_SCHEMA.names).cast(PLAN_SCHEMA))


def _of_splits(files: pa.Table, splits: tuple[str, ...] | None) -> pa.Table:
    """Return the files of some splits; None: of all.

    Raises:
        BuildError: there are none.
    """
    if splits is None:
        return files
    chosen = files.filter(pc.is_in(files["split"], value_set=pa.array(splits, pa.string())))
    if len(files) and not len(chosen):
        found = ", ".join(sorted(pc.unique(files["split"]).to_pylist()))
        raise BuildError(
            f"splits {', '.join(splits)}: no file is of them, the splits are {found}: mend 'splits'"
        )
    return chosen


def _with_classes(manifest: pa.Table, classes: tuple[str, ...]) -> pa.Table:
    ids = pc.index_in(manifest["label"], value_set=pa.array(classes, pa.string()), skip_nulls=True)
    return manifest.append_column("class_id", ids)


def _missing(before: Plan, schema: pa.Schema, listed: pa.ChunkedArray) -> pa.Table:
    """Return the files of the plan before that are not listed any more, as if they were."""
    gone = before.rows.append_column("split", before.places().splits)
    absent = pc.invert(pc.is_in(gone["key"], value_set=one_array(listed)))
    return gone.filter(absent).select(schema.names).cast(schema)


def join_roots(roots: Sequence[str], before: Sequence[str]) -> tuple[Sequence[str], list[int]]:
    """Return all roots of two lists, those of the first in their places, and the places of the second's."""
    joined = list(dict.fromkeys([*roots, *before]))
    joined = [*roots, *(root for root in joined if root not in roots)]
    return joined, [joined.index(root) for root in before]


def _with_roots(files: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Number the roots of files anew."""
    found = pa.array(numbers, pa.int16()).take(files["root"])
    return files.set_column(files.schema.get_field_index("root"), files.schema.field("root"), found)


def _without(files: pa.Table, forgotten: frozenset[str]) -> pa.Table:
    if not forgotten:
        return files
    keys = pa.array(sorted(forgotten), pa.string())
    return files.filter(pc.invert(pc.is_in(files["key"], value_set=keys)))


def _require_distinct(keys: pa.ChunkedArray) -> None:
    if pc.count_distinct(keys).as_py() == len(keys):
        return
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
    raise BuildError(f"key {twice} stands for two files: rename one of them; this is a chance of 4e-7")


def _chosen(files: pa.Table, settings: PlanSettings) -> tuple[pa.Table, NDArray[np.uint64]]:
    """Return the files of the preview or all, and the rank of each."""
    ranks = rank(one_array(files["key"]), settings.seed)
    if settings.limit is None or settings.limit >= len(files):
        return files, ranks
    first = np.sort(np.argsort(ranks, kind="stable")[: settings.limit])
    return files.take(pa.array(first)), ranks[first]


def _heads(rows: pa.Table, numbers: NDArray[np.int64], salt: str) -> Iterator[ShardHead]:
    """Yield the head of each shard of rows that stand in order."""
    text, edges = _lines(rows)
    sizes = rows["size"].to_numpy()
    splits = rows["split"]
    for begin, end in _runs(splits, numbers):
        split = splits[begin].as_py()
        files = text[edges[begin] : edges[end]]
        name = f"{split}/{numbers[begin]:06d}-{_hash(files, salt)[:8]}"
        num_bytes = int(sizes[begin:end].clip(min=0).sum())
        yield ShardHead(name, split, end - begin, num_bytes, _hash(files, split)[:32])


def _runs(splits: pa.ChunkedArray, numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each shard."""
    if not len(numbers):
        return
    codes = pc.dictionary_encode(one_array(splits)).indices.to_numpy()
    steps = (np.diff(codes) != 0) | (np.diff(numbers) != 0)
    edges = [0, *(np.flatnonzero(steps) + 1).tolist(), len(numbers)]
    yield from itertools.pairwise(edges)


def _lines(rows: pa.Table) -> tuple[pa.Buffer, NDArray[np.int64]]:
    """Return what decides the bytes of a shard, file after file, and where each file begins."""
    columns = [
        one_array(rows[name]).cast(pa.large_string()) for name in ("key", "size", "version", "class_id")
    ]
    for name in EXTRAS.values():
        if rows[name].null_count < len(rows):  # with its length, so that no two rows read the same
            values = one_array(rows[name]).cast(pa.large_string())
            columns += [pc.binary_length(values).cast(pa.large_string()), values]
    space, newline = pa.scalar(" ", pa.large_string()), pa.scalar("\n", pa.large_string())
    lines = pc.binary_join_element_wise(
        *columns, newline, space, null_handling="replace", null_replacement="None"
    )
    _, offsets, data = lines.buffers()
    return data, np.frombuffer(offsets, np.int64)[lines.offset :]


def _hash(text: pa.Buffer, salt: str) -> str:
    """Return hex digits that change whenever the files of the shard change, or `salt`."""
    digest = hashlib.sha256(salt.encode())
    digest.update(text)
    return digest.hexdigest()


def warn_of_other_source(before: PlanHead | None, roots: Sequence[str], dataset: str) -> None:
    """Say so where a dataset was planned from another root before; refuse to put the sample in its place.

    Args:
        before: the plan before, if there was one.
        roots: folders of the raw files now.
        dataset: where the shards go.

    Raises:
        BuildError: the raw files are the sample made by code, and the dataset is of something else.
    """
    is_sample = tuple(roots) == (store.normalise(DEMO_FOLDER),)
    if before is None:
        is_default = dataset.startswith(f"{store.normalise(DEMO_FOLDER)}-")
        if is_sample and not is_default and store.exists(store.join(dataset, INDEX_NAME)):
            message = f"{dataset}: holds a dataset, and the config key 'raw' is empty"
            raise BuildError(f"{message}: set it, or choose another 'dataset' for the sample photos")
        return
    if set(before.roots) <= set(roots):
        return
    old, new = describe_roots(before.roots), describe_roots(roots)
    if is_sample:
        message = f"{before.dataset}: was built from {old}, and the config key 'raw' is empty now"
        raise BuildError(f"{message}: set it, or choose another 'dataset' for the sample photos")
    logger.warning("plan: %s was built from %s before, and is now from %s", before.dataset, old, new)
