"""How fast and how exact is the image kernel? Run `python benchmarks/kernel.py`; takes about two minutes.

Over every photo of 8 megapixels and more in ../shared/data/photos, on one core, file by file, in turn:

- *floor*: libjpeg-turbo through simplejpeg at DCT scale 1/8, bytes in memory to pixels in memory;
- *kernel*: `ingest.build.image.shrink_image`, bytes in memory to a 224x224 JPEG in memory;
- *stock*: what one writes with Pillow, in a virtual environment of its own: decode every pixel, Lanczos
  of the centre square, turn upright, save at quality 90.

Seconds are CPU seconds of the one thread that works (`time.thread_time`), so that neighbours on a shared
machine count only by the caches they take; seconds of wall clock are kept beside them. On a quiet machine
the two are equal.

PSNR compares pixels before JPEG encoding, kernel against stock, 224x224 RGB; after encoding and decoding
it is reported too. Rates compare sums of seconds over all photos and rounds; beside them stand the median
over photos of the ratio of each photo's median seconds, and the ratio of sums of each photo's best round.
Every raw sample goes to benchmarks/results/kernel-DATE-CPU.json.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import functools
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from ingest.build.image import decode_jpeg, engine_versions, shrink_image, shrink_pixels
from ingest.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
SIZE = 224
MIN_PIXELS = 8_000_000
BARS = {"psnr_db": 50.0, "over_stock": 4.3, "of_floor": 0.80}

# The peer, in its own interpreter: a path a line in; a line of JSON and the raw pixels out.
STOCK_WORKER = """
import io, json, sys, time
import PIL
from PIL import Image, ImageOps, features

def shrink(data):
    image = Image.open(io.BytesIO(data))
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    small = image.resize((224, 224), Image.Resampling.LANCZOS, box=(left, top, left + side, top + side))
    small.getexif()[0x0112] = image.getexif().get(0x0112, 1)
    small = ImageOps.exif_transpose(small)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=90)
    return small, out.getvalue()

out = sys.stdout.buffer
versions = {"pillow": PIL.__version__, "libjpeg_turbo": features.version_feature("libjpeg_turbo")}
out.write(json.dumps(versions).encode() + b"\\n")
out.flush()
for line in sys.stdin:
    with open(line.rstrip("\\n"), "rb") as file:
        data = file.read()
    begin = time.perf_counter(), time.thread_time()
    small, jpeg = shrink(data)
    seconds = time.perf_counter() - begin[0], time.thread_time() - begin[1]
    out.write(json.dumps({"seconds": seconds, "bytes": len(jpeg)}).encode() + b"\\n" + small.tobytes())
    out.flush()
"""


Times = tuple[float, float]
"""Seconds of wall clock, seconds of CPU."""
Samples = dict[str, dict[str, list[float]]]
"""Seconds by engine and photo, one entry a round."""


class Stock:
    """Stock Pillow in a process of its own."""

    def __init__(self, python: Path) -> None:
        command = [str(python), "-c", STOCK_WORKER]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.versions = json.loads(self._read_line())

    def shrink(self, path: Path) -> tuple[Times, NDArray[np.uint8]]:
        """Return wall and CPU seconds, and pixels as uint8 (224, 224, 3)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n".encode())
        self._process.stdin.flush()
        wall_s, cpu_s = json.loads(self._read_line())["seconds"]
        pixels = self._process.stdout.read(SIZE * SIZE * 3)
        return (wall_s, cpu_s), np.frombuffer(pixels, np.uint8).reshape(SIZE, SIZE, 3)

    def clock(self, path: Path) -> Times:
        """Return wall and CPU seconds."""
        return self.shrink(path)[0]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main() -> None:
    """Measure, print the table, keep the raw samples."""
    args = parse_arguments()
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})  # the stock worker inherits it: all three share one core in turn
    photos = find_photos(args.data)
    with tempfile.TemporaryDirectory() as folder:
        stock = Stock(args.stock_python or make_stock_python(Path(folder)))
        loads = [os.getloadavg()]
        exactness = {str(path.relative_to(args.data)): compare(path, stock) for path in photos}
        wall_s, cpu_s = measure(photos, args.data, stock, args.rounds)
        stock.close()
    loads.append(os.getloadavg())
    result = {
        "benchmark": "kernel",
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "pinned_to_cpu": cpu, "load_before_and_after": loads},
        "versions": {"python": platform.python_version(), **engine_versions(), "stock": stock.versions},
        "rounds": args.rounds,
        "bars": BARS,
        "summary": {**summarise_exactness(exactness), **summarise(cpu_s)},
        "summary_wall": summarise(wall_s),
        "psnr_db": exactness,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
    }
    print_table(result)
    print(save(result, args.out))


