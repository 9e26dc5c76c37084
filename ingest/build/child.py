"""The process that decodes: reads raw files and shrinks them, apart from the worker that keeps the shard.

`ingest.build.isolate` starts it and talks to it over a socket. What comes in is an `Order`. What goes out for
each of its files, in order, is a `Begun` once the file has been read and, when it is done, the sample or the
reject; or an error that is not the file's fault, and nothing more of that order. A `Notice` may come before
any of these. Whatever a file does to this
process, nobody else is hurt: when it dies, hangs or has no memory left, the other side sees it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ingest import store
from ingest.build.image import shrink_image, shrink_several
from ingest.errors import CorruptImageError, IngestError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ingest.build.sample import Shrunk
    from ingest.recipe import Recipe

READ_AHEAD = 4
"""Files read before they are needed: hides the latency of a disk or network behind the decoding."""

READ_AHEAD_FROM_STORE = 16
"""The same for what comes from a store, which answers late, but many at a time: of 50 ms, 3 are left."""

_READ_AHEAD_BYTES = 64 * 10**6
# Beside the file that is decoded: 20 photos of a telephone, and little beside the pixels of one.

OUT_OF_MEMORY = 77
"""Exit status that says that an allocation failed: there may be no memory left to say it in words."""

_STACK_BYTES = 2**20
# Of a thread that reads. The usual 8 MiB each would count against the memory limit, used or not.

_IDLE_S = 60  # a worker of a cluster that stays up may see no further shard: its child need not stay too
_SECOND_TRY_AFTER_S = 1.0  # a disk that was reset answers again by then
_NETWORKS = ("nfs", "cifs", "smb", "fuse.", "9p", "ceph", "afs", "lustre", "gpfs", "beegfs")


class Order(NamedTuple):
    """Files to be shrunk, one after the other.

    Attributes:
        raw: root of the raw files.
        recipe: how each picture is shrunk.
        files: path below the root, and size in bytes as it was when the files were listed.
        ahead: how many files may be read before they are needed.
        known: SHA-256, in hex, of contents that need not be decoded: None is sent for such a file.
        also: further recipes: a list is sent for each file then, of what came of it by each.
    """

    raw: str
    recipe: Recipe
    files: tuple[tuple[bytes, int], ...]
    ahead: int
    known: frozenset[str] = frozenset()
    also: tuple[Recipe, ...] = ()


class Begun(NamedTuple):
    """A file that is about to be decoded: its size and SHA-256, None if it could not be read."""

    num_bytes: int
    sha256: str | None


class Notice(NamedTuple):
    """A warning for a person, as of a store that does not answer yet."""

    text: str


class Content(NamedTuple):
    """A raw file, or why it cannot be read."""

    data: bytes
    begun: Begun
    fault: CorruptImageError | None


def main() -> None:
    """Serve the process at the other end of a socket until it hangs up.

    The arguments of the command are the file descriptors of the socket and of the lifeline, and the memory
    limit in bytes.
    """
    descriptor, lifeline, memory_limit = (int(text) for text in sys.argv[1:])
    _follow(lifeline)
    _limit_memory(memory_limit)
    threading.stack_size(_STACK_BYTES)
    with Connection(descriptor) as parent, ThreadPoolExecutor(READ_AHEAD_FROM_STORE) as pool:
        logging.getLogger("ingest").addHandler(_Messenger(parent))
        parent.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        while parent.poll(_IDLE_S):
            try:
                order = parent.recv()
            except EOFError:
                return
            _work(order, parent, pool)


# ---- the process: ends with its parent, takes no more than it may


def _follow(lifeline: int) -> None:
    """End with the parent, even in the middle of C code that never returns, and not with Ctrl-C.

    The parent alone holds the writing end of the `lifeline`. When that closes, the kernel sends SIGIO to this
    process, whose default action ends it: no thread of ours needs to run, and none to hold the GIL.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    already = select.poll()
    already.register(lifeline)
    if already.poll(0):  # it closed before we listened
        os._exit(1)


def _limit_memory(memory_limit: int) -> None:
    """Have allocations beyond `memory_limit` bytes fail, and the kernel kill this process before others."""
    for kind, value in ((resource.RLIMIT_DATA, memory_limit), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):  # not Linux, or a container that forbids it: nothing is lost
        Path("/proc/self/oom_score_adj").write_text("1000")


class _Messenger(logging.Handler):
    """Hands warnings on to the parent: nobody sees what this process prints."""

    def __init__(self, parent: Connection) -> None:
        super().__init__(logging.WARNING)
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        _send(self._parent, Notice(record.getMessage()))


_SENDING = threading.Lock()


def _send(parent: Connection, message: object) -> None:
    """Send a message; threads that read send warnings between those of the one that decodes."""
    with _SENDING:
        parent.send(message)


