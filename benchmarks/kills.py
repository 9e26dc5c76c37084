"""Does a build survive anything? Run `python benchmarks/kills.py [OUT]`; takes a quarter of an hour.

A dataset of generated photos is built once undisturbed. Then, over and over in folders of their own, with
kill -9 at a random moment of one process of the build: Snakemake, a verb of `ingest` (the driver of Dask
among them), a worker, a child that decodes. After each kill the processes of the build must be gone, and the
same command, given once more, must end well with the same bytes in every shard, offsets file and index. It
may redo none of the shards that were whole.

Prints a line a kill, and writes all of them as JSON to OUT.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingest.build.image import encode_jpeg, engine_versions

ROOT = Path(__file__).resolve().parents[1]
PHOTOS, SAMPLES_PER_SHARD, CORES = 480, 8, 2
DEADLINE_S = 60.0


class Process(NamedTuple):
    """A process of a build: its number and what it is."""

    pid: int
    kind: str


def write_photos(folder: Path) -> None:
    """Write photos of three megapixels in two classes."""
    for number in range(PHOTOS):
        path = folder / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grain = np.random.default_rng(number).integers(0, 256, (94, 125, 3), np.uint8)
        path.write_bytes(
            encode_jpeg(np.ascontiguousarray(np.kron(grain, np.ones((16, 16, 1), np.uint8))), 90)
        )


def command(raw: Path) -> list[str]:
    """Return the command of a build in the current folder."""
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    settings = [f"raw={raw}", "dataset=dataset", f"samples_per_shard={SAMPLES_PER_SHARD}"]
    return [snakemake, "-s", str(ROOT / "Snakefile"), "--cores", str(CORES), "--config", *settings]


def environment() -> dict[str, str]:
    """Return an environment in which `ingest` is the one beside this interpreter."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def build(raw: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a build in `folder`."""
    folder.mkdir(exist_ok=True)
    with (folder / "build.log").open("ab") as log:
        return subprocess.Popen(command(raw), cwd=folder, env=environment(), stdout=log, stderr=log)


def processes(folder: Path) -> list[Process]:
    """Return the processes of the build in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdecimal() or (entry / "cwd").resolve() != folder.resolve():
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words != [b""]:  # a zombie has no command
            found.append(Process(int(entry.name), kind_of(b" ".join(words))))
    return found


def kind_of(words: bytes) -> str:
    """Return which part of a build a command line is."""
    if b"ingest.build.child" in words:
        return "child"
    if b"multiprocessing" in words:
        return "worker"
    return "workflow" if b"snakemake" in words else "verb"


def contents(dataset: Path) -> dict[str, str]:
    """Return the hash of every file of a dataset that its bytes are promised of."""
    files = (
        path for path in dataset.rglob("*") if path.suffix in {".tar", ".idx"} or path.name == "dataset.json"
    )
    return {str(path.relative_to(dataset)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def whole_shards(dataset: Path) -> set[str]:
    """Return the shards that have a receipt."""
    return {path.stem for path in dataset.rglob("[0-9]*.parquet")}


def kill_once(raw: Path, folder: Path, chance: random.Random, seconds: float) -> dict[str, Any]:
    """Start a build, kill one of its processes at a random moment, and say what was killed, and when."""
    begin = time.perf_counter()
    running = build(raw, folder)
    moment = chance.uniform(0.2, seconds)
    time.sleep(moment)
    there = processes(folder)
    kinds = sorted({process.kind for process in there})
    if not kinds:
        running.wait()
        return {"killed": "nothing", "after_s": moment, "whole": len(whole_shards(folder / "dataset"))}
    kind = chance.choice(kinds)
    victim = chance.choice([process for process in there if process.kind == kind])
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        kind = "nothing"
    status = wait_for_end(running, folder)
    whole = whole_shards(folder / "dataset")
    ended = time.perf_counter() - begin
    return {"killed": kind, "after_s": moment, "status": status, "ended_s": ended, "whole": len(whole)}


def wait_for_end(running: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait until every process of a build is gone; return the status of its workflow."""
    status = running.wait(timeout=DEADLINE_S)
    end = time.perf_counter() + DEADLINE_S
    while processes(folder):
        if time.perf_counter() > end:
            raise SystemExit(f"{folder}: processes outlive the build: {processes(folder)}")
        time.sleep(0.05)
    return status


def try_once(
    raw: Path, folder: Path, expected: dict[str, str], number: int, seconds: float
) -> dict[str, Any]:
    """Kill a build once, go on with it, and compare what it ends with."""
    killed = kill_once(raw, folder, random.Random(number), seconds)
    dataset = folder / "dataset"
    before = {name: path_stamp(dataset, name) for name in whole_shards(dataset)}
    begin = time.perf_counter()
    status = wait_for_end(build(raw, folder), folder)
    resumed = time.perf_counter() - begin
    after = {name: path_stamp(dataset, name) for name in whole_shards(dataset)}
    redone = sum(after.get(name) != stamp for name, stamp in before.items())
    leftovers = [str(path) for path in dataset.rglob(".tmp-*")]
    fine = status == 0 and contents(dataset) == expected and not redone and not leftovers
    return {
        "number": number,
        **killed,
        "resumed_status": status,
        "resumed_s": resumed,
        "whole_shards_redone": redone,
        "leftovers": leftovers,
        "same_bytes": contents(dataset) == expected,
        "fine": fine,
    }


def path_stamp(dataset: Path, name: str) -> int:
    """Return when the tar of a shard was written."""
    return next(dataset.rglob(f"{name}.tar")).stat().st_mtime_ns


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--kills", type=int, default=24)
    return parser.parse_args()


def main() -> None:
    """Kill builds and write what came of them."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        write_photos(work / "raw")
        begin = time.perf_counter()
        if wait_for_end(build(work / "raw", work / "whole"), work / "whole"):
            raise SystemExit((work / "whole/build.log").read_text())
        seconds = time.perf_counter() - begin
        expected = contents(work / "whole/dataset")
        kills = []
        for number in range(options.kills):
            kills.append(try_once(work / "raw", work / f"{number}", expected, number, seconds))
            print(json.dumps(kills[-1]), flush=True)
    report = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "engines": engine_versions(),
        "photos": PHOTOS,
        "shards": PHOTOS // SAMPLES_PER_SHARD,
        "undisturbed_s": seconds,
        "killed": dict(Counter(kill["killed"] for kill in kills)),
        "fine": sum(kill["fine"] for kill in kills),
        "kills": kills,
    }
    print(f"{report['fine']} of {len(kills)} kills ended well: {report['killed']}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(report["fine"] != len(kills))


if __name__ == "__main__":
    main()
