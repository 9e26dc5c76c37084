"""The receipts of a dataset, read in part: which there are, a few columns, what one says of its shard."""

from __future__ import annotations

import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.errors import StoreError
from ingest.shard import ShardSummary, read_receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SHARD_FILE = re.compile(r"([^/]+/[0-9]{6,}-[0-9a-f]{8})\.(tar|idx|parquet|retry|damaged)")
_READERS = 16
_FOOTER_BYTES = 1 << 16


class Counts(NamedTuple):
    """Samples and rejects of one shard."""

    samples: int
    rejects: int


def shard_of(path: str) -> str | None:
    """Return the name of the shard that the file at `path` below a dataset is of; None for another file."""
    match = _SHARD_FILE.fullmatch(path)
    return match[1] if match else None


def receipt_names(files: Iterable[str]) -> list[str]:
    """Return the names of all shards that have a receipt, sorted; `files`: paths below the dataset."""
    receipts = (path for path in files if path.endswith(".parquet"))
    return sorted(name for name in map(shard_of, receipts) if name is not None)


def read_columns(dataset: str, name: str, columns: Sequence[str]) -> pa.Table:
    """Read a few columns of the receipt of shard `name`.

    Raises:
        CorruptShardError: the receipt is missing or cannot be read.
        StoreError: the read failed in a way that may pass.
    """
    try:
        file = pa.BufferReader(store.read_bytes(store.join(dataset, f"{name}.parquet")))
        return pq.read_table(file, columns=list(columns)).select(columns)
    except StoreError:
        raise
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return read_receipt(dataset, name)[1].select(columns)  # which says what is wrong with it


def read_part(dataset: str, name: str, columns: Sequence[str]) -> tuple[ShardSummary, pa.Table]:
    """Read what a receipt says of its shard, and a few of its columns: a fraction of the time of all.

    Raises:
        CorruptShardError: the receipt is missing or cannot be read.
        StoreError: the read failed in a way that may pass.
    """
    rows = read_columns(dataset, name, columns)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        values = json.loads(rows.schema.metadata[b"ingest.shard"])
        sums = {name: tuple(values[name]) for name in ("pixel_sum", "pixel_sum_squares")}
        return ShardSummary(**{**values, **sums}), rows
    return read_receipt(dataset, name)[0], rows


def read_all(dataset: str, names: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name of each shard with a few columns of its receipt; no more than a few are held at a time.

    Raises:
        CorruptShardError: a receipt is missing or cannot be read.
        StoreError: a read failed in a way that may pass.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        for begin in range(0, len(names), _READERS):
            part = names[begin : begin + _READERS]
            yield from zip(
                part, pool.map(lambda name: read_columns(dataset, name, columns), part), strict=True
            )


def read_counts(dataset: str, name: str, size: int) -> Counts:
    """Read how many samples and rejects a shard has; of a large receipt, only the end.

    Args:
        dataset: path or URL.
        name: of the shard.
        size: of its receipt in bytes.

    Raises:
        CorruptShardError: the receipt cannot be read.
        StoreError: the read failed in a way that may pass.
    """
    url = store.join(dataset, f"{name}.parquet")
    tail = min(size, _FOOTER_BYTES)
    with contextlib.suppress(OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        metadata = pq.read_schema(pa.BufferReader(store.read_range(url, size - tail, tail))).metadata
        values = json.loads(metadata[b"ingest.shard"])
        return Counts(values["samples"], values["rejects"])
    summary, _ = read_receipt(dataset, name)
    return Counts(summary.samples, summary.rejects)
