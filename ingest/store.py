"""Where bytes lie: one set of functions over local folders and every URL that fsspec knows.

A place is a URL (``s3://bucket/photos``) or a local path. A file appears under its name only when it is
whole: locally by temporary name, fsync and rename; elsewhere by the upload's own commit. Faults of a store
that may pass are borne for a while (`ingest.faults`) before they are a `StoreError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ingest import faults, remote
from ingest.errors import StoreError
from ingest.faults import describe
from ingest.tree import FileInfo, walk_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEMPORARY_PREFIX = ".tmp-"
"""Start of the name of a local file that is not whole yet; no reader looks at such a name."""

redact = faults.redact


def is_local(url: str) -> bool:
    """Return whether `url` is a path on this machine."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> Path:
    """Return a local URL as an absolute path."""
    return Path(url.removeprefix("file://")).absolute()


def normalise(url: str) -> str:
    """Return `url` without trailing slashes; a local one as an absolute path without links or dots.

    Raises:
        StoreError: a local path leads round in a circle, or into the home of a user that is not there.
    """
    if not is_local(url):
        return url.rstrip("/")
    try:
        return str(Path(url.removeprefix("file://")).expanduser().resolve())
    except (RuntimeError, OSError) as error:
        raise StoreError(f"{url}: not a path that leads anywhere ({error})") from error


def join(url: str, *parts: str) -> str:
    """Return the place `parts` below `url`."""
    return "/".join((url.rstrip("/"), *parts))


def join_bytes(url: str, path: bytes) -> str:
    """Return the file `path`, as listed by `walk`, below `url`."""
    return join(url, remote.quote_path(url, path))


def place(root: str, path: bytes) -> str:
    """Return the file `path` below `root`, as `join_bytes`; where that is empty, the path is a whole URL."""
    return join_bytes(root, path) if root else os.fsdecode(path)


@contextlib.contextmanager
def _explained(url: str, action: str) -> Iterator[None]:
    """Turn any I/O error inside into a `StoreError` that names the place and the reason."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{redact(url)}: cannot {action}: {describe(error)}") from error


def read_bytes(url: str, size: int | None = None) -> bytes:
    """Return the whole file at `url`.

    Args:
        url: a file.
        size: its bytes as listed; where fewer come from a store, it is asked again unless it has no more.

    Raises:
        FileNotFoundError: nothing is there.
        NotADirectoryError: a parent of it is a file.
        IsADirectoryError: a folder is there.
        PermissionError: it may not be read.
        StoreError: the read failed in a way that may pass.
    """
    if not is_local(url):
        return remote.read(url, None, None, size)
    with _explained_read(url):
        return _read_local(local_path(url), 0, None)


def read_head(url: str, num_bytes: int) -> bytes:
    """Return the first `num_bytes` of the file at `url`, all of it where it is shorter; no more is asked for.

    Args:
        url: a file that is not empty: some servers refuse to send a part of nothing.
        num_bytes: at least 1.

    Raises:
        OSError: as `read_bytes` does.
    """
    if not is_local(url):
        return remote.read(url, 0, num_bytes, None)
    with _explained_read(url):
        return _read_local(local_path(url), 0, num_bytes)


def read_range(url: str, offset: int, size: int) -> bytes:
    """Return the `size` bytes of the file at `url` that begin at `offset`: all of them, or an error.

    Args:
        url: a file.
        offset: of the first byte.
        size: at least 1.

    Raises:
        OSError: as `read_bytes` does; also a `StoreError` where the file ends before that.
    """
    if is_local(url):
        with _explained_read(url):
            data = _read_local(local_path(url), offset, size)
    else:
        data = remote.read(url, offset, offset + size, size)
    if len(data) != size:
        message = f"{redact(url)}: ends at byte {offset + len(data)}, expected {size} bytes from {offset} on"
        raise StoreError(f"{message}: it was cut off or replaced: see what `ingest verify` says")
    return data


@contextlib.contextmanager
def _explained_read(url: str) -> Iterator[None]:
    """Turn an error inside that may pass into a `StoreError`; leave those that the file is to blame for."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, StoreError):
        raise
    except OSError as error:
        raise StoreError(f"{url}: cannot read: {error.strerror or error}") from error


def _read_local(path: Path, offset: int, size: int | None) -> bytes:
    if not (path.is_file() or path.is_dir()):  # whoever opens a pipe waits for ever
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    with path.open("rb", buffering=-1 if size is None else 0) as file:
        if offset:
            file.seek(offset)
        return file.read(-1 if size is None else size)


def modified(url: str) -> float | None:
    """Return when the file at `url` was changed last, in seconds since 1970.

    None where nothing is there, or the store does not say.

    Raises:
        StoreError: the place cannot be asked.
    """
    with _explained(url, "look"):
        if not is_local(url):
            return remote.modified(url)
        try:
            return local_path(url).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None


