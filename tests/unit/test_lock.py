"""lock: one process at a time; who is kept out is told who holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.errors import StoreError
from ingest.lock import hold


def test_lock_is_held_by_one(tmp_path: Path) -> None:
    """A second holder is told who holds the lock; after the first is done it gets it."""
    lock = tmp_path / "d/.ingest.lock"

    with hold(lock, wait=iter(())):
        with pytest.raises(StoreError, match=f"is being built by process {os.getpid()} on "):
            with hold(lock, wait=iter(())):
                pass

    with hold(lock, wait=iter(())):
        assert lock.exists()


def test_lock_is_tried_again_as_long_as_told(tmp_path: Path) -> None:
    """Each step of `wait` is one more try: a lock that becomes free meanwhile is taken."""
    lock = tmp_path / ".ingest.lock"
    first = hold(lock, wait=iter(()))
    first.__enter__()

    def wait() -> Iterator[None]:
        yield
        first.__exit__(None, None, None)
        yield

    with hold(lock, wait=wait()):
        assert str(os.getpid()) in lock.read_text()


def test_lock_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """Where a file stands in the way of the folder, the error names the lock."""
    (tmp_path / "file").write_bytes(b"x")

    with pytest.raises(StoreError, match=r"file/x/\.ingest\.lock: cannot lock: Not a directory"):
        with hold(tmp_path / "file/x/.ingest.lock", wait=iter(())):
            pass
