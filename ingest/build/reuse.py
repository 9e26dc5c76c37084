"""Samples that are there already: copied from shards that the plan does not name any more, not decoded again.

A shard that must change gets a new name, and the old one stays until old files are cleared. Its receipt says
of each sample which file it came from: path, version and size, and the hash of the content. A planned file
that is the same by path, version and size is not even read; one of another path or version, moved or
uploaded again, is read, and not decoded where its content is known.

The driver gathers what is known in a file that it maps into memory, and gives each task the rows that it may
need: however much is known, neither side holds more of it than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import re
import tempfile
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest import store
from ingest.errors import CorruptShardError
from ingest.shard import RECEIPT_SCHEMA, read_receipt

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ingest.build.planned import PlanHead, PlannedFile

_RECEIPT = re.compile(r"[^/]+/[0-9]{6,}-[0-9a-f]{8}\.parquet")
_READERS = 16
_MOST_ALIKE = 8192
"""Known files of the sizes of a shard's new files that a worker is told of; a matter of speed alone."""

_PASSING = ["unreadable", "timed_out", "out_of_memory", "too_large", "crashed", "no_label"]
# Rejects that are not copied: what may have passed by now, and what does not depend on the file alone.

_KNOWN_SCHEMA = pa.schema([*RECEIPT_SCHEMA, pa.field("shard", pa.string()), pa.field("engines", pa.string())])
"""A row of a receipt, the shard that it is of, and the versions of the engines there as JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origins:
    """What is known of the files of one planned shard.

    Attributes:
        rows: rows of older receipts, `_KNOWN_SCHEMA`.
        same: for files, by their number in the shard, the row of the same path, version and size. Rows that
            are nobody's are of files of the same size as one of the others: perhaps their content.
    """

    rows: pa.Table
    same: Mapping[int, int]


class Pool:
    """What is known of all files: rows of receipts, found by path, version and size, or by size alone.

    Args:
        tables: `_KNOWN_SCHEMA`; may lie in a file that is mapped into memory.
    """

    def __init__(self, tables: Sequence[pa.RecordBatch]) -> None:
        self._tables = tables
        self._begins = np.cumsum([0, *(len(table) for table in tables)])
        marks = np.concatenate([np.empty(0, np.uint64), *map(_marks_of, tables)])
        sizes = np.concatenate([np.empty(0, np.int64), *(t["source_bytes"].to_numpy() for t in tables)])
        self._by_mark, self._by_size = np.argsort(marks, kind="stable"), np.argsort(sizes, kind="stable")
        self._marks, self._sizes = marks[self._by_mark], sizes[self._by_size]

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._marks)

    def origins(self, files: Sequence[PlannedFile]) -> Origins | None:
        """Return what is known of the files of a planned shard, None for nothing."""
        if not len(self):
            return None
        wanted = np.array([mark(file.key, file.path, file.version, file.size) for file in files], np.uint64)
        found = np.minimum(np.searchsorted(self._marks, wanted), len(self) - 1)
        hits = np.flatnonzero(self._marks[found] == wanted)
        others = {file.size for number, file in enumerate(files) if number not in set(hits.tolist())}
        alike = itertools.islice(self._of_sizes(sorted(others)), _MOST_ALIKE)
        rows = np.concatenate([self._by_mark[found[hits]], np.fromiter(alike, np.int64)])
        if not len(rows):
            return None
        return Origins(self._take(rows), {int(number): row for row, number in enumerate(hits)})

    def _of_sizes(self, sizes: Sequence[int]) -> Iterator[int]:
        for size in sizes:
            begin, end = np.searchsorted(self._sizes, [size, size + 1])
            yield from self._by_size[begin:end].tolist()

    def _take(self, rows: NDArray[np.int64]) -> pa.Table:
        """Return rows in the order asked for; from each table at once, for there may be thousands."""
        order = np.argsort(rows, kind="stable")
        numbers = np.searchsorted(self._begins, rows[order], side="right") - 1
        taken = [_KNOWN_SCHEMA.empty_table()]
        for number in np.unique(numbers):
            mine = rows[order][numbers == number] - self._begins[number]
            taken.append(pa.Table.from_batches([self._tables[number].take(pa.array(mine))]))
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_tables(taken).take(pa.array(back))


def mark(key: str, path: bytes, version: str, size: int) -> int:
    """Return 64 bits that tell one state of one file from others; whoever must be sure compares all."""
    text = b"%b\0%b\0%b\0%d" % (key.encode(), path, version.encode(errors="surrogateescape"), size)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _marks_of(table: pa.RecordBatch) -> NDArray[np.uint64]:
    columns = (table[name].to_pylist() for name in ("key", "path", "source_version", "source_bytes"))
    return np.array([mark(*values) for values in zip(*columns, strict=True)], np.uint64)


@contextlib.contextmanager
def gather(head: PlanHead, present: Mapping[str, int], folder: Path) -> Iterator[Pool]:
    """Give what is known from the receipts in a dataset that its plan does not name.

    Args:
        head: the plan; shards of another recipe have nothing to copy.
        present: size of every file below the dataset, by path.
        folder: where a large temporary file may lie.

    Raises:
        StoreError: a receipt cannot be read at the moment, or the folder cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=store.TEMPORARY_PREFIX, dir=folder) as temporary:
        file = Path(temporary) / "known.arrow"
        _write_known(head, _retired(head, present), present, file)
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_file(mapped) as reader:
            yield Pool([reader.get_batch(number) for number in range(reader.num_record_batches)])


