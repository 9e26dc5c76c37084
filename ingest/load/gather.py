"""From receipts to bytes: where each sample of a split lies, and views of it without a copy."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import mmap
import resource
import sys
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingest import shard as shard_format
from ingest.errors import CorruptShardError, DeviceError
from ingest.load.fetch import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.index import ShardEntry

_CONNECTIONS = 16
_COLUMNS = ("key", "class_id", "width", "height", "image_offset", "image_bytes")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """The N samples of a split, in the order of its shards; a sample's number is its position here.

    Attributes:
        shards: the shards that hold at least one sample.
        shard: int32 (N,), index into `shards`.
        offset: int64 (N,), first byte of the picture in its shard.
        size: int64 (N,), bytes of the picture.
        width: int32 (N,), pixels.
        height: int32 (N,), pixels.
        labels: int64 (N,), class id; None for a dataset without labels.
        keys: string (N,).
    """

    shards: tuple[ShardEntry, ...]
    shard: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    width: npt.NDArray[np.int32]
    height: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int64] | None
    keys: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.shard)


def read_samples(dataset: str, shards: Sequence[ShardEntry], *, labelled: bool) -> Samples:
    """Read the receipts of `shards`.

    Raises:
        CorruptShardError: a receipt is missing, cannot be read, or does not agree with the index.
        StoreError: a receipt cannot be read at the moment.
    """
    shards = tuple(shard for shard in shards if shard.samples)
    with futures.ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="ingest-receipts") as pool:
        tables = list(pool.map(lambda shard: _read_rows(dataset, shard, labelled=labelled), shards))
    rows = pa.concat_tables(tables) if tables else shard_format.RECEIPT_SCHEMA.empty_table()
    return Samples(
        shards=shards,
        shard=np.repeat(np.arange(len(shards), dtype=np.int32), [shard.samples for shard in shards]),
        offset=_array(rows, "image_offset", np.int64),
        size=_array(rows, "image_bytes", np.int64),
        width=_array(rows, "width", np.int32),
        height=_array(rows, "height", np.int32),
        labels=_array(rows, "class_id", np.int64) if labelled else None,
        keys=rows["key"],
    )


def _read_rows(dataset: str, entry: ShardEntry, *, labelled: bool) -> pa.Table:
    _, receipt = shard_format.read_receipt(dataset, entry.name)
    rows = shard_format.samples_of(receipt).select(_COLUMNS)
    fault = _fault_of(rows, entry, labelled=labelled)
    if fault:
        raise CorruptShardError(f"{dataset}/{entry.name}.parquet: {fault}: {remedy(entry)}")
    return rows


def _fault_of(rows: pa.Table, entry: ShardEntry, *, labelled: bool) -> str | None:
    if len(rows) != entry.samples:
        return f"{len(rows)} samples found, {entry.samples} expected by the index"
    needed = [name for name in _COLUMNS if labelled or name != "class_id"]
    empty = [name for name in needed if rows[name].null_count]
    if empty:
        return f"samples without {empty[0]}"
    end = pc.max(pc.add(rows["image_offset"], rows["image_bytes"])).as_py()
    return f"a sample ends at byte {end} of a shard of {entry.bytes}" if end > entry.bytes else None


def _array(rows: pa.Table, name: str, dtype: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    return rows[name].to_numpy().astype(dtype, copy=False)  # type: ignore[no-any-return]


def map_shards(paths: Sequence[Path]) -> list[npt.NDArray[np.uint8]]:
    """Return the bytes of each file as a read-only view of the page cache; nothing is read yet.

    Raises:
        DeviceError: this process may not open so many files.
    """
    if not _MAPS_WITHOUT_FILES:
        _allow_more_files(len(paths))
    maps: list[npt.NDArray[np.uint8]] = []
    try:
        maps += map(_map_shard, paths)
    except OSError as error:
        maps.clear()
        if error.errno != errno.EMFILE:
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        message = f"{len(paths)} shards need as many open files, the limit is {soft} (at most {hard})"
        raise DeviceError(f"{message}: raise it with `ulimit -n {len(paths) + _SPARE_FILES}`") from error
    return maps


_MAPS_WITHOUT_FILES = sys.version_info >= (3, 13)
"""Older versions of Python keep one file descriptor open for each map."""

_SPARE_FILES = 512
"""Room for what else the process will open: libraries, devices, sockets."""


def _allow_more_files(number: int) -> None:
    """Raise this process' own limit of open files for `number` more, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number + _SPARE_FILES + sum(1 for _ in Path("/dev/fd").iterdir())
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit below the one it names
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _map_shard(path: Path) -> npt.NDArray[np.uint8]:
    with path.open("rb") as file:
        if sys.version_info >= (3, 13):
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False)
        else:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, np.uint8)


def cut(
    samples: Samples, maps: Sequence[npt.NDArray[np.uint8]], positions: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.uint8]]:
    """Return the encoded picture of each of `positions` as a view of its shard."""
    shard, offset = samples.shard[positions].tolist(), samples.offset[positions].tolist()
    size = samples.size[positions].tolist()
    return [maps[s][begin : begin + n] for s, begin, n in zip(shard, offset, size, strict=True)]
