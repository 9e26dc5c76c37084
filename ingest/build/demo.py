"""The embedded default input: camera-like 4000x3000 JPEGs drawn by code, in one folder a class.

Reads nothing, leaves ``FOLDER/<class>/IMG_0000.jpg`` and so on. The same picture always has the same
bytes. The classes differ in structure alone: shades are spread evenly over a palette that depends on
the picture's number and not on its class, so neither the mean nor the histogram of the colours tells
them apart. Fine 1/f texture and sensor noise make a file as large, and as slow to decode, as a phone's.
All eight EXIF orientations occur; pixels are stored turned, so that they are upright when it is honoured.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ingest import processes, store
from ingest.build.image import encode_jpeg

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Plane = NDArray[np.float32]

LONG_PX, SHORT_PX = 4000, 3000
QUALITY = 90
# Scenes are drawn at a quarter of the size and enlarged; the detail is laid on at full size.
SCALE = 4
NOISE_LEVELS = 2.2
DETAIL_LEVELS = 10.0
STRIP_ROWS = 125  # a strip's arrays stay in the core's cache

# Dark, middle and light colour of one kind of light; picture n of every class takes palette n % 6.
PALETTES = np.array(
    [
        [[38, 32, 44], [156, 112, 82], [242, 224, 190]],
        [[22, 40, 52], [84, 132, 140], [226, 236, 228]],
        [[30, 38, 22], [112, 134, 72], [234, 232, 186]],
        [[48, 28, 30], [168, 92, 84], [246, 218, 206]],
        [[30, 30, 34], [128, 126, 124], [236, 234, 230]],
        [[36, 28, 58], [124, 106, 158], [232, 222, 240]],
    ],
    dtype=np.float32,
)


def demo_photo(label: str, number: int) -> bytes:
    """Draw one picture.

    Args:
        label: one of `CLASSES`.
        number: which picture of that class, from 0.

    Returns:
        A JPEG file of 4000x3000 stored pixels, with its EXIF orientation.
    """
    orientation = demo_orientation(label, number)
    upright_HWC = _upright_photo(label, number, portrait=orientation >= 5)  # noqa: PLR2004
    stored_HWC = np.ascontiguousarray(_turned_for_storage(upright_HWC, orientation))
    return encode_jpeg(stored_HWC, QUALITY, exif=_exif(orientation))


def demo_orientation(label: str, number: int) -> int:
    """Return the EXIF orientation of one picture, 1 to 8: each class has several, all occur."""
    return 1 + (2 * list(CLASSES).index(label) + number) % 8


def write_demo_photos(
    folder: Path,
    *,
    per_class: int = 6,
    workers: int | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> int:
    """Write the sample of every class below `folder`, leaving pictures that are already whole.

    Args:
        folder: where the folders of the classes go; made if missing.
        per_class: number of pictures of each class.
        workers: number of processes; None takes one a core.
        on_done: called with the number of pictures that are there and the number wanted, after each.

    Returns:
        The number of pictures that are there now.

    Raises:
        DeviceError: a worker process died.
    """
    wanted = [(label, number) for number in range(per_class) for label in CLASSES]
    missing = [(label, number) for label, number in wanted if not _is_whole(_path(folder, label, number))]
    if not missing:
        return len(wanted)
    for label in CLASSES:
        (folder / label).mkdir(parents=True, exist_ok=True)
    workers = min(workers or os.cpu_count() or 1, len(missing))
    write = functools.partial(_write_photo, folder)
    with contextlib.closing(processes.run(write, missing, workers=workers)) as written:
        for count, _ in enumerate(written, start=len(wanted) - len(missing) + 1):
            if on_done:
                on_done(count, len(wanted))
    return len(wanted)


def _path(folder: Path, label: str, number: int) -> Path:
    return folder / label / f"IMG_{number:04d}.jpg"


def _is_whole(path: Path) -> bool:
    """Tell whether a JPEG is there from its first byte to its last marker."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(-2, os.SEEK_END)
            return start + file.read() == b"\xff\xd8\xff\xd9"
    except OSError:
        return False


def _write_photo(folder: Path, picture: tuple[str, int]) -> None:
    """Write one picture under a temporary name, then give it its own."""
    label, number = picture
    path = _path(folder, label, number)
    part = path.with_name(f"{store.TEMPORARY_PREFIX}{path.name}")
    with part.open("wb") as file:
        file.write(demo_photo(label, number))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


