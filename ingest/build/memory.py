"""What was read of files in earlier scans, so that a file that did not change is read once.

A file that maps into memory, however much is remembered; a state of a file (place, size, version) is found by
a hash of 128 bits.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ingest.build.artifact import replace_if_changed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SCHEMA = pa.schema(
    [
        pa.field("mark", pa.binary(16), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("data", pa.binary()),
    ]
)
_PAGE_ROWS = 50_000
_NO_VERSIONS = frozenset({"", "unknown"})


class Look(NamedTuple):
    """What a look at a file found.

    Attributes:
        kind: why it is no candidate; None: it is one.
        data: its bytes, where they say something of a picture.
        lasts: whether it holds until the file changes: not where the file could not be read.
    """

    kind: str | None
    data: bytes | None = None
    lasts: bool = True


class Memory:
    """Looks at files, those of the scan before and those of this one.

    Args:
        before: looks to be remembered, `_SCHEMA`.
        writer: takes the looks of this scan.
    """

    def __init__(self, before: pa.Table, writer: pa.RecordBatchFileWriter) -> None:
        self._before = before
        self._writer = writer
        self._page: list[tuple[bytes, str | None, bytes | None]] = []
        marks = before["mark"].combine_chunks()
        starts = np.frombuffer(marks.buffers()[1] or b"", np.uint64)[:: 16 // 8][: len(marks)]
        self._order = np.argsort(starts, kind="stable")
        self._starts = starts[self._order]

    def find(self, mark: bytes) -> Look | None:
        """Return what was found at the file of `mark`, None if it was not looked at."""
        start = np.frombuffer(mark, np.uint64)[0]
        at = int(np.searchsorted(self._starts, start))
        while at < len(self._starts) and self._starts[at] == start:
            row = int(self._order[at])
            if self._before["mark"][row].as_py() == mark:
                return Look(self._before["kind"][row].as_py(), self._before["data"][row].as_py())
            at += 1
        return None

    def keep(self, mark: bytes, look: Look) -> None:
        """Remember a look for the next scan."""
        if look.lasts:
            self._page.append((mark, look.kind, look.data))
        if len(self._page) >= _PAGE_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._page:
            columns = zip(zip(*self._page, strict=True), _SCHEMA.types, strict=True)
            arrays = [pa.array(values, kind) for values, kind in columns]
            self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
            self._page = []


def mark_of(place: str, size: int, version: str) -> bytes | None:
    """Return a hash of the state of a file; None where its version is not known."""
    if version in _NO_VERSIONS:
        return None
    text = f"{place}\0{version}\0{size}".encode(errors="surrogateescape")
    return hashlib.blake2b(text, digest_size=16).digest()


@contextlib.contextmanager
def remember(path: Path) -> Iterator[Memory]:
    """Open what was read in the scan before; what the block keeps takes its place when it ends.

    Raises:
        StoreError: the file cannot be written.
    """
    before = _read(path)
    with (
        replace_if_changed(path) as (temporary, _),
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, _SCHEMA) as writer,
    ):
        memory = Memory(before, writer)
        yield memory
        memory.flush()


def _read(path: Path) -> pa.Table:
    """Return the looks of the scan before, none where they cannot be read: they are made again."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException):
        return _SCHEMA.empty_table()
    return table if table.schema.equals(_SCHEMA) else _SCHEMA.empty_table()
