"""Tables of pictures: CSV, TSV, Parquet and JSON lines, read in batches, however many rows they have."""

from __future__ import annotations

import contextlib
import json
import posixpath
import tempfile
from collections import deque
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes, urljoin

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ingest import store
from ingest.build.facts import Facts, sort_facts
from ingest.build.folders import Candidate, ListSettings, group_of_file
from ingest.build.names import place
from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest.build.folders import Reader
    from ingest.build.sources import Source
    from ingest.tree import FileInfo

_BATCH_ROWS = 10_000
_BLOCK_BYTES = 8 * 2**20
_COPY_BYTES = 16 * 2**20
_ASKED_AT_A_TIME = 1024
_JSON_LINES = ("jsonl", "ndjson")
_GONE = (-1, "")  # of a file that is not there, or of whose state nobody tells: shrink says which


class _Row(NamedTuple):
    """A picture that a table names: what it is called in it, which root it is below, and the rest."""

    number: int
    path: bytes
    root: int
    facts: Facts
    state: tuple[int, str] | Future[FileInfo | None] | None


def list_table(
    source: Source, numbers: tuple[int, int], settings: ListSettings, reader: Reader
) -> Iterator[Candidate]:
    """Yield the pictures that a table names, row by row.

    Args:
        source: the table.
        numbers: of the root that is its folder, and of that of whole URLs.
        settings: how to read it.
        reader: asks for sizes, and counts rows that name nothing.

    Raises:
        StoreError: the table is missing or cannot be read, has no column of URLs, or a value in it cannot be
            what it stands for; or a place cannot be asked for a size.
    """
    with _opened(source.url) as file:
        rows = _checked(source.url, _read_rows(source.url, file), settings.named_columns)
        waiting: deque[_Row] = deque()
        for row in _sort_rows(source, rows, numbers, settings, reader):
            waiting.append(row)
            if len(waiting) > _ASKED_AT_A_TIME:
                yield _settle(waiting.popleft(), settings)
        while waiting:
            yield _settle(waiting.popleft(), settings)


