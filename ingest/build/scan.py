"""scan: what is there. Reads folders and buckets; leaves the manifest.

The manifest is a Parquet file with one row for every candidate, in the order of the listing. A candidate is
what says by its ending that it is a picture, unread, for a billion files are not opened to be listed; and
any other file whose first bytes are those of a picture. What is neither is skipped, and counted by kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.build.artifact import replace_if_changed
from ingest.build.sniff import group_of, recognise
from ingest.errors import StoreError
from ingest.shard import make_keys
from ingest.tree import FileInfo
from ingest.units import count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),  # of the file's sample: `ingest.shard.make_key`
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
_LITTER_NAMES = {
    *(b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"$recycle.bin", b"system volume information"),  # Windows
    *(
        b"__macosx",
        b"@eadir",
        b"#recycle",
        b"@recycle",
        b"~snapshot",
        b"lost+found",
    ),  # ZIPs of macOS, servers
}
_SIDE_SUFFIXES = frozenset({b"thm"})
"""Endings of pictures that a camera puts beside a photo or a video: the small copy of another file."""

_PICTURE_SUFFIXES = frozenset(
    b"jpg jpeg jpe jfif jfi jif jps mpo png apng gif bmp dib webp tif tiff btf heic heics heif heifs hif "
    b"avif avifs jp2 j2k j2c jpc jpf jpx jph jxl jxr jls pbm pgm ppm pnm tga psd psb exr ico "
    b"3fr arw cr2 cr3 crw dng erf gpr iiq kdc mef mrw nef nrw orf pef raf rw2 rwl sr2 srf srw x3f".split()
)
"""Endings of files that say that they are pictures, and nothing else (as ``raw`` and ``hdr`` may be).

