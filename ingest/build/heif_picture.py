"""What a HEIC or AVIF says of its picture, and whether all of it is in the file. Pure.

Libraries tell too little of it, and one of them paints what is missing: libheif, unless asked to be strict,
leaves tiles of a grid empty and says nothing, and pillow-heif does not ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ingest.build import heif_turn, hevc
from ingest.build.heif_items import Item, Listing, read_listing
from ingest.build.jpeg2000 import iter_boxes
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.build.containers import Chunk

_ALPHA = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0", b"urn:mpeg:hevc:2015:auxid:1\0")
_LENGTH_SIZE_AT = 21  # in hvcC: ISO/IEC 14496-15, 8.3.3.1.2
_MOST_PARTS = 1 << 16
_HEAD_BYTES, _FULL_BOX_BYTES = 8, 4
_ENDS = "The file ends before its picture does"


class Grid(NamedTuple):
    """How a picture is put together of tiles: how many across and down, and the items that they are."""

    columns: int
    rows: int
    tiles: tuple[int, ...]


class Stated(NamedTuple):
    """What a file says of its picture.

    Attributes:
        coder: kind of the item that is coded, as ``hvc1`` or ``av01``; of a grid, of a tile.
        size: width and height before it is turned, in pixels; None if it does not say.
        tile_size: the same of a tile; None without tiles.
        bits: bits a channel.
        points: colour primaries and transfer characteristics (ITU-T H.273); None if it does not say.
        transforms: crops, rotations and mirrors: name and payload of each, in their order.
        transform_boxes: all of these, of the transparency too.
        grid: None for a picture in one piece.
        primary_at: where the number of the picture's item stands, and its bytes.
    """

    coder: bytes
    size: tuple[int, int] | None
    tile_size: tuple[int, int] | None
    bits: int
    points: tuple[int, int] | None
    transforms: tuple[tuple[bytes, bytes], ...]
    transform_boxes: tuple[Chunk, ...]
    grid: Grid | None
    primary_at: tuple[int, int]


def read_stated(data: bytes) -> Stated | None:
    """Read what a file says of its picture, and make sure that the file has all of it.

    Args:
        data: a whole file.

    Returns:
        None where no item is the picture, as in a sequence.

    Raises:
        CorruptImageError: ``truncated``, with the share of rows or bytes that are there.
    """
    listing = read_listing(data)
    if listing is None:
        _check_boxes(data)
        return None
    if listing.end > len(data):
        raise CorruptImageError("truncated", f"{_ENDS}: 0% of its rows are there.")
    if listing.primary is None or listing.primary not in listing.items:
        return None
    picture = listing.items[listing.primary]
    grid = _read_grid(data, picture)
    masks = [item for item in listing.items.values() if _is_alpha(data, item, listing.primary)]
    parts = _parts(listing, [picture, *masks])
    _check_extents(data, parts, listing, grid)
    _check_units(data, parts)
    tile = listing.items.get(grid.tiles[0], Item()) if grid is not None else None
    return Stated(
        coder=_parts(listing, [picture])[-1].kind,
        size=_size(data, picture),
        tile_size=None if tile is None else _size(data, tile),
        bits=_bits(data, [item for item in (picture, tile) if item is not None]),
        points=_points(data, picture) or (None if tile is None else _points(data, tile)),
        transforms=tuple((box.name, box.payload(data)) for box in _turns([picture])),
        transform_boxes=tuple(_turns([picture, *masks])),
        grid=grid,
        primary_at=listing.primary_at,
    )


# ---- is it all there


def _check_boxes(data: bytes) -> None:
    """Refuse a file that ends before anything that lists its pictures."""
    boxes = list(iter_boxes(data))
    ends = [box.end for box in boxes if box.name == b"moov"] or [box.end for box in boxes]
    num_left = len(data) - max((box.end for box in boxes), default=0)
    if len(boxes) < 2 or max(ends) > len(data) or 0 < num_left < _HEAD_BYTES:  # noqa: PLR2004 - ftyp alone
        raise CorruptImageError("truncated", f"{_ENDS}: none of it can be found.")


def _check_units(data: bytes, parts: list[Item]) -> None:
    """Refuse a picture that HEVC did not make as it is."""
    for part in parts:
        settings = part.property(b"hvcC")
        payload = b"" if settings is None else settings.payload(data)
        if part.kind == b"hvc1" and len(payload) > _LENGTH_SIZE_AT:
            coded = b"".join(data[begin:end] for begin, end in part.extents)
            if hevc.has_impossible_bytes(coded, (payload[_LENGTH_SIZE_AT] & 3) + 1):
                raise CorruptImageError(
                    "corrupt", "Bytes stand in the picture that HEVC cannot have: damage."
                )


def _check_extents(data: bytes, parts: list[Item], listing: Listing, grid: Grid | None) -> None:
    """Refuse a picture part of which lies outside the file."""
    ranges = [extent for part in parts for extent in part.extents]
    if all(end <= len(data) for _, end in ranges):
        return
    there = _rows_there(data, listing, grid) if grid is not None else None
    if there is None:
        num_bytes = max(1, sum(max(0, end - begin) for begin, end in ranges))
        present = sum(max(0, min(end, len(data)) - begin) for begin, end in ranges)
        there = f"{present * 100 // num_bytes}% of its bytes are there"
    raise CorruptImageError("truncated", f"{_ENDS}: {there}.")


def _rows_there(data: bytes, listing: Listing, grid: Grid) -> str | None:
    """Return the share of rows above the first tile that is not whole; None if all tiles are."""
    whole = [
        all(end <= len(data) for _, end in listing.items.get(number, Item()).extents) for number in grid.tiles
    ]
    if all(whole):
        return None
    return f"{whole.index(False) // grid.columns * 100 // grid.rows}% of its rows are there"


def _parts(listing: Listing, heads: Iterable[Item]) -> list[Item]:
    """Return all items that pictures are put together of, and these themselves."""
    found: list[Item] = list(heads)
    seen: set[int] = set()
    for item in found:
        for number in item.linked(b"dimg"):
            if number not in seen and len(found) < _MOST_PARTS and number in listing.items:
                seen.add(number)
                found.append(listing.items[number])
    return found


def _is_alpha(data: bytes, item: Item, primary: int) -> bool:
    """Return whether an item is the transparency of the picture."""
    kind = item.property(b"auxC")
    is_alpha = kind is not None and kind.payload(data)[_FULL_BOX_BYTES:].startswith(_ALPHA)
    return is_alpha and primary in item.linked(b"auxl")


# ---- what is said of it


def _read_grid(data: bytes, picture: Item) -> Grid | None:
    """Read the layout of tiles (ISO/IEC 23008-12, 6.6.2.3.2): rows and columns less one stand at 2 and 3."""
    tiles = picture.linked(b"dimg")
    if picture.kind != b"grid" or not picture.extents or not tiles:
        return None
    begin, end = picture.extents[0]
    layout = data[begin : min(end, begin + 4)]
    if len(layout) < 4 or (layout[2] + 1) * (layout[3] + 1) != len(tiles):  # noqa: PLR2004
        return None
    return Grid(layout[3] + 1, layout[2] + 1, tuple(tiles))


def _turns(items: Iterable[Item]) -> list[Chunk]:
    return [box for item in items for box in item.properties if box.name in heif_turn.NAMES]


def _size(data: bytes, item: Item) -> tuple[int, int] | None:
    box = item.property(b"ispe")
    numbers = b"" if box is None else box.payload(data)[_FULL_BOX_BYTES : _FULL_BOX_BYTES + 8]
    if len(numbers) < 8:  # noqa: PLR2004 - width and height
        return None
    return int.from_bytes(numbers[:4], "big"), int.from_bytes(numbers[4:], "big")


def _bits(data: bytes, items: list[Item]) -> int:
    """Return bits a channel: as the coder's header states them, else as ``pixi`` does."""
    for item in reversed(items):
        for box in item.properties:
            payload = box.payload(data)
            if box.name == b"av1C" and len(payload) > 2:  # noqa: PLR2004 - AV1-ISOBMFF, 2.3.3
                return 8 if not payload[2] & 0x40 else 12 if payload[2] & 0x20 else 10
            if box.name == b"hvcC" and len(payload) > 17:  # noqa: PLR2004 - ISO/IEC 14496-15, 8.3.3.1.2
                return 8 + (payload[17] & 7)
    stated = (item.property(b"pixi") for item in items)
    depths = [box.payload(data)[_FULL_BOX_BYTES + 1 :] for box in stated if box is not None]
    return next((max(numbers) for numbers in depths if numbers and 0 < max(numbers) <= 16), 8)  # noqa: PLR2004