def look(url: str) -> FileInfo | None:
    """Return size and version of the file at `url`, as `walk` would, and `url` for its path.

    Returns:
        None where nothing is there. The size is -1 of what is no file, or where a web server does not say.

    Raises:
        PermissionError: nobody may ask.
        StoreError: the place cannot be asked.
    """
    with _explained_read(url):
        if not is_local(url):
            return remote.look(url)
        try:
            status = local_path(url).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        size = status.st_size if stat.S_ISREG(status.st_mode) else -1
        return FileInfo(os.fsencode(url), size, f"mtime:{status.st_mtime_ns}")


def exists(url: str) -> bool:
    """Return whether a file or folder is at `url`.

    Raises:
        StoreError: the place cannot be asked.
    """
    with _explained(url, "look"):
        return local_path(url).exists() if is_local(url) else remote.exists(url)


def has_entries(url: str) -> bool:
    """Return whether a folder is at `url` with anything in it.

    Raises:
        StoreError: the place cannot be asked.
    """
    with _explained(url, "list"):
        if not is_local(url):
            return remote.has_entries(url)
        try:
            return any(local_path(url).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return False


def remove(url: str) -> None:
    """Remove the file at `url` if it is there.

    Raises:
        StoreError: it is there and cannot be removed.
    """
    with _explained(url, "remove"):
        if is_local(url):
            local_path(url).unlink(missing_ok=True)
        else:
            remote.remove(url)


def make_folder(url: str) -> None:
    """Create the folder `url` and its parents; buckets without folders need nothing.

    Raises:
        StoreError: it cannot be created, or is a file.
    """
    if not is_local(url):
        return
    with _explained(url, "create the folder"):
        local_path(url).mkdir(parents=True, exist_ok=True)


def free_bytes(url: str) -> int | None:
    """Return the free space in bytes on the file system of a local `url`, or None where none is known."""
    if not is_local(url):
        return None
    path = local_path(url)
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def list_files(url: str) -> dict[str, int]:
    """Return the size in bytes of every file below `url`, by relative path; empty if nothing is there.

    Raises:
        StoreError: the place cannot be listed.
    """
    if not exists(url):
        return {}
    return {os.fsdecode(info.path): info.size for info in walk(url) if info.size >= 0}


def list_folders(url: str) -> list[str]:
    """Return the names of the folders right below `url`, sorted.

    Raises:
        StoreError: the place cannot be listed.
    """
    with _explained(url, "list"):
        if is_local(url):
            return sorted(path.name for path in local_path(url).iterdir() if path.is_dir())
        return remote.list_folders(url)


def walk(url: str, *, pass_by: Callable[[bytes], bool] = lambda _: False) -> Iterator[FileInfo]:
    """Yield every file below `url` in a fixed order: folder by folder, or in S3 in that of the keys.

    Links are followed, but for one to a folder that it lies in: that would be a loop.

    Args:
        url: a folder.
        pass_by: is given the path of each folder below `url`; where it returns True, the folder is yielded
            itself, with size -1, and not listed: it may be huge, or nobody's to read.

    Raises:
        StoreError: a folder cannot be listed (a short listing would look like deleted files).
    """
    with _explained(url, "list"):
        if is_local(url):
            yield from walk_tree(os.fsencode(local_path(url)), pass_by)
        else:
            yield from remote.walk(url, pass_by)


@contextlib.contextmanager
def create(url: str) -> Iterator[IO[bytes]]:
    """Open `url` for writing; the file appears whole when the block ends, and not at all if it raises.

    Raises:
        StoreError: the place cannot be written, or is full.
    """
    with _explained(url, "write"):
        writer = _create_local(local_path(url)) if is_local(url) else remote.create(url)
        with writer as file:
            yield file


@contextlib.contextmanager
def _create_local(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable: without this a power cut may bring the old name back."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(url: str, data: bytes) -> None:
    """Write `data` to `url` in one step.

    Raises:
        StoreError: the place cannot be written, or is full.
    """
    with create(url) as file:
        file.write(data)


def remove_temporaries(url: str, names: str) -> int:
    """Remove what killed writers left unfinished in a folder; return how many files or uploads that were.

    Args:
        url: the folder; those below it are not looked at.
        names: regular expression of the names that were to be written; no other file is touched.

    Raises:
        StoreError: the place cannot be asked.
    """
    if not is_local(url):
        with _explained(url, "clean up"):
            return remote.abort_uploads(url, lambda name: bool(re.fullmatch(names, name)))
    if not local_path(url).is_dir():
        return 0
    pattern = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{8}}-({names})")
    leftovers = [path for path in local_path(url).iterdir() if pattern.fullmatch(path.name)]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)
