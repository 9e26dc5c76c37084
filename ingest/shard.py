"""The format of one shard: a USTAR file of samples, its offsets, and its receipt.

    <split>/<number>-<hash8>.tar      members of a sample adjacent: <key>.jpg [.cls] [.json] [.txt]
    <split>/<number>-<hash8>.idx      offsets for NVIDIA DALI, version v1.2 of its format
    <split>/<number>-<hash8>.parquet  receipt: one row a file of the plan, sample or reject

Plain webdataset, Hugging Face datasets and DALI read the tar unchanged.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import tarfile
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.errors import CorruptShardError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_KEY_BYTES = 10
# 80 bits: among 10^9 files the chance that any two share a key is n^2 / 2^81 = 4e-7; plan checks anyway.


def make_key(path: bytes) -> str:
    """Return the key of the file at `path` below its root: 16 characters of a-z and 2-7.

    The key holds no dot, slash or space, whatever the name holds, because readers split names at dots.
    """
    digest = hashlib.blake2b(path, digest_size=_KEY_BYTES).digest()
    return base64.b32encode(digest).decode().lower()


_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
_KEY_CHARACTERS = 16
_WEIGHTS = np.array([16, 8, 4, 2, 1], np.uint8)
_PAGE = 100_000


def make_keys(paths: pa.ChunkedArray) -> pa.Array:
    """Return `make_key` of each of many paths, as strings.

    Args:
        paths: binary, none null.
    """
    pages = [_keys_of(paths.slice(begin, _PAGE).to_pylist()) for begin in range(0, len(paths), _PAGE)]
    return pa.concat_arrays(pages) if pages else pa.array([], pa.string())


def _keys_of(paths: list[bytes]) -> pa.Array:
    digests = b"".join(hashlib.blake2b(path, digest_size=_KEY_BYTES).digest() for path in paths)
    bits = np.unpackbits(np.frombuffer(digests, np.uint8)).reshape(-1, 5)
    characters = _ALPHABET[bits @ _WEIGHTS]  # base32: five bits a character
    offsets = np.arange(len(paths) + 1, dtype=np.int32) * _KEY_CHARACTERS
    return pa.StringArray.from_buffers(len(paths), pa.py_buffer(offsets), pa.py_buffer(characters))


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """Where one field of one sample lies in its tar: `offset` and `size` of its data, in bytes."""

    field: str
    offset: int
    size: int


class TarWriter:
    """Writes samples to one USTAR file with nothing in it but their keys, fields and bytes.

    The same samples in the same order give the same bytes: no times, owners or host names are kept.

    Attributes:
        num_bytes: bytes written so far.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._hashing = _HashingFile(file)
        self._tar = tarfile.open(fileobj=self._hashing, mode="w", format=tarfile.USTAR_FORMAT)  # type: ignore[call-overload]  # noqa: SIM115

    def add(self, key: str, fields: dict[str, bytes]) -> list[Member]:
        """Append one sample; return where each of its fields lies."""
        return [self._add_member(key, field, data) for field, data in fields.items()]

    def _add_member(self, key: str, field: str, data: bytes) -> Member:
        info = tarfile.TarInfo(f"{key}.{field}")
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))
        padded = -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return Member(field, self._tar.offset - padded, len(data))

    def close(self) -> tuple[int, str]:
        """Finish the tar; return its size in bytes and its SHA-256."""
        self._tar.close()
        return self._hashing.num_bytes, self._hashing.sha256.hexdigest()