def _points(data: bytes, item: Item) -> tuple[int, int] | None:
    """Return the code points of an item's colours (ISO/IEC 14496-12, 12.1.5)."""
    colours = (box.payload(data) for box in item.properties if box.name == b"colr")
    payload = next((body for body in colours if body.startswith(b"nclx") and len(body) >= 8), None)  # noqa: PLR2004
    if payload is None:
        return None
    return int.from_bytes(payload[4:6], "big"), int.from_bytes(payload[6:8], "big")


# ---- the same file, to be decoded otherwise


def without_transforms(data: bytes, stated: Stated) -> bytes:
    """Return the file with every crop, rotation and mirror of its picture made a rotation by nothing."""
    if not stated.transform_boxes:
        return data
    patched = bytearray(data)
    for box in stated.transform_boxes:
        if box.begin < box.end <= len(data):
            patched[box.begin - 4 : box.begin] = b"irot"
            patched[box.begin] = 0
    return bytes(patched)


def with_brand(data: bytes, brand: bytes) -> bytes:
    """Return the file with another brand for its main one."""
    return data[:_HEAD_BYTES] + brand + data[_HEAD_BYTES + len(brand) :]


def with_primary(data: bytes, stated: Stated, number: int) -> bytes:
    """Return the file with another of its items for the picture."""
    at, size = stated.primary_at
    return data[:at] + number.to_bytes(size, "big") + data[at + size :]
