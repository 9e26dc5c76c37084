"""From the samples of a TIFF to pixels, and from strips and tiles to a picture. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ingest.build.pixels import look_up, to_eight_bits, unpremultiply
from ingest.build.tiff_page import PALETTE, WHITE_IS_ZERO
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest.build.jpeg import JpegHeader
    from ingest.build.pixels import Samples
    from ingest.build.tiff_page import SampleLayout, TiffPage


def to_pixels(samples_HWC: NDArray[Any], page: TiffPage) -> NDArray[np.uint8]:
    """Turn samples into colours, then alpha if the page has it.

    Args:
        samples_HWC: bool, int8, uint8, int16 or uint16 (H, W, C), as the page's layout has them.
        page: which is neither YCbCr nor any more compressed.

    Returns:
        uint8 (H, W, C), C-contiguous; colours are not multiplied with alpha; 0 is no ink where it is CMYK.
    """
    layout = page.layout
    samples = _unsigned(samples_HWC)
    if layout.photometric == PALETTE:
        pixels = look_up(samples[..., 0], _read_palette(page.color_map))
        if layout.alpha != "none":
            alpha = to_eight_bits(samples[..., layout.alpha_at : layout.alpha_at + 1], layout.bits)
            pixels = np.concatenate([pixels, alpha], axis=2)
    else:
        pixels = to_eight_bits(_without_extras(samples, layout), layout.bits)
    if layout.photometric == WHITE_IS_ZERO:
        pixels = _invert_first(pixels)
    return unpremultiply(pixels) if layout.alpha == "associated" else pixels


def _without_extras(samples_HWC: Samples, layout: SampleLayout) -> Samples:
    """Keep the colours, and behind them the alpha, wherever it stands."""
    end = layout.num_colours
    if layout.alpha == "none":
        return samples_HWC[..., :end]
    if layout.alpha_at == end:
        return samples_HWC[..., : end + 1]
    return samples_HWC[..., [*range(end), layout.alpha_at]]


def _unsigned(samples_HWC: NDArray[Any]) -> Samples:
    """Return samples as unsigned numbers; a negative one is as black as zero.

    TIFF 6.0 has 0 for black and 2**bits - 1 for white whatever the format of the samples is, and libvips
    reads them so; Pillow takes -1 for white.
    """
    unsigned: Samples = samples_HWC
    if samples_HWC.dtype.kind == "i":
        unsigned = np.maximum(samples_HWC, 0).astype(f"u{samples_HWC.itemsize}")
    elif samples_HWC.dtype == np.bool_:
        unsigned = samples_HWC.astype(np.uint8)
    return unsigned


def _invert_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn the gray channel round, which is the first."""
    inverted = pixels.copy()
    np.subtract(255, pixels[..., 0], out=inverted[..., 0])
    return inverted


def _read_palette(color_map: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return uint8 (N, 3): the upper bytes, for some write v * 257 and others v * 256.

    A map without any number above 255 holds bytes, as libtiff finds too.
    """
    columns = np.array(color_map, np.uint16).reshape(3, -1)
    is_bytes = int(columns.max()) <= np.iinfo(np.uint8).max
    return np.ascontiguousarray((columns if is_bytes else columns >> 8).T, np.uint8)


# ---- strips that are faxes

_END_OF_LINE = bytes(11) + b"\1"  # T.4, 4.1.2, a byte a bit
_FILL_ORDER, _LOW_BIT_FIRST = 266, 2


def check_fax(data: bytes, page: TiffPage) -> None:
    """Refuse group 3 strips with too few lines: libtiff leaves the rest white without a word.

    A strip without any end of line is not group 3, whatever the page says, and is left to libtiff.

    Raises:
        CorruptImageError: ``truncated``.
    """
    (order, *_) = (*page.tags.get(_FILL_ORDER, ()), 1)
    for number, (begin, end) in enumerate(page.segments.ranges):
        num_rows = min(page.segments.height, page.height - number * page.segments.height)
        strip = np.frombuffer(data[begin:end], np.uint8)
        bits = np.unpackbits(strip, bitorder="little" if order == _LOW_BIT_FIRST else "big")
        num_lines = bits.tobytes().count(_END_OF_LINE)
        if 0 < num_lines < num_rows:
            sentence = f"A strip of the TIFF has {num_lines} of {num_rows} lines."
            raise CorruptImageError("truncated", sentence)


# ---- strips and tiles that are JPEGs

_BYTE = 8
_MOST_ROWS_TOO_MANY = 15  # of the last strip: some pad it to whole blocks


def check_jpeg_segment(header: JpegHeader, page: TiffPage) -> None:
    """Refuse, before it is decoded, a JPEG that is not what the page says of its strips or tiles.

    Raises:
        CorruptImageError: ``corrupt``.
    """
    layout, segments = page.layout, page.segments
    num_channels = 1 if layout.is_planar else layout.num_samples
    is_too_large = header.width > segments.width or header.height > segments.height + _MOST_ROWS_TOO_MANY
    if is_too_large or header.kind[1:] != (layout.bits, num_channels):
        raise CorruptImageError("corrupt", "A strip or tile of the TIFF is not what its page says.")


def new_canvas(page: TiffPage) -> NDArray[Any]:
    """Return zeros for all samples of a page: uint8 or uint16 (H, W, C)."""
    dtype = np.uint8 if page.layout.bits <= _BYTE else np.uint16
    return np.zeros((page.height, page.width, page.layout.num_samples), dtype)


def place_segment(canvas_HWC: NDArray[Any], page: TiffPage, number: int, block_HWC: Samples) -> None:
    """Put a strip or tile where it belongs; what sticks out of the picture is left out.

    Args:
        canvas_HWC: of `new_canvas`; changed.
        page: the page.
        number: of the strip or tile, from 0, row by row, plane by plane.
        block_HWC: its samples.

    Raises:
        CorruptImageError: ``corrupt`` if it is too small.
    """
    segments, num_channels = page.segments, block_HWC.shape[2]
    plane, place = divmod(number, segments.num_across * segments.num_down)
    row, column = divmod(place, segments.num_across)
    top, left = row * segments.height, column * segments.width
    part = canvas_HWC[top : top + segments.height, left : left + segments.width, plane : plane + num_channels]
    if block_HWC.shape[0] < part.shape[0] or block_HWC.shape[1] < part.shape[1]:
        raise CorruptImageError("corrupt", "A strip or tile of the TIFF is smaller than it should be.")
    part[...] = block_HWC[: part.shape[0], : part.shape[1]]
