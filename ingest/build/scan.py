"""scan: what is there. Reads folders and buckets; leaves the manifest. Opens no file.

The manifest is a Parquet file with one row for every candidate, in the order of the listing.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.build.artifact import replace_if_changed
from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),  # below the root; names need not be UTF-8
        pa.field("size", pa.int64(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("label", pa.string()),  # None: the file lies in no class folder
    ]
)

_PAGE_ROWS = 50_000
_SPLIT_NAMES = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
_SPLIT_NAMES |= {"test": "test", "testing": "test"}
_LITTER_NAMES = {b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"__macosx", b"@eadir", b"$recycle.bin"}
_OTHER_SUFFIXES = frozenset(
    b"txt md rst pdf doc docx rtf csv tsv json jsonl ndjson parquet xml yaml yml toml ini cfg log html htm "
    b"py ipynb js css sh zip tar gz tgz bz2 xz zst 7z rar mat npy npz pkl pt pth h5 hdf5 db sqlite "
    b"idx mp4 mov m4v avi mkv webm mpg mpeg 3gp mp3 wav flac m4a aac ogg xmp aae thm srt".split()
)
"""Endings of files that are plainly no pictures: sidecars, tables, text, archives, sound, video."""


class Candidate(NamedTuple):
    """One row of the manifest."""

    path: bytes
    size: int
    version: str
    split: str
    label: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ScanSummary:
    """What a scan found: candidates, their bytes, files passed over by kind, and whether that is new."""

    candidates: int
    bytes: int
    skipped: dict[str, int]
    changed: bool


def skip_reason(path: bytes) -> str | None:
    """Return why the file at `path` is no candidate: ``hidden``, ``litter`` or ``other``; else None."""
    parts = path.split(b"/")
    if any(part.startswith(b".") for part in parts):
        return "hidden"
    if any(part.lower() in _LITTER_NAMES for part in parts):
        return "litter"
    stem, dot, suffix = parts[-1].rpartition(b".")
    return "other" if stem and dot and suffix.lower() in _OTHER_SUFFIXES else None


def place(path: bytes, *, has_splits: bool) -> tuple[str, str | None]:
    """Return split and label of the file at `path`.

    The first folder is the class, as in torchvision's ImageFolder; below split folders, the second.
    """
    *folders, _ = path.decode("utf-8", "backslashreplace").split("/")
    split = _SPLIT_NAMES[folders.pop(0).lower()] if has_splits else "train"
    return split, folders[0] if folders else None


def has_split_folders(top_folders: Iterable[str]) -> bool:
    """Return whether the folders under the root are splits rather than classes.

    They are where train stands beside val or test, whatever else is there (annotations, say), or where
    nothing but split folders is there. A lone ``train`` among other names is a class, as of vehicles.
    """
    names = [name.lower() for name in top_folders]
    splits = {_SPLIT_NAMES[name] for name in names if name in _SPLIT_NAMES}
    if len(splits) > 1:
        return "train" in splits or all(name in _SPLIT_NAMES for name in names)
    return splits == {"train"} == {_SPLIT_NAMES.get(name) for name in names}


def scan(raw: str, manifest: Path) -> ScanSummary:
    """List the candidates below `raw` into `manifest`, which stays untouched where nothing changed.

    Raises:
        StoreError: `raw` is missing, cannot be listed, or holds no candidate.
    """
    _require_folder(raw)
    has_splits = has_split_folders(_top_folders(raw))
    skipped: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    with replace_if_changed(manifest) as (temporary, outcome):
        schema = MANIFEST_SCHEMA.with_metadata({"ingest.root": json.dumps(raw)})
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for page in _pages(_candidates(raw, skipped, has_splits=has_splits)):
                totals.update(candidates=len(page), bytes=sum(candidate.size for candidate in page))
                writer.write_table(_to_table(page))
        if not totals["candidates"]:
            raise StoreError(_nothing_found(raw, skipped))
    return ScanSummary(totals["candidates"], totals["bytes"], dict(skipped), outcome.changed)


def _require_folder(raw: str) -> None:
    if not store.exists(raw):
        raise StoreError(f"{raw}: no such folder of raw photos: set the config key 'raw' to where they are")
    if store.is_local(raw) and not store.local_path(raw).is_dir():
        raise StoreError(f"{raw}: is a file, expected a folder of raw photos: set the config key 'raw'")


def _nothing_found(raw: str, skipped: Counter[str]) -> str:
    passed_over = f" ({skipped.total()} other files were passed over)" if skipped else ""
    return f"{raw}: holds no pictures{passed_over}: set the config key 'raw' to a folder that does"


def _top_folders(raw: str) -> list[str]:
    return [
        name for name in store.list_folders(raw) if skip_reason(name.encode(errors="surrogateescape")) is None
    ]


def _candidates(raw: str, skipped: Counter[str], *, has_splits: bool) -> Iterator[Candidate]:
    for info in store.walk(raw):
        reason = skip_reason(info.path) or ("no file" if info.size < 0 else None)
        if reason is None and has_splits:
            _require_split(raw, info.path)
        if reason is not None:
            skipped[reason] += 1
            continue
        yield Candidate(*info, *place(info.path, has_splits=has_splits))


def _require_split(raw: str, path: bytes) -> None:
    top, slash, _ = path.decode("utf-8", "backslashreplace").partition("/")
    if not slash or top.lower() not in _SPLIT_NAMES:
        place = store.join(raw, top)
        raise StoreError(f"{place}: lies beside split folders (train, val, test): move it into one, or away")


def _pages(candidates: Iterator[Candidate]) -> Iterator[list[Candidate]]:
    page: list[Candidate] = []
    for candidate in candidates:
        page.append(candidate)
        if len(page) == _PAGE_ROWS:
            yield page
            page = []
    if page:
        yield page


def _to_table(page: list[Candidate]) -> pa.Table:
    columns = zip(*page, strict=True)
    return pa.table(list(map(list, columns)), schema=MANIFEST_SCHEMA)


def read_manifest(path: Path) -> tuple[str, pa.Table]:
    """Return the root that was scanned and the rows of its manifest.

    Raises:
        StoreError: it is missing or cannot be read.
    """
    try:
        table = pq.read_table(path)
        return json.loads(table.schema.metadata[b"ingest.root"]), table
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise StoreError(
            f"{path}: no manifest that can be read ({error}): run `ingest scan` again"
        ) from error
