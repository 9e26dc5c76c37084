"""Pictures whose bytes are zeros where their pixels should be: refused before they are decoded.

Most decoders show something there and say nothing. Which bytes hold pixels each format says in its own way;
only they count, for zeros elsewhere (in maker's notes, in free boxes, behind the picture) cost nothing. A PNG
needs none of this: each of its chunks has a checksum. Nor does a GIF: its pixels come in pieces that say how
long they are, and zero is the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.build import zeros
from ingest.build.containers import webp_chunks
from ingest.build.heif_items import find_pixels
from ingest.build.jpeg import END
from ingest.build.jpeg2000 import check_codestream, iter_boxes, read_jp2
from ingest.build.tiff_page import NO_COMPRESSION, OLD_JPEG, find_segments
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.build.jpeg import JpegHeader

    Ranges = Iterable[tuple[int, int]]

_FEWEST = 16  # zero bytes at the end of the pixels that are not there by chance
_WEBP_PIXELS = frozenset({b"VP8 ", b"VP8L", b"ALPH"})
_ANMF_BYTES = 16
_JXL_PIXELS = frozenset({b"jxlc", b"jxlp"})


def check_jpeg(data: bytes, header: JpegHeader) -> None:
    """Refuse a JPEG that is zeros where its pixels should be.

    Raises:
        CorruptImageError: ``corrupt``.
    """
    begin = header.segments[-1][2]
    if not zeros.has_tail(data) and data.find(bytes(zeros.BLOCK_BYTES), begin) < 0:
        return
    end = data.find(END, begin)
    _check(data, [(begin, len(data) if end < 0 else end)])


def check(data: bytes, name: str, max_pixels: int) -> tuple[str, ...]:
    """Refuse a picture of any other format that is zeros where its pixels should be.

    Args:
        data: a whole file.
        name: its format.
        max_pixels: the most that the picture may have.

    Returns:
        A note if the file ends in zeros and they may be pixels: not compressed, black is zero.

    Raises:
        CorruptImageError: ``corrupt``; or what else is wrong with the list of the pixels' places.
    """
    if not zeros.has_tail(data) and data.find(bytes(zeros.BLOCK_BYTES)) < 0:
        return ()
    if name == "BMP":
        return _note_tail(data, [(0, len(data))])
    if name == "TIFF":
        compression, ranges = find_segments(data, max_pixels)
        if compression == NO_COMPRESSION:
            return _note_tail(data, ranges)
        if compression != OLD_JPEG:  # of which it is not known where it ends
            _check(data, ranges)
    elif name in _RANGES:
        _check(data, _RANGES[name](data))
    return ()


def _check(data: bytes, ranges: Ranges) -> None:
    ranges = list(ranges)
    tail = zeros.tail(data)
    if any(tail.overlap(begin, end) >= _FEWEST for begin, end in ranges):
        raise CorruptImageError("corrupt", "The file ends in zero bytes: its last part was never written.")
    blocks = zeros.lost_blocks(data, min((begin for begin, _ in ranges), default=0))
    if any(block.overlap(begin, end) for block in blocks for begin, end in ranges):
        raise CorruptImageError("corrupt", "Whole blocks of zero bytes stand where pixels were: a lost part.")


def _note_tail(data: bytes, ranges: Ranges) -> tuple[str, ...]:
    tail = zeros.tail(data)
    num_zeros = sum(tail.overlap(begin, end) for begin, end in ranges)
    if num_zeros < zeros.BLOCK_BYTES:
        return ()
    share = max(1, num_zeros * 100 // len(data))
    return (f"Its last pixels are all zero, {share}% of the file: black, or a part that was never written.",)


# ---- where pixels are


def _in_webp(data: bytes) -> Ranges:
    for chunk in webp_chunks(data):
        if chunk.name in _WEBP_PIXELS:
            yield chunk.begin, chunk.end
        elif chunk.name == b"ANMF":  # of an animation the first frame alone is decoded
            inner = webp_chunks(data, chunk.begin + _ANMF_BYTES, chunk.end)
            yield from ((part.begin, part.end) for part in inner if part.name in _WEBP_PIXELS)
            return


def _in_jpeg2000(data: bytes) -> Ranges:
    box = read_jp2(data)
    return [(box.begin, check_codestream(data, box.begin, box.end).end)]


def _in_jpeg_xl(data: bytes) -> Ranges:
    if data.startswith(b"\xff\x0a"):
        return [(0, len(data))]
    return [(box.begin, box.end) for box in iter_boxes(data) if box.name in _JXL_PIXELS]


_RANGES: dict[str, Callable[[bytes], Ranges]] = {
    "WebP": _in_webp,
    "JPEG 2000": _in_jpeg2000,
    "JPEG XL": _in_jpeg_xl,
    "HEIC": find_pixels,
    "AVIF": find_pixels,
}
