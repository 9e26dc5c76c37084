"""Where bytes lie: one set of functions over local folders and every URL that fsspec knows.

The one module that imports fsspec. A place is a URL (``s3://bucket/photos``) or a local path. A file
appears under its name only when it is whole: locally by temporary name, fsync and rename; elsewhere by
the upload's own commit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import fsspec

from ingest.errors import StoreError
from ingest.tree import FileInfo, walk_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEMPORARY_PREFIX = ".tmp-"
"""Start of the name of a local file that is not whole yet; no reader looks at such a name."""


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
    return join(url, os.fsdecode(path))


def _open_filesystem(url: str) -> tuple[Any, str]:
    if is_local(url):  # said outright: "::" in a path would mean a chain of URLs
        return fsspec.filesystem("file"), str(local_path(url))
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
        NotADirectoryError: a parent of it is a file.
        IsADirectoryError: a folder is there.
        PermissionError: it may not be read.
        StoreError: the read failed in a way that may pass.
    """
    return _read(url, None)


def read_head(url: str, num_bytes: int) -> bytes:
    """Return the first `num_bytes` of the file at `url`, all of it where it is shorter; no more is asked for.

    Args:
        url: a file that is not empty: some servers refuse to send a part of nothing.
        num_bytes: at least 1.

    Raises:
        OSError: as `read_bytes` does.
    """
    return _read(url, num_bytes)


def _read(url: str, end: int | None) -> bytes:
    try:
        if is_local(url):
            return _read_local(local_path(url), end)
        filesystem, path = _open_filesystem(url)
        # Asked for a part, some file systems send the whole, as web servers do that know no ranges.
        return bytes(filesystem.cat_file(path, start=None if end is None else 0, end=end))[:end]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, StoreError):
        raise
    except OSError as error:
        raise StoreError(f"{url}: cannot read: {error.strerror or error}") from error


def _read_local(path: Path, end: int | None) -> bytes:
    if not (path.is_file() or path.is_dir()):  # whoever opens a pipe waits for ever
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    with path.open("rb", buffering=0 if end is not None else -1) as file:
        return file.read(-1 if end is None else end)


def exists(url: str) -> bool:
    """Return whether a file or folder is at `url`.

    Raises:
        StoreError: the place cannot be asked.
    """
    with _explained(url, "look"):
        filesystem, path = _open_filesystem(url)
        return bool(filesystem.exists(path))


def has_entries(url: str) -> bool:
    """Return whether a folder is at `url` with anything in it.

    Raises:
        StoreError: the place cannot be asked.
    """
    with _explained(url, "list"):
        filesystem, path = _open_filesystem(url)
        try:
            return bool(filesystem.ls(path, detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return False


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
    return {os.fsdecode(info.path): info.size for info in walk(url) if info.size >= 0}


def list_folders(url: str) -> list[str]:
    """Return the names of the folders right below `url`, sorted.

    Raises:
        StoreError: the place cannot be listed.
    """
    with _explained(url, "list"):
        if is_local(url):
            return sorted(path.name for path in local_path(url).iterdir() if path.is_dir())
        filesystem, path = _open_filesystem(url)
        entries = filesystem.ls(path, detail=True)
        folders = (entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
        return sorted(name.rsplit("/", 1)[-1] for name in folders)


def walk(url: str, *, pass_by: Callable[[bytes], bool] = lambda _: False) -> Iterator[FileInfo]:
    """Yield every file below `url`, folder by folder, in a fixed order.

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
            yield from _walk_remote(url, pass_by)


def _walk_remote(url: str, pass_by: Callable[[bytes], bool]) -> Iterator[FileInfo]:
    # Not fsspec's own walk: that leaves out, without a word, what cannot be listed.
    filesystem, root = _open_filesystem(url)
    waiting = [root.rstrip("/")]
    while waiting:
        folder = waiting.pop()
        entries = {info["name"].rstrip("/"): info for info in _list_remote(filesystem, folder, root)}
        entries.pop(folder, None)  # an empty object that stands for the folder itself
        folders = []
        for name, info in sorted(entries.items()):
            path = os.fsencode(name.removeprefix(root).lstrip("/"))
            if info["type"] != "directory":
                yield FileInfo(path, int(info.get("size") or 0), _version(info))
            elif pass_by(path):
                yield FileInfo(path, -1, "")
            else:
                folders.append(name)
        waiting += reversed(folders)


def _list_remote(filesystem: Any, folder: str, root: str) -> list[dict[str, Any]]:  # noqa: ANN401
    try:
        return list(filesystem.ls(folder, detail=True))
    except FileNotFoundError:
        if folder == root.rstrip("/"):
            raise
        return []  # emptied meanwhile


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


def remove_temporaries(url: str, names: str) -> int:
    """Remove what killed writers left in a local folder; return how many files that were.

    Args:
        url: the folder; those below it are not looked at.
        names: regular expression of the names that were to be written; no other file is touched.
    """
    if not is_local(url) or not local_path(url).is_dir():
        return 0
    pattern = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{8}}-({names})")
    leftovers = [path for path in local_path(url).iterdir() if pattern.fullmatch(path.name)]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)
