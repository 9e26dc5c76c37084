"""What does correctness cost? Run `python benchmarks/paths.py PHOTOS PROGRESSIVE [OUT]`; takes half a minute.

Two ratios, each measured in one run, in random order, in CPU seconds, all samples kept:
the product's `shrink_image` over a bare kernel (decode at the same scale, resample, encode; no check, no
profile, no receipt) on photos of 8 megapixels or more under PHOTOS; and over libjpeg-turbo's own decode at
the same scale for the one file PROGRESSIVE.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from ingest.build.image import engine_versions, shrink_image
from ingest.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 9
MOST_PHOTOS = 15
MIN_PIXELS = 8_000_000
RECIPE = Recipe()
FIRST_SIDEWAYS = 5
BARS = {"over_bare_kernel": 1.03, "progressive_over_decode": 1.10}


class Case(NamedTuple):
    """One file, the scale at which the product decodes it, and its size as stored."""

    data: bytes
    scale: int
    width: int
    height: int


def read_case(path: Path) -> Case:
    """Return a file with what the product makes of it."""
    data = path.read_bytes()
    made = shrink_image(data, RECIPE).provenance
    size = made.source_width, made.source_height
    return Case(data, made.scale_denominator, *(size[::-1] if made.orientation >= FIRST_SIDEWAYS else size))


def decode(case: Case) -> np.ndarray:
    """Decode as the product does, with nothing around it."""
    size = -(-case.height // case.scale), -(-case.width // case.scale)
    pixels: np.ndarray = simplejpeg.decode_jpeg(
        case.data, "RGBX", fastupsample=True, min_height=size[0], min_width=size[1], min_factor=case.scale
    )
    return pixels


def bare_kernel(case: Case) -> bytes:
    """Decode, cut out the centre, resample, encode."""
    pixels = decode(case)
    image = Image.frombuffer("RGBX", pixels.shape[1::-1], pixels, "raw", "RGBX", 0, 1)
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    small = image.resize((224, 224), Image.Resampling.LANCZOS, box=(left, top, left + side, top + side))
    jpeg: bytes = simplejpeg.encode_jpeg(np.asarray(small), 90, colorspace="RGBX", colorsubsampling="420")
    return jpeg


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def compare(cases: list[Case], base: Callable[[Case], object]) -> dict[str, list[float]]:
    """Return CPU seconds of each round, of the product and of `base`."""
    seconds: dict[str, list[float]] = {"product": [], "base": []}
    for _ in range(ROUNDS):
        totals = dict.fromkeys(seconds, 0.0)
        for case in random.sample(cases, len(cases)):
            for name in random.sample(sorted(totals), 2):
                run = (lambda: shrink_image(case.data, RECIPE)) if name == "product" else lambda: base(case)  # noqa: B023
                totals[name] += cpu_seconds(run)
        for name, total in totals.items():
            seconds[name].append(total)
    return seconds


def ratio(seconds: dict[str, list[float]]) -> float:
    """Return the median over the rounds of product over base."""
    pairs = zip(seconds["product"], seconds["base"], strict=True)
    return statistics.median(product / base for product, base in pairs)


def main() -> None:
    """Measure both, print the table, write the samples."""
    paths = (path for path in sorted(Path(sys.argv[1]).rglob("*")) if path.suffix.lower() == ".jpg")
    photos = [case for path in paths if (case := read_case(path)).width * case.height >= MIN_PIXELS]
    samples = {
        "over_bare_kernel": compare(photos[:MOST_PHOTOS], bare_kernel),
        "progressive_over_decode": compare([read_case(Path(sys.argv[2]))] * 3, decode),
    }
    report = {
        "ratios": {name: ratio(seconds) for name, seconds in samples.items()},
        "bars": BARS,
        "photos": len(photos[:MOST_PHOTOS]),
        "cpu_seconds": samples,
        "machine": platform.processor() or platform.machine(),
        "engines": engine_versions(),
    }
    for name, found in report["ratios"].items():
        print(f"{name:24} {found:.3f}  bar {BARS[name]}")
    if len(sys.argv) > 3:  # noqa: PLR2004 - a place for the report was given
        Path(sys.argv[3]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
