"""Does every input end as a sample or a reject of a known code? Run `python benchmarks/fuzz.py DATA [OUT]`.

DATA is a folder of pictures of many kinds. 20,000 mutations of its files (bytes flipped, cut, spliced with
another file, lengths overwritten, parts zeroed) go through `shrink_image` in two processes; a process that
dies ends the run with an error. Prints counts by code, the longest input and the largest process; writes
them as JSON to OUT.
"""

from __future__ import annotations

import functools
import json
import platform
import random
import resource
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ingest import processes
from ingest.build.image import engine_versions, shrink_image
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

INPUTS = 20_000
BATCH = 100
MOST_BYTES = 300_000
RECIPE = Recipe(size=64, max_pixels=20_000_000)


class Batch(NamedTuple):
    """Seed of a batch, and the folder whose files it mutates."""

    seed: int
    data: str


class Outcome(NamedTuple):
    """Counts by code, seconds of the slowest input and its seed, and the peak of the process in KiB."""

    codes: dict[str, int]
    slowest: tuple[float, int]
    peak_kib: int


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


def run_batch(batch: Batch) -> Outcome:
    """Shrink the inputs of one batch; anything but a sample or a reject is raised."""
    files, chance = sources(batch.data), random.Random(batch.seed)
    codes: Counter[str] = Counter()
    slowest = (0.0, batch.seed)
    for _ in range(BATCH):
        data = mutate(chance.choice(files), chance.choice(files), chance)
        begin = time.perf_counter()
        try:
            shrink_image(data, RECIPE)
            codes["sample"] += 1
        except CorruptImageError as fault:
            codes[fault.code] += 1
        slowest = max(slowest, (time.perf_counter() - begin, batch.seed))
    return Outcome(dict(codes), slowest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Run all batches and say what came of them."""
    batches = [Batch(seed, sys.argv[1]) for seed in range(INPUTS // BATCH)]
    codes: Counter[str] = Counter()
    slowest, peak = (0.0, 0), 0
    begin = time.perf_counter()
    with closing(processes.run(run_batch, batches, workers=2)) as results:
        for number, (_, outcome) in enumerate(results, 1):
            codes.update(outcome.codes)
            slowest, peak = max(slowest, outcome.slowest), max(peak, outcome.peak_kib)
            if number % 20 == 0:
                print(f"{number * BATCH:,} inputs, {time.perf_counter() - begin:.0f} s", flush=True)
    report = {
        "inputs": codes.total(),
        "codes": dict(codes.most_common()),
        "slowest_s": slowest[0],
        "slowest_seed": slowest[1],
        "peak_mib": peak / 1024,
        "machine": platform.processor() or platform.machine(),
        "engines": engine_versions(),
    }
    print(json.dumps(report, indent=1))
    if len(sys.argv) > 2:  # noqa: PLR2004 - a place for the report was given
        Path(sys.argv[2]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
