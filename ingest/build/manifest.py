"""The manifest as it is kept: a Parquet file with a row for every candidate, in the order of the listing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ingest.build.sources import Root
from ingest.errors import StoreError
from ingest.shard import make_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ingest.build.folders import Candidate

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),  # of the file's sample: `ingest.shard.make_key`
        pa.field("path", pa.binary(), nullable=False),  # below its root; names need not be UTF-8
        pa.field("size", pa.int64(), nullable=False),  # -1: not known
        pa.field("version", pa.string(), nullable=False),
        pa.field("split", pa.string()),  # None: nothing is said of it
        pa.field("label", pa.string()),  # None: the file has no class
        pa.field("root", pa.int16(), nullable=False),  # place in the list of roots
        pa.field("text", pa.string()),  # caption
        pa.field("meta", pa.string()),  # all else that is known of it: a JSON object, names sorted
        pa.field("group", pa.string()),  # files of one group share a split
        pa.field(
            "sketch", pa.binary()
        ),  # hash of size, first and last bytes, where other files have its size
        pa.field("content", pa.binary()),  # SHA-256, where other files have its sketch
    ]
)
"""Columns of a manifest. Its metadata `ingest.roots` lists name and URL of each root, as JSON."""

_LISTED = [field.name for field in MANIFEST_SCHEMA if field.name not in ("key", "sketch", "content")]
_PAGE_ROWS = 50_000
_LATE_NAMES = ("sketch", "content")


def write_rows(path: Path, roots: Sequence[Root], candidates: Iterable[Candidate]) -> None:
    """Write candidates to a new manifest, page by page."""
    with pq.ParquetWriter(path, schema_of(roots), compression="zstd") as writer:
        for page in _pages(candidates):
            writer.write_table(_to_table(page, roots))


def schema_of(roots: Sequence[Root]) -> pa.Schema:
    """Return the schema of a manifest of some roots."""
    return MANIFEST_SCHEMA.with_metadata({"ingest.roots": json.dumps(roots)})


def _pages(candidates: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    page: list[Candidate] = []
    for candidate in candidates:
        page.append(candidate)
        if len(page) == _PAGE_ROWS:
            yield page
            page = []
    if page:
        yield page


def _to_table(page: list[Candidate], roots: Sequence[Root]) -> pa.Table:
    columns = dict(zip(page[0]._fields, map(list, zip(*page, strict=True)), strict=True))
    prefixes = [key_prefix(root) for root in roots]
    named = columns["path"]
    if any(prefixes):
        named = [prefixes[candidate.root] + candidate.path for candidate in page]
    columns["key"] = make_keys(pa.chunked_array([pa.array(named, pa.binary())]))
    nothing = pa.nulls(len(page))
    arrays = [pa.array(columns[name], MANIFEST_SCHEMA.field(name).type) for name in ("key", *_LISTED)]
    late = [nothing.cast(MANIFEST_SCHEMA.field(name).type) for name in _LATE_NAMES]
    return pa.table([*arrays, *late], schema=MANIFEST_SCHEMA)


def key_prefix(root: Root) -> bytes:
    """Return what stands before a path in the text that the key is a hash of; nothing for an unnamed root."""
    return root.name.encode(errors="surrogateescape") + b"\0" if root.name else b""


def read_manifest(path: Path) -> tuple[tuple[str, ...], pa.Table]:
    """Return the URLs of the roots that were scanned, and the rows of their manifest, but for sketches.

    Raises:
        StoreError: it is missing or cannot be read.
    """
    try:
        table = pq.read_table(path, columns=[name for name in MANIFEST_SCHEMA.names if name != "sketch"])
        return tuple(root.url for root in read_roots(table.schema)), table
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path}: no manifest that can be read ({error}): run `ingest scan` again"
        ) from error


def read_roots(schema: pa.Schema) -> tuple[Root, ...]:
    """Return the roots that a schema tells of.

    Raises:
        KeyError: it tells of none.
        TypeError: it has no metadata.
        ValueError: they are no JSON.
    """
    return tuple(Root(*root) for root in json.loads(schema.metadata[b"ingest.roots"]))
