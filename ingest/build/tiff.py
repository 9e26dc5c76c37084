"""The tags of a TIFF, and of the EXIF blocks that are built like one.

Pure functions of bytes that never raise: a broken or hostile block gives what could be read of it, and
costs no more than the limits below, whatever counts and offsets it states. Layout and types are those of
TIFF 6.0, sections 2 and "Image file directory"; BigTIFF as in libtiff's "The BigTIFF File Format".
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW_SUBFILE_TYPE = 254
IMAGE_WIDTH = 256
IMAGE_LENGTH = 257
BITS_PER_SAMPLE = 258
COMPRESSION = 259
PHOTOMETRIC = 262
MAKE = 271
ORIENTATION = 274
SAMPLES_PER_PIXEL = 277
PLANAR_CONFIG = 284
COLOR_MAP = 320
SUB_IFDS = 330
INK_SET = 332
EXTRA_SAMPLES = 338
SAMPLE_FORMAT = 339
ICC_PROFILE = 34675
DNG_VERSION = 50706

Tags = dict[int, tuple[int | float | bytes, ...]]
"""Values by number of the tag."""

_NUMBERS = {
    1: "B",
    3: "H",
    4: "I",
    6: "b",
    8: "h",
    9: "i",
    11: "f",
    12: "d",
    13: "I",
    16: "Q",
    17: "q",
    18: "Q",
}
"""Codes of `struct` for the types BYTE, SHORT, LONG, SBYTE, SSHORT, SLONG, FLOAT, DOUBLE, IFD, LONG8, ..."""
_RATIONALS = {5: "I", 10: "i"}
_BYTE, _ASCII, _UNDEFINED, _UTF8 = 1, 2, 7, 129  # the last is of EXIF 3.0
_TEXTS = frozenset({_ASCII, _UNDEFINED, _UTF8})

_BIG_TIFF = 43
_MOST_ENTRIES = 4096  # of one directory; real ones have less than 200
_MOST_NUMBERS = 1 << 16  # of one tag: a colour map has 3 * 256, a row of strip offsets some thousands
_MOST_NUMBERS_IN_ALL = 1 << 18
_MOST_BYTES = 1 << 16  # of one tag, but for the profile
_MOST_PROFILE_BYTES = 1 << 24
_MOST_BYTES_IN_ALL = (1 << 22) + _MOST_PROFILE_BYTES


_AS_STORED = "the picture stays as stored."


class Orientation(NamedTuple):
    """How a picture is to be turned.

    Attributes:
        value: 1 to 8; 1 where it is missing or broken.
        notes: a sentence if it is broken, else none.
    """

    value: int = 1
    notes: tuple[str, ...] = ()


class _Layout(NamedTuple):
    """How a block is written: byte order for `struct`, offset that its offsets count from, size classes."""

    order: str
    start: int
    is_big: bool

    def number(self, data: bytes, position: int, code: str) -> int | None:
        """Return one number at an absolute position, None where the data ends before it."""
        if not 0 <= position <= len(data) - struct.calcsize(self.order + code):
            return None
        return int(struct.unpack_from(self.order + code, data, position)[0])

    @property
    def offset_code(self) -> str:
        """Code of `struct` for an offset or a count of values."""
        return "Q" if self.is_big else "I"

    @property
    def count_code(self) -> str:
        """Code of `struct` for the number of entries of a directory."""
        return "Q" if self.is_big else "H"

    @property
    def entry_code(self) -> str:
        """Code of `struct` for an entry: tag, type, number of values, and where they are or what they are."""
        return self.order + ("HHQ8s" if self.is_big else "HHI4s")


class _Entry(NamedTuple):
    """One entry of a directory: `length` values of type `kind` at `position` in the data."""

    tag: int
    kind: int
    length: int
    position: int


def read_tags(data: bytes, start: int = 0) -> Tags:
    """Read the tags of the first directory of a TIFF or of an EXIF block.

    Args:
        data: a whole file, or as much of it as there is.
        start: where in `data` the block begins, in bytes: at its ``II`` or ``MM``.

    Returns:
        By number of the tag its values: integers, floats (a rational of denominator 0 is NaN), or one
        ``bytes``, of an ASCII tag without the zero bytes at its end. A tag that lies outside the data or is
        larger than the limits is left out; where a tag comes twice, the first counts. Empty if the bytes
        at `start` are no TIFF.
    """
    layout = _read_layout(data, start)
    first = None if layout is None else _first_offset(data, layout)
    return {} if first is None else read_directory(data, first, start)


def read_directory(data: bytes, offset: int, start: int = 0) -> Tags:
    """Read the tags of the directory at `offset`, as of a sub-IFD; see `read_tags`.

    Args:
        data: a whole file, or as much of it as there is.
        offset: where the directory lies, in bytes from `start`, as the values of `SUB_IFDS` say.
        start: where in `data` the block begins, in bytes.
    """
    layout = _read_layout(data, start)
    if layout is None:
        return {}
    tags: Tags = {}
    numbers_left, bytes_left = _MOST_NUMBERS_IN_ALL, _MOST_BYTES_IN_ALL
    for entry in _entries(data, layout, offset):
        is_text = entry.kind in _TEXTS
        if entry.tag in tags or entry.length > _most(entry, bytes_left if is_text else numbers_left):
            continue
        tags[entry.tag] = _read_values(data, layout, entry)
        bytes_left -= entry.length * is_text
        numbers_left -= entry.length * (not is_text)
    return tags


def directory_offsets(data: bytes, start: int = 0, most: int = 10_000) -> tuple[int, ...]:
    """Return where the directories of the chain lie, one for each page, in bytes from `start`.

    At most `most` of them; the chain ends where it leads outside the data or back into itself.
    """
    layout = _read_layout(data, start)
    offset = None if layout is None else _first_offset(data, layout)
    seen: dict[int, None] = {}  # a set in order
    while layout is not None and offset and offset not in seen and len(seen) < most:
        count = layout.number(data, start + offset, layout.count_code)
        if count is None:
            break
        seen[offset] = None
        entries = start + offset + struct.calcsize(layout.order + layout.count_code)
        offset = layout.number(data, entries + count * struct.calcsize(layout.entry_code), layout.offset_code)
    return tuple(seen)


def count_directories(data: bytes, most: int = 10_000) -> int:
    """Return the number of pages of a TIFF, 0 to `most`; see `directory_offsets`."""
    return len(directory_offsets(data, most=most))


def orientation_of(tags: Tags) -> int:
    """Return the orientation, 1 to 8; 1 where it is missing or anything else.

    It should be a SHORT; some cameras write a LONG or SLONG, which counts too.
    """
    value = next(iter(tags.get(ORIENTATION, ())), 1)
    return value if isinstance(value, int) and value in range(1, 9) else 1


def read_orientation(data: bytes, start: int = 0, tags: Tags | None = None) -> Orientation:
    """Read the orientation of the first directory of a TIFF or of an EXIF block.

    Args:
        data: a whole file, or as much of it as there is.
        start: where in `data` the block begins, in bytes.
        tags: of that directory, where they were read already.
    """
    tags = read_tags(data, start) if tags is None else tags
    values = tags.get(ORIENTATION)
    if values is None:
        fault = _why_missing(data, start)
    elif not values or not isinstance(values[0], int):
        fault = "The orientation is not a number"
    elif values[0] not in range(1, 9):
        fault = f"The orientation is {values[0]}, not 1 to 8"
    else:
        fault = None
    return Orientation(orientation_of(tags), () if fault is None else (f"{fault}: {_AS_STORED}",))


def _why_missing(data: bytes, start: int) -> str | None:
    """Say what is wrong with a block in which no orientation was read, None if it merely has none."""
    broken = "The EXIF block cannot be read"
    layout = _read_layout(data, start)
    first = None if layout is None else _first_offset(data, layout)
    if layout is None or first is None:
        return broken
    count = layout.number(data, start + first, layout.count_code)
    begin = start + first + struct.calcsize(layout.order + layout.count_code)
    size = struct.calcsize(layout.entry_code)
    if count is None or begin + size * count > len(data):
        return broken
    entries = range(begin, begin + size * min(count, _MOST_ENTRIES), size)
    is_listed = any(layout.number(data, entry, "H") == ORIENTATION for entry in entries)
    return "The orientation cannot be read" if is_listed else None


def _read_layout(data: bytes, start: int) -> _Layout | None:
    """Read byte order and size class from the first four bytes of a block.

    Any version but BigTIFF's is read as classic: some raws and some EXIF blocks have a number of their own.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[start : start + 2]) if start >= 0 else None
    if order is None:
        return None
    version = _Layout(order, start, is_big=False).number(data, start + 2, "H")
    return _Layout(order, start, is_big=version == _BIG_TIFF)


