"""Does the build use the cores that it is given? Run `python benchmarks/build.py PHOTOS [OUT]`.

The photos of 8 megapixels and more below PHOTOS, under as many names as make 400 or more, go through the real
workflow on every core, in rounds. Before and after each round one core alone shrinks them with the kernel
(`ingest.build.image.shrink_image`, bytes in memory to sample in memory), so that rate and reference stand
side by side in time.

- *steady rate*: images/s of the shrink rule from the moment when as many shards were finished as there are
  cores to the end of the last one, images of the former left out;
- *efficiency*: steady rate over cores times the rate of the one core;
- *overhead*: seconds of the whole workflow beyond images / steady rate: start-up and end.

Every figure of every round is printed, and written as JSON to OUT.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from ingest.build.image import engine_versions, shrink_image
from ingest.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
MIN_PIXELS = 8_000_000
LEAST_IMAGES = 400
BARS = {"efficiency": 0.92, "overhead_s": 5.0}
_SHARD = re.compile(r"^\S+ (\d\d):(\d\d):(\d\d),(\d+) .*: train/\S+: ([\d,]+) samples?,.*shards?, ")


def large_photos(folder: Path) -> list[Path]:
    """Return the JPEGs of 8 megapixels and more."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in {".jpg", ".jpeg"}:
            with Image.open(path) as image:
                if image.width * image.height >= MIN_PIXELS:
                    found.append(path)
    return found


def link_photos(photos: list[Path], raw: Path) -> int:
    """Give the photos as many names below `raw` as make 400; return how many those are."""
    times = -(-LEAST_IMAGES // len(photos))
    for number in range(times * len(photos)):
        path = raw / f"class {number % 5}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(photos[number % len(photos)])
    return times * len(photos)


def kernel_rate(photos: list[Path]) -> float:
    """Return images/s of the kernel on one core over all photos, read before, four times: one scatters."""
    data = [path.read_bytes() for path in photos] * 4
    begin = time.perf_counter()
    for picture in data:
        shrink_image(picture, Recipe())
    return len(data) / (time.perf_counter() - begin)


def shard_times(log: str) -> list[tuple[float, int]]:
    """Return from the log of shrink when each shard was finished, in seconds of the day, and its samples."""
    found = []
    for line in log.splitlines():
        if match := _SHARD.match(line):
            hours, minutes, seconds, milliseconds, samples = match.groups()
            at = int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(milliseconds) / 1000
            found.append((at, int(samples.replace(",", ""))))
    return found


def run_workflow(raw: Path, folder: Path, cores: int) -> dict[str, float]:
    """Build a dataset of `raw` in `folder`; return steady rate and overhead."""
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    command = [snakemake, "-s", str(ROOT / "Snakefile"), "--cores", str(cores)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder.mkdir()
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--config", f"raw={raw}", "dataset=out"],
        cwd=folder, env={**os.environ, "PATH": path}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    wall = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    shards = shard_times(next(folder.rglob("shrink.log")).read_text())
    images = sum(samples for _, samples in shards)
    begun = shards[:cores]  # by then each core has begun another, or is about to
    steady = (images - sum(samples for _, samples in begun)) / (shards[-1][0] - begun[-1][0])
    return {"wall_s": wall, "images": images, "steady_rate": steady, "overhead_s": wall - images / steady}


def measure(photos: list[Path], work: Path, rounds: int, cores: int) -> list[dict[str, Any]]:
    """Run the rounds, each between two runs of the kernel."""
    link_photos(photos, work / "raw")
    found = []
    before = kernel_rate(photos)
    for number in range(rounds):
        built = run_workflow(work / "raw", work / f"{number}", cores)
        after = kernel_rate(photos)
        core = statistics.mean([before, after])
        found.append(
            {**built, "kernel_rate": [before, after], "efficiency": built["steady_rate"] / cores / core}
        )
        print(json.dumps(found[-1]), flush=True)
        before = after
    return found


def main() -> None:
    """Measure and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    photos = large_photos(options.photos)
    if not photos:
        raise SystemExit(f"{options.photos}: holds no JPEG of {MIN_PIXELS:,} pixels or more")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as temporary:
        copies = [Path(temporary) / f"{number}.jpg" for number in range(len(photos))]
        for photo, copy in zip(photos, copies, strict=True):
            copy.write_bytes(photo.read_bytes())
        rounds = measure(copies, Path(temporary), options.rounds, options.cores)
    report = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "engines": engine_versions(),
        "photos": len(photos),
        "cores": options.cores,
        "efficiency": statistics.median(each["efficiency"] for each in rounds),
        "overhead_s": statistics.median(each["overhead_s"] for each in rounds),
        "bars": BARS,
        "rounds": rounds,
    }
    print(f"efficiency {report['efficiency']:.3f}, overhead {report['overhead_s']:.1f} s; bars {BARS}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
