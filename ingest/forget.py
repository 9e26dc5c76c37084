"""forget: files that must not be in the dataset any more, named by source, path or key.

Their keys are added to the list that every plan leaves out; the next build takes the samples out, and
`ingest gc` removes the old shards. Copies of the same bytes under other names are found, and named.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ingest import store
from ingest.errors import ConfigError
from ingest.forgotten import FORGOTTEN_NAME, add_forgotten, read_forgotten
from ingest.receipts import read_all, receipt_names
from ingest.units import count, plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_NAMES = ("key", "source", "path")
_MOST_NAMED = 20


class File(NamedTuple):
    """One raw file that is in a receipt."""

    source: str
    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Forgotten:
    """What was asked to be forgotten.

    Attributes:
        dataset: where.
        files: what is on the list now, and was asked for or has the same bytes.
        copies: files with the same bytes that were not asked for, and are not on the list.
        added: how many keys are new on the list.
    """

    dataset: str
    files: tuple[File, ...]
    copies: tuple[File, ...]
    added: int

    def lines(self) -> Iterator[str]:
        """Yield what was done, what has the same bytes, and what is next."""
        yield from _listed(self.files)
        if self.copies:
            yield "WARNING: the same bytes stand under other names too; add --duplicates to forget these:"
            yield from _listed(self.copies)
        url = store.join(self.dataset, FORGOTTEN_NAME)
        there = len(self.files) - self.added
        yield f"forget: {count(self.added, 'file')} added to {url}, {there:,} there before"
        yield (
            "next: run snakemake, which takes them out of the dataset; then "
            f"`ingest gc {self.dataset} --grace 0` removes the old files that hold their bytes"
        )


def _listed(files: Sequence[File]) -> Iterator[str]:
    yield from (f"  {file.key}  {plain(file.source)}" for file in files[:_MOST_NAMED])
    if len(files) > _MOST_NAMED:
        yield f"  and {len(files) - _MOST_NAMED:,} more"


def forget(dataset: str, names: Sequence[str], *, duplicates: bool = False) -> Forgotten:
    """Put files on the list of those that must not be in the dataset.

    Args:
        dataset: path or URL.
        names: source, path below the root of the raw files, or key of each; receipts of old shards count.
        duplicates: also those with the same bytes as one of them.

    Raises:
        ConfigError: a name is in no receipt; nothing is put on the list.
        CorruptShardError: a receipt or the list cannot be read.
        StoreError: the dataset cannot be read or written.
    """
    shards = receipt_names(store.list_files(dataset))
    wanted = {name: _spellings(name) for name in names}
    rows = _rows_named(dataset, shards, wanted.values())
    _require_all_found(dataset, wanted, rows)
    files = _files(rows)
    others = _copies(dataset, shards, rows["source_sha256"], {file.key for file in files})
    before = read_forgotten(dataset)
    if duplicates:
        files, others = files | others, set()
    added = add_forgotten(dataset, [file.key for file in files])
    unlisted = [file for file in others if file.key not in before]
    return Forgotten(dataset, tuple(sorted(files)), tuple(sorted(unlisted)), added)


def _spellings(name: str) -> set[bytes]:
    """Return the ways in which receipts may write a name that a terminal gave."""
    given = name.encode("utf-8", "surrogateescape")
    ways = {given, _as_source(given)}
    if store.is_local(name):  # a path from here
        ways.add(_as_source(store.normalise(name).encode("utf-8", "surrogateescape")))
    return ways


def _as_source(name: bytes) -> bytes:
    return name.decode("utf-8", "backslashreplace").encode()


def _rows_named(dataset: str, shards: Sequence[str], wanted: Collection[set[bytes]]) -> pa.Table:
    """Return key, source, path and hash of every row, in any receipt, that a name stands for."""
    values = pa.array(sorted(set().union(*wanted)), pa.binary())
    found = []
    for _, rows in read_all(dataset, shards, (*_NAMES, "source_sha256")):
        masks = [pc.is_in(rows[name].cast(pa.binary()), value_set=values) for name in _NAMES]
        found.append(rows.filter(pc.or_(pc.or_(masks[0], masks[1]), masks[2])))
    empty = pa.table(
        {
            name: pa.array([], pa.binary() if name == "path" else pa.string())
            for name in (*_NAMES, "source_sha256")
        }
    )
    return pa.concat_tables(
        [empty, *(rows.replace_schema_metadata(None).cast(empty.schema) for rows in found)]
    )


def _require_all_found(dataset: str, wanted: dict[str, set[bytes]], rows: pa.Table) -> None:
    found = {value for name in _NAMES for value in rows[name].cast(pa.binary()).to_pylist()}
    missing = [name for name, ways in wanted.items() if not ways & found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"{plain(missing[0])}{more}: in no receipt of {dataset}, so nothing was put on the list: "
            "give the source, path or key as `ingest inspect` prints it"
        )


def _files(rows: pa.Table) -> set[File]:
    return set(map(File, rows["source"].to_pylist(), rows["key"].to_pylist()))


def _copies(dataset: str, shards: Sequence[str], hashes: pa.ChunkedArray, keys: Collection[str]) -> set[File]:
    """Return the files with one of these content hashes that are not among `keys`."""
    contents = hashes.drop_null().unique()
    if not len(contents):
        return set()
    copies: set[File] = set()
    for _, rows in read_all(dataset, shards, ("key", "source", "source_sha256")):
        copies |= _files(rows.filter(pc.is_in(rows["source_sha256"], value_set=contents)))
    return {file for file in copies if file.key not in keys}
