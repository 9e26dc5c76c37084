"""What does correctness cost? Run `python benchmarks/paths.py PHOTOS PROGRESSIVE [OUT]`; takes three minutes.

Ratios, each measured in one run, in random order, in CPU seconds of all threads, all samples kept:

- the product's `shrink_image` over a bare kernel (decode at the same scale, resample, encode; no check, no
  profile, no receipt) on photos of 8 megapixels or more under PHOTOS;
- over libjpeg-turbo's own decode at the same scale for the one file PROGRESSIVE;
- for HEIC, AVIF and WebP, over their library's own decode to pixels, then the same resampling and encoding:
  three of the photos, made into each format, and with `--pictures FOLDER` the files of 8 megapixels or more
  that it holds.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import platform
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import imagecodecs
import numpy as np
import pillow_avif
import pillow_heif
import simplejpeg
from PIL import Image

from ingest.build.image import engine_versions, shrink_image
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROUNDS = 9
MOST_PHOTOS = 15
MOST_MADE = 3
MIN_PIXELS = 8_000_000
RECIPE = Recipe()
FIRST_SIDEWAYS = 5
BARS = {
    "over_bare_kernel": 1.03,
    "progressive_over_decode": 1.10,
    "heic_over_library": 1.05,
    "avif_over_library": 1.05,
    "webp_over_library": 1.05,
}


class Case(NamedTuple):
    """One file, the scale at which the product decodes it, and its size as stored."""

    data: bytes
    scale: int
    width: int
    height: int


def read_case(data: bytes) -> Case:
    """Return a file with what the product makes of it."""
    made = shrink_image(data, RECIPE).provenance
    size = made.source_width, made.source_height
    return Case(data, made.scale_denominator, *(size[::-1] if made.orientation >= FIRST_SIDEWAYS else size))


def decode(case: Case) -> NDArray[np.uint8]:
    """Decode as the product does, with nothing around it."""
    size = -(-case.height // case.scale), -(-case.width // case.scale)
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
        case.data, "RGBX", fastupsample=True, min_height=size[0], min_width=size[1], min_factor=case.scale
    )
    return pixels


def bare_kernel(case: Case) -> bytes:
    """Decode, cut out the centre, resample, encode."""
    pixels = decode(case)
    return squeeze(Image.frombuffer("RGBX", pixels.shape[1::-1], pixels, "raw", "RGBX", 0, 1))


def squeeze(image: Image.Image) -> bytes:
    """Cut out the centre, resample, encode."""
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    small = image.resize((224, 224), Image.Resampling.LANCZOS, box=(left, top, left + side, top + side))
    jpeg: bytes = simplejpeg.encode_jpeg(
        np.asarray(small), 90, colorspace="RGB" if image.mode == "RGB" else "RGBX", colorsubsampling="420"
    )
    return jpeg


# ---- formats that a library decodes whole


def decode_heic(data: bytes) -> Image.Image:
    """Decode with libheif, as pillow-heif calls it."""
    return wrap(np.asarray(pillow_heif.open_heif(data)))


def decode_avif(data: bytes) -> Image.Image:
    """Decode with libavif, as pillow-avif-plugin calls it."""
    decoder = pillow_avif._avif.AvifDecoder(data, "auto", "auto", 0)  # noqa: SLF001 - it has no other door
    width, height, _, mode, *_ = decoder.get_info()
    return Image.frombuffer(mode, (width, height), decoder.get_frame(0)[0], "raw", mode, 0, 1)


def decode_webp(data: bytes) -> Image.Image:
    """Decode with libwebp, as imagecodecs calls it."""
    return wrap(imagecodecs.webp_decode(data))


def wrap(pixels: NDArray[np.uint8]) -> Image.Image:
    """Make an image of RGB or RGBA pixels."""
    mode = "RGB" if pixels.shape[2] == 3 else "RGBA"  # noqa: PLR2004 - channels
    return Image.frombuffer(mode, pixels.shape[1::-1], pixels, "raw", mode, 0, 1)


LIBRARIES: dict[str, Callable[[bytes], Image.Image]] = {
    "HEIC": decode_heic,
    "AVIF": decode_avif,
    "WebP": decode_webp,
}


def through_library(library: Callable[[bytes], Image.Image], case: Case) -> bytes:
    """Decode with `library`, cut out the centre, resample, encode."""
    return squeeze(library(case.data))


def make(photo: Case, name: str) -> bytes:
    """Return a photo in another format, at a usual quality, without a profile."""
    pixels = simplejpeg.decode_jpeg(photo.data, "RGB")
    if name == "WebP":
        return bytes(imagecodecs.webp_encode(pixels, level=80))
    buffer = io.BytesIO()
    if name == "HEIC":
        pillow_heif.from_pillow(wrap(pixels)).save(buffer, quality=60)
    else:
        wrap(pixels).save(buffer, "AVIF", quality=65, speed=9)
    return buffer.getvalue()


def large_pictures(folder: Path) -> dict[str, list[Case]]:
    """Return files of a folder that are as large as photos, by the format that a library decodes whole."""
    found: dict[str, list[Case]] = {name: [] for name in LIBRARIES}
    for path in sorted(path for path in folder.rglob("*") if path.suffix in {".heic", ".avif", ".webp"}):
        try:
            made = shrink_image(path.read_bytes(), RECIPE).provenance
        except CorruptImageError:
            continue
        if made.source_format in found and made.source_width * made.source_height >= MIN_PIXELS:
            found[made.source_format].append(read_case(path.read_bytes()))
    return found


# ---- measuring


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


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", metavar="PHOTOS", type=Path)
    parser.add_argument("progressive", metavar="PROGRESSIVE", type=Path)
    parser.add_argument("out", metavar="OUT", nargs="?", type=Path)
    parser.add_argument("--pictures", metavar="FOLDER", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure all, print the table, write the samples."""
    args = parse_arguments()
    paths = (path for path in sorted(args.photos.rglob("*")) if path.suffix.lower() == ".jpg")
    read = (read_case(path.read_bytes()) for path in paths)
    photos = [case for case in read if case.width * case.height >= MIN_PIXELS][:MOST_PHOTOS]
    whole = {name: [read_case(make(photo, name)) for photo in photos[:MOST_MADE]] for name in LIBRARIES}
    if args.pictures is not None:
        for name, found in large_pictures(args.pictures).items():
            whole[name] += found
    samples = {
        "over_bare_kernel": compare(photos, bare_kernel),
        "progressive_over_decode": compare([read_case(args.progressive.read_bytes())] * 9, decode),
    }
    for name, library in LIBRARIES.items():
        base = functools.partial(through_library, library)
        samples[f"{name.lower()}_over_library"] = compare(whole[name], base)
    ratios = {name: ratio(seconds) for name, seconds in samples.items()}
    report = {
        "ratios": ratios,
        "bars": BARS,
        "photos": len(photos),
        "pictures": {name: len(cases) for name, cases in whole.items()},
        "cpu_seconds": samples,
        "machine": platform.processor() or platform.machine(),
        "engines": engine_versions(),
    }
    for name, value in ratios.items():
        print(f"{name:24} {value:.3f}  bar {BARS[name]}")
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
