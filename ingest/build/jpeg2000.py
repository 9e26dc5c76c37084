"""JPEG 2000: its boxes, whether its codestream is whole, and what its channels mean. Pure.

Section numbers are those of ISO/IEC 15444-1. OpenJPEG is handed the codestream alone: given a JP2 file,
imagecodecs would apply palette and profile without a word, and what the channels mean would be lost.
"""

from __future__ import annotations

import struct
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest.build.containers import MOST_PROFILE_BYTES, Chunk, Profile
from ingest.build.pixels import look_up, to_eight_bits, unpremultiply, ycc_to_rgb
from ingest.build.streams import ENDS_EARLY
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ingest.build.pixels import Samples

_MOST_BOXES = 1 << 12
MOST_BITS = 16

# ---- boxes


class Jp2(NamedTuple):
    """What the boxes of a JP2 file say of its codestream (ISO/IEC 15444-1, annex I).

    Attributes:
        begin: of the codestream, in bytes.
        end: of the codestream; may lie outside the file.
        colour_space: the enumerated one, as 16 for sRGB; None if the file does not say.
        profile: of the colours.
        palette: a column for each generated channel, each of 8-bit or deeper numbers; empty without one.
        palette_bits: of each column.
        mapping: for each channel its component, and its column of the palette, None if it is direct.
        definitions: for each channel its type (0 colour, 1 opacity, 2 premultiplied) and what it belongs to.
    """

    begin: int
    end: int
    colour_space: int | None = None
    profile: Profile = Profile()
    palette: tuple[tuple[int, ...], ...] = ()
    palette_bits: tuple[int, ...] = ()
    mapping: tuple[tuple[int, int | None], ...] = ()
    definitions: tuple[tuple[int, int, int], ...] = ()


def read_jp2(data: bytes) -> Jp2:
    """Read the boxes of a JP2 file; a bare codestream is one without boxes."""
    if data.startswith(b"\xff\x4f\xff\x51"):
        return Jp2(0, len(data))
    boxes = list(iter_boxes(data))
    stream = next((box for box in boxes if box.name == b"jp2c"), Chunk(b"", len(data), len(data)))
    header = next((box for box in boxes if box.name == b"jp2h"), None)
    inner = [] if header is None else list(iter_boxes(data, header.begin, header.end))
    payloads = {box.name: box.payload(data) for box in reversed(inner)}  # the first of a name
    colours = [box.payload(data) for box in inner if box.name == b"colr"]
    palette, bits = _read_palette(payloads.get(b"pclr", b""))
    mapping = tuple(
        (int.from_bytes(entry[:2], "big"), entry[3] if entry[2] else None)
        for entry in _entries(payloads.get(b"cmap", b""), 4)
    )
    definitions = tuple(
        (
            int.from_bytes(entry[:2], "big"),
            int.from_bytes(entry[2:4], "big"),
            int.from_bytes(entry[4:], "big"),
        )
        for entry in _entries(payloads.get(b"cdef", b"")[2:], 6)
    )
    return Jp2(stream.begin, stream.end, *_read_colours(colours), palette, bits, mapping, definitions)


def iter_boxes(data: bytes, begin: int = 0, end: int | None = None) -> Iterator[Chunk]:
    """Yield the boxes between two positions; the last may be cut."""
    position, end = begin, len(data) if end is None else min(end, len(data))
    for _ in range(_MOST_BOXES):
        if position + 8 > end:
            return
        size, name = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        head = 16 if size == 1 else 8
        if size == 1:
            size = int.from_bytes(data[position + 8 : position + 16], "big")
        size = size or end - position
        if size < head:
            return
        yield Chunk(name, position + head, position + size)
        position += size


def _entries(payload: bytes, size: int) -> Iterator[bytes]:
    return (payload[at : at + size] for at in range(0, len(payload) - size + 1, size))


def _read_colours(colours: list[bytes]) -> tuple[int | None, Profile]:
    """Return the enumerated colour space or the profile of the first colour box that has either."""
    for payload in colours:
        method, body = payload[:1], payload[3:]
        if method == b"\1" and len(body) >= 4:  # noqa: PLR2004 - the number of the colour space
            return int.from_bytes(body[:4], "big"), Profile()
        if method in {b"\2", b"\3"}:  # restricted, any
            is_sound = 0 < len(body) <= MOST_PROFILE_BYTES
            return None, Profile(body if is_sound else None, broken=not is_sound)
    return None, Profile()