# ---- one picture, from its scene to its pixels


def _upright_photo(label: str, number: int, *, portrait: bool) -> NDArray[np.uint8]:
    """Return the picture as a viewer should see it: uint8 (H, W, 3)."""
    rng = np.random.default_rng([list(CLASSES).index(label), number])
    height, width = (LONG_PX, SHORT_PX) if portrait else (SHORT_PX, LONG_PX)
    shade_HW = demo_scene(label, rng, height // SCALE, width // SCALE)
    levels_HW = _enlarge(_enlarge(shade_HW * 255, SCALE).T, SCALE).T
    detail_HW = _pink(rng, 1024, 1024, shortest_px=2, longest_px=128) * DETAIL_LEVELS
    colours = _colours(PALETTES[number % len(PALETTES)])
    photo_HWC = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, STRIP_ROWS):
        rows = slice(top, top + STRIP_ROWS)
        detail = np.take(detail_HW, range(top, top + STRIP_ROWS), axis=0, mode="wrap")
        detail = np.tile(detail, (1, 4))[:, :width]
        levels = np.clip(levels_HW[rows] + detail, 0, 255).astype(np.uint8)
        photo_HWC[rows] = _with_noise(rng, colours[levels])
    return photo_HWC


def _colours(palette: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the colour of each of 256 shades, from dark over middle to light."""
    shades = np.linspace(0, 2, 256)
    return np.stack([np.interp(shades, [0, 1, 2], channel) for channel in palette.T], -1).astype(np.float32)


def _with_noise(rng: np.random.Generator, strip_HWC: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Add a sensor's noise: the same field, shifted, serves the three channels."""
    height, width, _ = strip_HWC.shape
    noise_HW = rng.standard_normal((height, width + 16), dtype=np.float32) * np.float32(NOISE_LEVELS)
    for channel in range(3):
        strip_HWC[..., channel] += noise_HW[:, 8 * channel :][:, :width]
    return np.clip(strip_HWC, 0, 255, out=strip_HWC).astype(np.uint8)


def _enlarge(plane_HW: Plane, factor: int) -> Plane:
    """Enlarge the rows of a plane `factor` times by straight lines between their centres."""
    height, width = plane_HW.shape
    padded = np.concatenate([plane_HW[:1], plane_HW, plane_HW[-1:]])
    large_HFW = np.empty((height, factor, width), np.float32)
    for step in range(factor):
        place = (step + 0.5) / factor + 0.5
        first = int(place)
        weight = np.float32(place - first)
        above, below = padded[first : first + height], padded[first + 1 : first + 1 + height]
        large_HFW[:, step] = above + (below - above) * weight
    return large_HFW.reshape(height * factor, width)


def _pink(
    rng: np.random.Generator, height: int, width: int, *, shortest_px: float = 2, longest_px: float = 1e9
) -> Plane:
    """Return 1/f noise of unit deviation that repeats without a seam."""
    vertical = np.fft.fftfreq(height)[:, None]
    horizontal = np.fft.rfftfreq(width)[None, :]
    frequency = np.hypot(vertical, horizontal)
    frequency[0, 0] = 1
    kept = (frequency >= 1 / longest_px) & (frequency <= 1 / shortest_px)
    kept[0, 0] = False
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) * (kept / frequency)
    plane_HW = np.fft.irfft2(spectrum, s=(height, width))
    result: Plane = (plane_HW / plane_HW.std()).astype(np.float32)
    return result


