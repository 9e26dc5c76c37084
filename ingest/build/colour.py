"""Which colour profiles count, and what becomes of a picture that has one. Decides; `codecs` converts.

A profile counts if it is one, is for as many channels as the picture has, and Little CMS can use it; any
other means sRGB, as in browsers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

import numpy as np

from ingest.build.codecs import convert_to_srgb
from ingest.build.containers import MOST_PROFILE_BYTES
from ingest.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest.build.sample import ProfileUse

Mode = Literal["L", "RGB", "CMYK"]

# ICC.1:2010, 7.2: place of class, colour space and signature in the header of 128 bytes.
_HEADER_BYTES, _TAG_COUNT_BYTES, _TAG_BYTES = 128, 4, 12
_SPACES: dict[Mode, bytes] = {"L": b"GRAY", "RGB": b"RGB ", "CMYK": b"CMYK"}
_CLASSES = frozenset({b"scnr", b"mntr", b"prtr", b"spac"})  # of devices and colour spaces
_MOST_TAGS = 256
_MOST_NAME = 100  # characters

_SAME = 1  # levels of 255 that a profile may change a colour and still be called sRGB
_GRID = np.array([0, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 255], np.uint8)


def to_srgb(
    pixels_HWC: NDArray[np.uint8], mode: Mode, icc: bytes | None
) -> tuple[NDArray[np.uint8], str | None, ProfileUse]:
    """Convert pixels by their profile, if it counts.

    Args:
        pixels_HWC: uint8 (H, W, C), 0 to 255; C is 1, 3 or 4. CMYK: 0 is no ink.
        mode: what they are.
        icc: profile of the file, None without one.

    Returns:
        The pixels: uint8 (H, W, 3) of sRGB where the use is ``converted``, else `pixels_HWC` as they are;
        name of the profile, None without one; and what became of it.
    """
    name, use = use_profile(icc, mode)
    if icc is None or use != "converted":
        return pixels_HWC, name, use
    return convert_to_srgb(pixels_HWC, mode, icc), name, use


def use_profile(icc: bytes | None, mode: Mode) -> tuple[str | None, ProfileUse]:
    """Decide what is to become of a profile.

    Args:
        icc: profile of the file, None without one.
        mode: of the picture.

    Returns:
        Name of the profile, None without one; and ``none``, ``ignored`` if it is broken or for other
        channels, ``is_srgb`` if it changes no colour by more than one level, else ``converted``.
    """
    return (None, "none") if icc is None else _use(icc, mode)


@functools.lru_cache(maxsize=16)  # a dataset has few; none of these is above `MOST_PROFILE_BYTES`
def _use(icc: bytes, mode: Mode) -> tuple[str | None, ProfileUse]:
    name = profile_name(icc)
    if not _fits(icc, mode):
        return name, "ignored"
    probes = _probe_colours(mode)
    try:
        converted = convert_to_srgb(probes, mode, icc)
    except DataError:
        return name, "ignored"
    change = np.abs(converted.astype(np.int16) - probes).max() if mode != "CMYK" else _SAME + 1
    return name, "is_srgb" if change <= _SAME else "converted"


def _fits(icc: bytes, mode: Mode) -> bool:
    """Return whether the header of a profile says that it is one, and of colours such as the picture has."""
    return (
        _HEADER_BYTES < len(icc) <= MOST_PROFILE_BYTES
        and icc[36:40] == b"acsp"
        and icc[12:16] in _CLASSES
        and icc[16:20] == _SPACES[mode]
    )


@functools.cache
def _probe_colours(mode: Mode) -> NDArray[np.uint8]:
    """Return a grid of colours, or every gray: uint8 (N, 1, channels)."""
    if mode == "L":
        return np.arange(256, dtype=np.uint8).reshape(-1, 1, 1)
    if mode == "CMYK":
        return np.zeros((1, 1, 4), np.uint8)
    return np.stack(np.meshgrid(_GRID, _GRID, _GRID), axis=-1).reshape(-1, 1, 3)


def profile_name(icc: bytes) -> str | None:
    """Return the description of a profile, of version 2 or 4; None where it has none that can be read."""
    text = _description(icc)
    printable = "".join(character for character in text if character.isprintable()).strip()
    return printable[:_MOST_NAME] or None


def _description(icc: bytes) -> str:
    """Read the tag ``desc``: textDescriptionType (ICC.1:2001, 6.5.17) or the first multiLocalizedUnicode."""
    tag = _tag(icc, b"desc")
    if tag.startswith(b"desc"):
        size = int.from_bytes(tag[8:12], "big")
        return tag[12 : 12 + size].partition(b"\0")[0].decode("latin-1")
    if tag.startswith(b"mluc"):
        size, offset = (int.from_bytes(tag[n : n + 4], "big") for n in (20, 24))
        return tag[offset : offset + size].decode("utf-16-be", "ignore")
    return ""


def _tag(icc: bytes, name: bytes) -> bytes:
    count = min(int.from_bytes(icc[_HEADER_BYTES : _HEADER_BYTES + _TAG_COUNT_BYTES], "big"), _MOST_TAGS)
    begin = _HEADER_BYTES + _TAG_COUNT_BYTES
    for at in range(begin, begin + _TAG_BYTES * count, _TAG_BYTES):
        if icc[at : at + 4] == name:
            offset, size = (int.from_bytes(icc[at + n : at + n + 4], "big") for n in (4, 8))
            return icc[offset : offset + size]
    return b""
