"""Small local files of a build (manifest, plan, markers): replaced whole, and only where they changed."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import secrets
from typing import TYPE_CHECKING

from ingest import store
from ingest.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


DEMO_FOLDER = "data/demo"
"""Where the embedded sample of photos is written when no `raw` is configured."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """Whether the file got new content; known when the block has ended."""

    changed: bool = False


@contextlib.contextmanager
def replace_if_changed(path: Path) -> Iterator[tuple[Path, Outcome]]:
    """Give a temporary path to write to; move it to `path` at the end if the content differs.

    An unchanged file keeps its time stamp, so that nothing behind it is done again. If the block raises,
    `path` stays as it was.

    Raises:
        StoreError: the folder cannot be written.
    """
    unique = f"{store.TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}"  # another run may write it too
    temporary, outcome = path.with_name(unique), Outcome()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary, outcome
        outcome.changed = not (path.exists() and filecmp.cmp(path, temporary, shallow=False))
        if outcome.changed:
            temporary.replace(path)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path}: cannot write: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