def _turned_for_storage(upright_HWC: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn an upright picture into the pixels that a camera held that way would store."""
    turned: dict[int, Callable[[Any], Any]] = {
        1: lambda image: image,
        2: np.fliplr,
        3: lambda image: np.rot90(image, 2),
        4: np.flipud,
        5: lambda image: image.transpose(1, 0, 2),
        6: lambda image: np.rot90(image, 1),
        7: lambda image: np.rot90(image, 2).transpose(1, 0, 2),
        8: lambda image: np.rot90(image, -1),
    }
    result: NDArray[np.uint8] = turned[orientation](upright_HWC)
    return result


def _exif(orientation: int) -> bytes:
    """Return an EXIF block with the orientation alone: one little-endian TIFF directory."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + struct.pack("<2sHIH", b"II", 42, 8, 1) + entry + struct.pack("<I", 0)


# ---- the scenes: shades at a quarter of the picture's size


def demo_scene(label: str, rng: np.random.Generator, height: int, width: int) -> Plane:
    """Draw the structure of one class.

    Args:
        label: one of `CLASSES`.
        rng: decides everything that differs between pictures of one class.
        height: rows of the scene.
        width: columns of the scene.

    Returns:
        float32 (height, width): shades in 0 to 1, each as frequent as any other.
    """
    shade_HW = CLASSES[label](rng, height, width) + 0.12 * _pink(rng, height, width)
    even_HW = np.empty(height * width, np.float32)
    even_HW[np.argsort(shade_HW, axis=None, kind="stable")] = np.linspace(
        0, 1, height * width, dtype=np.float32
    )
    return even_HW.reshape(height, width)


def _dunes(rng: np.random.Generator, height: int, width: int) -> Plane:
    """Lying waves: each brightens slowly and falls off at its crest."""
    y_HW = _grid(height, width)[0]
    return (y_HW * rng.uniform(6, 9) + 0.22 * _soft(rng, height, width)) % 1


def _forest(rng: np.random.Generator, height: int, width: int) -> Plane:
    """Standing trunks, round, lit from one side, before a dark ground."""
    x_HW = _grid(height, width)[1]
    place_HW = (x_HW * rng.uniform(6, 9) + 0.15 * _soft(rng, height, width)) % 1
    across_HW = (place_HW - 0.5) / 0.36
    round_HW = np.sqrt(np.clip(1 - across_HW**2, 0, 1))
    return np.where(np.abs(across_HW) < 1, 0.3 + 0.5 * round_HW + 0.3 * across_HW, 0).astype(np.float32)


def _pebbles(rng: np.random.Generator, height: int, width: int) -> Plane:
    """Round stones of many sizes, one upon the other."""
    shade_HW = np.zeros((height, width), np.float32)
    side = min(height, width)
    for _ in range(260):
        radius = int(side * rng.uniform(0.035, 0.1))
        y, x = int(rng.integers(0, height)), int(rng.integers(0, width))
        top, left = max(y - radius, 0), max(x - radius, 0)
        window = shade_HW[top : y + radius, left : x + radius]
        down, right = np.ogrid[top - y : top - y + window.shape[0], left - x : left - x + window.shape[1]]
        ball = 1 - (down**2 + right**2) / radius**2
        lit = rng.uniform(0.1, 0.5) + 0.5 * np.sqrt(np.clip(ball, 0, 1)) - 0.2 * (down + right) / radius
        np.copyto(window, lit, where=ball > 0, casting="same_kind")
    return shade_HW


def _bricks(rng: np.random.Generator, height: int, width: int) -> Plane:
    """A wall a little askew: rows of bricks of many shades, dark joints between them."""
    y_HW, x_HW = _grid(height, width)
    lean = rng.uniform(-0.12, 0.12)
    rows = rng.uniform(7, 10)
    row_HW = (y_HW + lean * x_HW) * rows + 50
    column_HW = (x_HW - lean * y_HW) * rows / 2 + 50 + 0.5 * (np.floor(row_HW) % 2)
    tone = rng.random((256, 256), dtype=np.float32)[row_HW.astype(int) % 256, column_HW.astype(int) % 256]
    joint = 0.12
    is_joint = (row_HW % 1 < joint) | (column_HW % 1 < joint / 2)
    return np.where(is_joint, 0, 0.35 + 0.6 * tone).astype(np.float32)


def _grid(height: int, width: int) -> tuple[Plane, Plane]:
    """Return the rows and columns of each point, in units of the shorter side."""
    y_HW, x_HW = np.mgrid[0:height, 0:width].astype(np.float32) / min(height, width)
    return y_HW, x_HW


def _soft(rng: np.random.Generator, height: int, width: int) -> Plane:
    """Return slow waves only, of unit deviation."""
    return _pink(rng, height, width, shortest_px=min(height, width) / 4)


CLASSES: dict[str, Callable[[np.random.Generator, int, int], Plane]] = {
    "bricks": _bricks,
    "dunes": _dunes,
    "forest": _forest,
    "pebbles": _pebbles,
}
