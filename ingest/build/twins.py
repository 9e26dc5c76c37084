"""Files of equal content, told before anything is decoded: only of files that share their size is any read.

First a sketch, a hash of the first and the last 16 KiB; then, of those whose sketches are equal, all of it.
What is known from the manifest before is not read again while key, size and version stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest import store
from ingest.build.manifest import MANIFEST_SCHEMA, read_roots, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor
    from pathlib import Path

    from numpy.typing import NDArray

_PART_BYTES = 16 * 1024
_WHOLE_PART_BYTES = 16 * 2**20
_READ_AHEAD = 256
_TRAITS = ["key", "size", "version"]


def identify(manifest: Path, before: Path, pool: ThreadPoolExecutor) -> None:
    """Fill in what is to be known of the content of files, in place.

    Args:
        manifest: a new manifest, without it.
        before: the manifest before, if there is one.
        pool: threads that read.

    Raises:
        StoreError: a file cannot be read in a way that may pass.
    """
    table = pq.read_table(manifest, columns=["key", "path", "size", "version", "root"])
    roots = [root.url for root in read_roots(pq.read_schema(manifest))]
    sketches, contents = _known(table, before)
    shared = _shared(table["size"].to_numpy()) & (table["size"].to_numpy() > 0)
    wanted = _places(table, roots, np.flatnonzero(shared & _is_none(sketches)))
    for row, sketch in _read_each(wanted, sketch_of, pool):
        sketches[row] = sketch
    sketches[~shared] = None
    alike = _alike(sketches)
    wanted = _places(table, roots, np.flatnonzero(alike & _is_none(contents)))
    for row, content in _read_each(wanted, content_of, pool):
        contents[row] = content
    contents[~alike] = None
    _replace_columns(manifest, sketches, contents)


def _known(table: pa.Table, before: Path) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """Return sketch and content of each file as far as the manifest before has them."""
    known = np.full(len(table), None, object), np.full(len(table), None, object)
    old = _read_known(before)
    found = pc.index_in(table["key"], value_set=old["key"].combine_chunks())
    rows = np.flatnonzero(pc.is_valid(found).to_numpy())
    places = found.take(pa.array(rows)).combine_chunks()
    new, past = table.select(_TRAITS).take(pa.array(rows)), old.take(places)
    same = pc.and_(pc.equal(new["size"], past["size"]), pc.equal(new["version"], past["version"]))
    same = pc.and_(same, pc.not_equal(new["version"], "")).to_numpy()
    for column, name in zip(known, ("sketch", "content"), strict=True):
        column[rows[same]] = np.array(past[name].filter(pa.array(same)).to_pylist(), object)
    return known


def _read_known(before: Path) -> pa.Table:
    wanted = [*_TRAITS, "sketch", "content"]
    try:
        return pq.read_table(before, columns=wanted, filters=pc.is_valid(pc.field("sketch"))).select(wanted)
    except (OSError, pa.ArrowException, KeyError):  # none yet, or of another version: all is read
        return MANIFEST_SCHEMA.empty_table().select(wanted)


def _shared(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each value whether it is there more than once."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)


def _alike(sketches: NDArray[np.object_]) -> NDArray[np.bool_]:
    codes = pc.dictionary_encode(pa.array(sketches, pa.binary())).indices.fill_null(-1).to_numpy()
    return np.asarray(_shared(codes) & (codes >= 0))


def _is_none(values: NDArray[np.object_]) -> NDArray[np.bool_]:
    return np.fromiter((value is None for value in values), bool, len(values))


def _read_each(
    files: Iterable[tuple[int, str, int]], read: Callable[[str, int], bytes | None], pool: ThreadPoolExecutor
) -> Iterator[tuple[int, bytes | None]]:
    """Yield row and what is wanted of each file, reading some ahead of time."""
    waiting: deque[tuple[int, Future[bytes | None]]] = deque()
    for row, url, size in files:
        waiting.append((row, pool.submit(read, url, size)))
        if len(waiting) > _READ_AHEAD:
            number, future = waiting.popleft()
            yield number, future.result()
    for number, future in waiting:
        yield number, future.result()


def _places(table: pa.Table, roots: Sequence[str], rows: NDArray[np.int64]) -> Iterator[tuple[int, str, int]]:
    for begin in range(0, len(rows), _READ_AHEAD):
        page = rows[begin : begin + _READ_AHEAD]
        files = table.select(["path", "size", "root"]).take(pa.array(page)).to_pydict()
        for row, path, size, root in zip(page, files["path"], files["size"], files["root"], strict=True):
            yield int(row), store.place(roots[root], path), size


def sketch_of(url: str, size: int) -> bytes | None:
    """Return a hash of the size and of the first and last bytes of a file; None where it cannot be read."""
    with _unless_gone():
        digest = hashlib.blake2b(size.to_bytes(8, "big"), digest_size=16)
        digest.update(store.read_range(url, 0, min(size, _PART_BYTES)))
        if size > _PART_BYTES:
            rest = min(size - _PART_BYTES, _PART_BYTES)
            digest.update(store.read_range(url, size - rest, rest))
        return digest.digest()
    return None


def content_of(url: str, size: int) -> bytes | None:
    """Return the SHA-256 of a file, read part by part; None where it cannot be read."""
    with _unless_gone():
        digest = hashlib.sha256()
        for begin in range(0, size, _WHOLE_PART_BYTES):
            digest.update(store.read_range(url, begin, min(_WHOLE_PART_BYTES, size - begin)))
        return digest.digest()
    return None


def _unless_gone() -> contextlib.suppress:
    """Pass over what is the fault of one file, which shrink will name."""
    return contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def _replace_columns(manifest: Path, sketches: NDArray[np.object_], contents: NDArray[np.object_]) -> None:
    """Write the manifest again with two more columns filled."""
    temporary = manifest.with_name(f"{store.TEMPORARY_PREFIX}{secrets.token_hex(4)}-{manifest.name}")
    try:
        with pq.ParquetFile(manifest) as old:
            schema = schema_of(read_roots(old.schema_arrow))
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for page in _with_columns(old.iter_batches(), sketches, contents):
                    writer.write_batch(page.cast(schema))
        temporary.replace(manifest)
    finally:
        temporary.unlink(missing_ok=True)


def _with_columns(
    batches: Iterable[pa.RecordBatch], sketches: NDArray[np.object_], contents: NDArray[np.object_]
) -> Iterator[pa.RecordBatch]:
    begin = 0
    for batch in batches:
        end = begin + len(batch)
        late = [pa.array(sketches[begin:end], pa.binary()), pa.array(contents[begin:end], pa.binary())]
        yield pa.record_batch([*batch.columns[: -len(late)], *late], names=batch.schema.names)
        begin = end