def parse_arguments() -> argparse.Namespace:
    """Return where the photos are, where results go, how many rounds, and whose Pillow is stock."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--stock-python", type=Path, help="of an environment with stock Pillow")
    return parser.parse_args()


def find_photos(data: Path) -> list[Path]:
    """Return the JPEGs of 8 megapixels and more under photos/, as INDEX.tsv lists them."""
    with (data / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    photos = [row for row in rows if row["file"].startswith("photos/")]
    return [data / row["file"] for row in photos if int(row["width"]) * int(row["height"]) >= MIN_PIXELS]


def make_stock_python(folder: Path) -> Path:
    """Create an environment with stock Pillow and nothing else."""
    print("making an environment with stock Pillow ...", file=sys.stderr)
    venv.create(folder / "stock", with_pip=True)
    python = folder / "stock" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pillow"], check=True)
    return python


def compare(path: Path, stock: Stock) -> dict[str, float]:
    """Return PSNR in dB of the kernel's pixels against stock's, before and after JPEG encoding."""
    data = path.read_bytes()
    _, expected = stock.shrink(path)
    before = shrink_pixels(data, Recipe(size=SIZE))
    after = decode_jpeg(shrink_image(data, Recipe(size=SIZE)).data)
    return {"before_encoding": psnr_db(before, expected), "after_encoding": psnr_db(after, expected)}


def psnr_db(image: NDArray[np.uint8], expected: NDArray[np.uint8]) -> float:
    """Return the peak signal-to-noise ratio over all samples, peak 255; 99 for equal pictures."""
    error = float(np.mean((image.astype(np.float64) - expected) ** 2))
    return min(99.0, 10 * math.log10(255**2 / error)) if error else 99.0


def shrink(data: bytes) -> None:
    """Shrink as a build does with the default recipe."""
    shrink_image(data, Recipe(size=SIZE))


def decode_eighth(data: bytes) -> None:
    """Decode at 1/8 with every flag that makes simplejpeg faster."""
    simplejpeg.decode_jpeg(data, "RGB", fastdct=True, fastupsample=True, min_height=1, min_width=1)


def measure(photos: list[Path], root: Path, stock: Stock, rounds: int) -> tuple[Samples, Samples]:
    """Return raw seconds of wall clock and of CPU; the engines take turns at each photo, in random order."""
    order = random.Random(0)  # whoever comes after stock finds its caches full of 36 MB of pixels
    wall_s: Samples = {"floor": {}, "kernel": {}, "stock": {}}
    cpu_s: Samples = {"floor": {}, "kernel": {}, "stock": {}}
    for path in iterate(photos, rounds):
        data, name = path.read_bytes(), str(path.relative_to(root))
        work: dict[str, Callable[[], Times]] = {
            "floor": functools.partial(clock, decode_eighth, data),
            "kernel": functools.partial(clock, shrink, data),
            "stock": functools.partial(stock.clock, path),
        }
        for engine in order.sample(sorted(work), len(work)):
            wall, cpu = work[engine]()
            wall_s[engine].setdefault(name, []).append(wall)
            cpu_s[engine].setdefault(name, []).append(cpu)
    return wall_s, cpu_s


def iterate(photos: list[Path], rounds: int) -> Iterator[Path]:
    """Yield every photo once a round, and say which round it is."""
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        yield from photos


def clock(work: Callable[[bytes], object], data: bytes) -> Times:
    """Return the seconds that `work` takes."""
    begin = time.perf_counter(), time.thread_time()
    work(data)
    return time.perf_counter() - begin[0], time.thread_time() - begin[1]


def summarise_exactness(exactness: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the worst and the mean PSNR."""
    before = [values["before_encoding"] for values in exactness.values()]
    after = [values["after_encoding"] for values in exactness.values()]
    return {
        "psnr_db_before_encoding": {"min": min(before), "mean": statistics.mean(before)},
        "psnr_db_after_encoding": {"min": min(after), "mean": statistics.mean(after)},
    }


