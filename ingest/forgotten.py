"""What must not be in a dataset, whatever the listing of the raw files says: `forgotten.json`, keys only.

A key is a hash of a file's path, so the list itself keeps nothing of what was to be forgotten.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ingest import store
from ingest.errors import CorruptShardError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

FORGOTTEN_NAME = "forgotten.json"


def read_forgotten(dataset: str) -> frozenset[str]:
    """Return the keys of all files that are to be forgotten; empty where there is no list.

    Raises:
        CorruptShardError: the list is damaged.
        StoreError: it cannot be read at the moment.
    """
    url = store.join(dataset, FORGOTTEN_NAME)
    try:
        keys = json.loads(store.read_bytes(url))["keys"]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except PermissionError as error:
        raise StoreError(f"{url}: may not be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        message = f"{url}: not a list of keys ({error}): restore it, or remove it and forget the files again"
        raise CorruptShardError(message) from error
    return frozenset(map(str, keys))


def add_forgotten(dataset: str, keys: Iterable[str]) -> int:
    """Add keys to the list; return how many of them are new.

    Raises:
        CorruptShardError: the list is damaged.
        StoreError: it cannot be read or written.
    """
    before = read_forgotten(dataset)
    after = before | set(keys)
    if after != before:
        data = json.dumps({"keys": sorted(after)}, indent=1) + "\n"
        store.write_bytes(store.join(dataset, FORGOTTEN_NAME), data.encode())
    return len(after) - len(before)
