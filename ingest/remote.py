"""Places that are not on this machine: the one module that imports fsspec.

Each function asks the store as often as `ingest.faults.patiently` allows. What is written is kept here until
it is whole, and then sent in one go, so that a fault in the middle costs time and nothing else. What arrives,
here or there, is checked by its size: a body that was cut short is asked for again.
"""

from __future__ import annotations

import contextlib
import email.utils
import functools
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import fsspec

from ingest import objects
from ingest.errors import StoreError
from ingest.faults import CutShortError, patiently, redact
from ingest.tree import FileInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PART_BYTES = 16 * 2**20
_PARTS_AT_A_TIME = 4
_CONNECTIONS = 64
_LISTED_AT_A_TIME = 16

_S3: dict[str, Any] = {
    # Two quick tries more, within seconds; beyond that `patiently` goes on, and says so.
    "config_kwargs": {
        "retries": {"mode": "standard", "total_max_attempts": 3},
        "connect_timeout": 10,
        "read_timeout": 30,
        "max_pool_connections": _CONNECTIONS,
    }
}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3}
"""How a file system is made, by protocol; what is not said here is settled by the library's own ways."""

_READING: dict[str, dict[str, Any]] = {"s3": {"max_concurrency": 1}, "s3a": {"max_concurrency": 1}}
# Otherwise s3fs asks for the size first: a second trip for each photo.

_S3_UPLOAD = {"chunksize": _PART_BYTES, "max_concurrency": _PARTS_AT_A_TIME}
_UPLOADING: dict[str, dict[str, Any]] = {"s3": _S3_UPLOAD, "s3a": _S3_UPLOAD}
_UPLOADING |= {protocol: {"overwrite": True} for protocol in ("az", "abfs", "abfss", "adl")}


class _Place(NamedTuple):
    """A URL, its file system, and what that calls it."""

    url: str
    protocol: str
    filesystem: Any
    path: str

    @property
    def is_s3(self) -> bool:
        return self.protocol in ("s3", "s3a")


def is_web(url: str) -> bool:
    """Return whether `url` is of a web server: names are percent-encoded there, and nothing is written."""
    return url.startswith(("http://", "https://"))


def quote_path(url: str, path: bytes) -> str:
    """Return `path`, as it was listed below `url`, as a part of a URL."""
    return quote_from_bytes(path) if is_web(url) else os.fsdecode(path)