def _checked(
    table: str, rows: Iterator[tuple[int, dict[str, Any]]], named: frozenset[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Pass rows on, and refuse a table without columns that a person named.

    Rows of JSON lines may each have others: there, each must be in one of them.
    """
    missing, known = set(named), set[str]()
    for number, values in rows:
        if missing:
            missing -= values.keys()
            known |= values.keys()
            if missing and not _may_lack_columns(table):
                break
        yield number, values
    if missing and known:
        found = ", ".join(map(repr, sorted(known)))
        message = f"{table}: has the columns {found}, expected {', '.join(map(repr, sorted(missing)))}"
        raise StoreError(f"{message} too (columns of bytes do not count): correct the config key 'columns'")


def _may_lack_columns(table: str) -> bool:
    return table.rpartition(".")[2].lower() in _JSON_LINES


def _settle(row: _Row, settings: ListSettings) -> Candidate:
    state = row.state.result() if isinstance(row.state, Future) else row.state
    size, version = _GONE if state is None else state[-2:]
    split, label = row.facts.split, row.facts.label
    if settings.roles.labels == "folder" and not row.root:
        label = place(row.path, has_splits=False)[1]
    return Candidate(
        row.path,
        size,
        version,
        None if settings.split == "none" else split,
        label,
        row.root,
        row.facts.text,
        row.facts.meta,
        group_of_file(row.path, row.facts, settings),
    )


# ---- rows


def _sort_rows(
    source: Source,
    rows: Iterator[tuple[int, dict[str, Any]]],
    numbers: tuple[int, int],
    settings: ListSettings,
    reader: Reader,
) -> Iterator[_Row]:
    for number, values in rows:
        url = _take_url(source.url, values, settings)
        if url is None:
            reader.skipped["row without a URL"] += 1
            continue
        try:
            is_below, path = resolve(source.root.url, url)
            root = numbers[0] if is_below else numbers[1]
            state = _stated(values, settings)
            facts = sort_facts(values, settings.roles)
        except ValueError as error:
            raise StoreError(
                f"{source.url}: row {number}: {error}: correct it, or see docs/inputs.md"
            ) from error
        asked: tuple[int, str] | Future[FileInfo | None] | None = state
        if state is None and settings.sizes:
            asked = reader.pool.submit(_ask, store.place(source.root.url if is_below else "", path))
        yield _Row(number, path, root, facts, asked)


def _take_url(table: str, values: dict[str, Any], settings: ListSettings) -> str | None:
    """Take the place of the picture out of the values of a row; None where it has none.

    Raises:
        StoreError: the table has no such column, or it holds something else.
    """
    names = {name.lower(): name for name in values}
    name = next((names[known.lower()] for known in settings.url_columns if known.lower() in names), None)
    if name is None:
        wanted, found = ", ".join(settings.url_columns), ", ".join(map(repr, values))
        message = f"{table}: has the columns {found}, expected one of {wanted}"
        raise StoreError(f"{message}: name that of the URLs: columns: {{url: ...}}")
    url = values.pop(name)
    if url is not None and not isinstance(url, str):
        raise StoreError(f"{table}: column {name!r} holds a {type(url).__name__}, expected URLs as text")
    return url or None


def resolve(folder: str, url: str) -> tuple[bool, bytes]:
    """Return whether a place that a table names lies below the table's folder, and its path there.

    Args:
        folder: of the table.
        url: as the table has it: a URL, an absolute path, or one relative to the folder.

    Returns:
        Whether it does, and the path below the folder, or else the whole URL.
    """
    is_web = folder.startswith(("http://", "https://"))
    whole = urljoin(f"{folder}/", url) if is_web else _absolute(folder, url)
    below = whole.removeprefix(f"{folder.rstrip('/')}/")
    if below == whole or (is_web and ("?" in below or "#" in below)):
        return False, whole.encode(errors="surrogateescape")
    return True, unquote_to_bytes(below) if is_web else below.encode(errors="surrogateescape")


def _absolute(folder: str, url: str) -> str:
    url = url.removeprefix("file://")
    if "://" in url:
        return url
    scheme, mark, path = folder.rpartition("://")
    if url.startswith("/"):
        return posixpath.normpath(url)
    return scheme + mark + posixpath.normpath(f"{path}/{url}")


def _stated(values: dict[str, Any], settings: ListSettings) -> tuple[int, str] | None:
    """Take size and version of a picture out of a row, where the table has columns of them.

    Raises:
        ValueError: a size is no whole number.
    """
    size = values.pop(settings.size_column, None) if settings.size_column else None
    version = values.pop(settings.version_column, None) if settings.version_column else None
    if size is None and version is None:
        return None if settings.sizes else _GONE
    try:
        return -1 if size in (None, "") else int(size), "" if version is None else str(version)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the size is {size!r}, expected a number of bytes") from error


def _ask(url: str) -> FileInfo | None:
    """Return size and version of a file; None where it is not there, may not be read, or nobody tells."""
    try:
        return store.look(url)
    except PermissionError:
        return None


# ---- formats


@contextlib.contextmanager
def _opened(url: str) -> Iterator[IO[bytes]]:
    """Open a table; one that is not on this machine is copied to a temporary file first."""
    found = store.look(url)
    if found is None:
        raise StoreError(f"{url}: no such table: set the config key 'raw' to where it is")
    if store.is_local(url):
        with store.local_path(url).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as file:
        for begin in range(0, found.size, _COPY_BYTES):
            file.write(store.read_range(url, begin, min(_COPY_BYTES, found.size - begin)))
        file.seek(0)
        yield file


def _read_rows(url: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number, from 1 on, and values of each row.

    Raises:
        StoreError: it is not what its ending says.
    """
    suffix = url.rpartition(".")[2].lower()
    try:
        if suffix in _JSON_LINES:
            yield from _read_json_lines(file)
            return
        batches = _parquet_batches(file) if suffix == "parquet" else _csv_batches(file, suffix)
        number = 0
        for batch in batches:
            names, columns = batch.schema.names, [column.to_pylist() for column in batch.columns]
            for values in zip(*columns, strict=True):
                number += 1
                yield number, dict(zip(names, values, strict=True))
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{url}: not a table that can be read as {suffix}: {error}") from error


def _csv_batches(file: IO[bytes], suffix: str) -> Iterator[pa.RecordBatch]:
    """Yield a CSV as texts: what looks like a number or a missing value may be a label such as 00 or NA."""
    delimiter = "\t" if suffix == "tsv" else ","
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    names = _csv_header(file, parse)
    texts = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    with pa.csv.open_csv(
        file,
        read_options=pa.csv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=parse,
        convert_options=texts,
    ) as reader:
        yield from reader


def _csv_header(file: IO[bytes], parse: pyarrow.csv.ParseOptions) -> Sequence[str]:
    line = file.readline()
    file.seek(0)
    names: list[str] = pa.csv.read_csv(pa.py_buffer(line), parse_options=parse).schema.names
    spaced = [name for name in names if name != name.strip()]
    if spaced:
        raise ValueError(f"the name of the column {spaced[0]!r} has spaces around it: take them away")
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the same name: {', '.join(names)}")
    return names


def _parquet_batches(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    table = pq.ParquetFile(file)
    columns = [
        field.name
        for field in table.schema_arrow
        if not field.name.startswith("__index_level_") and not _holds_bytes(field.type)
    ]
    yield from table.iter_batches(batch_size=_BATCH_ROWS, columns=columns)


def _holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a column is of bytes, which have no place in JSON."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    is_bytes = (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )
    return is_bytes or any(map(_holds_bytes, inner))


def _read_json_lines(file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"line {number} is a {type(values).__name__}, expected an object")  # noqa: TRY004
        yield number, values
