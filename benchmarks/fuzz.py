"""Does every input end as a sample or a reject of a known code? Run `python benchmarks/fuzz.py DATA [OUT]`.

DATA is a folder of pictures of many kinds. 20,000 mutations of its files (bytes flipped, cut, spliced with
another file, lengths overwritten, parts zeroed) go through `shrink_image` in two processes; a process that
dies ends the run with an error. With `--isolated` the same inputs are written to files and go the way of real
shards: each of the two processes has a child that decodes (`ingest.build.isolate`), with the limits of a
build that says nothing of them.

Prints counts by code, the longest input, the largest process that decodes, how many of them were started, and
each input that was given up; writes them as JSON to OUT. Runs whose `outcomes_sha256` is the same made the
same sample, byte for byte, or the same reject of each input. `--compare` names the report of an earlier run
and fails where that differs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import platform
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest import processes
from ingest.build import isolate
from ingest.build.image import engine_versions, shrink_image
from ingest.build.limits import DEFAULT_LIMITS
from ingest.build.sample import Shrunk
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INPUTS = 20_000
BATCH = 100
MOST_BYTES = 300_000
RECIPE = Recipe(size=64, max_pixels=20_000_000)
GIVEN_UP = ("crashed", "out_of_memory", "timed_out")


class Batch(NamedTuple):
    """Seed of a batch, and the folder whose files it mutates."""

    seed: int
    data: str


class Outcome(NamedTuple):
    """What came of a batch.

    Attributes:
        codes: counts by code.
        given_up: seed, number and reason of each input that a process did not survive.
        slowest: seconds of the slowest input, its seed and its number.
        peak_kib: memory of the largest process that decoded.
        started: processes that were started to decode.
        seconds: of all inputs together.
        sha256: of every sample and code, in order.
    """

    codes: dict[str, int]
    given_up: list[tuple[int, int, str]]
    slowest: tuple[float, int, int]
    peak_kib: int
    started: int
    seconds: float
    sha256: str


def mutate(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """Return `data` with one to four faults of a disk, a network or an enemy."""
    mutated = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(max(1, len(mutated)))
        size = chance.choice((1, 2, 4, 16, 256, 4096))
        kind = chance.randrange(6)
        if kind == 0:
            mutated[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del mutated[at:]
        elif kind == 2:  # noqa: PLR2004 - the kinds are numbered
            del mutated[at : at + size]
        elif kind == 3:  # noqa: PLR2004
            begin = chance.randrange(max(1, len(other)))
            mutated[at : at + size] = other[begin : begin + size]
        elif kind == 4:  # noqa: PLR2004
            mutated[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        else:
            mutated[at : at + size] = bytes(size)
    return bytes(mutated)


@functools.cache
def sources(folder: str) -> list[bytes]:
    """Return the files to begin with, small enough for thousands of tries."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return [path.read_bytes() for path in paths if path.stat().st_size <= MOST_BYTES]


def inputs(batch: Batch) -> Iterator[bytes]:
    """Yield the inputs of one batch, the same ones every time."""
    files, chance = sources(batch.data), random.Random(batch.seed)
    for _ in range(BATCH):
        yield mutate(chance.choice(files), chance.choice(files), chance)


# ---- the two ways


