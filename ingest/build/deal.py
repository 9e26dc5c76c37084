"""deal: which file goes to which shard. Pure arithmetic on arrays, for a thousand files as for a billion.

A file that was dealt before keeps its place, so that a change to few files touches few shards: an edited or
deleted file touches the shard that it is in, and k new files fill up the last shard of their split and then
go to new ones, ceil(k / samples per shard) + 1 shards at most.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FULL_SHARD = 4096
"""Samples in a shard of a large dataset: about 70 MB of 224 px JPEGs, a good size for one sequential read."""

_KEY_CHARACTERS = 16  # of `ingest.shard.make_key`
_SMALLEST_SHARD = 16  # of fewer, what is done once a shard would be felt beside the decoding
_AIM_SHARDS = 256  # 8 tasks for each of 32 cores, so that the last ones do not leave cores idle


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where files stand: one entry a file in each array, in the order of the files.

    Attributes:
        keys: key of each file, strings.
        splits: split of each file, strings.
        numbers: number of its shard within the split, int64.
        rows: place within that shard, int64; they ascend, and need not be without gaps.
    """

    keys: pa.Array
    splits: pa.Array
    numbers: NDArray[np.int64]
    rows: NDArray[np.int64]


def choose_shard_size(num_files: int, configured: int | Literal["auto"]) -> int:
    """Return the samples of a shard: as configured, or so that a small dataset still makes many tasks."""
    if configured != "auto":
        return configured
    return min(FULL_SHARD, max(_SMALLEST_SHARD, -(-num_files // _AIM_SHARDS)))


def extend_classes(known: Sequence[str], labels: Sequence[str | None]) -> tuple[str, ...]:
    """Return the labels in the order of their class ids.

    Those that have an id keep it, whether any file has them still or not; new ones follow, sorted among
    themselves. The first table is therefore sorted, as that of torchvision's ImageFolder is.
    """
    new = {label for label in labels if label is not None} - set(known)
    return (*known, *sorted(new))


def rank(keys: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Return a number for each key by which files are mixed: 64 bits that depend on key and seed alone.

    The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014, with the constants of Vigna's splitmix64.c) over 8 characters of the key, which are random
    already, and the seed.
    """
    salt = int.from_bytes(hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        value = (_characters(keys, 0, 12) ^ np.uint64(salt)) + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _characters(keys: pa.Array, begin: int, end: int) -> NDArray[np.uint64]:
    """Return some of the 16 characters of each key, 12 at most, as a number: five bits a character."""
    text = keys.cast(pa.binary()).cast(pa.binary(_KEY_CHARACTERS))
    data = np.frombuffer(text.buffers()[1] or b"", np.uint8)[text.offset * _KEY_CHARACTERS :]
    value = np.zeros(len(keys), np.uint64)
    for place in range(begin, end):
        character = data[place::_KEY_CHARACTERS][: len(keys)]
        digit = np.where(character >= ord("a"), character - ord("a"), character - ord("2") + 26)
        value = (value << np.uint64(5)) | digit.astype(np.uint64)
    return value


def deal(
    keys: pa.Array,
    splits: pa.Array,
    ranks: NDArray[np.uint64],
    *,
    shard_size: int,
    before: Places | None,
) -> Places:
    """Give every file a shard of its split and a place in it.

    Args:
        keys: key of each file.
        splits: split of each file.
        ranks: the order in which files without a place are dealt; equals are ordered by key.
        shard_size: samples of a shard that is filled now; one that holds more already keeps them.
        before: where files stood; those that still are of the same split keep their places.
    """
    numbers, rows = _places_before(keys, splits, before)
    order = np.lexsort((_characters(keys, 12, 16), ranks))  # ranks are equal where the first 12 are
    for split in pc.unique(splits).to_pylist():
        mine = pc.equal(splits, split).to_numpy(zero_copy_only=False)
        last = _last_number(split, before)
        fresh = order[(mine & (numbers < 0))[order]]
        held = int(np.count_nonzero(mine & (numbers == last))) if last >= 0 else shard_size
        room = max(0, shard_size - held)
        index = np.arange(len(fresh))
        numbers[fresh] = np.where(index < room, last, last + 1 + (index - room) // shard_size)
        rows[fresh] = _BEHIND + index
    return Places(keys=keys, splits=splits, numbers=numbers, rows=rows)


_BEHIND = np.int64(2**40)  # more than the places of any shard: what is new stands behind what was there


def _places_before(
    keys: pa.Array, splits: pa.Array, before: Places | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    numbers = np.full(len(keys), -1, np.int64)
    rows = np.zeros(len(keys), np.int64)
    if before is None or not len(before.keys):
        return numbers, rows
    found = pc.fill_null(pc.index_in(keys, value_set=before.keys), -1).to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(found >= 0)
    same = pc.equal(splits.take(pa.array(kept)), before.splits.take(pa.array(found[kept])))
    kept = kept[same.to_numpy(zero_copy_only=False)]
    numbers[kept] = before.numbers[found[kept]]
    rows[kept] = before.rows[found[kept]]
    return numbers, rows


def _last_number(split: str, before: Places | None) -> int:
    if before is None:
        return -1
    numbers = before.numbers[pc.equal(before.splits, split).to_numpy(zero_copy_only=False)]
    return int(numbers.max(initial=-1))


def in_order(places: Places) -> NDArray[np.int64]:
    """Return the files in the order of the dataset: by split, shard and place."""
    names = sorted(pc.unique(places.splits).to_pylist())
    splits = pc.index_in(places.splits, value_set=pa.array(names, places.splits.type))
    return np.lexsort((places.rows, places.numbers, splits.to_numpy(zero_copy_only=False)))
