"""status: how far the build of a dataset is, seen from outside: from its plan and a listing, and little more.

Nothing is written and nothing is waited for, so it can be asked at any time, from any terminal.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ingest import store
from ingest.build.planned import read_plan_head
from ingest.errors import CorruptShardError, IngestError, NotSealedError
from ingest.index import read_index
from ingest.lock import holder
from ingest.receipts import Counts, read_counts
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ingest.build.planned import PlanHead

_READERS = 16
_TAIL_BYTES = 4096


def describe_status(dataset: str, work: Path) -> Iterator[str]:
    """Yield how far the build is, a line a thing.

    Args:
        dataset: path or URL, normalised.
        work: local folder of its build, with plan and logs.

    Raises:
        StoreError: there is no plan, or the dataset cannot be listed.
    """
    head = read_plan_head(work / "plan.parquet")
    present = store.list_files(dataset)
    built = _built(head, present)
    files = sum(shard.files for shard in head.shards if shard.name in built)
    samples, rejects = (sum(numbers) for numbers in zip((0, 0), *built.values(), strict=True))
    yield f"{dataset}: {len(built):,} of {count(len(head.shards), 'shard')} built"
    became = f"{count(samples, 'sample')}, {count(rejects, 'reject')}"
    yield f"  files    {files:,} of {head.num_files:,}: {became}"
    yield from (f"  damaged  {name}: built again by the next run" for name in _damaged(head, present))
    yield f"  build    {_who(dataset, work)}"
    yield f"  dataset  {_sealed(dataset)}"


def _built(head: PlanHead, present: Mapping[str, int]) -> dict[str, Counts]:
    """Return samples and rejects of each planned shard that is whole, as far as a listing tells."""
    damaged = set(_damaged(head, present))
    written = [
        shard.name
        for shard in head.shards
        if f"{shard.name}.parquet" in present and shard.name not in damaged
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        counts = pool.map(lambda name: _counts(head.dataset, name, present), written)
    found = {name: counted for name, counted in zip(written, counts, strict=True) if counted is not None}
    return {name: each for name, each in found.items() if f"{name}.tar" in present or not each.samples}


def _counts(dataset: str, name: str, present: Mapping[str, int]) -> Counts | None:
    try:
        return read_counts(dataset, name, present[f"{name}.parquet"])
    except CorruptShardError:  # broken, or replaced since it was listed: not whole at the moment
        return None


def _damaged(head: PlanHead, present: Mapping[str, int]) -> list[str]:
    return [shard.name for shard in head.shards if f"{shard.name}.damaged" in present]


def _who(dataset: str, work: Path) -> str:
    """Say who is building shards, and how fast."""
    who = holder((store.local_path(dataset) if store.is_local(dataset) else work) / ".ingest.lock")
    if who is None:
        return "nobody is building"
    rate = _last_progress(work / "logs/shrink.log")
    return f"{who} is building{f': {rate}' if rate else ''}"


def _last_progress(log: Path) -> str:
    """Return how far the run is by its own account: the end of the last such line of its log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line.rpartition("; ")[2] for line in lines if "images/s" in line]
    return told[-1] if told else ""


def _sealed(dataset: str) -> str:
    try:
        index = read_index(dataset)
    except NotSealedError:
        return "not sealed yet"
    except IngestError as error:
        return str(error)
    samples = sum(index.num_samples(split) for split in index.splits)
    shards = sum(len(shards) for shards in index.splits.values())
    return f"index {index.version}: {count(samples, 'sample')} in {count(shards, 'shard')}"
