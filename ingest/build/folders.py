"""What lies in a folder: each file is a candidate, says something of one, or is skipped and counted."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ingest import store
from ingest.build import memory, sidecars
from ingest.build.facts import NO_FACTS, Facts, Roles
from ingest.build.memory import Look, Memory
from ingest.build.names import (
    SPLIT_NAMES,
    claims_to_be_a_picture,
    has_split_folders,
    label_of,
    place,
    skip_reason,
    stem_of,
    suffix_of,
)
from ingest.build.sniff import group_of, recognise
from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from ingest.build.sources import Source
    from ingest.tree import FileInfo

logger = logging.getLogger(__name__)

_HEAD_BYTES = 512  # what `recognise` needs for all but which raw a TIFF is
_READ_AHEAD = 1024  # runs of the listing of which files may be read at a time
_SIDE = "side file"  # one that was read and says something of a picture
_CANDIDATE = Look(None)


class Candidate(NamedTuple):
    """One row of the manifest, but for what is known of its content; see `MANIFEST_SCHEMA`."""

    path: bytes
    size: int
    version: str
    split: str | None
    label: str | None
    root: int = 0
    text: str | None = None
    meta: str | None = None
    group: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListSettings:
    """How sources are listed; meanings as in `ingest.build.config.Settings`.

    Attributes:
        roles: what names in tables and side files stand for.
        sidecars: whether side files are read.
        split: ``none``: whatever a folder, a table or a side file says of a split is left alone.
        sizes: whether the files that a table names are asked for size and version.
        size_column: column of a table with the sizes.
        version_column: column of a table with what tells versions apart.
        url_columns: columns of a table with the place of the picture; the first that is there counts.
        named_columns: columns that a person named: every table must have them.
    """

    roles: Roles = dataclasses.field(default_factory=Roles)
    sidecars: bool = True
    split: str = "auto"
    sizes: bool = True
    size_column: str | None = None
    version_column: str | None = None
    url_columns: tuple[str, ...] = ("url", "path", "image", "file", "file_name", "filename")
    named_columns: frozenset[str] = frozenset()

    @property
    def folder_labels(self) -> bool:
        """Whether a class folder is a label where nothing else is."""
        return self.roles.labels in ("auto", "folder")


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """Reads files, some ahead of time, and remembers what it found.

    Attributes:
        pool: threads that read.
        memory: what was found before.
        skipped: counts the files that are no candidates, by kind.
    """

    pool: ThreadPoolExecutor
    memory: Memory
    skipped: Counter[str]


_Verdict = tuple["FileInfo", Look | Future[Look], bytes | None]
"""A file, what a look at it finds, and the mark to remember that by where it was read."""


def list_folder(source: Source, number: int, settings: ListSettings, reader: Reader) -> Iterator[Candidate]:
    """Yield the candidates below a folder, in the order of the listing.

    Args:
        source: a folder or a glob.
        number: of its root.
        settings: how to list.
        reader: reads, remembers and counts.

    Raises:
        StoreError: it is missing or cannot be listed; a picture lies beside split folders; or a file that is
            to be looked at cannot be read in a way that may pass.
    """
    _require_folder(source)
    top = _top_folders(source.root.url)
    folder = _Folder(source, number, settings, reader, has_splits=has_split_folders(top))
    infos = store.walk(source.root.url, pass_by=is_passed_by)
    runs = sidecars.families(infos) if settings.sidecars else ([info] for info in infos)
    seen: set[bytes] = set()
    for run in _in_order(_judge_all(source, run, reader) for run in runs):
        for candidate in folder.candidates(run):
            seen.add(candidate.path[: candidate.path.rfind(b"/") + 1])
            yield candidate
    if settings.folder_labels and source.kind == "folder":
        empty = _count_empty(source.root.url, top, seen, has_splits=folder.has_splits)
        reader.skipped.update({"empty folder": empty} if empty else {})


@dataclasses.dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that is listed: makes candidates of what was found of its files."""

    source: Source
    number: int
    settings: ListSettings
    reader: Reader
    has_splits: bool

    def candidates(self, run: list[_Verdict]) -> Iterator[Candidate]:
        """Yield the candidates of a run, with what the side files in it say of them."""
        sides: dict[bytes, dict[bytes, bytes]] = {}
        chosen: list[FileInfo] = []
        for info, found, mark in run:
            look = found.result() if isinstance(found, Future) else found
            if mark is not None:
                self.reader.memory.keep(mark, look)
            if look.data is not None:
                sides.setdefault(stem_of(info.path), {})[suffix_of(info.path)] = look.data
            elif look.kind is not None:
                self.reader.skipped[look.kind] += 1
            else:
                chosen.append(info)
        for info in chosen:
            if self.has_splits:
                _require_split(self.source.root.url, info.path)
            yield self._candidate(info, self._facts(info, sides) if sides else NO_FACTS)

    def _facts(self, info: FileInfo, sides: dict[bytes, dict[bytes, bytes]]) -> Facts:
        """Return what side files say of a picture; a broken one says nothing, and is counted."""
        roles = sidecars.side_roles(self.settings.roles)
        try:
            return sidecars.read_facts(sides.get(stem_of(info.path), {}), roles)
        except ValueError as error:
            self.reader.skipped["broken side file"] += 1
            if self.reader.skipped["broken side file"] == 1:
                name = info.path.decode(errors="backslashreplace")
                logger.warning("scan: the side file of %s is left out: %s", name, error)
            return NO_FACTS

    def _candidate(self, info: FileInfo, facts: Facts) -> Candidate:
        split, label = place(info.path, has_splits=self.has_splits)
        if not self.settings.folder_labels:
            label = None
        return Candidate(
            info.path,
            info.size,
            info.version,
            None if self.settings.split == "none" else facts.split or split,
            label if facts.label is None else facts.label,
            self.number,
            facts.text,
            facts.meta,
            group_of_file(info.path, facts, self.settings),
        )