def run_batch(batch: Batch) -> Outcome:
    """Shrink the inputs of one batch in this process; anything but a sample or a reject is raised."""
    outcome = _collect(batch.seed, map(_shrink, inputs(batch)))
    return outcome._replace(peak_kib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _shrink(data: bytes) -> Shrunk | CorruptImageError:
    try:
        return shrink_image(data, RECIPE)
    except CorruptImageError as fault:
        return fault


def run_isolated(batch: Batch) -> Outcome:
    """Have the inputs of one batch shrunk as those of a shard are, by a child of this process."""
    before = _count_starts()["subprocess.Popen"]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        files = []
        for number, data in enumerate(inputs(batch)):
            name = f"{number:03}"
            (Path(folder) / name).write_bytes(data)
            files.append((name.encode(), len(data)))
        isolate.start(DEFAULT_LIMITS)
        with closing(isolate.decode(files, raw=folder, recipe=RECIPE, limits=DEFAULT_LIMITS)) as decoded:
            outcome = _collect(batch.seed, (one.result for one in decoded))
    started = _count_starts()["subprocess.Popen"] - before
    return outcome._replace(peak_kib=_peak_of_children(), started=started)


@functools.cache
def _count_starts() -> Counter[str]:
    """Return counts of the events of this process that Python audits, kept up to date."""
    counts: Counter[str] = Counter()
    sys.addaudithook(lambda event, _: counts.update([event]) if event == "subprocess.Popen" else None)
    return counts


def _peak_of_children() -> int:
    """Return the memory of the largest child that there is or was, in KiB."""
    peaks = [resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]
    for tasks in Path("/proc/self/task").glob("*/children"):
        for child in tasks.read_text().split():
            with suppress(OSError):  # it has just ended
                lines = Path(f"/proc/{child}/status").read_text().splitlines()
                peaks += [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return max(peaks)


def _collect(seed: int, results: Iterable[Shrunk | CorruptImageError]) -> Outcome:
    codes: Counter[str] = Counter()
    given_up, slowest, digest = [], (0.0, seed, 0), hashlib.sha256()
    first = begin = time.perf_counter()
    for number, result in enumerate(results):
        slowest = max(slowest, (time.perf_counter() - begin, seed, number))
        if isinstance(result, Shrunk):
            code, made = "sample", result.data
        else:
            code, made = result.code, b""
        if code in GIVEN_UP:
            given_up.append((seed, number, str(result)))
        codes[code] += 1
        digest.update(f"{code} {len(made)} ".encode() + made)
        begin = time.perf_counter()
    return Outcome(dict(codes), given_up, slowest, 0, 0, begin - first, digest.hexdigest())


# ---- all of it


def summarise(outcomes: list[Outcome], way: str) -> dict[str, Any]:
    """Return the report on batches, given in order."""
    codes: Counter[str] = Counter()
    for outcome in outcomes:
        codes.update(outcome.codes)
    slowest = max(outcome.slowest for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return {
        "way": way,
        "inputs": codes.total(),
        "codes": dict(codes.most_common()),
        **{code: codes[code] for code in GIVEN_UP},
        "given_up": [given for outcome in outcomes for given in outcome.given_up],
        "decoders_started": sum(outcome.started for outcome in outcomes),
        "slowest_s": slowest[0],
        "slowest_seed": slowest[1],
        "slowest_number": slowest[2],
        "mean_s": seconds / codes.total(),
        "peak_mib": max(outcome.peak_kib for outcome in outcomes) / 1024,
        "outcomes_sha256": hashlib.sha256("".join(one.sha256 for one in outcomes).encode()).hexdigest(),
        "machine": platform.processor() or platform.machine(),
        "engines": engine_versions(),
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("out", metavar="OUT", nargs="?", type=Path)
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--compare", metavar="REPORT", type=Path)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    return parser.parse_args()


def main() -> None:
    """Run all batches and say what came of them."""
    args = parse_arguments()
    batches = [Batch(seed, args.data) for seed in range(args.inputs // BATCH)]
    function = run_isolated if args.isolated else run_batch
    done: dict[int, Outcome] = {}
    begin = time.perf_counter()
    with closing(processes.run(function, batches, workers=2)) as results:
        for batch, outcome in results:
            done[batch.seed] = outcome
            if len(done) % 20 == 0:
                print(f"{len(done) * BATCH:,} inputs, {time.perf_counter() - begin:.0f} s", flush=True)
    report = summarise([done[seed] for seed in sorted(done)], "isolated" if args.isolated else "in process")
    print(json.dumps(report, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.compare is not None:
        before = json.loads(args.compare.read_text())["outcomes_sha256"]
        if before != report["outcomes_sha256"]:
            sys.exit(f"{args.compare}: some input ended there as something else")
        print(f"every input ended as in {args.compare}")


if __name__ == "__main__":
    main()
