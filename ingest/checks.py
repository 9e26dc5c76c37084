"""What `ingest verify` looks at in one shard, and what it says of each fault: shard, key and remedy."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ingest import store
from ingest.build.encode import decode
from ingest.errors import CorruptImageError, CorruptShardError
from ingest.shard import Member, ShardSummary, format_offsets, members_of, read_receipt, samples_of
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from ingest.index import Index, ShardEntry
    from ingest.recipe import Recipe

REBUILD = "run snakemake again: it rebuilds this shard"
"""Remedy of a fault whose shard is marked."""

_MOST_FAULTS_A_SHARD = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it should be.

    Attributes:
        what: the file and what is wrong with it, without the remedy.
        remedy: what a person can do about it, where no marker tells the build to.
        shard: the shard that must be built again; "" where that would mend nothing.
    """

    what: str
    remedy: str
    shard: str = ""

    def sentence(self, *, marked: bool) -> str:
        """Return what is wrong and what mends it; `marked`: the next build knows of this shard."""
        return f"{self.what}: {REBUILD if marked and self.shard else self.remedy}"


class UnreadableError(Exception):
    """A file that is missing or may not be read.

    Attributes:
        fault: what to say of it.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def _read(url: str, shard: str) -> bytes:
    try:
        return store.read_bytes(url)
    except FileNotFoundError as error:
        raise UnreadableError(Fault(f"{url}: is missing", "run the build again", shard)) from error
    except PermissionError as error:
        what = f"{url}: may not be read: {error.strerror or error}"
        raise UnreadableError(Fault(what, "give yourself the right to")) from error


def check_shard(dataset: str, index: Index, shard: ShardEntry) -> tuple[list[Fault], NDArray[np.bytes_]]:
    """Return each fault of one shard, and the keys of its samples.

    Args:
        dataset: path or URL.
        index: what the dataset should hold; its splits are not looked at.
        shard: which shard.

    Raises:
        StoreError: a read failed in a way that may pass.
    """
    url = store.join(dataset, f"{shard.name}.tar")
    try:
        data = _read(url, shard.name)
        summary, receipt = read_receipt(dataset, shard.name)
    except UnreadableError as error:
        return [error.fault], _no_keys()
    except CorruptShardError as error:
        what, _, remedy = str(error).rpartition(": ")
        return [Fault(what, remedy, shard.name)], _no_keys()
    remedy = f"remove {shard.name}.* and run the build again"
    said = _faults(index, shard, data, summary, receipt)
    faults = [Fault(f"{url}: {fault}", remedy, shard.name) for fault in said]
    faults += _offset_faults(dataset, shard, receipt)
    more = len(faults) - _MOST_FAULTS_A_SHARD
    if more > 0:
        faults[_MOST_FAULTS_A_SHARD:] = [Fault(f"{url}: {more} more faults", remedy, shard.name)]
    return faults, samples_of(receipt)["key"].to_numpy().astype("S16")


def _no_keys() -> NDArray[np.bytes_]:
    return np.empty(0, "S16")


def _faults(
    index: Index, shard: ShardEntry, data: bytes, summary: ShardSummary, receipt: pa.Table
) -> Iterator[str]:
    samples = dict(members_of(receipt))
    hit = _changed_samples(data, receipt)
    if len(data) != shard.bytes:
        yield f"is {len(data)} bytes long, the index says {shard.bytes}"
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        yield f"its SHA-256 is not that of the index: {_where(hit, receipt)}"
    for key, source in hit.items():
        yield f"sample {key} ({source}) does not hold the bytes that were written"
    if len(samples) != shard.samples:
        yield f"its receipt names {len(samples)} samples, the index {shard.samples}"
    if (summary.bytes, summary.sha256) != (shard.bytes, shard.sha256):
        yield "its receipt is of another state of the shard than the index"
    yield from _tar_faults(data, samples, index.fields)
    whole = {key: members for key, members in samples.items() if key not in hit}
    yield from _image_faults(data, whole, index.recipe)
    yield from _class_faults(data, receipt, index.classes)


def _changed_samples(data: bytes, receipt: pa.Table) -> dict[str, str]:
    """Return key and source of each sample whose picture does not have the checksum that was written down."""
    if "image_crc32" not in receipt.schema.names:
        return {}
    columns = ("key", "source", "image_offset", "image_bytes", "image_crc32")
    rows = zip(*(samples_of(receipt)[name].to_pylist() for name in columns), strict=True)
    view = memoryview(data)
    return {
        key: source
        for key, source, begin, size, checksum in rows
        if checksum is not None and zlib.crc32(view[begin : begin + size]) != checksum
    }


def _where(hit: dict[str, str], receipt: pa.Table) -> str:
    samples = samples_of(receipt)
    if "image_crc32" not in receipt.schema.names or samples["image_crc32"].null_count:
        return "bytes were changed, in which sample its receipt cannot tell"
    where = f"bytes of {count(len(hit), 'picture')}" if hit else "bytes outside of the pictures"
    return f"{where} were changed"


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


def _offset_faults(dataset: str, shard: ShardEntry, receipt: pa.Table) -> Iterator[Fault]:
    url = store.join(dataset, f"{shard.name}.idx")
    samples = list(members_of(receipt))
    try:
        found = _read(url, shard.name)
    except UnreadableError as error:
        yield error.fault
        return
    if found != format_offsets(samples, len(samples)):
        yield Fault(
            f"{url}: does not agree with the receipt", "remove it and run the build again", shard.name
        )