def _first_offset(data: bytes, layout: _Layout) -> int | None:
    return layout.number(data, layout.start + (8 if layout.is_big else 4), layout.offset_code)


def _entries(data: bytes, layout: _Layout, offset: int) -> Iterator[_Entry]:
    """Yield the entries of a directory whose type is known and whose values lie inside the data."""
    position = layout.start + offset
    count = layout.number(data, position, layout.count_code) or 0
    position += struct.calcsize(layout.order + layout.count_code)
    size = struct.calcsize(layout.entry_code)
    for begin in range(position, position + size * min(count, _MOST_ENTRIES), size):
        if begin + size > len(data):
            return
        entry = _read_entry(data, layout, begin)
        if entry is not None:
            yield entry


def _read_entry(data: bytes, layout: _Layout, begin: int) -> _Entry | None:
    tag, kind, count, field = struct.unpack_from(layout.entry_code, data, begin)
    if tag == ICC_PROFILE and kind == _BYTE:  # as some write it; it is one thing nevertheless
        kind = _UNDEFINED
    num_bytes = count * _size_of(kind)
    if num_bytes <= len(field):  # the values stand in the entry itself
        position = begin + struct.calcsize(layout.entry_code) - len(field)
    else:
        position = layout.start + int(struct.unpack(layout.order + layout.offset_code, field)[0])
    is_known = _size_of(kind) > 0 and position + num_bytes <= len(data)
    return _Entry(tag, kind, count, position) if is_known else None