def group_of_file(path: bytes, facts: Facts, settings: ListSettings) -> str | None:
    """Return the group of a file: as stated or, with ``split_by: folder``, the folder that it lies in."""
    if facts.group is None and settings.roles.group == "folder" and b"/" in path:
        return "/".join(map(label_of, path.split(b"/")[:-1]))
    return facts.group


# ---- what each file is


def _judge_all(source: Source, run: list[FileInfo], reader: Reader) -> list[_Verdict]:
    stems = sidecars.stems_of_pictures(run) if len(run) > 1 else frozenset()
    return [_judge(source, info, stems, reader) for info in run]


def _judge(source: Source, info: FileInfo, stems: frozenset[bytes], reader: Reader) -> _Verdict:
    """Find what a file is, from its name alone where that is enough."""
    reason = skip_reason(info.path) or ("no file" if info.size < 0 else None)
    if reason is not None:
        return info, Look(reason), None
    if sidecars.is_side_file(info, stems):
        return _ask(source, info, reader, is_side=True)
    if not source.matches(info.path):
        return info, Look("not matched"), None
    if claims_to_be_a_picture(info.path):
        return info, _CANDIDATE, None
    if info.size == 0:
        return info, Look(group_of(recognise(b""))), None
    return _ask(source, info, reader, is_side=False)


def _ask(source: Source, info: FileInfo, reader: Reader, *, is_side: bool) -> _Verdict:
    """Remember or have read what a file is."""
    url = store.join_bytes(source.root.url, info.path)
    mark = memory.mark_of(f"{_SIDE} {url}" if is_side else url, info.size, info.version)
    known = reader.memory.find(mark) if mark is not None else None
    if known is not None:
        return info, known, mark
    future = reader.pool.submit(_read_side, url) if is_side else reader.pool.submit(_look_inside, url)
    return info, future, mark


def _look_inside(url: str) -> Look:
    """Tell a candidate by its first bytes.

    What may not be read is one, so that shrink says which it is and why.
    """
    try:
        kind = recognise(store.read_head(url, _HEAD_BYTES))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return Look(None, lasts=False)
    return Look(group_of(kind)) if kind.family == "other" else _CANDIDATE


def _read_side(url: str) -> Look:
    """Read a side file; one that is a picture after all is a candidate."""
    try:
        data = store.read_bytes(url)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return Look("unreadable side file", lasts=False)
    is_picture = bool(data) and recognise(data[:_HEAD_BYTES]).family != "other"
    return _CANDIDATE if is_picture else Look(_SIDE, data)


def _in_order(runs: Iterable[list[_Verdict]]) -> Iterator[list[_Verdict]]:
    """Yield runs as they were judged, asking for some more before the first is known."""
    waiting: deque[list[_Verdict]] = deque()
    for run in runs:
        waiting.append(run)
        if len(waiting) > _READ_AHEAD:
            yield waiting.popleft()
    yield from waiting


# ---- folders


def is_passed_by(folder: bytes) -> bool:
    """Return whether a folder is not looked into."""
    return skip_reason(folder) is not None


def _require_folder(source: Source) -> None:
    url = source.root.url
    if not store.exists(url):
        raise StoreError(f"{url}: no such folder of raw photos: set the config key 'raw' to where they are")
    if store.is_local(url) and not store.local_path(url).is_dir():
        message = f"{url}: is a file, expected a folder of raw photos or a table (.csv, .parquet, .jsonl)"
        raise StoreError(f"{message}: set the config key 'raw'")


def _top_folders(url: str) -> list[str]:
    return [
        name for name in store.list_folders(url) if not is_passed_by(name.encode(errors="surrogateescape"))
    ]


def _count_empty(url: str, folders: list[str], seen: Iterable[bytes], *, has_splits: bool) -> int:
    """Return how many class folders hold no candidate; `seen`: the folders that do, with a slash behind."""
    if has_splits:
        splits = [name for name in folders if name.lower() in SPLIT_NAMES]
        folders = [f"{split}/{name}" for split in splits for name in _top_folders(store.join(url, split))]
    depth = 2 if has_splits else 1
    full = {b"/".join(folder.split(b"/", depth)[:depth]) for folder in seen}
    return sum(name.encode(errors="surrogateescape") not in full for name in folders)


def _require_split(root: str, path: bytes) -> None:
    top, slash, _ = path.decode("utf-8", "backslashreplace").partition("/")
    if not slash or top.lower() not in SPLIT_NAMES:
        where = store.join(root, top)
        raise StoreError(f"{where}: lies beside split folders (train, val, test): move it into one, or away")
