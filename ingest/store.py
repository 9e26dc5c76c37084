"""Where bytes lie: one set of functions over local folders and every URL that fsspec knows.

The one module that imports fsspec. A place is a URL (``s3://bucket/photos``) or a local path. A file
appears under its name only when it is whole: locally by temporary name, fsync and rename; elsewhere by
the upload's own commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import fsspec

from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY_PREFIX = ".tmp-"
"""Start of the name of a local file that is not whole yet; no reader looks at such a name."""


class FileInfo(NamedTuple):
    """One file under a root.

    Attributes:
        path: path relative to the root, as the bytes of its name (names need not be UTF-8).
        size: bytes.
        version: changes when the content may have changed: mtime in ns locally, else ETag or time.
    """

    path: bytes
    size: int
    version: str


def is_local(url: str) -> bool:
    """Return whether `url` is a path on this machine."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> Path:
    """Return a local URL as an absolute path."""
    return Path(url.removeprefix("file://")).expanduser().absolute()


def normalise(url: str) -> str:
    """Return `url` without trailing slashes, a local one as an absolute path."""
    return str(local_path(url)) if is_local(url) else url.rstrip("/")


def join(url: str, *parts: str) -> str:
    """Return the place `parts` below `url`."""
    return "/".join((url.rstrip("/"), *parts))


def join_bytes(url: str, path: bytes) -> str:
    """Return the file `path`, as listed by `walk`, below `url`."""
    return join(url, os.fsdecode(path))


def _open_filesystem(url: str) -> tuple[Any, str]:
    # A cached listing would hide what another process wrote a moment ago (fsspec/s3fs#851).
    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=False)  # type: ignore[no-any-return]
    except ImportError as error:
        protocol = url.split("://", 1)[0]
        message = (
            f"{url}: no file system for {protocol}:// is installed ({error}): pip install it, or ingest[s3]"
        )
        raise StoreError(message) from error
    except ValueError as error:
        raise StoreError(f"{url}: not a place that can be read: {error}") from error


@contextlib.contextmanager
def _explained(url: str, action: str) -> Iterator[None]:
    """Turn any I/O error inside into a `StoreError` that names the place and the reason."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{url}: cannot {action}: {error.strerror or error}") from error


def read_bytes(url: str) -> bytes:
    """Return the whole file at `url`.

    Raises:
        FileNotFoundError: nothing is there.
        PermissionError: it may not be read.
        StoreError: the read failed in a way that may pass.
    """
    try:
        if is_local(url):
            return local_path(url).read_bytes()
        filesystem, path = _open_filesystem(url)
        return bytes(filesystem.cat_file(path))
    except (FileNotFoundError, PermissionError, StoreError):
        raise
    except OSError as error:
        raise StoreError(f"{url}: cannot read: {error.strerror or error}") from error


def exists(url: str) -> bool:
    """Return whether a file or folder is at `url`.

    Raises:
        StoreError: the place cannot be asked.
    """
    with _explained(url, "look"):
        filesystem, path = _open_filesystem(url)
        return bool(filesystem.exists(path))


def remove(url: str) -> None:
    """Remove the file at `url` if it is there.

    Raises:
        StoreError: it is there and cannot be removed.
    """
    with _explained(url, "remove"), contextlib.suppress(FileNotFoundError):
        filesystem, path = _open_filesystem(url)
        filesystem.rm_file(path)


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
    return {os.fsdecode(info.path): info.size for info in walk(url)}


def list_folders(url: str) -> list[str]:
    """Return the names of the folders right below `url`, sorted.

    Raises:
        StoreError: the place cannot be listed.
    """
    with _explained(url, "list"):
        filesystem, path = _open_filesystem(url)
        entries = filesystem.ls(path, detail=True)
        folders = (entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
        return sorted(name.rsplit("/", 1)[-1] for name in folders)


def walk(url: str) -> Iterator[FileInfo]:
    """Yield every regular file below `url`, folder by folder, in a fixed order.

    Links are followed; a folder that was already visited (a loop) is not entered again.

    Raises:
        StoreError: a folder cannot be listed (a short listing would look like deleted files).
    """
    with _explained(url, "list"):
        if is_local(url):
            yield from _walk_local(os.fsencode(local_path(url)), b"", set())
        else:
            yield from _walk_remote(url)


def _walk_local(root: bytes, below: bytes, visited: set[tuple[int, int]]) -> Iterator[FileInfo]:
    folder = root + b"/" + below if below else root  # pathlib knows no bytes
    identity = os.stat(folder)  # noqa: PTH116
    if (identity.st_dev, identity.st_ino) in visited:
        return
    visited.add((identity.st_dev, identity.st_ino))
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = below + b"/" + entry.name if below else entry.name
        if entry.is_dir():
            yield from _walk_local(root, path, visited)
        elif entry.is_file():
            status = entry.stat()
            yield FileInfo(path, status.st_size, f"mtime:{status.st_mtime_ns}")


def _walk_remote(url: str) -> Iterator[FileInfo]:
    filesystem, root = _open_filesystem(url)
    for folder, _, files in filesystem.walk(root, detail=True):
        for name in sorted(files):
            path = f"{folder}/{name}".removeprefix(root).lstrip("/")
            yield FileInfo(os.fsencode(path), int(files[name].get("size") or 0), _version(files[name]))


def _version(info: dict[str, Any]) -> str:
    for field in ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created"):
        if info.get(field):
            return f"{field}:{info[field]}"
    return "unknown"


@contextlib.contextmanager
def create(url: str) -> Iterator[IO[bytes]]:
    """Open `url` for writing; the file appears whole when the block ends, and not at all if it raises.

    Raises:
        StoreError: the place cannot be written, or is full.
    """
    with _explained(url, "write"):
        writer = _create_local(local_path(url)) if is_local(url) else _create_remote(url)
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


@contextlib.contextmanager
def _create_remote(url: str) -> Iterator[IO[bytes]]:
    filesystem, path = _open_filesystem(url)
    file = filesystem.open(path, "wb", autocommit=False)
    try:
        yield file
        file.close()
    except BaseException:
        file.discard()
        raise
    file.commit()


def write_bytes(url: str, data: bytes) -> None:
    """Write `data` to `url` in one step.

    Raises:
        StoreError: the place cannot be written, or is full.
    """
    with create(url) as file:
        file.write(data)


def remove_temporaries(url: str) -> int:
    """Remove what killed writers left below a local `url`; return how many files that were."""
    if not is_local(url):
        return 0
    leftovers = [path for path in local_path(url).rglob(f"{TEMPORARY_PREFIX}*") if path.is_file()]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


@contextlib.contextmanager
def hold(lock: Path, *, wait: Iterator[None]) -> Iterator[None]:
    """Hold the lock file `lock` for the length of the block; the kernel drops it with the process.

    Args:
        lock: a local file, created if needed; it names its holder.
        wait: is advanced before each new try; when it ends, the try is given up.

    Raises:
        StoreError: another process holds the lock, or the file cannot be made.
    """
    with _explained(str(lock), "lock"):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+")
    with file:
        _acquire(file, lock, wait)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
        file.truncate(0)


def _acquire(file: IO[str], lock: Path, wait: Iterator[None]) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise StoreError(f"{lock}: cannot lock: {error.strerror}") from error
        else:
            return
        if next(wait, _ENDED) is _ENDED:
            file.seek(0)
            holder = file.read() or "another process"
            raise StoreError(f"{lock.parent} is being built by {holder}: wait for it, or stop it")


_ENDED = object()
