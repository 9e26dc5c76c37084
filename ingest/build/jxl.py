"""What a JPEG XL says of itself before its pixels: ISO/IEC 18181-1, annexes B (bits) and D (headers). Pure.

libjxl tells little of it through the libraries that are used here, and nothing before it has allocated the
picture.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ingest.build.jpeg2000 import iter_boxes
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from ingest.build.containers import Chunk

CODESTREAM = b"\xff\x0a"
_HEADER_BYTES = 8192  # enough for the names of some channels; what ends later has no sensible header
_ALPHA, _BLACK = 0, 4  # kinds of extra channels
_RATIOS = {1: (1, 1), 2: (12, 10), 3: (4, 3), 4: (3, 2), 5: (16, 9), 6: (5, 4), 7: (2, 1)}

_Choice = tuple[int, int]
"""A base, and how many bits are added to it."""

_SIZES: tuple[_Choice, ...] = ((1, 9), (1, 13), (1, 18), (1, 30))
_PREVIEW_SIZES: tuple[_Choice, ...] = ((1, 6), (65, 8), (321, 10), (1345, 12))
_PREVIEW_EIGHTHS: tuple[_Choice, ...] = ((16, 0), (32, 0), (1, 5), (33, 9))
_ENUM: tuple[_Choice, ...] = ((0, 0), (1, 0), (2, 4), (18, 6))
_BITS: tuple[_Choice, ...] = ((8, 0), (10, 0), (12, 0), (1, 6))
_FLOAT_BITS: tuple[_Choice, ...] = ((32, 0), (16, 0), (24, 0), (1, 6))
_NUM_EXTRA: tuple[_Choice, ...] = ((0, 0), (1, 0), (2, 4), (1, 12))
_NAME_BYTES: tuple[_Choice, ...] = ((0, 0), (0, 4), (16, 5), (48, 10))
_DIM_SHIFT: tuple[_Choice, ...] = ((0, 0), (3, 0), (4, 0), (1, 3))
_CFA: tuple[_Choice, ...] = ((1, 0), (0, 2), (3, 4), (19, 8))
_TICKS: tuple[_Choice, ...] = ((100, 0), (1000, 0), (1, 10), (1, 30))
_DIVISORS: tuple[_Choice, ...] = ((1, 0), (1001, 0), (1, 8), (1, 10))
_LOOPS: tuple[_Choice, ...] = ((0, 0), (0, 3), (0, 16), (0, 32))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a JPEG XL says of its picture.

    Attributes:
        width: as stored, not upright, in pixels.
        height: see `width`.
        orientation: EXIF orientation, 1 to 8.
        bits: bits a channel, 1 to 32.
        is_float: whether samples are floating point, 0 to 1 in the usual range.
        is_animated: whether it has frames that follow each other.
        has_alpha: whether there is alpha.
        has_others: whether there are channels beside colours and alpha, such as depth.
        is_premultiplied: whether colours are multiplied with alpha.
        has_black: whether there is a channel of black ink.
        is_srgb: whether its colours are sRGB, so that nobody need ask for a profile.
    """

    width: int
    height: int
    orientation: int = 1
    bits: int = 8
    is_float: bool = False
    is_animated: bool = False
    has_alpha: bool = False
    has_others: bool = False
    is_premultiplied: bool = False
    has_black: bool = False
    is_srgb: bool = True


class _EndError(Exception):
    """The header goes on behind the last byte."""


