"""Arithmetic on decoded pixels: depth, palettes, alpha and YCbCr, to 8-bit samples. Pure; NumPy alone.

Everything works in bands of rows, so that a large picture costs little more memory than its own pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

Samples = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]
"""uint8 or uint16 (H, W, C)."""

_BAND_SAMPLES = (
    1 << 18
)  # of the largest temporary, eight bytes a sample: it stays within a second-level cache
_BYTE = 8
# JFIF 1.02, "Conversion to and from RGB", times 2**16, as libjpeg's jdcolor.c has them.
_RED_OF_CR, _GREEN_OF_CB, _GREEN_OF_CR, _BLUE_OF_CB = 91_881, -22_554, -46_802, 116_130
_HALF, _FRACTION_BITS = 1 << 15, 16


def to_eight_bits(values_HWC: Samples, bits: int) -> NDArray[np.uint8]:
    """Scale samples so that black stays black and white becomes 255: ``round(v * 255 / (2**bits - 1))``.

    Args:
        values_HWC: uint8 or uint16 (H, W, C), 0 to ``2**bits - 1``; what is above counts as that.
        bits: declared depth, 1 to 16.

    Returns:
        uint8 (H, W, C), C-contiguous.
    """
    if bits == _BYTE and values_HWC.dtype == np.uint8:
        return np.ascontiguousarray(values_HWC, np.uint8)
    most = (1 << bits) - 1

    def scale(
        band: Samples,
    ) -> NDArray[np.uint32]:  # 65,535 * 255 is well within 32 bits; no tie, most is odd
        scaled = np.minimum(band, most).astype(np.uint32)
        scaled *= 255
        scaled += most // 2
        scaled //= most
        return scaled

    return _in_bands(scale, values_HWC, values_HWC.shape[2])


def unit_to_eight_bits(values_HWC: Samples) -> NDArray[np.uint8]:
    """Scale floating point samples so that 0 stays 0 and 1 becomes 255, rounded.

    Args:
        values_HWC: float16 or float32 (H, W, C), usually 0 to 1; what is outside counts as the nearest of
            them, and what is no number as 0.

    Returns:
        uint8 (H, W, C), C-contiguous.
    """

    def scale(band: NDArray[Any]) -> NDArray[np.uint8]:
        clipped = np.clip(np.nan_to_num(band.astype(np.float32), nan=0.0), 0.0, 1.0)
        return (clipped * 255 + 0.5).astype(np.uint8)

    return _in_bands(scale, values_HWC, values_HWC.shape[2])


def look_up(indices_HW: Samples, palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the colours of a palette.

    Args:
        indices_HW: uint8 or uint16 (H, W); an index past the palette counts as its last colour.
        palette: uint8 (N, C).

    Returns:
        uint8 (H, W, C).
    """
    return _in_bands(lambda band: palette[np.minimum(band, len(palette) - 1)], indices_HW, palette.shape[1])


def unpremultiply(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Divide colours by the alpha that they were multiplied with, rounded; black where alpha is 0.

    Args:
        pixels_HWC: uint8 (H, W, 2 or 4), the last channel is alpha.

    Returns:
        uint8 of the same shape.
    """

    def divide(band: NDArray[np.uint8]) -> NDArray[np.uint8]:
        divided = band.copy()
        alpha = band[..., -1:].astype(np.uint16)
        colours = band[..., :-1].astype(np.uint16) * 255
        colours += alpha >> 1
        colours //= np.maximum(alpha, 1)
        divided[..., :-1] = np.minimum(colours, 255) * (alpha > 0)
        return divided

    return _in_bands(divide, pixels_HWC, pixels_HWC.shape[2])


def on_canvas(
    pixels_HWC: NDArray[np.uint8], canvas: tuple[int, int], left: int, top: int
) -> NDArray[np.uint8]:
    """Lay a picture on a larger one that is transparent.

    Args:
        pixels_HWC: uint8 (H, W, 3 or 4), RGB or RGBA.
        canvas: width and height of the larger one, in pixels.
        left: where the picture begins, in pixels.
        top: where the picture begins, in pixels.

    Returns:
        uint8 (height, width, 4), RGBA.
    """
    height, width, num_channels = pixels_HWC.shape
    whole = np.zeros((canvas[1], canvas[0], 4), np.uint8)
    part = whole[top : top + height, left : left + width]
    part[..., 3] = 255
    part[..., :num_channels] = pixels_HWC
    return whole


def ycc_to_rgb(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert YCbCr of full range (JFIF, sYCC: ITU-R BT.601) to RGB.

    Args:
        pixels_HWC: uint8 (H, W, 3 or more), Y, Cb, Cr with zero chroma at 128; other channels stay.

    Returns:
        uint8 of the same shape.
    """

    def convert(band: NDArray[np.uint8]) -> NDArray[np.uint8]:
        luma = (band[..., 0].astype(np.int32) << _FRACTION_BITS) + _HALF
        blue, red = (band[..., n].astype(np.int32) - 128 for n in (1, 2))
        sums = (
            luma + _RED_OF_CR * red,
            luma + _GREEN_OF_CB * blue + _GREEN_OF_CR * red,
            luma + _BLUE_OF_CB * blue,
        )
        converted = band.copy()
        for n, total in enumerate(sums):
            converted[..., n] = np.clip(total >> _FRACTION_BITS, 0, 255)
        return converted

    return _in_bands(convert, pixels_HWC, pixels_HWC.shape[2])


def _in_bands(
    function: Callable[[Any], NDArray[Any]], values: Samples, num_channels: int
) -> NDArray[np.uint8]:
    """Apply a function of rows to all of them, band after band; uint8 (H, W, `num_channels`)."""
    result = np.empty((*values.shape[:2], num_channels), np.uint8)
    for rows in _bands(values):
        result[rows] = function(values[rows])
    return result


def _bands(values: Samples) -> Iterator[slice]:
    per_row = max(1, values.size // max(1, len(values)))
    step = max(1, _BAND_SAMPLES // per_row)
    return (slice(begin, begin + step) for begin in range(0, len(values), step))
