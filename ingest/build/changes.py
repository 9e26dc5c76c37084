"""What sets a plan apart from the one before: for a person who asks, and against a mishap."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest.build.planned import Plan, one_array
from ingest.errors import BuildError
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MAX_VANISHED = 0.01
"""Share of the files that may vanish from one scan to the next: an unmounted disk or a short listing takes
more, and the samples of a deleted photo are gone for good once old shards are cleared."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How a plan differs from the one before.

    Attributes:
        files_before: files of the plan before.
        added: files that are new, `moved` ones among them.
        edited: files with another size or version.
        vanished: files that are not in the listing any more, `moved` ones left out.
        moved: files that are new where one of the same name and size has vanished elsewhere.
        left_out: files that are in the listing and not in the plan: forgotten, or beyond a preview.
        shards_kept: shards that stay as they are.
        shards_built: shards that have to be built, new ones and those with a change.
        copied: samples of those that are copied from the shards that they are in.
        decoded: files of those that are read, and decoded unless their content is known.
    """

    files_before: int
    added: int
    edited: int
    vanished: int
    moved: int
    left_out: int
    shards_kept: int
    shards_built: int
    copied: int
    decoded: int

    def sentences(self) -> list[str]:
        """Return what changed and what it costs, a line each."""
        moved = f" ({self.moved:,} of them moved)" if self.moved else ""
        left_out = f", {self.left_out:,} left out" if self.left_out else ""
        files = f"{self.files_before:,} before, {self.added:,} new{moved}, {self.edited:,} changed"
        cost = f"{count(self.copied, 'sample')} copied, {count(self.decoded, 'file')} read"
        return [
            f"files: {files}, {self.vanished:,} vanished{left_out}",
            f"shards: {self.shards_kept:,} stay, {self.shards_built:,} to build: {cost}",
        ]


def compare(before: Plan | None, after: Plan, manifest: pa.Table) -> Changes:
    """Return how plan `after`, made from `manifest`, differs from plan `before`; None: there was none."""
    old = before or Plan(dataclasses.replace(after.head, shards=()), after.rows.slice(0, 0))
    new_keys, old_keys = one_array(after.rows["key"]), one_array(old.rows["key"])
    found = pc.fill_null(pc.index_in(new_keys, value_set=old_keys), -1).to_numpy(zero_copy_only=False)
    same = _is_same(old.rows, after.rows, found)
    absent = pc.invert(pc.is_in(old_keys, value_set=one_array(manifest["key"])))
    gone = old.rows.filter(absent)
    moved = _count_moved(gone, after.rows.filter(pa.array(found < 0)))
    built = _is_built(old, after)
    is_known = same & (old.head.recipe == after.head.recipe)
    names = {shard.name for shard in old.head.shards}
    kept = sum(shard.name in names for shard in after.head.shards)
    return Changes(
        files_before=len(old.rows),
        added=int((found < 0).sum()),
        edited=int(((found >= 0) & ~same).sum()),
        vanished=len(gone) - moved,
        moved=moved,
        left_out=len(manifest) - _count_in(new_keys, manifest["key"]),
        shards_kept=kept,
        shards_built=len(after.head.shards) - kept,
        copied=int((built & is_known).sum()),
        decoded=int((built & ~is_known).sum()),
    )


def _count_in(keys: pa.Array, others: pa.ChunkedArray) -> int:
    number: int = pc.sum(pc.is_in(keys, value_set=one_array(others))).as_py() or 0
    return number


def _is_same(old: pa.Table, new: pa.Table, found: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each new file whether it was there before with the same size and version."""
    kept = np.flatnonzero(found >= 0)
    traits = ["size", "version"]
    before = old.select(traits).take(pa.array(found[kept]))
    after = new.select(traits).take(pa.array(kept))
    equal = pc.and_(pc.equal(before["size"], after["size"]), pc.equal(before["version"], after["version"]))
    same = np.zeros(len(found), bool)
    same[kept] = equal.to_numpy()
    return same


def _is_built(old: Plan, after: Plan) -> NDArray[np.bool_]:
    """Return for each file of plan `after` whether its shard has to be built."""
    names = {shard.name for shard in old.head.shards}
    flags = np.array([shard.name not in names for shard in after.head.shards], bool)
    return np.repeat(flags, [shard.files for shard in after.head.shards])


def _count_moved(gone: pa.Table, new: pa.Table) -> int:
    """Return how many files that are new have a namesake of the same size that is gone, one for one."""
    if not len(gone) or not len(new):
        return 0
    before, numbers_before = np.unique(np.fromiter(_traits(gone), np.int64), return_counts=True)
    after, numbers_after = np.unique(np.fromiter(_traits(new), np.int64), return_counts=True)
    _, first, second = np.intersect1d(before, after, assume_unique=True, return_indices=True)
    return int(np.minimum(numbers_before[first], numbers_after[second]).sum())


def _traits(files: pa.Table) -> Iterator[int]:
    for batch in files.select(["path", "size"]).to_batches(max_chunksize=50_000):
        for path, size in zip(batch["path"].to_pylist(), batch["size"].to_pylist(), strict=True):
            yield hash((path.rpartition(b"/")[2], size))


def require_few_vanished(changes: Changes, raw: str) -> None:
    """Refuse a plan that would drop many files.

    Raises:
        BuildError: more than `MAX_VANISHED` of the files have vanished.
    """
    if changes.vanished > MAX_VANISHED * changes.files_before:
        raise BuildError(
            f"{raw}: {changes.vanished:,} of {count(changes.files_before, 'file')} have vanished, more than "
            f"{MAX_VANISHED:.0%}: is a disk not mounted, or a listing short? If they were deleted on "
            "purpose, set the config key 'allow_delete' (`--config allow_delete=true`); "
            "if they were moved to an archive and their samples are to stay, set 'missing: keep'"
        )
