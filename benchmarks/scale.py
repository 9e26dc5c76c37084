"""What do ten million files cost before the first is opened? Run `python benchmarks/scale.py [OUT]`.

A table of generated names, sizes and versions stands for the listing of a bucket. Each verb runs as a process
of its own, as in the workflow: scan and plan of all files; the same again, with nothing to do; then with one
file in a hundred new, one in ten thousand changed and as many gone: scan, `plan --diff`, plan. Seconds of
wall clock and the largest resident memory of each process are printed, and written as JSON to OUT.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BARS = {"seconds": 600.0, "peak_gib": 8.0}
_PAGE = 500_000
_KIB_A_GIB = 2**20


def write_table(path: Path, begin: int, end: int, *, edited: bool) -> None:
    """Write rows `begin` to `end` of the listing; `edited`: some changed, as many gone."""
    schema = pa.schema(
        [("url", pa.string()), ("size", pa.int64()), ("version", pa.string()), ("label", pa.string())]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(begin, end, _PAGE):
            numbers = np.arange(first, min(end, first + _PAGE))
            if edited:
                numbers = numbers[numbers % 10_000 != 1]
            versions = np.where(edited & (numbers % 10_000 == 2), "v2", "v1")  # noqa: PLR2004
            names = [f"s3://photos/camera {n % 977}/{n // 977:07d}/DSC_{n:09d}.jpg" for n in numbers.tolist()]
            labels = [f"class {n % 1000:04d}" for n in numbers.tolist()]
            sizes = 1_500_000 + numbers * 2_654_435_761 % 6_000_000
            writer.write_table(pa.table([names, sizes, versions.tolist(), labels], schema=schema))


def run(folder: Path, *words: str) -> dict[str, Any]:
    """Run one verb; return its seconds, its largest resident memory and its last line."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "ingest", *words, "--settings", str(folder / "settings.yaml")]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    lines = (process.stderr.read() if process.stderr else "").strip().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("\n".join(lines[-5:]))
    seconds = time.perf_counter() - begin
    return {
        "verb": " ".join(words),
        "seconds": seconds,
        "peak_gib": usage.ru_maxrss / _KIB_A_GIB,
        "said": lines[-3:],
    }


def measure(folder: Path, files: int) -> list[dict[str, Any]]:
    """Run the verbs over a listing of `files` files, and over the next one."""
    settings = {
        "raw": str(folder / "listing.parquet"),
        "columns": {"size": "size", "version": "version"},
        "dataset": str(folder / "dataset"),
        "work": "work",
    }
    (folder / "settings.yaml").write_text(json.dumps(settings))
    scan = ("scan",)
    write_table(folder / "listing.parquet", 0, files, edited=False)
    done = [run(folder, *scan), run(folder, "plan"), run(folder, "plan")]
    write_table(folder / "listing.parquet", 0, files + files // 100, edited=True)
    done += [run(folder, *scan), run(folder, "plan", "--diff"), run(folder, "plan")]
    return done


def main() -> None:
    """Measure and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--files", type=int, default=10_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        verbs = measure(Path(temporary), options.files)
    for verb in verbs:
        print(
            f"{verb['seconds']:7.1f} s {verb['peak_gib']:5.2f} GiB  {verb['verb']}: {'; '.join(verb['said'])}"
        )
    total = sum(verb["seconds"] for verb in verbs[:2])
    diff = sum(verb["seconds"] for verb in verbs[3:5])
    peak = max(verb["peak_gib"] for verb in verbs)
    print(f"first scan and plan {total:.0f} s, next scan and diff {diff:.0f} s, peak {peak:.2f} GiB")
    report = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "files": options.files,
        "first_scan_and_plan_s": total,
        "next_scan_and_diff_s": diff,
        "peak_gib": peak,
        "bars": BARS,
        "verbs": verbs,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