Shrink looks whether they are, and names what is none."""

_HEAD_BYTES = 512  # what `recognise` needs for all but which raw a TIFF is
_LOCAL_READERS, _REMOTE_READERS = 8, 32  # a bucket answers slowly, but many at a time
_READ_AHEAD = 1024  # files of the listing whose first bytes may be asked for at a time

_FIRST_LINE_SECONDS, _LINE_SECONDS = 2.0, 5.0  # silence for longer looks like a hang


_Reason = str | Future[str | None] | None
_Verdict = tuple[FileInfo, _Reason]
"""A file of the listing, and why it is no candidate; None: it is one; a future: that is being looked up."""


class Candidate(NamedTuple):
    """One row of the manifest, but for the key."""

    path: bytes
    size: int
    version: str
    split: str
    label: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ScanSummary:
    """What a scan found.

    Attributes:
        candidates: number of rows of the manifest.
        bytes: of all candidates together.
        skipped: number of files that are no candidates, by kind: ``hidden`` or ``litter``, where a folder
            counts as one, ``no file`` (a broken link, a pipe), or what `group_of` says of their content.
        changed: whether the manifest is new.
    """

    candidates: int
    bytes: int
    skipped: dict[str, int]
    changed: bool


def skip_reason(path: bytes) -> str | None:
    """Return why the file at `path` is no candidate by its name: ``hidden`` or ``litter``; else None."""
    parts = path.split(b"/")
    if any(part.startswith(b".") for part in parts):
        return "hidden"
    if any(part.lower() in _LITTER_NAMES for part in parts) or _suffix(path) in _SIDE_SUFFIXES:
        return "litter"
    return None


def claims_to_be_a_picture(path: bytes) -> bool:
    """Return whether the file at `path` says by its ending, in upper or lower case, that it is a picture."""
    return _suffix(path) in _PICTURE_SUFFIXES


def _suffix(path: bytes) -> bytes:
    """Return the ending of a name in lower case, empty where it has none."""
    stem, dot, suffix = path.rpartition(b"/")[2].rpartition(b".")
    return suffix.lower() if stem and dot else b""


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return for example ``skipped 3 text, 2 hidden, 1 video``; the most first."""
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return "skipped " + (", ".join(f"{number:,} {kind}" for kind, number in ordered) or "nothing")


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
        StoreError: `raw` is missing, cannot be listed, or holds no candidate; or a file that is to be looked
            at cannot be read in a way that may pass.
    """
    _require_folder(raw)
    has_splits = has_split_folders(_top_folders(raw))
    skipped: Counter[str] = Counter()
    totals: Counter[str] = Counter(candidates=0, bytes=0)
    with replace_if_changed(manifest) as (temporary, outcome):
        schema = MANIFEST_SCHEMA.with_metadata({"ingest.root": json.dumps(raw)})
        with (
            pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
            _readers(raw) as pool,
            _heartbeat(totals, skipped),
        ):
            candidates = _count(_candidates(raw, pool, skipped, has_splits=has_splits), totals)
            for page in _pages(candidates):
                writer.write_table(_to_table(page))
        if not totals["candidates"]:
            raise StoreError(_nothing_found(raw, skipped))
    return ScanSummary(totals["candidates"], totals["bytes"], dict(skipped), outcome.changed)


@contextlib.contextmanager
def _readers(raw: str) -> Iterator[ThreadPoolExecutor]:
    """Open the threads that read first bytes; what they have not begun when the block ends is left."""
    pool = ThreadPoolExecutor(_LOCAL_READERS if store.is_local(raw) else _REMOTE_READERS, "ingest-heads")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _heartbeat(totals: Counter[str], skipped: Counter[str]) -> Iterator[None]:
    """Say every few seconds how far the scan is: listing one folder of a bucket may itself take minutes."""
    begin, end = time.perf_counter(), threading.Event()

    def beat() -> None:
        wait = _FIRST_LINE_SECONDS
        while not end.wait(wait):
            found = f"{count(totals['candidates'], 'candidate')}, {describe_skipped(dict(skipped))}"
            logger.info("scan: %s so far, %s", found, format_duration(time.perf_counter() - begin))
            wait = _LINE_SECONDS

    thread = threading.Thread(target=beat, name="ingest-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _require_folder(raw: str) -> None:
    if not store.exists(raw):
        raise StoreError(f"{raw}: no such folder of raw photos: set the config key 'raw' to where they are")
    if store.is_local(raw) and not store.local_path(raw).is_dir():
        raise StoreError(f"{raw}: is a file, expected a folder of raw photos: set the config key 'raw'")


def _nothing_found(raw: str, skipped: Counter[str]) -> str:
    others = f" ({describe_skipped(skipped)})" if skipped else ""
    return f"{raw}: holds no pictures{others}: set the config key 'raw' to a folder that does"


def _top_folders(raw: str) -> list[str]:
    return [
        name for name in store.list_folders(raw) if skip_reason(name.encode(errors="surrogateescape")) is None
    ]


def _candidates(
    raw: str, pool: ThreadPoolExecutor, skipped: Counter[str], *, has_splits: bool
) -> Iterator[Candidate]:
    for info, reason in _in_order(_judge(raw, info, pool) for info in store.walk(raw, pass_by=_is_passed_by)):
        if reason is not None:
            skipped[reason] += 1
            continue
        if has_splits:
            _require_split(raw, info.path)
        yield Candidate(*info, *place(info.path, has_splits=has_splits))


def _judge(raw: str, info: FileInfo, pool: ThreadPoolExecutor) -> _Verdict:
    """Find why a file is no candidate, from its name alone where that is enough."""
    reason = skip_reason(info.path) or ("no file" if info.size < 0 else None)
    if reason is not None or claims_to_be_a_picture(info.path):
        return info, reason
    if info.size == 0:
        return info, group_of(recognise(b""))
    return info, pool.submit(_look_inside, store.join_bytes(raw, info.path))


def _look_inside(url: str) -> str | None:
    """Return the kind of file that is no picture by its first bytes, None for a candidate.

    What may not be read is one, so that shrink says which it is and why.
    """
    try:
        kind = recognise(store.read_head(url, _HEAD_BYTES))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return None
    return group_of(kind) if kind.family == "other" else None


def _in_order(verdicts: Iterable[_Verdict]) -> Iterator[tuple[FileInfo, str | None]]:
    """Yield verdicts as they were asked for, asking for some more before the first is known."""
    waiting: deque[_Verdict] = deque()
    for verdict in verdicts:
        waiting.append(verdict)
        if len(waiting) > _READ_AHEAD:
            yield _settle(*waiting.popleft())
    while waiting:
        yield _settle(*waiting.popleft())


def _settle(info: FileInfo, reason: _Reason) -> tuple[FileInfo, str | None]:
    return info, reason.result() if isinstance(reason, Future) else reason


def _count(candidates: Iterable[Candidate], totals: Counter[str]) -> Iterator[Candidate]:
    for candidate in candidates:
        totals["candidates"] += 1
        totals["bytes"] += candidate.size
        yield candidate


def _is_passed_by(folder: bytes) -> bool:
    return skip_reason(folder) is not None


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
    paths, *columns = map(list, zip(*page, strict=True))
    keys = make_keys(pa.chunked_array([pa.array(paths, pa.binary())]))
    return pa.table([keys, paths, *columns], schema=MANIFEST_SCHEMA)


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
