"""The one module with simplejpeg: libjpeg-turbo, which decodes a JPEG straight to a fraction of its size.

libjpeg goes on after most faults and warns. Here every warning is an error, unless what it warns of costs no
pixel: then the cause is taken out of the bytes and they are decoded again, for libjpeg reports only its last
warning, and to overlook a harmless one would be to overlook all before it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, NamedTuple

import simplejpeg

from ingest.build.jpeg import (
    END,
    JpegHeader,
    is_complete,
    mcu_size,
    read_jpeg_header,
    with_height,
    without_junk,
    without_padding,
    without_surplus,
)
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ingest.recipe import Subsampling

# simplejpeg applies a scale only where it divides by at least `min_factor`; none divides by more than 8.
_UNSCALED = 9
_MOST_MENDS = 4  # one for each kind of harmless fault
_NO_END = "The end marker is missing; every pixel is there."

GRAY, COLOUR, CMYK = 1, 3, 4
"""Numbers of components that a JPEG may have."""

# Never SOF3: asked to scale a lossless JPEG, simplejpeg 1.9 writes past the end of its buffer.
_KINDS = {(sof, 8, components) for sof in (0, 1, 2, 9, 10) for components in (GRAY, COLOUR, CMYK)}


class Decoded(NamedTuple):
    """Pixels, uint8 (H, W, bytes a pixel), and what was wrong with the file without costing one."""

    pixels: NDArray[np.uint8]
    notes: tuple[str, ...]


class OddSamplingError(CorruptImageError):
    """TurboJPEG refuses sampling factors that libjpeg, and so Pillow, decodes."""


class CutOffError(CorruptImageError):
    """A JPEG lacks a part.

    Attributes:
        data: the file, with an end marker and without what was harmless in it.
        between_scans: whether it lacks whole scans, and each that is there is whole.
    """

    def __init__(self, code: str, reason: str, data: bytes = b"", *, between_scans: bool = False) -> None:
        super().__init__(code, reason)
        self.data = data
        self.between_scans = between_scans


def can_decode(header: JpegHeader) -> bool:
    """Return whether the JPEG is of a kind that `decode` takes."""
    return header.kind in _KINDS


def decode(
    data: bytes, header: JpegHeader, scale: int, colorspace: str, *, all_scans: bool = True
) -> Decoded:
    """Decode every pixel of a JPEG at 1/`scale` of its size.

    Args:
        data: the file; what stands behind its end marker is no matter.
        header: of `data`; its kind one that `can_decode` takes.
        scale: 1, 2, 4 or 8.
        colorspace: "GRAY", "RGB", "RGBX" (a fourth byte of no meaning) or "CMYK" (as stored: Adobe's are
            inverted).
        all_scans: whether a picture that lacks some of its scans is refused.

    Raises:
        CutOffError: ``truncated``: part of the picture is not in the file.
        OddSamplingError: the sampling factors are not for TurboJPEG.
        CorruptImageError: ``corrupt``.
    """
    size = -(-header.height // scale), -(-header.width // scale)
    notes: list[str] = []
    for _ in range(1 + _MOST_MENDS):
        try:
            pixels = _decode(data, size, scale, colorspace)
        except ValueError as error:
            data, note = _mend(data, header, str(error), cut_off=_NO_END in notes)
            notes.append(note)
            header = read_jpeg_header(data)  # what was taken out has moved what stood behind it
        else:
            if all_scans and not is_complete(data, header):
                raise CutOffError("truncated", "Scans of the JPEG are missing.", data, between_scans=True)
            return Decoded(pixels, tuple(dict.fromkeys(notes)))
    raise CorruptImageError("corrupt", "The JPEG decodes only with bytes left over among its pixels.")


def _decode(
    data: bytes, size: tuple[int, int], scale: int, colorspace: str, *, strict: bool = True
) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data,
        colorspace,
        fastupsample=scale > 1,  # chroma need not be smooth before it is averaged: 0 to 1.6 dB better
        min_height=size[0],
        min_width=size[1],
        min_factor=scale if scale > 1 else _UNSCALED,
        strict=strict,
    )
    if pixels.shape[:2] != size:
        message = f"The JPEG decodes to {pixels.shape[1]}x{pixels.shape[0]} pixels, not {size[1]}x{size[0]}."
        raise CorruptImageError("corrupt", message)
    return pixels


def _mend(data: bytes, header: JpegHeader, warning: str, *, cut_off: bool) -> tuple[bytes, str]:
    """Take out what a harmless warning was about; return the bytes to try next, and a note.

    Raises:
        CorruptImageError: if the warning is not harmless.
    """
    if "subsampling" in warning:
        raise OddSamplingError("unsupported", "The sampling factors of the JPEG are not supported.")
    surplus = re.search(r"(\d+) extraneous bytes before marker 0xd([0-79])", warning)
    if surplus and surplus[2] == "9":
        return without_padding(data, header, int(surplus[1])), "Bytes left over behind the last pixel."
    if surplus:
        return without_surplus(data, header), "Bytes left over behind the last pixel."
    if "bad ICC marker" in warning or "extraneous bytes before marker" in warning:
        return without_junk(data), "Bytes that belong to nothing in the header."
    if "Premature end of JPEG" in warning:
        return data + END, _NO_END
    if "premature end of data segment" in warning and cut_off:
        raise CutOffError("truncated", "The file ends before its picture does.", data)
    raise CorruptImageError("corrupt", f"The JPEG does not decode: {_in_words(warning)}.")


def _in_words(warning: str) -> str:
    """Bring libjpeg's warning into the middle of a sentence."""
    text = warning.removeprefix("Corrupt JPEG data: ").rstrip(".")
    return text if text[:1].isupper() and text[1:2].isupper() else text[:1].lower() + text[1:]


