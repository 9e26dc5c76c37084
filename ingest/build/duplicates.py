"""Exact duplicates: samples whose raw files have the same bytes, found by the hashes in the receipts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest import store
from ingest.errors import CorruptShardError, StoreError
from ingest.index import read_index
from ingest.receipts import read_all
from ingest.shard import samples_of
from ingest.units import count, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

DUPLICATES_NAME = "duplicates.parquet"
"""Samples whose raw files have the bytes of another's, below the dataset's root; absent if there are none."""

DUPLICATES_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("split", pa.string(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
    ]
)
_COLUMNS = ("source", "key", "label", "split", "source_sha256")
_HEX_DIGITS = 64
_MARK_DIGITS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Duplicates:
    """How many samples have the bytes of another, in how many groups, and in how many of those they differ.

    Attributes:
        files: samples in all groups together.
        groups: sets of samples with the same bytes.
        labels: groups with more than one label.
        splits: groups that lie in more than one split.
    """

    files: int = 0
    groups: int = 0
    labels: int = 0
    splits: int = 0

    @property
    def conflicts(self) -> str:
        """Say in how many groups labels or splits differ; "" if in none."""
        found = [(self.labels, "under two labels"), (self.splits, "in two splits")]
        return ", ".join(f"{count(number, 'group')} {how}" for number, how in found if number)

    def sentence(self) -> str:
        """Return for example ``duplicates: 12 files in 5 groups, 1 group under two labels``."""
        if not self.files:
            return "no duplicates"
        total = f"duplicates: {count(self.files, 'file')} in {count(self.groups, 'group')}"
        return f"{total}, {self.conflicts}" if self.conflicts else total


def marks_of(receipt: pa.Table) -> NDArray[np.uint64]:
    """Return 64 bits of the content hash of each sample that has one, in order: 8 bytes a sample.

    Args:
        receipt: columns ``status`` and ``source_sha256``.
    """
    hashes = samples_of(receipt.select(["status", "source_sha256"]))["source_sha256"]
    return _marks(hashes.filter(_is_hash(hashes)))


def _is_hash(hashes: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(pc.binary_length(hashes), _HEX_DIGITS), False)  # noqa: FBT003  what is filled in


def _marks(hashes: pa.ChunkedArray) -> NDArray[np.uint64]:
    if not len(hashes):
        return np.empty(0, np.uint64)
    text = pc.utf8_slice_codeunits(hashes, 0, _MARK_DIGITS).combine_chunks()
    begin = text.offset * _MARK_DIGITS
    digits = np.frombuffer(text.buffers()[2], np.uint8)[begin : begin + len(text) * _MARK_DIGITS]
    halves = (digits & 15) + 9 * (digits >> 6)  # ASCII: a to f have bit 6 set, and begin at 1
    return (halves[0::2] << 4 | halves[1::2]).view(np.uint64)


def find_duplicates(dataset: str, marks: Mapping[str, NDArray[np.uint64]]) -> pa.Table:
    """Return all samples whose raw files have the same bytes as another's, sorted by hash and source.

    Only receipts with such samples are read.

    Args:
        dataset: path or URL.
        marks: `marks_of` the receipt of each shard, by its name.

    Raises:
        CorruptShardError: a receipt cannot be read.
        StoreError: a read failed in a way that may pass.
    """
    repeated = _repeated(np.concatenate([np.empty(0, np.uint64), *marks.values()]))
    names = [name for name, mine in marks.items() if _among(mine, repeated).any()]
    found = [DUPLICATES_SCHEMA.empty_table()]
    for _, receipt in read_all(dataset, names, ("status", *_COLUMNS)) if names else ():
        rows = samples_of(receipt).select(_COLUMNS)
        rows = rows.filter(_is_hash(rows["source_sha256"]))
        rows = rows.filter(pa.array(_among(_marks(rows["source_sha256"]), repeated)))
        found.append(rows.rename_columns(DUPLICATES_SCHEMA.names).cast(DUPLICATES_SCHEMA))
    order = [("sha256", "ascending"), ("source", "ascending"), ("key", "ascending")]
    return _only_repeated(pa.concat_tables(found)).sort_by(order).combine_chunks()


def _repeated(marks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    ordered = np.sort(marks)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _among(marks: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which marks are in a sorted array; `np.isin` would sort it again for each receipt."""
    if not len(ordered):
        return np.zeros(len(marks), np.bool_)
    places = np.searchsorted(ordered, marks)
    found: NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == marks
    return found