def summarise(seconds: Samples) -> dict[str, dict[str, float]]:
    """Return the rates, and the ratios that the bars are held against."""
    return {
        "kernel_over_stock": rates(seconds["stock"], seconds["kernel"]),
        "kernel_of_floor": rates(seconds["floor"], seconds["kernel"]),
        "images_per_s": {engine: rate(samples) for engine, samples in seconds.items()},
    }


def rates(slow: dict[str, list[float]], fast: dict[str, list[float]]) -> dict[str, float]:
    """Return by three rules how many times the rate of `slow` that of `fast` is."""
    by_photo = [statistics.median(slow[name]) / statistics.median(fast[name]) for name in slow]
    best = sum(map(min, slow.values())) / sum(map(min, fast.values()))
    total = sum(map(sum, slow.values())) / sum(map(sum, fast.values()))
    return {"total": total, "median_photo": statistics.median(by_photo), "best_rounds": best}


def rate(samples: dict[str, list[float]]) -> float:
    """Return images a second over all photos and rounds."""
    return sum(map(len, samples.values())) / sum(map(sum, samples.values()))


def machine() -> dict[str, Any]:
    """Name the machine."""
    info = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    model = re.search(r"model name\s*: (.*)", info)
    return {
        "cpu": model[1] if model else platform.machine(),
        "num_cpus": os.cpu_count(),
        "system": platform.platform(),
    }


def print_table(result: dict[str, Any]) -> None:
    """Print each bar, its figure by the rule of the bar, and the figures beside it."""
    summary, bars = result["summary"], result["bars"]
    before, after = summary["psnr_db_before_encoding"], summary["psnr_db_after_encoding"]
    print(
        f"{len(result['psnr_db'])} photos, {result['rounds']} rounds, one core of {result['machine']['cpu']}"
    )
    print(f"{'':34}{'bar':>7}{'figure':>8}")
    print(
        f"{'PSNR before encoding, worst photo':34}{bars['psnr_db']:7.1f}{before['min']:8.2f} dB"
        f"   mean {before['mean']:.2f}; after encoding {after['min']:.2f}, mean {after['mean']:.2f}"
    )
    for label, bar, key in (
        ("rate, times stock Pillow", "over_stock", "kernel_over_stock"),
        ("rate, of the floor", "of_floor", "kernel_of_floor"),
    ):
        values, wall = summary[key], result["summary_wall"][key]
        print(
            f"{label:34}{bars[bar]:7.2f}{values['total']:8.3f}"
            f"      median photo {values['median_photo']:.3f}, best rounds {values['best_rounds']:.3f};"
            f" by wall clock {wall['total']:.3f}, {wall['median_photo']:.3f}, {wall['best_rounds']:.3f}"
        )
    print("images/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in summary["images_per_s"].items()))


def save(result: dict[str, Any], folder: Path) -> Path:
    """Write the result, one file a run."""
    folder.mkdir(parents=True, exist_ok=True)
    cpu = re.sub(r"[^a-z0-9]+", "-", result["machine"]["cpu"].lower()).strip("-")
    stamp = re.sub(r"[^0-9T]", "", result["date"][:19])
    path = folder / f"kernel-{stamp}-{cpu}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
