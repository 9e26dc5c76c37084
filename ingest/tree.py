"""The files of a folder on this machine, to any depth and of any name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class FileInfo(NamedTuple):
    """One file under a root.

    Attributes:
        path: path relative to the root, as the bytes of its name (names need not be UTF-8).
        size: bytes; -1 for what is no file: a broken link, a pipe, a socket, a folder that was passed by.
        version: changes when the content may have changed: mtime in ns locally, else ETag or time.
    """

    path: bytes
    size: int
    version: str


def walk_tree(root: bytes, pass_by: Callable[[bytes], bool]) -> Iterator[FileInfo]:
    """Yield every file below the folder `root`, folder by folder, sorted; see `ingest.store.walk`.

    Raises:
        StoreError: a folder cannot be listed.
    """
    # A stack, not recursion: trees can be deeper than Python's. Each entry: folder below root, its parents.
    waiting: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset())]
    while waiting:
        below, parents = waiting.pop()
        folder = root + b"/" + below if below else root  # pathlib knows no bytes
        identity, entries = _list_folder(folder)
        if identity in parents:
            continue
        folders = []
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            if not _is_folder(entry):
                yield _look_at(entry, path)
            elif pass_by(path):
                yield FileInfo(path, -1, "")
            else:
                folders.append(path)
        waiting += [(path, parents | {identity}) for path in reversed(folders)]


def _list_folder(folder: bytes) -> tuple[tuple[int, int], list[os.DirEntry[bytes]]]:
    """Return which folder that is, whatever it is called, and its entries by name."""
    try:
        status = os.stat(folder)  # noqa: PTH116
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise StoreError(f"{os.fsdecode(folder)}: cannot list: {error.strerror or error}") from error
    return (status.st_dev, status.st_ino), entries


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _look_at(entry: os.DirEntry[bytes], path: bytes) -> FileInfo:
    try:
        if entry.is_file():
            status = entry.stat()
            return FileInfo(path, status.st_size, f"mtime:{status.st_mtime_ns}")
    except OSError:  # it vanished meanwhile, or its link leads nowhere
        pass
    return FileInfo(path, -1, "")
