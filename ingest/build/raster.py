"""A decoded picture as an array, with what its file says of it. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Mode = Literal["L", "LA", "RGB", "RGBA", "CMYK"]

MODE_NAMES = {"L": "gray", "LA": "gray+alpha", "RGB": "RGB", "RGBA": "RGB+alpha", "CMYK": "CMYK"}
"""What a receipt calls the channels of each mode."""

_MODES: dict[int, Mode] = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CMYK_COLOURS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Raster:
    """A decoded picture, as it is stored.

    Attributes:
        pixels: uint8 (H, W, C), 0 to 255, C-contiguous; colours are not multiplied with alpha.
        mode: "L" (C = 1), "LA", "RGB", "RGBA", or "CMYK" (C = 4, 0 is no ink).
        source_mode: channels of the file: "RGB", "gray", "CMYK" or "palette", then "+alpha" if there is it.
        source_bits: bits a channel of the file, 1 to 32.
        orientation: EXIF orientation that is still to be applied, 1 to 8.
        icc: colour profile of the file, None without one, empty if it is broken.
        frames: pictures of the file.
        notes: sentences on what was wrong with the file and did not cost a pixel.
    """

    pixels: NDArray[np.uint8]
    mode: Mode
    source_mode: str
    source_bits: int
    orientation: int = 1
    icc: bytes | None = None
    frames: int = 1
    notes: tuple[str, ...] = ()


def mode_of(pixels: NDArray[np.uint8], num_colours: int = 0) -> Mode:
    """Return the mode of pixels; four channels are CMYK only where four are colours."""
    return "CMYK" if num_colours == _CMYK_COLOURS else _MODES[pixels.shape[2]]
