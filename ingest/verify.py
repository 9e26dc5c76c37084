"""verify: re-read every byte of a dataset and compare it with what was written down.

Each shard: size and SHA-256 of the tar against the index; its members, and the class in each, against the
receipt; the receipt's classes against the index; the offsets file against the receipt; every image decoded
strictly. Keys must be unique over the whole dataset, and the list of rejects must be that of the index.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

from ingest import processes, store
from ingest.build.encode import decode
from ingest.build.seal import count_codes
from ingest.errors import CorruptImageError, CorruptShardError
from ingest.index import Index, ShardEntry, read_index
from ingest.shard import (
    REJECTS_NAME,
    Member,
    format_offsets,
    members_of,
    read_receipt,
    read_rejects,
    samples_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

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
        DeviceError: a worker process died.
    """
    index = read_index(dataset)
    shards = [shard for entries in index.splits.values() for shard in entries]
    faults = list(_reject_faults(dataset, index))
    keys: dict[str, str] = {}
    check = functools.partial(check_shard, dataset, dataclasses.replace(index, splits={}))
    workers = max(1, min(cores, len(shards)))
    with contextlib.closing(processes.run(check, shards, workers=workers)) as results:
        for number, (shard, (found, shard_keys)) in enumerate(results, start=1):
            faults += found
            faults += [
                f"{shard.name}: key {key} stands in {keys[key]} too" for key in shard_keys if key in keys
            ]
            keys |= dict.fromkeys(shard_keys, shard.name)
            on_done(number, len(shards))
    num_bytes = sum(shard.bytes for shard in shards)
    return VerifySummary(len(keys), num_bytes, tuple(sorted(faults)))


class _UnreadableError(Exception):
    """A file that is missing or may not be read; the text is a sentence for a person."""


def _read(url: str) -> bytes:
    try:
        return store.read_bytes(url)
    except FileNotFoundError as error:
        raise _UnreadableError(f"{url}: is missing: run the build again") from error
    except PermissionError as error:
        raise _UnreadableError(f"{url}: may not be read: {error.strerror or error}") from error


def _reject_faults(dataset: str, index: Index) -> Iterator[str]:
    url = store.join(dataset, REJECTS_NAME)
    try:
        codes = count_codes(read_rejects(dataset))
    except CorruptShardError as error:
        yield str(error)
    else:
        if codes != index.rejects:
            yield f"{url}: lists the rejects {codes}, the index {index.rejects}: run the build again"


def check_shard(dataset: str, index: Index, shard: ShardEntry) -> tuple[list[str], list[str]]:
    """Return a sentence for each fault of one shard, and the keys of its samples.

    Args:
        dataset: path or URL.
        index: what the dataset should hold; its splits are not looked at.
        shard: which shard.

    Raises:
        StoreError: a read failed in a way that may pass.
    """
    url = store.join(dataset, f"{shard.name}.tar")
    try:
        data = _read(url)
        _, receipt = read_receipt(dataset, shard.name)
    except (_UnreadableError, CorruptShardError) as error:
        return [str(error)], []
    samples = dict(members_of(receipt))
    remedy = f"remove {shard.name}.* and run the build again"
    faults = [f"{url}: {fault}: {remedy}" for fault in _faults(index, shard, data, samples)]
    faults += [f"{url}: {fault}: {remedy}" for fault in _class_faults(data, receipt, index.classes)]
    faults += _offset_faults(dataset, shard, samples)
    more = len(faults) - _MOST_FAULTS_A_SHARD
    shown = faults[:_MOST_FAULTS_A_SHARD] + ([f"{url}: {more} more faults"] if more > 0 else [])
    return shown, list(samples)


def _faults(index: Index, shard: ShardEntry, data: bytes, samples: dict[str, list[Member]]) -> Iterator[str]:
    if len(data) != shard.bytes:
        yield f"is {len(data)} bytes long, the index says {shard.bytes}"
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        yield "its SHA-256 is not that of the index, bytes were changed"
    if len(samples) != shard.samples:
        yield f"its receipt names {len(samples)} samples, the index {shard.samples}"
    yield from _tar_faults(data, samples, index.fields)
    yield from _image_faults(data, samples, index.recipe)


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
            picture = data[image.offset : image.offset + image.size]
            height, width, _ = decode(picture, recipe.image_field).shape
        except CorruptImageError as error:
            yield f"sample {key} cannot be decoded ({error})"
            continue
        if not _fits(width, height, recipe):
            yield f"sample {key} is {width}x{height}, expected {recipe.size} by fit {recipe.fit}"


def _fits(width: int, height: int, recipe: Recipe) -> bool:
    if recipe.fit == "shortest":
        return min(width, height) == recipe.size
    return (width, height) == (recipe.size, recipe.size)


def _class_faults(data: bytes, receipt: pa.Table, classes: tuple[str, ...]) -> Iterator[str]:
    if not classes:
        return
    columns = ("key", "label", "class_id", "class_offset", "class_bytes")
    for row in samples_of(receipt).select(columns).to_pylist():
        key, class_id, begin = row["key"], row["class_id"], row["class_offset"]
        if class_id is None or not 0 <= class_id < len(classes):
            yield f"sample {key} has the class id {class_id}, the index has {len(classes)} classes"
            continue
        if row["label"] != classes[class_id]:
            yield f"sample {key} has the label {row['label']!r}, class {class_id} is {classes[class_id]!r}"
        if begin is None:
            continue  # the fields are not those of the index, which is a fault of its own
        content = data[begin : begin + row["class_bytes"]]
        if content != str(class_id).encode():
            yield f"sample {key} holds the class {content!r}, its receipt says {class_id}"


def _offset_faults(dataset: str, shard: ShardEntry, samples: dict[str, list[Member]]) -> Iterator[str]:
    url = store.join(dataset, f"{shard.name}.idx")
    try:
        found = _read(url)
    except _UnreadableError as error:
        yield str(error)
        return
    if found != format_offsets(samples.items(), len(samples)):
        yield f"{url}: does not agree with the receipt: remove it and run the build again"