def _size_of(kind: int) -> int:
    """Return the bytes of one value, 0 for an unknown type."""
    if kind in _TEXTS:
        return 1
    return 8 if kind in _RATIONALS else struct.calcsize("=" + _NUMBERS.get(kind, ""))


def _most(entry: _Entry, left: int) -> int:
    """Return how many values of a tag are read, of which `left` are left for the directory."""
    if entry.kind not in _TEXTS:
        return min(left, _MOST_NUMBERS)
    return min(left, _MOST_PROFILE_BYTES if entry.tag == ICC_PROFILE else _MOST_BYTES)


def _read_values(data: bytes, layout: _Layout, entry: _Entry) -> tuple[int | float | bytes, ...]:
    if entry.kind in _TEXTS:
        text = data[entry.position : entry.position + entry.length]
        return (text.rstrip(b"\0") if entry.kind == _ASCII else text,)
    if entry.kind in _NUMBERS:
        code = f"{layout.order}{entry.length}{_NUMBERS[entry.kind]}"
        return struct.unpack_from(code, data, entry.position)
    pairs = struct.unpack_from(
        f"{layout.order}{2 * entry.length}{_RATIONALS[entry.kind]}", data, entry.position
    )
    return tuple(
        top / bottom if bottom else math.nan for top, bottom in zip(pairs[::2], pairs[1::2], strict=True)
    )
