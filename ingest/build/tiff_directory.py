"""The entries of the first directory of a TIFF: whether their values are in the file, and how to change them.

Pure. `tiff` reads the values themselves, and leaves out what is broken without a word.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from collections.abc import Set as AbstractSet

_NO_TAG = 65_535  # a private number that nobody uses
_SHORT = 3  # type of a value
_SIZES = dict(enumerate((0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)))  # bytes, by type


class _Directory(NamedTuple):
    """Where the entries stand, and their layout for `struct`: tag, type, count and value or offset."""

    begin: int
    num_entries: int
    entry: struct.Struct

    def entries(self, data: bytes) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, tag, bytes of the value, and value or offset of each entry."""
        for n in range(self.num_entries):
            position = self.begin + n * self.entry.size
            tag, kind, count, offset = self.entry.unpack_from(data, position)
            yield position, tag, count * _SIZES.get(kind, 0), offset


def _locate_directory(data: bytes) -> _Directory:
    """Find the first directory, in a TIFF or a BigTIFF."""
    order = "<" if data.startswith(b"II") else ">"
    is_big = data[2:4] in {b"+\0", b"\0+"}
    offset_at, offset_code, count_code, entry_code = (
        (8, "Q", "Q", "HHQQ") if is_big else (4, "I", "H", "HHII")
    )
    (offset,) = struct.unpack_from(order + offset_code, data.ljust(16, b"\xff"), offset_at)
    begin, entry = offset + struct.calcsize(count_code), struct.Struct(order + entry_code)
    if begin <= len(data):
        (count,) = struct.unpack_from(order + count_code, data, offset)
        if begin + count * entry.size <= len(data):
            return _Directory(begin, count, entry)
    raise CorruptImageError("truncated", "The TIFF ends before the list of its tags does.")


def has_tag(data: bytes, tag: int) -> bool:
    """Return whether the directory lists a tag, wherever its value is.

    Raises:
        CorruptImageError: ``truncated`` if the directory is not all in the file.
    """
    return any(listed == tag for _, listed, _, _ in _locate_directory(data).entries(data))


def check_values(data: bytes, read: Collection[int], decisive: AbstractSet[int]) -> None:
    """Refuse a TIFF that lists a tag whose value cannot be read.

    Args:
        data: a whole file.
        read: tags whose values were read.
        decisive: tags without which it would be another picture.

    Raises:
        CorruptImageError: ``truncated`` if the value, or the directory, is not in the file, else ``corrupt``.
    """
    for _, tag, num_bytes, offset in _locate_directory(data).entries(data):
        if tag in decisive and tag not in read:
            code = "truncated" if offset + num_bytes > len(data) else "corrupt"
            raise CorruptImageError(
                code, f"The value of tag {tag} of the TIFF is not in the file, or broken."
            )


def with_tags(data: bytes, values: Mapping[int, int | None]) -> bytes | bytearray:
    """Return a TIFF in which tags that it has are of type SHORT and these values, or are gone (None).

    Raises:
        CorruptImageError: ``truncated`` if the directory is not all in the file.
    """
    directory = _locate_directory(data)
    changed = [(position, tag) for position, tag, _, _ in directory.entries(data) if tag in values]
    if not changed:
        return data
    copy = bytearray(data)
    for position, tag in changed:
        value = values[tag]
        order, size = directory.entry.format[0], directory.entry.size
        # A SHORT stands at the begin of the field for the value, whichever the order of its bytes.
        head = (order + "HHQ" if size == struct.calcsize("=HHQQ") else order + "HHI") + "H"
        entry = struct.pack(head, _NO_TAG if value is None else tag, _SHORT, 1, value or 0)
        copy[position : position + size] = entry.ljust(size, b"\0")
    return copy


def with_first(data: bytes, offset: int) -> bytes:
    """Return a TIFF or BigTIFF whose first directory is the one at `offset`."""
    order = "<" if data.startswith(b"II") else ">"
    at, code = (8, "Q") if data[2:4] in {b"+\0", b"\0+"} else (4, "I")
    return data[:at] + struct.pack(order + code, offset) + data[at + struct.calcsize(code) :]
