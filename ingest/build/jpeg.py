"""The markers of a JPEG: what stands before its pixels, and how to leave out what does not matter.

Pure functions of bytes; the pixels themselves are decoded elsewhere.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from typing import TYPE_CHECKING

from ingest.build.geometry import check_size
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIF_ORIENTATION = 0x0112
"""Number of the EXIF tag that says how a picture is to be turned."""

_SOF0, _SOI, _EOI, _SOS, _APP0, _APP1, _APP14, _APP15, _COM = (
    *(0xC0, 0xD8, 0xD9, 0xDA),
    *(0xE0, 0xE1, 0xEE, 0xEF, 0xFE),
)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_PAYLOAD = frozenset({0x01, *range(0xD0, 0xD8)})
# As libjpeg looks for one: after any junk, any number of FF, then neither 00 nor FF.
_MARKER = re.compile(rb"\xff+([^\x00\xff])")


@dataclasses.dataclass(frozen=True, slots=True)
class JpegHeader:
    """What stands before the pixels of a JPEG.

    Attributes:
        width: as stored, in pixels.
        height: as stored, in pixels.
        kind: SOF0 baseline, SOF2 progressive, SOF3 lossless, ...; bits a sample; number of components.
        orientation: EXIF orientation, 1 to 8; 1 where it is missing or broken.
        segments: marker, begin and end of the payload of every segment, the first scan's header last.
    """

    width: int
    height: int
    kind: tuple[int, int, int]
    orientation: int
    segments: tuple[tuple[int, int, int], ...]


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Read what stands before the first scan, finding the same segments as libjpeg.

    Raises:
        CorruptImageError: ``not_an_image``, ``truncated``, ``corrupt`` or ``too_large``.
    """
    if not data.startswith(b"\xff\xd8"):
        raise CorruptImageError("not_an_image", "The bytes do not begin as a JPEG does.")
    segments = tuple(_iter_segments(data))
    frame = next((data[begin - 3 : end] for marker, begin, end in segments if marker in _FRAMES), b"")
    if len(frame) < len("MLLPHHWWC"):  # marker, length, precision, height, width, components
        raise CorruptImageError("corrupt", "The JPEG has no frame header before its pixels.")
    height, width = int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big")
    check_size(width, height)
    kind = frame[0] - _SOF0, frame[3], frame[8]
    return JpegHeader(width, height, kind, _jpeg_orientation(data, segments), segments)


def _iter_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of the payload of each segment, up to the first scan's header."""
    position, marker = 2, 0
    while marker != _SOS:
        found = _MARKER.search(data, position)
        if found is None:
            raise CorruptImageError("truncated", "The JPEG ends within its header.")
        marker, position = found[1][0], found.end()
        if marker in {_SOI, _EOI}:
            raise CorruptImageError("corrupt", "The JPEG begins or ends again before its first pixel.")
        if marker not in _WITHOUT_PAYLOAD:
            begin, end = position + 2, position + int.from_bytes(data[position : position + 2], "big")
            if not begin <= end <= len(data):
                raise CorruptImageError("truncated", "The JPEG ends within its header.")
            yield marker, begin, end
            position = end


def _jpeg_orientation(data: bytes, segments: tuple[tuple[int, int, int], ...]) -> int:
    """Return the orientation of the first EXIF block, 1 if there is none."""
    for marker, begin, end in segments:
        if marker == _APP1 and data.startswith(b"Exif\0", begin, end):
            return _tiff_orientation(data[begin + 6 : end])
    return 1


def _tiff_orientation(exif: bytes) -> int:
    """Read the orientation from a TIFF block, 1 where it is missing, broken or not 1 to 8."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None or len(exif) < 10:  # noqa: PLR2004 - its header, and the number of entries
        return 1
    (directory,) = struct.unpack_from(order + "I", exif, 4)
    (count,) = struct.unpack(order + "H", exif[directory : directory + 2].ljust(2, b"\0"))
    entries = exif[directory + 2 :][: 12 * count]
    for tag, kind, _, value in struct.iter_unpack(order + "HHI4s", entries[: len(entries) // 12 * 12]):
        if tag == EXIF_ORIENTATION:
            is_long = kind in {4, 9}  # it should be a short; some cameras write a long
            return valid_orientation(*struct.unpack(order + ("I" if is_long else "H2x"), value))
    return 1


def valid_orientation(value: object) -> int:
    """Return 1 to 8, and 1 for anything else."""
    return value if isinstance(value, int) and value in range(1, 9) else 1


def without_junk(data: bytes) -> bytes:
    """Keep the header segments that pixels depend on, and nothing between them."""
    segments = read_jpeg_header(data).segments
    kept = [
        b"\xff" + data[begin - 3 : end]
        for marker, begin, end in segments
        if marker in {_APP0, _APP14} or not (_APP0 <= marker <= _APP15 or marker == _COM)
    ]
    return b"\xff\xd8" + b"".join(kept) + data[segments[-1][2] :]


def without_padding(data: bytes, num_bytes: int) -> bytes:
    """Leave out `num_bytes` of padding before the end marker."""
    end = data.find(b"\xff\xd9", read_jpeg_header(data).segments[-1][2])
    return data[: end - num_bytes] + data[end:]
