"""The loader beside DALI's own reader: the same shards, decoding and normalisation, taken in turn in one run.

    python benchmarks/loader.py [DATASET] [--device cuda] [--batch-size 256] [--seconds 5] [--rounds 3]

Without DATASET one of 8,192 smooth pictures is written; they decode fast, which is hard on a loader.
Prints one JSON object. Each round measures both, in whole epochs, and the order changes from round to round;
both must deliver the same number of images an epoch. Where others use the processor too, look at the images
per second of processor time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from nvidia import dali
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

import ingest
from ingest import index
from ingest.load import options

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.datasets import make_dataset


def dali_reader(dataset: Path, device: str, batch_size: int, num_threads: int) -> DALIGenericIterator:
    """Return what one writes by hand: webdataset reader, decoder, crop_mirror_normalize."""
    tars = [str(dataset / f"{shard.name}.tar") for shard in index.read_index(str(dataset)).splits["train"]]
    pipeline = dali.Pipeline(batch_size, num_threads, 0 if device == "cuda" else None, prefetch_queue_depth=2)
    decoder: dict[str, Any] = {"device": "mixed", "hw_decoder_load": 0.65} if device == "cuda" else {}
    with pipeline:
        encoded, labels = dali.fn.readers.webdataset(
            paths=tars,
            index_paths=[tar.replace(".tar", ".idx") for tar in tars],
            ext=["jpg", "cls"],
            random_shuffle=True,
            tensor_init_bytes=32768,
            name="reader",
        )
        images = dali.fn.crop_mirror_normalize(
            dali.fn.decoders.image(encoded, output_type=dali.types.RGB, **decoder),
            mean=[255 * value for value in options.IMAGENET_MEAN],
            std=[255 * value for value in options.IMAGENET_STD],
            dtype=dali.types.FLOAT16 if device == "cuda" else dali.types.FLOAT,
            output_layout="CHW",
        )
        pipeline.set_outputs(images, dali.fn.pad(labels) if device == "cpu" else dali.fn.pad(labels.gpu()))
    return DALIGenericIterator(
        pipeline,
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
    )


def rate(run_epoch: Callable[[], int], device: str, seconds: float) -> tuple[float, float]:
    """Return images/s, and images per second of processor time, over the epochs that begin in `seconds`."""
    num_images, start, cpu_start = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        num_images += run_epoch()
    if device == "cuda":
        torch.cuda.synchronize()
    return num_images / (time.perf_counter() - start), num_images / (time.process_time() - cpu_start)


def measure(dataset: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of both in each round, and the ratios of their medians."""
    # A processor makes float16 in software: half the images/s of float32, for both.
    dtype: options.Dtype = "float16" if args.device == "cuda" else "float32"
    loader = ingest.loader(
        dataset, batch_size=args.batch_size, device=args.device, dtype=dtype, num_threads=args.threads
    )
    threads = args.threads or options.default_threads(1)
    reader = dali_reader(dataset, args.device, args.batch_size, threads)
    runs: dict[str, Callable[[], int]] = {
        "ingest": lambda: sum(len(labels) for _, labels in loader),
        "dali reader": lambda: sum(len(batch[0]["labels"]) for batch in reader),
    }
    counts = {name: run() for name, run in runs.items()}  # also warms up
    if set(counts.values()) != {len(loader) * args.batch_size}:
        raise SystemExit(f"the two did not deliver the same number of images: {counts}")
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(args.rounds):
        for name in list(runs) if number % 2 == 0 else list(runs)[::-1]:
            rates[name].append(rate(runs[name], args.device, args.seconds))
    loader.close()
    return {
        "threads": threads,
        **summary("images_per_s", {name: [wall for wall, _ in pairs] for name, pairs in rates.items()}),
        **summary("images_per_cpu_s", {name: [cpu for _, cpu in pairs] for name, pairs in rates.items()}),
    }


def summary(name: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return every rate, and the ratio of the medians."""
    medians = {key: statistics.median(values) for key, values in rates.items()}
    rounded = {key: [round(value, 1) for value in values] for key, values in rates.items()}
    return {name: rounded, f"{name}_ratio": round(medians["ingest"] / medians["dali reader"], 3)}


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Measure the loader beside DALI's own reader.")
    parser.add_argument("dataset", nargs="?", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--samples", type=int, default=8192, help="in the dataset that is written")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    machine = (
        torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = args.dataset or make_dataset(
            Path(folder) / "dataset", samples=args.samples, shard_size=1024
        )
        found = measure(dataset, args)
    print(json.dumps({"machine": machine, "dali": dali.__version__, "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()
