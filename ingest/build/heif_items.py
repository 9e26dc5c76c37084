"""The items of a HEIC or AVIF: where each lies, and what is said of it (ISO/IEC 14496-12, 23008-12). Pure.

Never raises: what is broken or hostile is read as far as it goes, in time that the limits below bound.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ingest.build.containers import Chunk
from ingest.build.jpeg2000 import iter_boxes

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODED = frozenset(b"hvc1 hvc2 hev1 lhv1 av01 avc1 vvc1 jpeg j2k1".split())  # types of items
_MOST_ITEMS = 1 << 16
_MOST_EXTENTS = 1 << 18
_MOST_NUMBERS = 1 << 18  # of associations, and of references
_FULL_BOX_BYTES = 4  # version and flags
_IN_FILE, _IN_IDAT = 0, 1  # construction methods of iloc


@dataclasses.dataclass(slots=True)
class Item:
    """What the file says of an item.

    Attributes:
        kind: as ``hvc1``, ``av01`` or ``grid``; empty if the file does not list it.
        extents: begin and end in the file of each of its parts; an end may lie outside the file.
        properties: boxes, in the order in which the file associates them.
        references: kind of each reference from this item, and the item that it leads to.
    """

    kind: bytes = b""
    extents: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    properties: list[Chunk] = dataclasses.field(default_factory=list)
    references: list[tuple[bytes, int]] = dataclasses.field(default_factory=list)

    def linked(self, kind: bytes) -> list[int]:
        """Return the items that references of a kind lead to, in their order."""
        return [item for name, item in self.references if name == kind]

    def property(self, name: bytes) -> Chunk | None:
        """Return the first property of a name."""
        return next((box for box in self.properties if box.name == name), None)


class Listing(NamedTuple):
    """What the box ``meta`` says.

    Attributes:
        items: by their numbers.
        primary: number of the item that is the picture; None if the file does not say.
        primary_at: where that number stands in the file, and its bytes.
        end: where the box ends; may lie outside the file.
    """

    items: dict[int, Item]
    primary: int | None
    primary_at: tuple[int, int]
    end: int


def find_pixels(data: bytes) -> list[tuple[int, int]]:
    """Return begin and end of each coded part; of a sequence without items, of all media data.

    Thumbnails and hidden pictures count as well; EXIF, XMP and what is free between them do not.
    """
    listing = read_listing(data)
    if listing is None:
        return [(box.begin, box.end) for box in iter_boxes(data) if box.name == b"mdat"]
    return [place for item in listing.items.values() if item.kind in _CODED for place in item.extents]


def read_listing(data: bytes) -> Listing | None:
    """Read the box ``meta`` of a file; None without one."""
    meta = next((box for box in iter_boxes(data) if box.name == b"meta"), None)
    if meta is None:
        return None
    inner = {box.name: box for box in iter_boxes(data, meta.begin + _FULL_BOX_BYTES, meta.end)}
    nothing = Chunk(b"", len(data), len(data))
    items: defaultdict[int, Item] = defaultdict(Item)
    for number, kind in _kinds(data, inner.get(b"iinf", nothing)):
        items[number].kind = kind
    for number, begin, end in _extents(data, inner.get(b"iloc", nothing), inner.get(b"idat", nothing).begin):
        items[number].extents.append((begin, end))
    for number, kind, target in _references(data, inner.get(b"iref", nothing)):
        items[number].references.append((kind, target))
    for number, box in _properties(data, inner.get(b"iprp", nothing)):
        items[number].properties.append(box)
    return Listing(dict(items), *_primary(data, inner.get(b"pitm", nothing)), meta.end)


def _primary(data: bytes, box: Chunk) -> tuple[int | None, tuple[int, int]]:
    """Return the number of the primary item, where it stands and its bytes."""
    if not box.name:
        return None, (0, 0)
    at, size = box.begin + _FULL_BOX_BYTES, 4 if data[box.begin : box.begin + 1] > b"\0" else 2
    return int.from_bytes(data[at : at + size], "big"), (at, size)


def _kinds(data: bytes, box: Chunk) -> Iterator[tuple[int, bytes]]:
    """Yield number and kind of each item."""
    entries = box.begin + _FULL_BOX_BYTES + (2 if data[box.begin : box.begin + 1] == b"\0" else 4)
    for entry in iter_boxes(data, entries, box.end):
        if entry.name == b"infe":
            reader = _Reader(data, entry)
            number = reader.number(4 if reader.version == 3 else 2)  # noqa: PLR2004 - as the standard has it
            reader.number(2)  # whether it is protected
            yield number, reader.number(4).to_bytes(4, "big")


def _extents(data: bytes, box: Chunk, idat: int) -> Iterator[tuple[int, int, int]]:
    """Yield item, begin and end of each part that lies in the file; those in other items are left out."""
    for number, method, offset, size in islice(_Reader(data, box).extents(), _MOST_EXTENTS):
        if method in {_IN_FILE, _IN_IDAT}:
            begin = offset + (idat if method == _IN_IDAT else 0)
            yield number, begin, begin + size if size else len(data)


def _references(data: bytes, box: Chunk) -> Iterator[tuple[int, bytes, int]]:
    """Yield from which item, of which kind and to which item each reference leads."""
    size, left = (4 if data[box.begin : box.begin + 1] > b"\0" else 2), _MOST_NUMBERS
    for entry in iter_boxes(data, box.begin + _FULL_BOX_BYTES, box.end):
        reader = _Reader(data, entry, has_version=False)
        number, count = reader.number(size), min(reader.number(2), left)
        left -= count
        for _ in range(count):
            if reader.is_at_end():
                break
            yield number, entry.name, reader.number(size)


def _properties(data: bytes, box: Chunk) -> Iterator[tuple[int, Chunk]]:
    """Yield item and box of each association, in its order."""
    parts = list(iter_boxes(data, box.begin, box.end))
    container = next((part for part in parts if part.name == b"ipco"), None)
    boxes = [] if container is None else list(iter_boxes(data, container.begin, container.end))
    left = _MOST_NUMBERS
    for part in parts:
        for number, index in _associations(data, part) if part.name == b"ipma" else ():
            left -= 1
            if left < 0:
                return
            if 0 < index <= len(boxes):
                yield number, boxes[index - 1]


def _associations(data: bytes, box: Chunk) -> Iterator[tuple[int, int]]:
    reader = _Reader(data, box)
    wide = 2 if reader.flags & 1 else 1
    for _ in range(min(reader.number(4), _MOST_ITEMS)):
        if reader.is_at_end():
            return
        number = reader.number(4 if reader.version else 2)
        for _ in range(reader.number(1)):
            if reader.is_at_end():
                return
            yield number, reader.number(wide) & (0x7FFF if wide > 1 else 0x7F)


class _Reader:
    """Reads a box number by number; 0 where it ends."""

    def __init__(self, data: bytes, box: Chunk, *, has_version: bool = True) -> None:
        self._data, self._position, self._end = data, box.begin, min(box.end, len(data))
        self.version, self.flags = (self.number(1), self.number(3)) if has_version else (0, 0)

    def is_at_end(self) -> bool:
        """Return whether nothing is left to read."""
        return self._position >= self._end

    def number(self, size: int) -> int:
        """Read a number of so many bytes."""
        begin, self._position = self._position, self._position + size
        return int.from_bytes(self._data[begin : min(self._position, self._end)], "big")

    def extents(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield of each extent of an ``iloc`` its item, in what it lies, where it begins there, its bytes."""
        sizes = [half for _ in range(2) for half in divmod(self.number(1), 16)]
        layout = _Layout(self.version > 0, 4 if self.version > 1 else 2, *sizes)
        for _ in range(min(self.number(layout.id_bytes), _MOST_ITEMS)):
            if self.is_at_end():
                return
            yield from self._extents_of_item(layout)

    def _extents_of_item(self, layout: _Layout) -> Iterator[tuple[int, int, int, int]]:
        item = self.number(layout.id_bytes)
        method = self.number(2) & 15 if layout.has_method else _IN_FILE
        self.number(2)  # of which file
        base = self.number(layout.base_bytes)
        count = self.number(2)
        if not layout.offset_bytes + layout.length_bytes:  # all of it, wherever that is: once is enough
            count = min(count, 1)
        for _ in range(count):
            if self.is_at_end():
                return
            self.number(layout.index_bytes if layout.has_method else 0)
            offset, size = self.number(layout.offset_bytes), self.number(layout.length_bytes)
            yield item, method, base + offset, size


class _Layout(NamedTuple):
    """Whether each item says how it is stored, and the bytes of each number of an ``iloc``."""

    has_method: bool
    id_bytes: int
    offset_bytes: int
    length_bytes: int
    base_bytes: int
    index_bytes: int
