"""verify: re-read every byte of a dataset and compare it with what was written down.

Each shard: size and SHA-256 of the tar against the index; its members, their checksums and the class in each
against the receipt; the receipt's classes against the index; the offsets file against the receipt; every
image decoded strictly. Keys must be unique over the whole dataset, and the list of rejects must be that of
the index.

A shard with a fault is marked by an empty file `<shard>.damaged` beside it: the next build makes it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from ingest import processes, store
from ingest.build.seal import count_codes
from ingest.checks import Fault, check_shard
from ingest.errors import CorruptShardError, StoreError
from ingest.index import Index, read_index
from ingest.shard import REJECTS_NAME, read_rejects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

DAMAGED = ".damaged"
"""Ending of the marker beside a shard that must be built again."""


@dataclasses.dataclass(frozen=True, slots=True)
class VerifySummary:
    """What was read, and a sentence for each fault found.

    Attributes:
        samples: in all shards that could be read.
        bytes: of all tars.
        faults: each with shard, key where one is hit, and remedy.
        marked: shards that the next build makes again.
        unmarked: why shards that should be made again could not be marked; "" where all were.
    """

    samples: int
    bytes: int
    faults: tuple[str, ...]
    marked: tuple[str, ...] = ()
    unmarked: str = ""


def verify(
    dataset: str, *, cores: int, on_done: Callable[[int, int], None], mark: bool = False
) -> VerifySummary:
    """Re-read every byte of the dataset at `dataset`.

    Args:
        dataset: path or URL of a sealed dataset.
        cores: processes that check shards side by side.
        on_done: is told how many of how many shards are done.
        mark: mark shards with a fault, so that the next build makes them again.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the index itself cannot be read.
        StoreError: a read failed in a way that may pass.
        DeviceError: a worker process died.
    """
    index = read_index(dataset)
    shards = [shard for entries in index.splits.values() for shard in entries]
    faults = list(_reject_faults(dataset, index))
    keys: dict[str, NDArray[np.bytes_]] = {}
    check = functools.partial(check_shard, dataset, dataclasses.replace(index, splits={}))
    workers = max(1, min(cores, len(shards)))
    with contextlib.closing(processes.run(check, shards, workers=workers)) as results:
        for number, (shard, (found, its_keys)) in enumerate(results, start=1):
            faults += found
            keys[shard.name] = its_keys
            on_done(number, len(shards))
    faults += _key_faults(keys)
    marked, unmarked = _mark(dataset, faults) if mark else ([], "")
    sentences = sorted(fault.sentence(marked=fault.shard in marked) for fault in faults)
    samples, num_bytes = sum(map(len, keys.values())), sum(shard.bytes for shard in shards)
    return VerifySummary(samples, num_bytes, tuple(sentences), tuple(marked), unmarked)


def _mark(dataset: str, faults: Sequence[Fault]) -> tuple[list[str], str]:
    """Mark the shards with a fault; return which, and why the rest could not be."""
    marked: list[str] = []
    for name in sorted({fault.shard for fault in faults if fault.shard}):
        try:
            store.write_bytes(store.join(dataset, f"{name}{DAMAGED}"), b"")
        except StoreError as error:
            return marked, str(error)
        marked.append(name)
    return marked, ""


def _reject_faults(dataset: str, index: Index) -> Iterator[Fault]:
    url = store.join(dataset, REJECTS_NAME)
    try:
        codes = count_codes(read_rejects(dataset))
    except CorruptShardError as error:
        what, _, remedy = str(error).rpartition(": ")
        yield Fault(what, remedy)
    else:
        if codes != index.rejects:
            yield Fault(f"{url}: lists the rejects {codes}, the index {index.rejects}", "run the build again")


def _key_faults(keys: Mapping[str, NDArray[np.bytes_]]) -> Iterator[Fault]:
    """Yield a fault for each key that stands in two places; `keys`: of each shard."""
    ordered = np.sort(np.concatenate([np.empty(0, "S16"), *keys.values()]))
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    first: dict[bytes, str] = {}
    for name in sorted(keys) if len(repeated) else ():
        for key in keys[name][np.isin(keys[name], repeated)].tolist():
            if key in first:
                yield Fault(f"{name}: key {key.decode()} stands in {first[key]} too", "run the build again")
            first.setdefault(key, name)