def _only_repeated(rows: pa.Table) -> pa.Table:
    """Leave out samples that share 64 bits of their hash with another, but not all of it."""
    counts = pc.value_counts(rows["sha256"])
    several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    return rows.filter(pc.is_in(rows["sha256"], value_set=several))


def count_duplicates(rows: pa.Table) -> Duplicates:
    """Return how many there are, and in how many groups labels or splits differ.

    Args:
        rows: `DUPLICATES_SCHEMA`.
    """
    groups = _groups(rows)
    return Duplicates(
        len(rows),
        len(groups),
        pc.sum(groups["labels_differ"]).as_py() or 0,
        pc.sum(groups["splits_differ"]).as_py() or 0,
    )


def _groups(rows: pa.Table) -> pa.Table:
    """Return a row for each hash: whether its samples differ in label, in split."""
    every = pc.CountOptions(mode="all")
    counted = [("label", "count_distinct", every), ("split", "count_distinct", every)]
    groups = rows.group_by("sha256").aggregate(counted)
    return pa.table(
        {
            "sha256": groups["sha256"],
            "labels_differ": pc.greater(groups["label_count_distinct"], 1),
            "splits_differ": pc.greater(groups["split_count_distinct"], 1),
        }
    )


def with_conflicts(rows: pa.Table) -> pa.Table:
    """Return the rows with whether labels and splits differ in each one's group; those that do come first."""
    joined = rows.join(_groups(rows), "sha256")
    order = [("labels_differ", "descending"), ("splits_differ", "descending")]
    return joined.sort_by([*order, ("sha256", "ascending"), ("source", "ascending"), ("key", "ascending")])


def write_duplicates(dataset: str, rows: pa.Table) -> None:
    """Write the list, if that changes it; remove it if there is nothing to list.

    Raises:
        StoreError: the dataset cannot be read or written.
    """
    url = store.join(dataset, DUPLICATES_NAME)
    if not len(rows):
        store.remove(url)
        return
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    if not (store.exists(url) and store.read_bytes(url) == data):
        store.write_bytes(url, data)


def read_duplicates(dataset: str) -> pa.Table:
    """Read the list; empty where there is none.

    Raises:
        CorruptShardError: it cannot be read.
        StoreError: the read failed in a way that may pass.
    """
    url = store.join(dataset, DUPLICATES_NAME)
    try:
        return pq.read_table(pa.BufferReader(store.read_bytes(url))).select(DUPLICATES_SCHEMA.names)
    except StoreError:
        raise
    except FileNotFoundError:
        return DUPLICATES_SCHEMA.empty_table()
    except PermissionError as error:
        raise StoreError(f"{url}: may not be read: permission denied") from error
    except (OSError, pa.ArrowException, KeyError) as error:
        raise CorruptShardError(f"{url}: cannot be read ({error}): run snakemake again") from error


def list_duplicates(dataset: str) -> Iterator[str]:
    """Yield how many samples have the bytes of another, then a line each, group by group, conflicts first.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the list cannot be read.
    """
    read_index(dataset)
    rows = read_duplicates(dataset)
    yield f"{dataset}: {count_duplicates(rows).sentence()}"
    group = ""
    for batch in with_conflicts(rows).to_batches():
        for row in batch.to_pylist():
            if row["sha256"] != group:
                group = row["sha256"]
                yield from ("", f"sha256 {group[:16]}{_conflict(row)}")
            label = "" if row["label"] is None else f"  {plain(row['label'])}"
            yield f"  {row['key']}  {row['split']}{label}  {plain(row['source'])}"


def _conflict(row: dict[str, Any]) -> str:
    kinds = [kind for kind in ("labels", "splits") if row[f"{kind}_differ"]]
    return f"  CONFLICT: {' and '.join(kinds)} differ" if kinds else ""
