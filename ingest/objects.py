"""Listings of buckets that speak S3, page by page: a prefix may hold more keys than memory does.

They are flat, a thousand keys a request however deep the folders, and not one request for each folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

from ingest.errors import StoreError
from ingest.faults import patiently, redact
from ingest.tree import FileInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_VERSION_FIELDS = (
    *("ETag", "etag", "md5Hash", "LastModified", "last_modified", "Last-Modified", "updated"),
    *("mtime", "created"),
)

_BEHIND_ALL = "\U0010ffff"
"""Sorts behind every character that a key may go on with."""


def split(path: str) -> tuple[str, str]:
    """Return the bucket of a path, and the prefix of the keys below it."""
    bucket, _, key = path.strip("/").partition("/")
    return bucket, f"{key}/" if key else ""


def _pages(filesystem: Any, url: str, **request: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    while True:
        ask = functools.partial(filesystem.call_s3, "list_objects_v2", **request)
        page: dict[str, Any] = patiently(url, "list", ask)
        yield page
        if not page.get("IsTruncated"):
            return
        if not page.get("NextContinuationToken"):
            message = f"{redact(url)}: cannot list: the store says that there is more, and not where"
            raise StoreError(f"{message}: see whether it knows ListObjectsV2")
        request["ContinuationToken"] = page["NextContinuationToken"]


def has_entries(filesystem: Any, url: str, path: str) -> bool:  # noqa: ANN401
    """Return whether any key is below a path.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    bucket, prefix = split(path)
    page = next(_pages(filesystem, url, Bucket=bucket, Prefix=prefix, MaxKeys=2))
    return any(entry["Key"] != prefix for entry in page.get("Contents", ()))


def list_folders(filesystem: Any, url: str, path: str) -> list[str]:  # noqa: ANN401
    """Return the names of the folders right below a path, sorted.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    bucket, prefix = split(path)
    pages = _pages(filesystem, url, Bucket=bucket, Prefix=prefix, Delimiter="/")
    found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
    return sorted(folder[len(prefix) : -1] for folder in found)


def walk(filesystem: Any, url: str, path: str, pass_by: Callable[[bytes], bool]) -> Iterator[FileInfo]:  # noqa: ANN401
    """Yield every file below a path in the order of the keys; see `ingest.store.walk`.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    bucket, prefix = split(path)
    reader = _Reader(prefix, pass_by)
    start: dict[str, str] = {}
    while True:
        for page in _pages(filesystem, url, Bucket=bucket, Prefix=prefix, **start):
            yield from reader.read(page)
            if reader.passed and page.get("IsTruncated"):
                start = {"StartAfter": f"{prefix}{os.fsdecode(reader.passed)}{_BEHIND_ALL}"}
                break
        else:
            return


class _Reader:
    """Makes files of the pages of a listing, in their order.

    Attributes:
        passed: the folder that is passed by where the last page ended, with its slash; empty if none is.
    """

    def __init__(self, prefix: str, pass_by: Callable[[bytes], bool]) -> None:
        self._prefix = prefix
        self._is_passed_by = functools.lru_cache(1024)(pass_by)
        self.passed = b""

    def read(self, page: dict[str, Any]) -> Iterator[FileInfo]:
        for entry in page.get("Contents", ()):
            path = os.fsencode(entry["Key"].removeprefix(self._prefix))
            if not path or (self.passed and path.startswith(self.passed)):
                continue  # an empty object that stands for the folder itself, or what is passed by
            folder = self._first_passed(path)
            self.passed = folder + b"/" if folder else b""
            if folder:
                yield FileInfo(folder, -1, "")
            elif not (path.endswith(b"/") and not entry["Size"]):
                yield _describe(path, entry)

    def _first_passed(self, path: bytes) -> bytes:
        end = path.find(b"/")
        while end >= 0:
            if self._is_passed_by(path[:end]):
                return path[:end]
            end = path.find(b"/", end + 1)
        return b""


def _describe(path: bytes, entry: dict[str, Any]) -> FileInfo:
    is_file = not path.endswith(b"/")  # as an object it may have bytes, but nobody opens it under that name
    return FileInfo(path, int(entry["Size"]) if is_file else -1, version(entry))


def version(info: dict[str, Any]) -> str:
    """Return what tells versions of a file apart: its ETag, which may be empty, or else a time."""
    for field in _VERSION_FIELDS:
        if str(info.get(field) or "").strip('"'):
            return f"{field}:{info[field]}"
    return "unknown"


def abort_uploads(filesystem: Any, url: str, path: str, is_ours: Callable[[str], bool]) -> int:  # noqa: ANN401
    """Give up the unfinished uploads of files right below a path; return how many that were.

    Raises:
        OSError: as `ingest.faults.patiently` does.
    """
    bucket, prefix = split(path)
    ask = functools.partial(filesystem.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix)
    found = [(entry["Key"], entry["UploadId"]) for entry in patiently(url, "list", ask).get("Uploads", ())]
    ours = [(key, number) for key, number in found if is_ours(key.removeprefix(prefix))]
    for key, number in ours:
        request = {"Bucket": bucket, "Key": key, "UploadId": number}
        with contextlib.suppress(FileNotFoundError):
            patiently(
                url, "abort", functools.partial(filesystem.call_s3, "abort_multipart_upload", **request)
            )
    return len(ours)
