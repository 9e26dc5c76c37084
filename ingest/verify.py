"""verify: re-read every byte of a dataset and compare it with what was written down.

Each shard: size and SHA-256 of the tar against the index; its members against the receipt; the offsets
file against the receipt; every image decoded strictly. Keys must be unique over the whole dataset.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING

from ingest import store
from ingest.build.image import decode_jpeg
from ingest.errors import CorruptImageError, CorruptShardError
from ingest.index import ShardEntry, read_index
from ingest.shard import Member, format_offsets, members_of, read_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ingest.recipe import Recipe

_MOST_FAULTS_A_SHARD = 5


@dataclasses.dataclass(frozen=True, slots=True)
class VerifySummary:
    """What was read, and a sentence for each fault found."""

    samples: int
    bytes: int
    faults: tuple[str, ...]


def verify(dataset: str, *, cores: int, on_done: Callable[[int, int], None]) -> VerifySummary:
    """Re-read every byte of the dataset at `dataset`.

    Args:
        dataset: path or URL of a sealed dataset.
        cores: processes that check shards side by side.
        on_done: is told how many of how many shards are done.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the index itself cannot be read.
        StoreError: a read failed in a way that may pass.
    """
    index = read_index(dataset)
    shards = [shard for entries in index.splits.values() for shard in entries]
    faults: list[str] = []
    keys: dict[str, str] = {}
    with ProcessPoolExecutor(max(1, min(cores, len(shards)))) as pool:
        futures = {
            pool.submit(check_shard, dataset, shard, index.fields, index.recipe): shard for shard in shards
        }
        for number, future in enumerate(as_completed(futures), start=1):
            found, shard_keys = future.result()
            name = futures[future].name
            faults += found
            faults += [f"{name}: key {key} stands in {keys[key]} too" for key in shard_keys if key in keys]
            keys |= dict.fromkeys(shard_keys, name)
            on_done(number, len(shards))
    num_bytes = sum(shard.bytes for shard in shards)
    return VerifySummary(len(keys), num_bytes, tuple(sorted(faults)))


def check_shard(
    dataset: str, shard: ShardEntry, fields: tuple[str, ...], recipe: Recipe
) -> tuple[list[str], list[str]]:
    """Return a sentence for each fault of one shard, and the keys of its samples."""
    url = store.join(dataset, f"{shard.name}.tar")
    try:
        data = store.read_bytes(url)
        _, receipt = read_receipt(dataset, shard.name)
        samples = dict(members_of(receipt))
    except FileNotFoundError:
        return [f"{url}: is missing: run the build again"], []
    except CorruptShardError as error:
        return [str(error)], []
    faults = list(_faults(dataset, shard, data, samples, fields, recipe))
    more = len(faults) - _MOST_FAULTS_A_SHARD
    shown = faults[:_MOST_FAULTS_A_SHARD] + ([f"{url}: {more} more faults"] if more > 0 else [])
    return shown, list(samples)


def _faults(  # noqa: PLR0917  one shard, seen from six sides
    dataset: str,
    shard: ShardEntry,
    data: bytes,
    samples: dict[str, list[Member]],
    fields: tuple[str, ...],
    recipe: Recipe,
) -> Iterator[str]:
    url = store.join(dataset, f"{shard.name}.tar")
    remedy = f"remove {shard.name}.* and run the build again"
    if len(data) != shard.bytes:
        yield f"{url}: is {len(data)} bytes long, the index says {shard.bytes}: {remedy}"
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        yield f"{url}: its SHA-256 is not that of the index, bytes were changed: {remedy}"
    if len(samples) != shard.samples:
        yield f"{url}: its receipt names {len(samples)} samples, the index {shard.samples}: {remedy}"
    yield from (f"{url}: {fault}: {remedy}" for fault in _tar_faults(data, samples, fields))
    yield from (f"{url}: {fault}: {remedy}" for fault in _image_faults(data, samples, recipe))
    yield from _offset_faults(dataset, shard, samples)


def _tar_faults(data: bytes, samples: dict[str, list[Member]], fields: tuple[str, ...]) -> Iterator[str]:
    expected = {f"{key}.{m.field}": (m.offset, m.size) for key, members in samples.items() for m in members}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            found = {info.name: (info.offset_data, info.size) for info in tar}
    except tarfile.TarError as error:
        yield f"not a tar that can be read ({error})"
        return
    if found != expected:
        different = sorted(name for name in found | expected if found.get(name) != expected.get(name))
        yield f"{len(different)} members are not where the receipt says, first {different[0]}"
    for key, members in samples.items():
        if tuple(member.field for member in members) != fields:
            yield f"sample {key} has the fields {[m.field for m in members]}, expected {list(fields)}"


def _image_faults(data: bytes, samples: dict[str, list[Member]], recipe: Recipe) -> Iterator[str]:
    for key, (image, *_) in samples.items():
        try:
            height, width, _ = decode_jpeg(data[image.offset : image.offset + image.size]).shape
        except CorruptImageError as error:
            yield f"sample {key} cannot be decoded ({error})"
            continue
        if not _fits(width, height, recipe):
            yield f"sample {key} is {width}x{height}, expected {recipe.size} by fit {recipe.fit}"


def _fits(width: int, height: int, recipe: Recipe) -> bool:
    if recipe.fit == "shortest":
        return min(width, height) == recipe.size
    return (width, height) == (recipe.size, recipe.size)


def _offset_faults(dataset: str, shard: ShardEntry, samples: dict[str, list[Member]]) -> Iterator[str]:
    url = store.join(dataset, f"{shard.name}.idx")
    try:
        found = store.read_bytes(url)
    except FileNotFoundError:
        yield f"{url}: is missing: run the build again"
        return
    if found != format_offsets(samples.items(), len(samples)):
        yield f"{url}: does not agree with the receipt: remove it and run the build again"