def _read_palette(payload: bytes) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the columns of a palette box and their depths; nothing where it is cut, signed or too deep."""
    length, num_columns = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:3], "big")
    bits = tuple((depth & 0x7F) + 1 for depth in payload[3 : 3 + num_columns])
    sizes = [-(-depth // 8) for depth in bits]
    rows = list(_entries(payload[3 + num_columns :], sum(sizes) or 1))[:length]
    if not rows or len(rows) < length or max(bits) > 16 or max(payload[3 : 3 + num_columns]) > 0x7F:  # noqa: PLR2004
        return (), ()
    starts = [sum(sizes[:n]) for n in range(num_columns)]
    columns = (
        tuple(int.from_bytes(row[start : start + size], "big") for row in rows)
        for start, size in zip(starts, sizes, strict=True)
    )
    return tuple(columns), bits


# ---- codestream


class Component(NamedTuple):
    """One component: its depth, whether it is signed, and every how many pixels it has a sample."""

    bits: int
    is_signed: bool
    across: int
    down: int


class Codestream(NamedTuple):
    """The header of a JPEG 2000 codestream (ISO/IEC 15444-1, annex A.5.1).

    Attributes:
        width: in pixels.
        height: in pixels.
        components: at least one.
        num_tiles: tiles of the picture.
        end: of the last tile-part, in bytes from the begin of the file.
        notes: what is missing and costs no pixel.
    """

    width: int
    height: int
    components: tuple[Component, ...]
    num_tiles: int
    end: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_subsampled(self) -> bool:
        """Whether any component has fewer samples than the picture has pixels."""
        return any((component.across, component.down) != (1, 1) for component in self.components)


_SOC, _SOT, EOC = b"\xff\x4f", b"\xff\x90", b"\xff\xd9"
_SOT_BYTES = 12
_MOST_PARTS, _MOST_TILES = 1 << 18, 65_535


class _TilePart(NamedTuple):
    """A tile-part: its tile, how many of them the tile has (0: not said here), and where it ends."""

    tile: int
    total: int
    end: int


def check_codestream(data: bytes, begin: int, end: int) -> Codestream:
    """Read the header of a codestream, and refuse one of which part of a tile is not in the file.

    Args:
        data: the file.
        begin: of the codestream, in bytes.
        end: of the codestream, in bytes; may lie outside the file.

    Raises:
        CorruptImageError: ``truncated`` or ``corrupt``.
    """
    end = min(end, len(data))
    stream = _read_siz(data[begin:end])
    first = _first_tile_part(data, begin, end)
    parts = list(islice(_tile_parts(data, first, end), _MOST_PARTS))
    seen = Counter(part.tile for part in parts if part.end <= end)
    totals: dict[int, int] = {}
    for part in parts:
        totals[part.tile] = max(part.total, totals.get(part.tile, 0))
    last = parts[-1].end if parts else first
    is_ended = data[last : min(last + 2, end)] == EOC
    # Only the end marker tells that a tile has no more parts where none of them says how many there are.
    num_whole = sum(
        seen[tile] >= max(1, totals.get(tile, 0)) and (is_ended or totals[tile] > 0)
        for tile in range(stream.num_tiles)
    )
    if last > end or num_whole < stream.num_tiles:
        sentence = f"Only {num_whole} of {stream.num_tiles} tiles of the JPEG 2000 are whole in the file."
        raise CorruptImageError("truncated", sentence)
    return stream._replace(end=last, notes=() if is_ended else (ENDS_EARLY,))


def _read_siz(stream: bytes) -> Codestream:
    """Read the sizes that a codestream begins with."""
    head = struct.Struct(">HHH8IH")
    if len(stream) < len(_SOC) + head.size:
        raise CorruptImageError("truncated", "The file ends before the header of the JPEG 2000 does.")
    if not stream.startswith(_SOC + b"\xff\x51"):
        raise CorruptImageError("corrupt", "The codestream of the JPEG 2000 does not begin as one.")
    _, length, _, *numbers, count = head.unpack_from(stream, len(_SOC))
    right, bottom, left, top, tile_width, tile_height, tile_left, tile_top = numbers
    listed = stream[len(_SOC) + head.size :][: 3 * count]
    components = tuple(
        Component((depth & 0x7F) + 1, depth > 0x7F, across, down)  # noqa: PLR2004 - the bit above the depth
        for depth, across, down in struct.iter_unpack("BBB", listed[: len(listed) // 3 * 3])
    )
    is_possible = length == 38 + 3 * count and len(components) == count > 0 and left < right and top < bottom
    if not is_possible or min(tile_width, tile_height) == 0 or tile_left > left or tile_top > top:
        raise CorruptImageError("corrupt", "The header of the JPEG 2000 states impossible sizes.")
    num_tiles = -(-(right - tile_left) // tile_width) * -(-(bottom - tile_top) // tile_height)
    if num_tiles > _MOST_TILES:
        raise CorruptImageError("corrupt", f"The header of the JPEG 2000 states {num_tiles:,} tiles.")
    return Codestream(right - left, bottom - top, components, num_tiles)


def _first_tile_part(data: bytes, begin: int, end: int) -> int:
    """Return where the main header ends."""
    position = begin + len(_SOC)
    while position + 4 <= end and data[position : position + 2] != _SOT:
        position += 2 + max(2, int.from_bytes(data[position + 2 : position + 4], "big"))
    return position


def _tile_parts(data: bytes, position: int, end: int) -> Iterator[_TilePart]:
    """Yield the tile-parts; one that is cut ends outside the file."""
    while data[position : position + 2] == _SOT:
        if position + _SOT_BYTES > end:
            yield _TilePart(0, 0, end + 1)
            return
        tile, size, _, total = struct.unpack_from(">HIBB", data, position + 4)
        if size == 0:  # the last one: it goes up to the end marker
            yield _TilePart(tile, total, end - 2 if data[end - 2 : end] == EOC else end + 1)
            return
        position += max(size, _SOT_BYTES)
        yield _TilePart(tile, total, position)


# ---- channels

_CMYK, _SRGB, _GRAY, _SYCC = 12, 16, 17, 18  # enumerated colour spaces, I.5.3.3 and 15444-2 M.11.7.3
_NUM_COLOURS = {_CMYK: 4, _SRGB: 3, _GRAY: 1, _SYCC: 3}
_NUM_COLOURS_OF_PROFILE = {b"GRAY": 1, b"RGB ": 3, b"CMYK": 4}
_COLOUR, _OPACITY, _PREMULTIPLIED = 0, 1, 2  # types of channels, I.5.3.6


class Channels(NamedTuple):
    """Pixels of which it is known what they are.

    Attributes:
        pixels: uint8 (H, W, C): colours, then alpha.
        num_colours: 1, 3 or 4.
        num_ignored: channels that are neither colour nor alpha.
    """

    pixels: NDArray[np.uint8]
    num_colours: int
    num_ignored: int


def to_channels(samples_HWC: Samples, stream: Codestream, box: Jp2) -> Channels:
    """Apply palette, order of channels and sYCC.

    Args:
        samples_HWC: uint8 or uint16 (H, W, C), the components, at least 0.
        stream: of which they are.
        box: what the file says of them.

    Raises:
        CorruptImageError: ``unsupported`` for a colour space, ``corrupt`` for channels that are not there.
    """
    pixels = _apply_palette(samples_HWC, stream.components[0].bits, box)
    num_channels = pixels.shape[2]
    num_colours = _count_colours(box, num_channels)
    if num_channels < num_colours:
        raise CorruptImageError("corrupt", f"A JPEG 2000 of {num_channels} channels lacks a colour.")
    order, alpha = _order_channels(box, num_channels, num_colours)
    if max(order) >= num_channels:
        raise CorruptImageError("corrupt", "The JPEG 2000 names a channel that it does not have.")
    if order != list(range(num_channels)):
        pixels = np.ascontiguousarray(pixels[..., order])
    if box.colour_space == _SYCC and not stream.is_subsampled:  # else OpenJPEG's caller has converted it
        pixels = ycc_to_rgb(pixels)
    if alpha == _PREMULTIPLIED:
        pixels = unpremultiply(pixels)
    return Channels(pixels, num_colours, num_channels - len(order))


def _apply_palette(samples_HWC: Samples, bits: int, box: Jp2) -> NDArray[np.uint8]:
    if not box.palette:
        return to_eight_bits(samples_HWC, bits)
    channels = []
    for component, column in box.mapping:
        if component >= samples_HWC.shape[2] or (column or 0) >= len(box.palette):
            raise CorruptImageError("corrupt", "The palette of the JPEG 2000 is for other channels.")
        plane = samples_HWC[..., component : component + 1]
        if column is None:
            channels.append(to_eight_bits(plane, bits))
        else:
            colours = np.array(box.palette[column], np.uint16).reshape(-1, 1, 1)
            palette = to_eight_bits(colours, box.palette_bits[column])[:, 0]
            channels.append(look_up(plane[..., 0], palette))
    if not channels:
        raise CorruptImageError("corrupt", "The JPEG 2000 has a palette that no channel uses.")
    return np.concatenate(channels, axis=2)


def _count_colours(box: Jp2, num_channels: int) -> int:
    """Return 1, 3 or 4; of a file that does not say, what its number of channels suggests."""
    if box.profile.data is not None:
        return _NUM_COLOURS_OF_PROFILE.get(box.profile.data[16:20], 1 if num_channels <= 2 else 3)  # noqa: PLR2004
    if box.colour_space is None:
        return 1 if num_channels <= 2 else 3  # noqa: PLR2004 - gray, with alpha
    if box.colour_space not in _NUM_COLOURS:
        sentence = f"Colour space {box.colour_space} of JPEG 2000 is not converted."
        raise CorruptImageError("unsupported", sentence)
    return _NUM_COLOURS[box.colour_space]


def _order_channels(box: Jp2, num_channels: int, num_colours: int) -> tuple[list[int], int | None]:
    """Return the channels that are colours, then the one that is alpha; and of which type that is.

    A file without definitions has its colours first; a single channel after them is taken for alpha, as
    Pillow and libvips do.
    """
    if not box.definitions:
        has_alpha = num_channels == num_colours + 1
        return list(range(num_colours + has_alpha)), _OPACITY if has_alpha else None
    order = list(range(num_colours))
    alpha = alpha_type = None
    for channel, kind, belongs_to in box.definitions:
        if kind == _COLOUR and 1 <= belongs_to <= num_colours:
            order[belongs_to - 1] = channel
        elif kind in {_OPACITY, _PREMULTIPLIED} and alpha is None:
            alpha, alpha_type = channel, kind
    return order + ([] if alpha is None else [alpha]), alpha_type
