"""The last step of a sample: pixels to the bytes of its image field, in the encoding of the recipe; and back.

`jpeg` is small and lossy. `npy` holds the pixels as they are, in NumPy's own format, whose header is of one
length for all pictures of one size: the pixels of each sample lie at the same distance from its beginning.
`png` and lossless `webp` hold the same pixels in fewer bytes, for more time to read them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from ingest.build import codecs, turbo
from ingest.build.jpeg import read_jpeg_header
from ingest.errors import CorruptImageError
from ingest.recipe import DEFAULT_MAX_PIXELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest.recipe import Recipe

_RGB = 3


def encode(pixels_HWC: NDArray[np.uint8], recipe: Recipe) -> bytes:
    """Encode pixels as the recipe says; the same pixels give the same bytes.

    Args:
        pixels_HWC: uint8 (H, W, 3) RGB or (H, W, 4) RGBX, 0 to 255, C-contiguous.
        recipe: its encoding, quality and subsampling are looked at.
    """
    if recipe.encoding == "jpeg":
        return turbo.encode(pixels_HWC, recipe.quality, recipe.subsampling)
    pixels = np.ascontiguousarray(pixels_HWC[..., :_RGB])
    if recipe.encoding == "npy":
        return _to_npy(pixels)
    return codecs.write_png(pixels) if recipe.encoding == "png" else codecs.write_webp(pixels)


def decode(data: bytes, field: str) -> NDArray[np.uint8]:
    """Decode the image field of a sample.

    Args:
        data: what `encode` returned.
        field: name of the member: ``jpg``, ``npy``, ``png`` or ``webp``.

    Returns:
        uint8 (H, W, 3), RGB, 0 to 255.

    Raises:
        CorruptImageError: the bytes are no whole picture of that kind.
    """
    if field == "npy":
        return _from_npy(data)
    if field == "jpg":
        return decode_jpeg(data)
    read = codecs.read_png if field == "png" else codecs.read_webp
    return read(data, DEFAULT_MAX_PIXELS).pixels


def decode_jpeg(data: bytes) -> NDArray[np.uint8]:
    """Decode every pixel of a sample.

    Args:
        data: a JPEG of one or three components.

    Returns:
        uint8 (H, W, 3), RGB, 0 to 255.

    Raises:
        CorruptImageError: if it is not a JPEG, or any part of it is missing or does not decode.
    """
    header = read_jpeg_header(data)
    if not turbo.can_decode(header) or header.kind[-1] == turbo.CMYK:
        raise CorruptImageError("unsupported", "The JPEG is not 8 bits, gray or RGB, as samples are.")
    pixels, notes = turbo.decode(data, header, 1, "RGB")
    if notes:
        raise CorruptImageError("corrupt", f"The JPEG is not as it was written: {notes[0]}")
    return pixels


def _to_npy(pixels_HWC: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, pixels_HWC, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _from_npy(data: bytes) -> NDArray[np.uint8]:
    try:
        pixels = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        raise CorruptImageError("corrupt", f"Not an array that can be read: {error}.") from error
    if pixels.dtype != np.uint8 or pixels.ndim != _RGB or pixels.shape[2] != _RGB:
        found = f"{pixels.dtype} {pixels.shape}"
        raise CorruptImageError("corrupt", f"The array is {found}, expected uint8 (height, width, 3).")
    return pixels
