"""Which split each file is in, and which of several equal files stay. Pure: manifest, settings, plan before.

A share of the files is a share of the values of a hash of their keys, so a file stays in its split however
many others come. What must share a split, a group or files of equal content, is dealt as one.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest.build.deal import rank
from ingest.shard import make_keys
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ingest.build.deal import Places

DEFAULT_SPLIT = "train"
"""Split of a file of which nothing is said, where there are no shares."""

_SALT = 7_245_691_018_432_175_113  # any: the order in shards must tell nothing of the split
_PRECEDENCE = ("test", "val")
"""Splits in which the one copy is kept, first of all: a sample that is tested on must not be trained on."""

_EXAMPLES = 3

Shares = tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Files with their splits.

    Attributes:
        files: rows of a manifest, none without a split; with ``duplicates: drop`` each content once.
        dropped: how many files of a content that another has were left out.
        crossing: contents that were in more than one split, as stated: a path of each in each split.
        torn: contents that have more than one label: likewise, in each label.
        straddling: groups that are in more than one split, as stated.
    """

    files: pa.Table
    dropped: int = 0
    crossing: tuple[tuple[str, ...], ...] = ()
    torn: tuple[tuple[str, ...], ...] = ()
    straddling: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return what a person must see, a line each."""
        told = []
        if self.crossing:
            what = f"{count(len(self.crossing), 'content')} in several splits"
            told.append(f"{what}, first {_examples(self.crossing)}: see 'duplicates' in docs/inputs.md")
        if self.torn:
            what = f"{count(len(self.torn), 'content')} under several labels"
            told.append(f"{what}, first {_examples(self.torn)}: correct the labels, or take the files away")
        if self.straddling:
            what = f"{count(len(self.straddling), 'group')} of 'split_by' in several splits, as stated"
            told.append(f"{what}, first {', '.join(self.straddling[:_EXAMPLES])}: correct the stated splits")
        return told


def _examples(found: Sequence[tuple[str, ...]]) -> str:
    return "; ".join(" = ".join(paths) for paths in found[:_EXAMPLES])


def settle(
    manifest: pa.Table, shares: Shares = (), *, drop: bool = False, before: Places | None = None
) -> Settled:
    """Decide the split of each file, and which copies of equal files stay.

    Args:
        manifest: rows of `ingest.build.manifest.MANIFEST_SCHEMA`.
        shares: splits of the files of which none is stated, and what part of them each gets; empty: they are
            all in `DEFAULT_SPLIT`.
        drop: keep one file of each content.
        before: where files stood in the plan before: what shares a split by its content stays in that.
    """
    stated = manifest["split"].combine_chunks()
    twins = _twins(manifest)
    splits = _deal(manifest, stated, shares, twins, before) if shares else pc.fill_null(stated, DEFAULT_SPLIT)
    files = manifest.set_column(manifest.schema.get_field_index("split"), "split", splits)
    kept = _keep_once(files, twins, before) if drop and twins else None
    return Settled(
        files=files if kept is None else files.filter(pa.array(kept)),
        dropped=0 if kept is None else int((~kept).sum()),
        crossing=_differing(files, twins, "split"),
        torn=_differing(files, twins, "label"),
        straddling=_straddling(files),
    )


def _straddling(files: pa.Table) -> tuple[str, ...]:
    """Return the groups whose files are in several splits."""
    grouped = files.select(["group", "split"]).filter(pc.is_valid(files["group"]))
    counted = grouped.group_by("group").aggregate([("split", "count_distinct")])
    return tuple(sorted(counted.filter(pc.greater(counted["split_count_distinct"], 1))["group"].to_pylist()))


def _twins(manifest: pa.Table) -> list[list[int]]:
    """Return the rows of each content that several files have, in the order of their keys."""
    contents = manifest["content"].combine_chunks()
    rows = np.flatnonzero(pc.is_valid(contents).to_numpy(zero_copy_only=False))
    if not len(rows):
        return []
    keys = manifest["key"].take(pa.array(rows)).to_pylist()
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for _, row, content in sorted(
        zip(keys, rows.tolist(), contents.take(pa.array(rows)).to_pylist(), strict=True)
    ):
        found[content].append(row)
    return [rows for rows in found.values() if len(rows) > 1]


def _differing(files: pa.Table, twins: list[list[int]], column: str) -> tuple[tuple[str, ...], ...]:
    """Return, of each content whose files differ in a column, a path for each value."""
    flat = [row for rows in twins for row in rows]
    if not flat:
        return ()
    chosen = files.select(["path", column]).take(pa.array(flat)).to_pydict()
    pairs = iter(zip(chosen["path"], chosen[column], strict=True))
    found = []
    for rows in twins:
        firsts: dict[Any, bytes] = {}
        for _ in rows:
            path, value = next(pairs)
            firsts.setdefault(value, path)
        if len(firsts) > 1:
            found.append(tuple(path.decode(errors="backslashreplace") for path in firsts.values()))
    return tuple(sorted(found))


# ---- shares


def _deal(
    manifest: pa.Table, stated: pa.Array, shares: Shares, twins: list[list[int]], before: Places | None
) -> pa.Array:
    """Return the split of each file: as stated, or by the hash of its group or key."""
    names = sorted(name for name, share in shares if share > 0)
    dealt = _by_hash(_units(manifest), names, dict(shares))
    is_stated = pc.is_valid(stated).to_numpy(zero_copy_only=False)
    names = [*names, *sorted(set(pc.unique(stated).to_pylist()) - {None, *names})]
    codes = pc.index_in(stated, value_set=pa.array(names, pa.string()))
    codes = np.where(is_stated, pc.fill_null(codes, 0).to_numpy(zero_copy_only=False), dealt)
    _join_twins(codes, is_stated, _joined(manifest, twins), _codes_before(manifest, names, before))
    return pa.array(names, pa.string()).take(pa.array(codes))


def _units(manifest: pa.Table) -> pa.Array:
    """Return the text by whose hash each file is dealt: a key, of its group where it has one."""
    groups = manifest["group"].combine_chunks()
    if groups.null_count == len(groups):
        return manifest["key"].combine_chunks()
    keys = make_keys(pa.chunked_array([pc.fill_null(groups, "").cast(pa.binary())]))
    return pc.if_else(pc.is_valid(groups), keys, manifest["key"].combine_chunks())


def _by_hash(units: pa.Array, names: Sequence[str], shares: Mapping[str, float]) -> NDArray[np.int64]:
    """Return for each unit the number of its split; names in their order share the values of the hash."""
    weights = np.array([shares[name] for name in names], float)
    edges = np.cumsum(weights)[:-1] / weights.sum()
    positions = rank(units, _SALT) / 2.0**64
    return np.searchsorted(edges, positions, side="right").astype(np.int64)


def _joined(manifest: pa.Table, twins: list[list[int]]) -> list[list[int]]:
    """Return the rows that must share a split because some of them are equal, with their whole groups."""
    groups = manifest["group"].combine_chunks()
    if groups.null_count == len(groups):
        return twins
    flat = sorted({row for rows in twins for row in rows})
    group_of = dict(zip(flat, groups.take(pa.array(flat, pa.int64())).to_pylist(), strict=True))
    members = _rows_of_groups(groups, {group for group in group_of.values() if group is not None})
    parts = _Parts()
    for rows in twins:
        parts.join([row for twin in rows for row in (twin, *members.get(group_of[twin], ()))])
    return parts.sets()


def _rows_of_groups(groups: pa.Array, wanted: set[str]) -> dict[str | None, list[int]]:
    rows = np.flatnonzero(
        pc.is_in(groups, value_set=pa.array(sorted(wanted), pa.string())).to_numpy(zero_copy_only=False)
    )
    members: defaultdict[str | None, list[int]] = defaultdict(list)
    for row, group in zip(rows.tolist(), groups.take(pa.array(rows)).to_pylist(), strict=True):
        members[group].append(row)
    return members


class _Parts:
    """Disjoint sets of rows that grow together."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def _top(self, row: int) -> int:
        above = self._above.setdefault(row, row)
        while above != self._above[above]:
            above = self._above[above] = self._above[self._above[above]]
        self._above[row] = above
        return above

    def join(self, rows: Iterable[int]) -> None:
        """Make one set of the sets that rows are in."""
        first, *others = rows
        for row in others:
            self._above[self._top(row)] = self._top(first)

    def sets(self) -> list[list[int]]:
        """Return the sets, each in the order of rows."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for row in sorted(self._above):
            found[self._top(row)].append(row)
        return list(found.values())


def _codes_before(manifest: pa.Table, names: Sequence[str], before: Places | None) -> NDArray[np.int64]:
    """Return the number of the split that each file was in, -1 for a new one."""
    if before is None:
        return np.full(len(manifest), -1, np.int64)
    found = pc.index_in(manifest["key"].combine_chunks(), value_set=before.keys)
    codes = pc.index_in(before.splits.take(found), value_set=pa.array(names, pa.string()))
    return np.asarray(pc.fill_null(codes, -1).to_numpy(zero_copy_only=False), np.int64)


def _join_twins(
    codes: NDArray[np.int64],
    is_stated: NDArray[np.bool_],
    joined: list[list[int]],
    past: NDArray[np.int64],
) -> None:
    """Give the files of each set one split, in place, but for those of which it is stated.

    It is one that is stated for any of them; else that which they were in, if the hash of any says so too;
    else that of the first.
    """
    for rows in joined:
        own = [int(codes[row]) for row in rows if is_stated[row]]
        dealt = [int(codes[row]) for row in rows]
        known = [int(past[row]) for row in rows if past[row] in dealt]
        for row in rows:
            if not is_stated[row]:
                codes[row] = (own or known or dealt)[0]


# ---- copies


def _keep_once(files: pa.Table, twins: list[list[int]], before: Places | None) -> NDArray[np.bool_]:
    """Return which files stay: of each content that of the split that counts most, or that was there."""
    kept = np.ones(len(files), bool)
    flat = [row for rows in twins for row in rows]
    chosen = files.select(["key", "split"]).take(pa.array(flat))
    known: set[str] = set()
    if before is not None:
        is_known = pc.is_in(chosen["key"], value_set=before.keys)
        known = set(chosen["key"].filter(is_known).to_pylist())
    columns = chosen.to_pydict()
    traits = dict(zip(flat, zip(columns["key"], columns["split"], strict=True), strict=True))
    for rows in twins:
        best = min(rows, key=lambda row: _standing(traits[row], known))
        kept[[row for row in rows if row != best]] = False
    return kept


def _standing(traits: tuple[str, str], known: set[str]) -> tuple[int, bool, str]:
    key, split = traits
    place = _PRECEDENCE.index(split) if split in _PRECEDENCE else len(_PRECEDENCE)
    return place, key not in known, key