class _HashingFile:
    """A file that tarfile can write to and that hashes what passes through."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.num_bytes += len(data)
        self._file.write(data)
        return len(data)

    def tell(self) -> int:
        return self.num_bytes


RECEIPT_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("path", pa.binary(), nullable=False),  # below the root of the raw files
        pa.field("root", pa.string()),  # URL of that; empty: the path is a whole URL
        pa.field("source", pa.string(), nullable=False),  # URL for a person; bytes that are not UTF-8 as \xNN
        pa.field("source_version", pa.string(), nullable=False),
        pa.field("source_bytes", pa.int64(), nullable=False),
        pa.field("source_sha256", pa.string()),  # None where the file could not be read
        pa.field("split", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("class_id", pa.int32()),
        pa.field("text", pa.string()),  # caption
        pa.field("meta", pa.string()),  # all else that was said of it: a JSON object
        pa.field("status", pa.string(), nullable=False),  # "sample" or "rejected"
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
        # How the sample was made: what each means stands at `ingest.build.sample.Provenance`.
        pa.field("source_format", pa.string()),
        pa.field("source_mode", pa.string()),
        pa.field("source_bits", pa.int8()),
        pa.field("source_width", pa.int32()),  # upright
        pa.field("source_height", pa.int32()),
        pa.field("orientation", pa.int8()),  # EXIF value that was applied; 1 = none
        pa.field("scale", pa.string()),  # fraction of the raw picture that was decoded, such as "1/4"
        pa.field("crop_left", pa.float64()),
        pa.field("crop_top", pa.float64()),
        pa.field("crop_right", pa.float64()),
        pa.field("crop_bottom", pa.float64()),
        pa.field("scale_x", pa.float64()),
        pa.field("scale_y", pa.float64()),
        pa.field("offset_x", pa.int32()),
        pa.field("offset_y", pa.int32()),
        pa.field("profile", pa.string()),
        pa.field("profile_use", pa.string()),
        pa.field("frames_dropped", pa.int32()),
        pa.field("alpha", pa.bool_()),
        pa.field("upscaled", pa.bool_()),
        pa.field("rows_present", pa.float64()),
        pa.field("notes", pa.list_(pa.string())),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("image_field", pa.string()),
        pa.field("image_offset", pa.int64()),
        pa.field("image_bytes", pa.int64()),
        pa.field("image_crc32", pa.int64()),
        pa.field("class_offset", pa.int64()),
        pa.field("class_bytes", pa.int64()),
        pa.field("json_offset", pa.int64()),
        pa.field("json_bytes", pa.int64()),
        pa.field("txt_offset", pa.int64()),
        pa.field("txt_bytes", pa.int64()),
        pa.field("pixels", pa.int64()),
        pa.field("pixel_sum", pa.list_(pa.int64())),  # of R, G and B
        pa.field("pixel_sum_squares", pa.list_(pa.int64())),
    ]
)
"""Columns of a receipt; rows stand in the order of the tar, rejects where their sample would have stood."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardSummary:
    """What a receipt says of its shard as a whole.

    Attributes:
        name: ``<split>/<number>-<hash8>``, without a suffix.
        samples: samples in the tar; with 0 there is no tar.
        rejects: files of the plan that became no sample.
        bytes: size of the tar.
        sha256: SHA-256 of the tar.
        pixels: pixels of all samples together.
        pixel_sum: sum of the R, G and B values (0 to 255) over all pixels.
        pixel_sum_squares: the same of their squares.
        engines: versions of what decoded and encoded; several, joined by `` | ``, where samples were copied.
        recipe_sha256: hash of the recipe of all samples.
    """

    name: str
    samples: int
    rejects: int
    bytes: int
    sha256: str
    pixels: int
    pixel_sum: tuple[int, int, int]
    pixel_sum_squares: tuple[int, int, int]
    engines: dict[str, str]
    recipe_sha256: str = ""


def write_receipt(dataset: str, summary: ShardSummary, rows: Sequence[dict[str, Any]]) -> None:
    """Write the receipt of one shard; its presence says that the tar is whole, so it is written last.

    Raises:
        StoreError: the dataset cannot be written.
    """
    metadata = {"ingest.shard": json.dumps(dataclasses.asdict(summary), sort_keys=True)}
    table = pa.Table.from_pylist(list(rows), schema=RECEIPT_SCHEMA.with_metadata(metadata))
    with store.create(store.join(dataset, f"{summary.name}.parquet")) as file:
        pq.write_table(table, file, compression="zstd")