def count_rows(data: bytes, header: JpegHeader) -> int:
    """Return how many rows of a cut-off JPEG are there in full, by trying: libjpeg does not tell.

    A picture of fewer rows, as its header is made to say, decodes without "premature end" exactly if those
    rows are there. Takes about eight decodes at 1/8 of the size.
    """
    unit = mcu_size(data, header)[1]
    few, many = 0, -(-header.height // unit)
    while few < many:
        middle = (few + many + 1) // 2
        if _holds(with_height(data, header, min(header.height, middle * unit))):
            few = middle
        else:
            many = middle - 1
    return min(header.height, few * unit)


def _holds(data: bytes) -> bool:
    try:
        simplejpeg.decode_jpeg(data, "RGB", fastupsample=True, min_height=1, min_width=1, min_factor=8)
    except ValueError as error:
        return re.search(r"extraneous bytes before marker 0xd[0-79]", str(error)) is not None
    return True


def with_rows(header: JpegHeader, rows: int) -> JpegHeader:
    """Return the header of a picture that has only its first `rows` rows."""
    return dataclasses.replace(header, height=rows)


def decode_rows(data: bytes, header: JpegHeader, scale: int, colorspace: str) -> NDArray[np.uint8]:
    """Decode the first rows of a cut-off JPEG, as many as `header` says and `count_rows` found."""
    data = with_height(data, header, header.height)
    size = -(-header.height // scale), -(-header.width // scale)
    return _decode(data, size, scale, colorspace, strict=False)


def encode(pixels_HWC: NDArray[np.uint8], quality: int, subsampling: Subsampling = "420") -> bytes:
    """Encode pixels as a baseline JPEG.

    Args:
        pixels_HWC: uint8 (H, W, 3) RGB or (H, W, 4) RGBX, C-contiguous.
        quality: 1 to 100.
        subsampling: of the colours.
    """
    colorspace = "RGB" if pixels_HWC.shape[2] == COLOUR else "RGBX"
    jpeg: bytes = simplejpeg.encode_jpeg(
        pixels_HWC, quality, colorspace=colorspace, colorsubsampling=subsampling
    )
    return jpeg


def engine_version() -> str:
    """Return the version of simplejpeg, which brings its own libjpeg-turbo."""
    return str(simplejpeg.__version__)
