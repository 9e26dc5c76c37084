"""One process at a time: a lock file that the kernel drops with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from typing import IO, TYPE_CHECKING

from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def hold(lock: Path, *, wait: Iterator[None]) -> Iterator[None]:
    """Hold the lock file `lock` for the length of the block; the kernel drops it with the process.

    Args:
        lock: a local file, created if needed; it names its holder.
        wait: is advanced before each new try; when it ends, the try is given up.

    Raises:
        StoreError: another process holds the lock, or the file cannot be made.
    """
    with _open(lock) as file:
        _acquire(file, lock, wait)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
        file.truncate(0)


def holder(lock: Path) -> str | None:
    """Return who holds a lock file, as it names itself; None where nobody does, or there is no such file.

    Whoever asks holds it for a moment, together with others who ask: a holder to be may have to try twice.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        with lock.open() as file:
            return None if _is_free(file) else file.read() or "another process"
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{lock}: cannot read: {error.strerror or error}") from error


def _is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


def _open(lock: Path) -> IO[str]:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("a+")
    except OSError as error:
        raise StoreError(f"{lock}: cannot lock: {error.strerror or error}") from error


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
