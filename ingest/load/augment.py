"""What `transform="train"` does to each picture, as pure arithmetic: a random window and a random flip.

Drawn here and not by the engine that cuts the pictures, so that a sample gets the same window on every
device, in every batch and after every restart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingest.load import epoch as order

_STREAM = 1
_TRIES = 10
_DRAWS = 64  # numbers set aside for one sample
_AREA = (0.08, 1.0)  # share of the picture's area: Szegedy et al. 2015, and torchvision's default
_RATIO = (3 / 4, 4 / 3)  # width / height, likewise


def uniforms(positions: npt.NDArray[np.int64], *, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """Return float64 (B, 64), each in [0, 1), that depend on (seed, epoch, position) alone."""
    first = positions.astype(np.uint64) * np.uint64(_DRAWS)
    counters = np.add.outer(first, np.arange(_DRAWS, dtype=np.uint64))
    bits = order.hash64(seed, epoch, _STREAM, counters)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def flips(drawn: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """Return int32 (B,): 1 where the picture is mirrored left to right, half of the time."""
    return (drawn[:, -1] < 0.5).astype(np.int32)  # noqa: PLR2004


def windows(
    drawn: npt.NDArray[np.float64], width: npt.NDArray[np.int32], height: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return begin and end of the part of each picture to keep: float32 (B, 2), (y, x) in pixels.

    As torchvision's RandomResizedCrop: the area is uniform in 8 to 100 % of the picture's, the logarithm of
    the aspect ratio uniform between those of 3/4 and 4/3; the first of ten tries that fits inside is taken,
    the whole picture if none does. Windows are not rounded to whole pixels.
    """
    area = _AREA[0] + (_AREA[1] - _AREA[0]) * drawn[:, :_TRIES]
    low, high = np.log(_RATIO)
    ratio = np.exp(low + (high - low) * drawn[:, _TRIES : 2 * _TRIES])
    size = np.stack([height, width], axis=1).astype(np.float64)
    pixels = area * size.prod(axis=1)[:, None]
    tried = np.stack([np.sqrt(pixels / ratio), np.sqrt(pixels * ratio)], axis=2)
    fits = np.all(tried <= size[:, None, :], axis=2)
    chosen = tried[np.arange(len(tried)), np.argmax(fits, axis=1)]
    chosen = np.where(np.any(fits, axis=1, keepdims=True), chosen, size)
    begin = (size - chosen) * drawn[:, 2 * _TRIES : 2 * _TRIES + 2]
    return begin.astype(np.float32), (begin + chosen).astype(np.float32)