# ---- orders


def _work(order: Order, parent: Connection, pool: ThreadPoolExecutor) -> None:
    """Shrink the files of an order; an error that is no file's fault ends it."""
    try:
        with contextlib.closing(read_ahead(order, pool, read_raw)) as contents:
            for content in contents:
                _send(parent, content.begun)
                is_known = content.begun.sha256 in order.known
                _send(parent, None if is_known else content.fault or _shrink(content.data, order))
    except (IngestError, ImportError) as error:
        _send(parent, error)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _shrink(data: bytes, order: Order) -> Shrunk | CorruptImageError | list[Shrunk | CorruptImageError]:
    try:
        if order.also:
            return shrink_several(data, (order.recipe, *order.also))
        return shrink_image(data, order.recipe)
    except CorruptImageError as fault:
        return fault
    except (IngestError, ImportError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  a decoder may raise anything: it costs this file, and is noted
        what = f"{type(error).__name__}: {error}"
        return CorruptImageError("crashed", f"The decoder failed on this file in an unforeseen way: {what}.")


# ---- reading


def read_ahead(
    order: Order, pool: ThreadPoolExecutor, read: Callable[[str, bytes, int], Content]
) -> Generator[Content]:
    """Yield the content of each file of an order, reading in `pool` what comes next.

    Beside the file that was yielded last, at most `order.ahead` files and 64 MB are held or being read.
    """
    coming = deque(order.files)
    waiting: deque[tuple[int, Future[Content]]] = deque()
    try:
        while coming or waiting:
            while coming and _has_room([size for size, _ in waiting], coming[0][1], order.ahead):
                path, size = coming.popleft()
                waiting.append((size, pool.submit(read, order.raw, path, size)))
            yield waiting.popleft()[1].result()
    finally:
        for _, future in waiting:
            future.cancel()


def _has_room(sizes: Sequence[int], size: int, ahead: int) -> bool:
    """Return whether one more file of `size` may be read, where the first of `sizes` is next in turn."""
    return not sizes or (len(sizes) <= ahead and sum(sizes[1:]) + size <= _READ_AHEAD_BYTES)


def read_raw(raw: str, path: bytes, size: int) -> Content:
    """Read the file `path` below `raw`, of `size` bytes as listed, or find that it is unreadable for good.

    Raises:
        StoreError: it cannot be read for a reason that may pass.
    """
    url = store.place(raw, path)
    try:
        data = _read_twice(url, size)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        _require_root(raw)
        return _unreadable("The file was there when it was scanned and is gone now.")
    except PermissionError:
        return _unreadable("The file may not be read: permission denied.")
    except StoreError as error:
        if not _is_damaged(url, error):
            raise
        _require_root(raw)
        return _unreadable("The disk cannot read the file, tried twice: input/output error.")
    return Content(data, Begun(len(data), hashlib.sha256(data).hexdigest()), None)


def _read_twice(url: str, size: int) -> bytes:
    """Read a file; where the disk says that it cannot, ask it a second time."""
    try:
        return _read_once(url, size)
    except StoreError as error:
        if not _is_damaged(url, error):
            raise
    time.sleep(_SECOND_TRY_AFTER_S)
    return _read_once(url, size)


def _read_once(url: str, size: int) -> bytes:
    try:
        return store.read_bytes(url, size)
    except (OSError, IngestError, MemoryError):
        raise
    except Exception as error:  # file systems of fsspec raise what their libraries do: no fault of the file
        words = f"cannot read: {type(error).__name__}: {error}"
        raise StoreError(store.redact(f"{url}: {words}")) from error


def _is_damaged(url: str, error: StoreError) -> bool:
    """Return whether a read failed because of the medium: EIO, and no network that might have caused it."""
    reason = error.__cause__
    is_eio = isinstance(reason, OSError) and reason.errno == errno.EIO
    return is_eio and store.is_local(url) and not _file_system(store.local_path(url)).startswith(_NETWORKS)


def _file_system(path: Path) -> str:
    """Return the kind of file system that the folder of `path` is on, such as ``ext4``; "" if unknown."""
    try:
        device = path.parent.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    # Fields of proc(5): id, parent, major:minor, ...; behind the dash the kind.
    kinds = (line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number)
    return next(kinds, "")


def _unreadable(reason: str) -> Content:
    return Content(b"", Begun(0, None), CorruptImageError("unreadable", reason))


def _require_root(raw: str) -> None:
    """Tell a file that is gone from a disk that is not mounted: the second is no fault of the file.

    Raises:
        StoreError: the root is not there, or is empty.
    """
    if raw and not store.has_entries(raw):
        message = f"{store.redact(raw)}: is missing or empty on {socket.gethostname()}"
        raise StoreError(f"{message}: mount it there, as it was when it was scanned, and run again")
