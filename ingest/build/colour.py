"""Which colour profiles count, and what becomes of a picture that has one. Decides; `codecs` converts.

A profile counts if it is one, is for as many channels as the picture has, and Little CMS can use it; any
other means sRGB, as in browsers.

To set up a conversion takes Little CMS longer than to convert 224x224 pixels: 5 of 6 ms with Display P3. So
what can be told by tables is: a gray profile by 256 colours; a profile of three curves and a matrix, as those
of cameras and screens are, by what each channel adds to the light. 0.8 ms, and at most one level beside what
Little CMS makes of it; a profile that is off by more at any of 1,728 colours is left to Little CMS.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ingest.build.codecs import convert_to_light, convert_to_srgb
from ingest.build.containers import MOST_PROFILE_BYTES
from ingest.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ingest.build.sample import ProfileUse

    Converter = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]

Mode = Literal["L", "RGB", "CMYK"]

# ICC.1:2010, 7.2: place of class, colour space and signature in the header of 128 bytes.
_HEADER_BYTES, _TAG_COUNT_BYTES, _TAG_BYTES = 128, 4, 12
_SPACES: dict[Mode, bytes] = {"L": b"GRAY", "RGB": b"RGB ", "CMYK": b"CMYK"}
_CLASSES = frozenset({b"scnr", b"mntr", b"prtr", b"spac"})  # of devices and colour spaces
_MOST_TAGS = 256
_MOST_NAME = 100  # characters

_SAME = 1  # levels of 255: what changes no colour by more is the same profile, or a good table of it
_GRID = np.array([0, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 255], np.uint8)
_LIGHT_STEPS = (1 << 14) - 1  # where sRGB is steepest, five of them are one level

_MOST_LIGHT = 16.0  # times white; the reddest red of ProPhoto is 2


class _Plan(NamedTuple):
    """What to do with pixels of a profile: `convert` them, or nothing where it is None."""

    name: str | None
    use: ProfileUse
    convert: Converter | None = None


def to_srgb(
    pixels_HWC: NDArray[np.uint8], mode: Mode, icc: bytes | None
) -> tuple[NDArray[np.uint8], str | None, ProfileUse]:
    """Convert pixels by their profile, if it counts.

    Args:
        pixels_HWC: uint8 (H, W, C), 0 to 255; C is 1, 3 or 4. CMYK: 0 is no ink.
        mode: what they are.
        icc: profile of the file, None without one, empty if it could not be taken out of it.

    Returns:
        The pixels: uint8 (H, W, 3) of sRGB where the use is ``converted``, else `pixels_HWC` as they are;
        name of the profile, None without one; and what became of it.
    """
    plan = _plan(icc, mode)
    return pixels_HWC if plan.convert is None else plan.convert(pixels_HWC), plan.name, plan.use


def use_profile(icc: bytes | None, mode: Mode) -> tuple[str | None, ProfileUse]:
    """Decide what is to become of a profile.

    Args:
        icc: profile of the file, None without one, empty if it could not be taken out of it.
        mode: of the picture.

    Returns:
        Name of the profile, None without one; and ``none``, ``ignored`` if it is broken or for other
        channels, ``is_srgb`` if it changes no colour by more than one level, else ``converted``.
    """
    return _plan(icc, mode)[:2]


@functools.lru_cache(maxsize=16)  # a dataset has few; none that counts is above `MOST_PROFILE_BYTES`
def _plan(icc: bytes | None, mode: Mode) -> _Plan:
    if icc is None:
        return _Plan(None, "none")
    name = profile_name(icc)
    try:
        convert = _converter(icc, mode) if _fits(icc, mode) else None
    except DataError:
        convert = None
    if convert is None:
        return _Plan(name, "ignored")
    probes = _probe_colours(mode)
    if mode != "CMYK" and _distance(convert(probes), probes) <= _SAME:
        return _Plan(name, "is_srgb")
    return _Plan(name, "converted", convert)


def _converter(icc: bytes, mode: Mode) -> Converter:
    """Return the quickest way to convert that is true to the profile.

    Raises:
        DataError: if Little CMS cannot use it.
    """
    probes = _probe_colours(mode)
    expected = convert_to_srgb(probes, mode, icc)
    if mode == "L":
        return lambda pixels: expected[pixels[..., 0], 0]
    if mode == "RGB":
        tables = _light_tables(icc)
        if _distance(expected, _add_light(probes, tables)) <= _SAME:
            return lambda pixels: _add_light(pixels, tables)
    return lambda pixels: convert_to_srgb(pixels, mode, icc)


@functools.cache
def _probe_colours(mode: Mode) -> NDArray[np.uint8]:
    """Return a grid of colours, or every gray: uint8 (N, 1, channels)."""
    if mode == "L":
        return np.arange(256, dtype=np.uint8).reshape(-1, 1, 1)
    if mode == "CMYK":
        return np.zeros((1, 1, 4), np.uint8)
    return np.stack(np.meshgrid(_GRID, _GRID, _GRID), axis=-1).reshape(-1, 1, 3)


def _distance(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """Return the largest difference of any two numbers, in levels."""
    return int(np.abs(one.astype(np.int16) - other).max())


# ---- tables


def _light_tables(icc: bytes) -> NDArray[np.int32]:
    """Return what each level of each channel adds to the light.

    Returns:
        int32 (3, 256, 3): channel, level, and linear red, green and blue of sRGB in `_LIGHT_STEPS`.
    """
    ramps = np.zeros((3, 256, 3), np.uint8)
    for channel in range(3):
        ramps[channel, :, channel] = np.arange(256)
    # A broken curve has levels that are not even numbers; the probes tell whether the rest is of any use.
    light = np.clip(np.nan_to_num(convert_to_light(ramps, icc)), -_MOST_LIGHT, _MOST_LIGHT)
    light -= light[0, 0] * (2 / 3)  # black, which each of three has and the sum is to have once
    tables: NDArray[np.int32] = np.rint(light * _LIGHT_STEPS).astype(np.int32)
    return tables


def _add_light(pixels_HWC: NDArray[np.uint8], tables: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Convert uint8 (H, W, 3) by the tables of `_light_tables`, clipped to sRGB."""
    light = np.take(tables[0], pixels_HWC[..., 0], axis=0)
    light += np.take(tables[1], pixels_HWC[..., 1], axis=0)
    light += np.take(tables[2], pixels_HWC[..., 2], axis=0)
    np.clip(light, 0, _LIGHT_STEPS, out=light)
    levels: NDArray[np.uint8] = _encoded_light()[light]
    return levels


@functools.cache
def _encoded_light() -> NDArray[np.uint8]:
    """Return the level of each step of light: IEC 61966-2-1, 5.2."""
    light = np.arange(_LIGHT_STEPS + 1) / _LIGHT_STEPS
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)  # noqa: PLR2004
    return np.floor(encoded * 255 + 0.5).astype(np.uint8)


# ---- what a profile says of itself


def _fits(icc: bytes, mode: Mode) -> bool:
    """Return whether the header of a profile says that it is one, and of colours such as the picture has."""
    return (
        _HEADER_BYTES < len(icc) <= MOST_PROFILE_BYTES
        and icc[36:40] == b"acsp"
        and icc[12:16] in _CLASSES
        and icc[16:20] == _SPACES[mode]
    )


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