def read_receipt(dataset: str, name: str) -> tuple[ShardSummary, pa.Table]:
    """Read the receipt of shard `name`.

    Returns:
        What it says of the shard, and its rows (columns: `RECEIPT_SCHEMA`).

    Raises:
        CorruptShardError: the receipt is missing or cannot be read.
        StoreError: the read failed in a way that may pass.
    """
    url = store.join(dataset, f"{name}.parquet")
    try:
        table = pq.read_table(pa.BufferReader(store.read_bytes(url)))
        table.select(RECEIPT_SCHEMA.names).cast(RECEIPT_SCHEMA).validate(
            full=True
        )  # it may know more than we
        _require_places(samples_of(table))
        values = json.loads(table.schema.metadata[b"ingest.shard"])
        return _summary_from_dict(values), table
    except StoreError:
        raise
    except PermissionError as error:
        raise StoreError(f"{url}: may not be read: permission denied") from error
    except FileNotFoundError as error:
        raise CorruptShardError(f"{url}: is missing: run the build again") from error
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        message = f"{url}: not a receipt that can be read ({error}): remove it and run the build again"
        raise CorruptShardError(message) from error


def _require_places(samples: pa.Table) -> None:
    columns = ("image_field", "image_offset", "image_bytes")
    empty = [name for name in columns if samples[name].null_count]
    empty += [
        begin
        for begin, size in _OTHER_PLACES.values()
        if samples[begin].null_count != samples[size].null_count
    ]
    if empty:
        raise ValueError(f"samples without {empty[0]}")


_OTHER_PLACES = {
    "cls": ("class_offset", "class_bytes"),
    "json": ("json_offset", "json_bytes"),
    "txt": ("txt_offset", "txt_bytes"),
}
"""Columns of the place of each field beside the picture, in the order of the tar."""


def places_of(members: Sequence[Member]) -> dict[str, Any]:
    """Return the columns of a receipt that say where the members of a sample lie, the picture first."""
    image, *others = members
    places = {"image_field": image.field, "image_offset": image.offset, "image_bytes": image.size}
    for member in others:
        begin, size = _OTHER_PLACES[member.field]
        places |= {begin: member.offset, size: member.size}
    return places


def _summary_from_dict(values: dict[str, Any]) -> ShardSummary:
    triples = {name: tuple(values[name]) for name in ("pixel_sum", "pixel_sum_squares")}
    return ShardSummary(**{**values, **triples})


REJECTS_NAME = "rejects.parquet"
"""Every file of a dataset that became no sample, below the dataset's root."""


REJECT_COLUMNS = ("source", "code", "reason", "source_bytes", "split", "label", "key")
"""Its columns."""


def read_rejects(dataset: str) -> pa.Table:
    """Read the files that became no sample, with code and reason.

    Raises:
        CorruptShardError: the list is missing or cannot be read.
        StoreError: the read failed in a way that may pass.
    """
    url = store.join(dataset, REJECTS_NAME)
    try:
        return pq.read_table(pa.BufferReader(store.read_bytes(url))).select(REJECT_COLUMNS)
    except StoreError:
        raise
    except PermissionError as error:
        raise StoreError(f"{url}: may not be read: permission denied") from error
    except (OSError, pa.ArrowException, KeyError) as error:
        raise CorruptShardError(f"{url}: cannot be read ({error}): run the build again") from error


def samples_of(receipt: pa.Table) -> pa.Table:
    """Return the rows of a receipt that are in the tar."""
    return receipt.filter(pa.compute.equal(receipt["status"], "sample"))


def format_offsets(samples: Iterable[tuple[str, Sequence[Member]]], num_samples: int) -> bytes:
    """Return the offsets file of a shard, as NVIDIA DALI's webdataset reader wants it (its format v1.2).

    Args:
        samples: key and members of each sample, in the order of the tar.
        num_samples: how many those are.
    """
    lines = [f"v1.2 {num_samples}"]
    for key, members in samples:
        lines.append(" ".join(f"{m.field} {m.offset} {m.size} {key}.{m.field}" for m in members))
    return ("\n".join(lines) + "\n").encode()


def members_of(receipt: pa.Table) -> Iterator[tuple[str, list[Member]]]:
    """Yield key and members of each sample of a receipt, in the order of the tar."""
    columns = ["key", "image_field", "image_offset", "image_bytes", *chain(*_OTHER_PLACES.values())]
    for row in samples_of(receipt).select(columns).to_pylist():
        members = [Member(row["image_field"], row["image_offset"], row["image_bytes"])]
        for field, (begin, size) in _OTHER_PLACES.items():
            if row[begin] is not None:
                members.append(Member(field, row[begin], row[size]))
        yield row["key"], members