class _Bits:
    """Reads bits, the lowest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, number: int) -> int:
        if number > self._left:
            raise _EndError
        taken = self._value & ((1 << number) - 1)
        self._value >>= number
        self._left -= number
        return taken

    def flag(self) -> bool:
        return bool(self.take(1))

    def choose(self, choices: tuple[_Choice, ...]) -> int:
        """Read a number by one of four ways: U32 of the standard."""
        base, extra = choices[self.take(2)]
        return base + self.take(extra)


def read_header(data: bytes) -> Header:
    """Read the header of a file, a bare codestream or one in boxes.

    Raises:
        CorruptImageError: ``truncated``: the file ends before its header, or a box of its picture does;
            ``corrupt``: there is no picture in it.
    """
    stream = _codestream(data)
    if not CODESTREAM.startswith(stream[:2]):
        raise CorruptImageError("corrupt", "The JPEG XL holds no picture.")
    try:
        return _read(_Bits(stream[2:_HEADER_BYTES]))
    except _EndError as error:
        raise CorruptImageError("truncated", "The file ends before its picture begins.") from error


def _codestream(data: bytes) -> bytes:
    """Return the first bytes of the codestream.

    Raises:
        CorruptImageError: ``truncated``: a box of it ends behind the file.
    """
    if data.startswith(CODESTREAM):
        return data[:_HEADER_BYTES]
    parts = [box for box in iter_boxes(data) if box.name in {b"jxlc", b"jxlp"}]
    stated = sum(box.end - box.begin for box in parts)
    missing = max((box.end - len(data) for box in parts), default=0)
    if missing > 0:
        there = f"{max(0, stated - missing) * 100 // max(1, stated)}% of its bytes are there"
        raise CorruptImageError("truncated", f"The file ends before its picture does: {there}.")
    return b"".join(_payload(data, box) for box in parts)[:_HEADER_BYTES]


def _payload(data: bytes, box: Chunk) -> bytes:
    begin = box.begin + 4 * (box.name == b"jxlp")  # a part begins with its number
    return data[begin : min(box.end, begin + _HEADER_BYTES)]


def _read(bits: _Bits) -> Header:
    height, width = _read_size(bits)
    if bits.flag():  # all else as usual
        return Header(width=width, height=height)
    orientation, is_animated = _read_extra_fields(bits)
    depth, is_float = _read_depth(bits)
    bits.flag()  # whether 16 bits are enough for the decoder
    kinds = [_read_extra_channel(bits) for _ in range(bits.choose(_NUM_EXTRA))]
    alphas = [is_premultiplied for kind, is_premultiplied in kinds if kind == _ALPHA]
    bits.flag()  # XYB, from which libjxl converts
    return Header(
        width=width,
        height=height,
        orientation=orientation,
        bits=depth,
        is_float=is_float,
        is_animated=is_animated,
        has_alpha=bool(alphas),
        has_others=len(alphas) < len(kinds),
        is_premultiplied=any(alphas[:1]),
        has_black=any(kind == _BLACK for kind, _ in kinds),
        is_srgb=bits.flag(),
    )


def _read_size(bits: _Bits) -> tuple[int, int]:
    """Return height and width."""
    is_small = bits.flag()
    height = 8 * (bits.take(5) + 1) if is_small else bits.choose(_SIZES)
    ratio = bits.take(3)
    if ratio:
        times, by = _RATIOS[ratio]
        return height, height * times // by
    return height, 8 * (bits.take(5) + 1) if is_small else bits.choose(_SIZES)


def _read_extra_fields(bits: _Bits) -> tuple[int, bool]:
    """Return orientation, and whether it is an animation."""
    if not bits.flag():
        return 1, False
    orientation = 1 + bits.take(3)
    if bits.flag():
        _read_size(bits)
    if bits.flag():
        _skip_preview(bits)
    is_animated = bits.flag()
    if is_animated:
        for choices in (_TICKS, _DIVISORS, _LOOPS):
            bits.choose(choices)
        bits.flag()
    return orientation, is_animated


def _skip_preview(bits: _Bits) -> None:
    choices = _PREVIEW_EIGHTHS if bits.flag() else _PREVIEW_SIZES
    bits.choose(choices)
    if not bits.take(3):
        bits.choose(choices)


def _read_depth(bits: _Bits) -> tuple[int, bool]:
    if not bits.flag():
        return bits.choose(_BITS), False
    depth = bits.choose(_FLOAT_BITS)
    bits.take(4)  # of the exponent
    return depth, True


def _read_extra_channel(bits: _Bits) -> tuple[int, bool]:
    """Return what a channel beside the colours is, and for alpha whether colours are multiplied with it."""
    if bits.flag():
        return _ALPHA, False
    kind = bits.choose(_ENUM)
    _read_depth(bits)
    bits.choose(_DIM_SHIFT)
    bits.take(8 * bits.choose(_NAME_BYTES))
    if kind == _ALPHA:
        return kind, bits.flag()
    if kind == 2:  # noqa: PLR2004 - a spot colour: four numbers of 16 bits
        bits.take(64)
    if kind == 5:  # noqa: PLR2004 - a mosaic of filters
        bits.choose(_CFA)
    return kind, False