def _find(url: str) -> _Place:
    protocol = url.partition("://")[0]
    try:
        kind = fsspec.get_filesystem_class(protocol)
        options = json.dumps(kind._get_kwargs_from_urls(url), sort_keys=True)  # noqa: SLF001  the host, say
        return _Place(url, protocol, _filesystem(protocol, options, os.getpid()), kind._strip_protocol(url))  # noqa: SLF001
    except ImportError as error:
        known = {"s3": "ingest[s3]", "s3a": "ingest[s3]", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs"}
        message = f"{redact(url)}: no file system for {protocol}:// is installed ({error})"
        raise StoreError(
            f"{message}: pip install {known.get(protocol, 'the package that it names')}"
        ) from error
    except ValueError as error:
        raise StoreError(f"{redact(url)}: not a place that can be read: {redact(str(error))}") from error


@functools.cache
def _filesystem(protocol: str, options: str, _process: int) -> Any:  # noqa: ANN401
    """Return the one file system of this process for a protocol: its threads share its connections."""
    # A cached listing would hide what another process wrote a moment ago (fsspec/s3fs#851).
    settings = {"use_listings_cache": False, **_OPTIONS.get(protocol, {}), **json.loads(options)}
    filesystem = fsspec.filesystem(protocol, skip_instance_cache=True, **settings)
    if protocol in ("s3", "s3a"):
        filesystem.retries = 1  # botocore tries again, and so do we: a third layer would multiply both
    return filesystem


# ---- reading


def read(url: str, begin: int | None, end: int | None, expected: int | None) -> bytes:
    """Return the bytes of `url` from `begin` to `end`, all where those are None.

    Args:
        url: a file.
        begin: offset of the first byte; 0 where only `end` is given.
        end: offset behind the last byte.
        expected: how many bytes that should be; where fewer come, the store is asked how many there are, and
            they are read again unless it has no more.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    place = _find(url)
    return patiently(url, "read", lambda: _read_once(place, begin, end, expected))


def _read_once(place: _Place, begin: int | None, end: int | None, expected: int | None) -> bytes:
    data = bytes(
        place.filesystem.cat_file(place.path, start=begin, end=end, **_READING.get(place.protocol, {}))
    )
    if begin is not None and end is not None and len(data) > end - begin:
        data = data[begin:end]  # a web server that knows no ranges sends the whole
    if expected is not None and len(data) < expected:
        _require_whole(place, len(data), begin or 0, expected)
    return data


def _require_whole(place: _Place, found: int, begin: int, expected: int) -> None:
    """Tell a body that was cut short from a file that is shorter than was thought.

    Raises:
        CutShortError: there is more than came.
    """
    size = place.filesystem.info(place.path)["size"]
    if size is None or found < min(expected, size - begin):
        raise CutShortError(f"cut short: {found} of {expected} bytes came")


def exists(url: str) -> bool:
    """Return whether a file or folder is at `url`.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    try:
        _info(_find(url))
    except FileNotFoundError:
        return False
    return True


def _info(place: _Place) -> dict[str, Any]:
    found: dict[str, Any] = patiently(place.url, "look", lambda: place.filesystem.info(place.path))
    return found


def look(url: str) -> FileInfo | None:
    """Return size and version of the file at `url`; see `ingest.store.look`.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    try:
        info = _info(_find(url))
    except FileNotFoundError:
        return None
    size = -1 if info.get("type") == "directory" or info.get("size") is None else int(info["size"])
    return FileInfo(os.fsencode(url), size, objects.version(info))


def modified(url: str) -> float | None:
    """Return when the file at `url` was changed last; see `ingest.store.modified`."""
    try:
        info = _info(_find(url))
    except FileNotFoundError:
        return None
    for field in ("LastModified", "last_modified", "updated", "mtime", "modified", "created"):
        if hasattr(info.get(field), "timestamp"):
            return float(info[field].timestamp())
    stated = info.get("Last-Modified")
    return email.utils.parsedate_to_datetime(stated).timestamp() if stated else None


# ---- writing


@contextlib.contextmanager
def create(url: str) -> Iterator[IO[bytes]]:
    """Open `url` for writing; what was written is sent when the block ends.

    Raises:
        OSError: as `ingest.faults.patiently` does, or the folder of temporary files is full.
    """
    place = _find(url)
    if is_web(url):
        raise StoreError(
            f"{redact(url)}: cannot write: a web server can only be read: name a bucket or a folder"
        )
    with tempfile.TemporaryFile() as file:  # without a name: nothing is left of it, however we end
        with _explained_spool(url):
            yield file
            file.flush()
        patiently(url, "write", lambda: _upload(file.fileno(), place))


@contextlib.contextmanager
def _explained_spool(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        message = (
            f"{tempfile.gettempdir()}: cannot hold {redact(url)} until it is sent ({error.strerror or error})"
        )
        raise StoreError(f"{message}: make room there, or set TMPDIR to a folder with more") from error


def _upload(descriptor: int, place: _Place) -> None:
    size = os.fstat(descriptor).st_size
    options = _UPLOADING.get(place.protocol, {})
    place.filesystem.put_file(f"/dev/fd/{descriptor}", place.path, **options)
    arrived = place.filesystem.info(place.path)["size"]
    if arrived != size:
        raise CutShortError(f"{arrived} bytes arrived, {size} were sent")


def remove(url: str) -> None:
    """Remove the file at `url` if it is there.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    place = _find(url)
    with contextlib.suppress(FileNotFoundError):
        patiently(url, "remove", lambda: place.filesystem.rm_file(place.path))


def abort_uploads(url: str, is_ours: Callable[[str], bool]) -> int:
    """Give up uploads that killed writers left unfinished in the folder `url`; return how many that were.

    Args:
        url: the folder.
        is_ours: is given the name of a file in it.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    place = _find(url)
    return objects.abort_uploads(place.filesystem, url, place.path, is_ours) if place.is_s3 else 0


# ---- listing


def has_entries(url: str) -> bool:
    """Return whether a folder is at `url` with anything in it.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    place = _find(url)
    try:
        if place.is_s3:
            return objects.has_entries(place.filesystem, url, place.path)
        return bool(_entries(place, place.path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def list_folders(url: str) -> list[str]:
    """Return the names of the folders right below `url`, sorted.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    place = _find(url)
    if place.is_s3:
        return objects.list_folders(place.filesystem, url, place.path)
    names = [name for name, info in _entries(place, place.path).items() if info["type"] == "directory"]
    return sorted(os.fsdecode(_relative(place, name)) for name in names)


def walk(url: str, pass_by: Callable[[bytes], bool]) -> Iterator[FileInfo]:
    """Yield every file below `url`; see `ingest.store.walk`.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    place = _find(url)
    if place.is_s3:
        yield from objects.walk(place.filesystem, url, place.path, pass_by)
    else:
        yield from _walk_folders(place, pass_by)


def _walk_folders(place: _Place, pass_by: Callable[[bytes], bool]) -> Iterator[FileInfo]:
    # Not fsspec's own walk: that leaves out, without a word, what cannot be listed.
    waiting = [place.path.rstrip("/")]
    while waiting:
        folder = waiting.pop()
        folders = []
        for name, info in sorted(_list_below(place, folder).items()):
            path = _relative(place, name)
            if info["type"] != "directory":
                yield FileInfo(path, int(info.get("size") or 0), objects.version(info))
            elif pass_by(path):
                yield FileInfo(path, -1, "")
            else:
                folders.append(name)
        waiting += reversed(folders)


def _list_below(place: _Place, folder: str) -> dict[str, dict[str, Any]]:
    try:
        return _entries(place, folder)
    except FileNotFoundError:
        if folder == place.path.rstrip("/"):
            raise
        return {}  # emptied meanwhile


def _entries(place: _Place, folder: str) -> dict[str, dict[str, Any]]:
    """Return what is in a folder, by the name that its file system has for it."""
    listed = patiently(place.url, "list", lambda: place.filesystem.ls(folder, detail=True))
    entries = {info["name"].rstrip("/"): info for info in listed}
    entries.pop(folder.rstrip("/"), None)  # an empty object that stands for the folder itself
    return _ask_sizes(place, entries) if is_web(place.url) else entries


def _ask_sizes(place: _Place, entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Complete a web page's list of links, which tells of no sizes; leave out those that only sort it."""
    names = [name for name, info in entries.items() if info["type"] != "directory" and "?" not in name]
    with ThreadPoolExecutor(_LISTED_AT_A_TIME) as pool:
        infos = pool.map(lambda name: _info(place._replace(path=name)), names)
        found = dict(zip(names, infos, strict=True))
    return found | {name: info for name, info in entries.items() if info["type"] == "directory"}


def _relative(place: _Place, name: str) -> bytes:
    below = name.removeprefix(place.path.rstrip("/")).lstrip("/")
    return unquote_to_bytes(below) if is_web(place.url) else os.fsencode(below)
