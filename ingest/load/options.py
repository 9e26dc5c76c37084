"""The settings of a loader: what is allowed, and what is meant where the caller says nothing."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Literal

import numpy as np

from ingest import units
from ingest.errors import ConfigError

if TYPE_CHECKING:
    from ingest.index import Index
    from ingest.load.epoch import Schedule

Channels = tuple[float, float, float]
Normalise = Literal["imagenet", "dataset"] | tuple[Channels, Channels] | None
Dtype = Literal["float32", "float16", "uint8"]
Layout = Literal["channels_first", "channels_last"]
Transform = Literal["eval", "train"]

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)
# Of R, G and B, 0 to 1, over ILSVRC-2012 train: the values that every torchvision model is trained with.

_MAX_THREADS = 8
# More made one pipeline slower on an H200 machine of 16 cores: 29.9k, 36.9k, 35.4k images/s with 4, 8, 14.


def check_number(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return `value` if it is a whole number from `low` to `high`, both inclusive."""
    if isinstance(value, int | np.integer) and value is not True and value is not False:
        whole = int(value)
        if low <= whole <= (whole if high is None else high):
            return whole
    upper = "" if high is None else f" and at most {high}"
    raise ConfigError(f"{name}={value!r}: a whole number of at least {low}{upper} is needed")


def check_choice(name: str, value: str, allowed: list[str]) -> str:
    """Return `value` if it is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: choose from {', '.join(map(repr, allowed))}")
    return value


def check_encoding(index: Index, url: str) -> None:
    """Refuse samples that are no JPEGs."""
    if index.recipe.encoding != "jpeg":
        remedy = "build it with 'encoding: jpeg', or read its shards with the package webdataset"
        raise ConfigError(f"{url}: holds {index.recipe.encoding} samples, expected jpeg: {remedy}")


def check_not_empty(schedule: Schedule, split: str) -> None:
    """Refuse a schedule without batches: a training loop over it would do nothing, and not say so."""
    if not schedule.num_batches:
        found = units.count(schedule.num_samples, "sample")
        needed = f"a batch of {schedule.batch_size} on each of {units.count(schedule.world_size, 'rank')}"
        remedy = "lower batch_size" + (" or pass drop_last=False" if schedule.drop_last else "")
        raise ConfigError(f"split {split!r} has {found}, too few for {needed}: {remedy}")


def scale(index: Index, normalise: Normalise, dtype: Dtype) -> tuple[Channels, Channels]:
    """Return what is subtracted from a pixel of 0 to 255, and what it is then divided by."""
    check_choice("dtype", dtype, ["float32", "float16", "uint8"])
    if dtype == "uint8":
        if normalise is not None:
            raise ConfigError("dtype='uint8' holds pixels as they are: pass normalise=None with it")
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if isinstance(normalise, str):
        check_choice("normalise", normalise, ["imagenet", "dataset"])
    known = {
        None: ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
        "dataset": (index.mean, index.std),
    }
    try:
        mean, std = known[normalise] if normalise is None or isinstance(normalise, str) else normalise
    except (TypeError, ValueError):
        problem = "'imagenet', 'dataset', (mean, std) or None is needed"
        raise ConfigError(f"normalise={normalise!r}: {problem}") from None
    return _to_bytes("mean", mean), _to_bytes("std", std)


def _to_bytes(name: str, values: Channels) -> Channels:
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError):
        raise ConfigError(f"normalise: {name}={values!r}: three numbers for R, G, B are needed") from None
    low = 0.0 if name == "std" else -math.inf
    if not all(low < channel < math.inf for channel in (red, green, blue)):  # NaN is not
        raise ConfigError(f"normalise: {name}={values!r}: finite numbers are needed, those of std above 0")
    return 255.0 * red, 255.0 * green, 255.0 * blue


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int, int]:
    """Return rank, number of ranks, and number of ranks on this machine.

    The one function that looks at the environment.
    """
    from torch import distributed  # noqa: PLC0415

    num_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if rank is None and world_size is None:
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None or world_size is None:
        raise ConfigError("rank and world_size belong together: pass both, or neither")
    check_number("world_size", world_size, 1)
    return check_number("rank", rank, 0, world_size - 1), world_size, num_local


def default_threads(num_local: int) -> int:
    """Return this rank's share of the cores that this process may use, at most 8."""
    return max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)) // num_local))