def _retired(head: PlanHead, present: Mapping[str, int]) -> list[str]:
    planned = {shard.name for shard in head.shards}
    receipts = (path.removesuffix(".parquet") for path in present if _RECEIPT.fullmatch(path))
    return sorted(name for name in receipts if name not in planned and f"{name}.damaged" not in present)


def _write_known(head: PlanHead, names: Sequence[str], present: Mapping[str, int], file: Path) -> None:
    with (
        ThreadPoolExecutor(_READERS) as pool,
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, _KNOWN_SCHEMA) as writer,
    ):
        for begin in range(0, len(names), _READERS):  # no more in memory than these
            part = names[begin : begin + _READERS]
            for table in pool.map(lambda name: _known_rows(head, name, present), part):
                writer.write_table(table.combine_chunks())


def _known_rows(head: PlanHead, name: str, present: Mapping[str, int]) -> pa.Table:
    """Return the rows of a retired receipt; none where the shard is not whole, or of another recipe."""
    try:
        summary, table = read_receipt(head.dataset, name)
    except CorruptShardError:
        return _KNOWN_SCHEMA.empty_table()
    if present.get(f"{name}.tar", 0) != summary.bytes or summary.recipe_sha256 != head.recipe.hash():
        return _KNOWN_SCHEMA.empty_table()
    settled = pc.is_valid(table["source_sha256"])
    settled = pc.and_(settled, pc.invert(pc.is_in(table["code"], value_set=pa.array(_PASSING))))
    rows = table.select(RECEIPT_SCHEMA.names).cast(RECEIPT_SCHEMA).filter(settled)
    engines = json.dumps(summary.engines, sort_keys=True)
    extra = [pa.repeat(name, len(rows)), pa.repeat(engines, len(rows))]
    return pa.table([*rows.columns, *extra], schema=_KNOWN_SCHEMA)


# ---- on the worker


class Copied(NamedTuple):
    """A file that is known: its row of an older receipt, and the bytes of its picture; None for a reject."""

    row: dict[str, Any]
    data: bytes | None

    @property
    def engines(self) -> dict[str, str]:
        """Versions of what decoded and encoded it."""
        return dict(json.loads(self.row["engines"]))


class Copier:
    """Fetches samples from older shards; what does not fit in every way is left to be decoded.

    Attributes:
        contents: SHA-256, in hex, of the contents that are known.
    """

    def __init__(self, dataset: str, origins: Origins | None) -> None:
        self._dataset = dataset
        self._origins = origins or Origins(_KNOWN_SCHEMA.empty_table(), {})
        hashes = self._origins.rows["source_sha256"].to_pylist()
        self._contents = {sha256: row for row, sha256 in enumerate(hashes)}
        self.contents = frozenset(self._contents)

    def rows_of(self, files: Sequence[PlannedFile]) -> dict[int, dict[str, Any]]:
        """Return what is known of files by path, version and size, by their number."""
        rows = self._origins.rows.slice(0, len(self._origins.same)).to_pylist()
        found = {number: rows[row] for number, row in self._origins.same.items()}
        return {number: row for number, row in found.items() if _is_of(row, files[number])}

    def fetch_all(self, rows: Sequence[dict[str, Any]]) -> Generator[Copied | None]:
        """Yield `fetch` of each row, some ahead of time: an object store answers slowly, but many at once."""
        waiting: deque[Future[Copied | None]] = deque()
        with ThreadPoolExecutor(_READERS) as pool:
            for row in rows:
                waiting.append(pool.submit(self.fetch, row))
                if len(waiting) > 2 * _READERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def of_content(self, sha256: str | None) -> Copied | None:
        """Return what is known of a content; None: it has to be decoded."""
        number = self._contents.get(sha256)
        return None if number is None else self.fetch(self._origins.rows.slice(number, 1).to_pylist()[0])

    def fetch(self, row: dict[str, Any]) -> Copied | None:
        """Return a known sample with its bytes; None where they are not what they were.

        Raises:
            StoreError: the read failed in a way that may pass.
        """
        if row["status"] != "sample":
            return Copied(row, None)
        url = store.join(self._dataset, f"{row['shard']}.tar")
        try:
            data = store.read_range(url, row["image_offset"], row["image_bytes"])
        except FileNotFoundError:
            return None
        return Copied(row, data) if zlib.crc32(data) == row["image_crc32"] else None


def _is_of(row: Mapping[str, Any], file: PlannedFile) -> bool:
    known = (row["key"], row["path"], row["source_version"], row["source_bytes"])
    return known == (file.key, file.path, file.version, file.size)


def merge_engines(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the versions of each engine; several, joined, where samples of different ages differ."""
    merged: dict[str, set[str]] = {}
    for engines in versions:
        for name, text in engines.items():
            merged.setdefault(name, set()).update(text.split(_OR))
    return {name: _OR.join(sorted(found)) for name, found in merged.items()}


_OR = " | "
