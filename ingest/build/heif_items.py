"""Where a HEIC or AVIF keeps its coded pictures (ISO/IEC 14496-12, 8.11). Pure; never raises.

Thumbnails and hidden pictures count as well; EXIF, XMP and what is free between them do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ingest.build.jpeg2000 import iter_boxes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.build.containers import Chunk

_CODED = frozenset(b"hvc1 hvc2 hev1 lhv1 av01 avc1 vvc1 jpeg j2k1".split())  # types of items
_MOST_ITEMS = 1 << 16
_MOST_EXTENTS = 1 << 18
_FULL_BOX_BYTES = 4  # version and flags


def find_pixels(data: bytes) -> list[tuple[int, int]]:
    """Return begin and end of each coded part; of a sequence without items, of all media data."""
    meta = next((box for box in iter_boxes(data) if box.name == b"meta"), None)
    if meta is None:
        return [(box.begin, box.end) for box in iter_boxes(data) if box.name == b"mdat"]
    inner = {box.name: box for box in iter_boxes(data, meta.begin + _FULL_BOX_BYTES, meta.end)}
    if b"iinf" not in inner or b"iloc" not in inner:
        return []
    coded = set(_coded_items(data, inner[b"iinf"]))
    extents = _Reader(data, inner[b"iloc"].begin, inner[b"iloc"].end).extents()
    found = ((begin, begin + size if size else len(data)) for item, begin, size in extents if item in coded)
    return [place for place, _ in zip(found, range(_MOST_EXTENTS), strict=False)]


def _coded_items(data: bytes, listing: Chunk) -> Iterator[int]:
    """Yield the numbers of items that are coded pictures."""
    entries = listing.begin + _FULL_BOX_BYTES + (2 if data[listing.begin : listing.begin + 1] == b"\0" else 4)
    for box in iter_boxes(data, entries, listing.end):
        version = data[box.begin : box.begin + 1]
        number_at, size = box.begin + _FULL_BOX_BYTES, 4 if version == b"\3" else 2
        kind_at = number_at + size + 2
        if box.name == b"infe" and data[kind_at : kind_at + 4] in _CODED:
            yield int.from_bytes(data[number_at : number_at + size], "big")


class _Reader:
    """Reads the box ``iloc`` number by number; 0 where it ends."""

    def __init__(self, data: bytes, begin: int, end: int) -> None:
        self._data, self._position, self._end = data, begin, min(end, len(data))

    def _number(self, size: int) -> int:
        begin, self._position = self._position, self._position + size
        return int.from_bytes(self._data[begin : min(self._position, self._end)], "big")

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """Yield the item of each extent that lies in the file itself, where it begins, and its bytes."""
        version, _ = self._number(1), self._number(3)
        sizes = [half for _ in range(2) for half in divmod(self._number(1), 16)]
        layout = _Layout(version > 0, 4 if version > 1 else 2, *sizes)
        for _ in range(min(self._number(layout.id_bytes), _MOST_ITEMS)):
            if self._position >= self._end:
                return
            yield from self._extents_of_item(layout)

    def _extents_of_item(self, layout: _Layout) -> Iterator[tuple[int, int, int]]:
        item = self._number(layout.id_bytes)
        is_in_file = not layout.has_method or self._number(2) & 15 == 0
        self._number(2)  # of which file
        base = self._number(layout.base_bytes)
        for _ in range(self._number(2)):
            if self._position >= self._end:
                return
            self._number(layout.index_bytes if layout.has_method else 0)
            offset, size = self._number(layout.offset_bytes), self._number(layout.length_bytes)
            if is_in_file:
                yield item, base + offset, size


class _Layout(NamedTuple):
    """Whether each item says how it is stored, and the bytes of each number of an ``iloc``."""

    has_method: bool
    id_bytes: int
    offset_bytes: int
    length_bytes: int
    base_bytes: int
    index_bytes: int
