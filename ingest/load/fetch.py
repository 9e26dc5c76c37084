"""Where the shards are read: in place if they are on this machine, else from a checked local copy.

A copy is kept under the SHA-256 of its bytes, so the datasets, ranks and runs of a machine share it, and a
rebuilt shard never meets an old copy.
"""

from __future__ import annotations

import hashlib
import logging
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING

from ingest import store, units
from ingest.errors import CorruptShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.index import ShardEntry

logger = logging.getLogger(__name__)

_CONNECTIONS = 8


def default_cache_dir() -> Path:
    """Return the folder for copies of remote shards where the caller names none."""
    return Path.home() / ".cache" / "ingest"


def local_shards(dataset: str, shards: Sequence[ShardEntry], cache_dir: Path) -> list[Path]:
    """Return the local file of each shard; a remote one is fetched first unless its copy is there.

    Raises:
        CorruptShardError: a shard is missing, or its size or checksum is not that of the index.
        StoreError: a shard cannot be read at the moment, or the cache cannot be written.
    """
    if store.is_local(dataset):
        return [_in_place(dataset, shard) for shard in shards]
    missing = [shard for shard in shards if not _is_cached(cache_dir, shard)]
    if missing:
        amount = units.format_bytes(sum(shard.bytes for shard in missing))
        logger.info("%s: fetching %s, %s", dataset, units.count(len(missing), "shard"), amount)
    with futures.ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="ingest-fetch") as pool:
        for done in [pool.submit(_fetch, dataset, shard, cache_dir) for shard in missing]:
            done.result()
    return [_cached(cache_dir, shard) for shard in shards]


def _in_place(dataset: str, shard: ShardEntry) -> Path:
    path = store.local_path(_url(dataset, shard))
    try:
        found = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptShardError(f"{path}: this shard of the index is missing: {remedy(shard)}") from error
    _check_size(str(path), shard, found)
    return path


def _fetch(dataset: str, shard: ShardEntry, cache_dir: Path) -> None:
    url = _url(dataset, shard)
    try:
        data = store.read_bytes(url)
    except FileNotFoundError as error:
        raise CorruptShardError(f"{url}: this shard of the index is missing: {remedy(shard)}") from error
    _check_size(url, shard, len(data))
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise CorruptShardError(f"{url}: its SHA-256 is not that of the index: {remedy(shard)}")
    store.write_bytes(str(_cached(cache_dir, shard)), data)


def _check_size(url: str, shard: ShardEntry, found: int) -> None:
    if found != shard.bytes:
        raise CorruptShardError(f"{url}: {found} bytes found, {shard.bytes} expected: {remedy(shard)}")


def remedy(shard: ShardEntry) -> str:
    """Return what mends a shard that is damaged: the end of a sentence."""
    return f"copy the dataset again, or remove {shard.name}.* and run the build again"


def _url(dataset: str, shard: ShardEntry) -> str:
    return store.join(dataset, f"{shard.name}.tar")


def _cached(cache_dir: Path, shard: ShardEntry) -> Path:
    return cache_dir / "shards" / shard.sha256[:2] / f"{shard.sha256}.tar"


def _is_cached(cache_dir: Path, shard: ShardEntry) -> bool:
    path = _cached(cache_dir, shard)
    return path.is_file() and path.stat().st_size == shard.bytes
