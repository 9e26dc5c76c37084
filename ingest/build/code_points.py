"""What code points (ITU-T H.273) say of colours, as a profile: `nclx` of HEIC and AVIF, cICP of PNG. Pure.

A profile of ours is one of a matrix and three curves (ICC.1:2010), so that colours which are named by code
points go the same way as those of an embedded profile.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_SRGB, _PQ, _HLG = 13, 16, 18

_D65, _C, _DCI = (0.3127, 0.3290), (0.310, 0.316), (0.314, 0.351)
_BT601_525 = ((0.630, 0.340), (0.310, 0.595), (0.155, 0.070), _D65)
_BT709 = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060), _D65)
# H.273, table 2: name; chromaticities of red, green, blue and white. 2 is "unspecified".
_PRIMARIES = {
    1: ("BT.709", _BT709),
    2: ("BT.709", _BT709),
    4: ("BT.470 M", ((0.67, 0.33), (0.21, 0.71), (0.14, 0.08), _C)),
    5: ("BT.601 (625 lines)", ((0.64, 0.33), (0.29, 0.60), (0.15, 0.06), _D65)),
    6: ("BT.601 (525 lines)", _BT601_525),
    7: ("SMPTE 240M", _BT601_525),
    9: ("BT.2020", ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046), _D65)),
    11: ("DCI-P3", ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), _DCI)),
    12: ("Display P3", ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), _D65)),
    22: ("EBU Tech 3213-E", ((0.630, 0.340), (0.295, 0.605), (0.155, 0.077), _D65)),
}
# H.273, table 3. BT.709's curve, which video encoders write of photos whose numbers are sRGB's, is read as
# sRGB's, as browsers do.
_LIKE_SRGB = frozenset({1, 2, 6, _SRGB, 14, 15})
_GAMMAS = {4: 2.2, 5: 2.8, 8: 1.0}
_HDR_CURVES = {_PQ: "PQ", _HLG: "HLG"}

_D50 = (0.96420, 1.0, 0.82491)
# ICC.1:2010, annex E.3: Bradford's cone responses, in which colours are adapted to D50.
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_SRGB_PARAMETERS = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)  # IEC 61966-2-1, as g, a, b, c, d

_DIFFUSE_WHITE = 203.0  # cd/m2, of white paper in a picture of high dynamic range: ITU-R BT.2408, table 1
_HLG_PEAK, _HLG_GAMMA = 1000.0, 1.2  # of the screen that BT.2100 takes as reference
_STEPS = 4096


class Meaning(NamedTuple):
    """What code points come to.

    Attributes:
        icc: a profile, None where the numbers are sRGB's or are kept as they are.
        is_plain: whether the points say all: of high dynamic range, or not known, a profile says more.
        notes: what could not be done as the file says.
    """

    icc: bytes | None = None
    is_plain: bool = True
    notes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=64)
def meaning_of(primaries: int, curve: int, *, is_gray: bool = False) -> Meaning:
    """Return what code points come to.

    Args:
        primaries: colour primaries of H.273, table 2.
        curve: transfer characteristics of H.273, table 3.
        is_gray: whether the picture has no colours, so that a profile is to be one of gray.
    """
    if primaries not in _PRIMARIES or not (curve in _LIKE_SRGB or curve in _GAMMAS or curve in _HDR_CURVES):
        points = f"primaries {primaries} and transfer {curve} of ITU-T H.273"
        return Meaning(
            None, is_plain=False, notes=(f"Its colours are said to have {points}: not converted.",)
        )
    name, chromaticities = _PRIMARIES[primaries]
    colorants = None if is_gray else chromaticities
    if curve in _HDR_CURVES:
        name = f"{name} {_HDR_CURVES[curve]}"
        sentence = (
            f"It is of high dynamic range ({_HDR_CURVES[curve]}): what is brighter than white was clipped."
        )
        return Meaning(_profile(name, colorants, _sampled(curve)), is_plain=False, notes=(sentence,))
    if curve in _GAMMAS:
        tag = b"para\0\0\0\0\0\0\0\0" + _fixed((_GAMMAS[curve],))
        return Meaning(_profile(f"{name}, gamma {_GAMMAS[curve]}", colorants, tag))
    if is_gray or chromaticities is _BT709:
        return Meaning()
    return Meaning(_profile(name, colorants, b"para\0\0\0\0\0\3\0\0" + _fixed(_SRGB_PARAMETERS)))


_Chromaticities = tuple[tuple[float, float], ...]
"""x and y of red, green, blue and white."""


def _profile(name: str, chromaticities: _Chromaticities | None, curve: bytes) -> bytes:
    """Return a profile of a display (ICC.1:2010, 8.4).

    Args:
        name: its description.
        chromaticities: of its primaries and white; None makes a profile of gray.
        curve: the tag that holds for each channel.
    """
    text = name.encode("utf-16-be")
    tags = {b"desc": b"mluc\0\0\0\0" + struct.pack(">II4sII", 1, 12, b"enUS", len(text), 28) + text}
    tags[b"wtpt"] = b"XYZ \0\0\0\0" + _fixed(_D50)
    if chromaticities is None:
        tags[b"kTRC"] = curve
    else:
        colorants = _to_connection_space(chromaticities).T
        for key, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), colorants, strict=True):
            tags[key] = b"XYZ \0\0\0\0" + _fixed(column)
        tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    return _pack(b"GRAY" if chromaticities is None else b"RGB ", tags)


def _pack(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Return a profile of version 4.3 (ICC.1:2010, 7.2 and 7.3)."""
    table, body = struct.pack(">I", len(tags)), b""
    for key, tag in tags.items():
        table += struct.pack(">4sII", key, 128 + 4 + 12 * len(tags) + len(body), len(tag))
        body += tag + bytes(-len(tag) % 4)
    head = struct.pack(">4xI4s4s4s12x4s28x12s48x", 0x04300000, b"mntr", space, b"XYZ ", b"acsp", _fixed(_D50))
    return struct.pack(">I", 4 + len(head + table + body)) + head + table + body


def _to_connection_space(chromaticities: _Chromaticities) -> NDArray[np.float64]:
    """Return the matrix from linear RGB to XYZ under D50: SMPTE RP 177, then Bradford's adaptation."""
    *primaries, white = (np.array([x / y, 1.0, (1 - x - y) / y]) for x, y in chromaticities)
    columns = np.stack(primaries, axis=1)
    to_xyz = columns * np.linalg.solve(columns, white)
    gain = (_BRADFORD @ np.array(_D50)) / (_BRADFORD @ white)
    adapted: NDArray[np.float64] = np.linalg.inv(_BRADFORD) @ (gain[:, None] * (_BRADFORD @ to_xyz))
    return adapted


def _sampled(curve: int) -> bytes:
    """Return a curve of high dynamic range as a table: light up to diffuse white, clipped there.

    PQ: ITU-R BT.2100-2, table 4. HLG: table 5, its gamma for the whole picture applied to each channel.
    """
    signal = np.arange(_STEPS) / (_STEPS - 1)
    if curve == _PQ:
        m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 4096 * 128, 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
        root = signal ** (1 / m2)
        light = 10_000 * (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1)
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        scene = np.where(signal <= 1 / 2, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
        light = _HLG_PEAK * scene**_HLG_GAMMA
    levels = np.rint(np.clip(light / _DIFFUSE_WHITE, 0, 1) * 65535).astype(">u2")
    return b"curv\0\0\0\0" + struct.pack(">I", _STEPS) + levels.tobytes()


def _fixed(numbers: Iterable[float]) -> bytes:
    """Return numbers as s15Fixed16."""
    return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)
