"""seal: from receipts to a dataset. Writes offsets, lists and, last of all, the index in one step.

What is kept of a receipt once it was read is little, so that a dataset of any size is sealed in small memory.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.build.duplicates import (
    Duplicates,
    count_duplicates,
    find_duplicates,
    marks_of,
    write_duplicates,
)
from ingest.build.planned import describe_roots
from ingest.build.tally import Tally, too_many, too_many_sentence
from ingest.errors import BuildError
from ingest.index import Index, ShardEntry, write_index
from ingest.receipts import read_part
from ingest.shard import REJECT_COLUMNS, REJECTS_NAME, ShardSummary, format_offsets, members_of, read_receipt
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ingest.build.planned import PlanHead

logger = logging.getLogger(__name__)

_READERS = 16
_COLUMNS = ("status", "source_sha256", *REJECT_COLUMNS)


class _Part(NamedTuple):
    """What is kept of a receipt: of its shard as a whole, its rejected rows, its hashes cut short."""

    summary: ShardSummary
    rejects: pa.Table
    marks: NDArray[np.uint64]


@dataclasses.dataclass(frozen=True, slots=True)
class SealSummary:
    """What was sealed: samples, shards that hold any, rejects by code, duplicates, and whether it is new."""

    samples: int
    shards: int
    rejects: dict[str, int]
    duplicates: Duplicates
    changed: bool


def seal(head: PlanHead, missing: Sequence[str], max_rejects: float | None = None) -> SealSummary:
    """Seal the shards of a plan into a dataset that readers can open.

    Args:
        head: the plan.
        missing: planned shards that are not whole; there must be none.
        max_rejects: rejects among all files of the plan from which on it is not sealed, as
            `ingest.build.tally.too_many` counts them: several short runs may not add up to more than one.

    Raises:
        BuildError: shards are missing, no file became a sample, or too many were rejected; the dataset stays
            as it was.
        CorruptShardError: a receipt cannot be read.
        StoreError: the dataset cannot be read or written.
    """
    if missing:
        message = f"{count(len(missing), 'shard')} of {len(head.shards)} not built yet, first {missing[0]}"
        raise BuildError(f"{message}: run the build again")
    present = store.list_files(head.dataset)
    with ThreadPoolExecutor(_READERS) as pool:
        names = [shard.name for shard in head.shards]
        parts = list(pool.map(lambda name: _seal_shard(head.dataset, name, present), names))
    rejects = pa.concat_tables([part.rejects for part in parts]).sort_by("source")
    summaries = [part.summary for part in parts]
    if not any(summary.samples for summary in summaries):
        raise BuildError(_nothing_sealed(head, rejects))
    _require_few_rejects(max_rejects, head.num_files, rejects)
    duplicates = _list_duplicates(head.dataset, parts)
    _write_rejects(head.dataset, rejects)
    index = make_index(head, summaries, count_codes(rejects))
    changed = write_index(head.dataset, index)
    shards = sum(len(shards) for shards in index.splits.values())
    samples = sum(index.num_samples(split) for split in index.splits)
    return SealSummary(samples, shards, index.rejects, duplicates, changed)


def _seal_shard(dataset: str, name: str, present: dict[str, int]) -> _Part:
    """Write the offsets of a shard that has none yet; return what its receipt says."""
    if f"{name}.idx" in present:  # its whole receipt was read when that was written
        summary, rows = read_part(dataset, name, _COLUMNS)
        _require_size(summary, present)
        return _Part(summary, _rejected(rows), marks_of(rows))
    summary, rows = read_receipt(dataset, name)
    _require_size(summary, present)
    if summary.samples:
        offsets = format_offsets(members_of(rows), summary.samples)
        store.write_bytes(store.join(dataset, f"{name}.idx"), offsets)
    return _Part(summary, _rejected(rows), marks_of(rows))


def _list_duplicates(dataset: str, parts: Sequence[_Part]) -> Duplicates:
    rows = find_duplicates(dataset, {part.summary.name: part.marks for part in parts})
    write_duplicates(dataset, rows)
    found = count_duplicates(rows)
    if found.conflicts:
        what = f"the same bytes stand {found.conflicts}"
        logger.warning("seal: WARNING: %s: list them: ingest inspect %s --duplicates", what, dataset)
    return found


def _rejected(receipt: pa.Table) -> pa.Table:
    rows = receipt.filter(pa.compute.equal(receipt["status"], "rejected"))
    return rows.select(REJECT_COLUMNS).replace_schema_metadata(None)


def count_codes(rejects: pa.Table) -> dict[str, int]:
    """Return the number of rejects by code, the commonest first."""
    return dict(Counter(rejects["code"].to_pylist()).most_common())


def _require_few_rejects(max_rejects: float | None, num_files: int, rejects: pa.Table) -> None:
    tally = Tally(num_files, rejects=count_codes(rejects))
    if too_many(max_rejects, tally):
        rows = reversed(rejects.to_pylist())
        examples = {row["code"]: f"{row['source']}: {row['reason']}" for row in rows}
        raise BuildError(too_many_sentence(max_rejects, dataclasses.replace(tally, examples=examples)))


def _nothing_sealed(head: PlanHead, rejects: pa.Table) -> str:
    codes = ", ".join(f"{number} {code}" for code, number in list(count_codes(rejects).items())[:3])
    example = rejects.slice(0, 1).to_pylist()[0]
    return (
        f"{describe_roots(head.roots)}: none of {count(rejects.num_rows, 'file')} became a sample ({codes}; "
        f"first {example['source']}: {example['reason']}): set the config key 'raw' to a folder of photos"
    )


def _require_size(summary: ShardSummary, present: dict[str, int]) -> None:
    found = present.get(f"{summary.name}.tar", 0)
    if found != summary.bytes:
        expected = f"{found} bytes found, its receipt says {summary.bytes}"
        remedy = f"remove {summary.name}.parquet and run the build again"
        raise BuildError(f"{summary.name}.tar: {expected}: {remedy}")


def _write_rejects(dataset: str, rejects: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(rejects, sink, compression="zstd")
    url, data = store.join(dataset, REJECTS_NAME), sink.getvalue().to_pybytes()
    if not (store.exists(url) and store.read_bytes(url) == data):
        store.write_bytes(url, data)


def make_index(head: PlanHead, summaries: Sequence[ShardSummary], rejects: dict[str, int]) -> Index:
    """Return the index of a dataset from the summaries of its shards, in the order of the plan."""
    splits: dict[str, list[ShardEntry]] = {}
    for shard, summary in zip(head.shards, summaries, strict=True):
        entry = ShardEntry(
            name=summary.name, samples=summary.samples, bytes=summary.bytes, sha256=summary.sha256
        )
        if summary.samples:
            splits.setdefault(shard.split, []).append(entry)
    mean, std = mean_and_std(summaries)
    return Index(
        recipe=head.recipe,
        engines=_common_engines(summaries),
        classes=head.classes,
        fields=(head.recipe.image_field, *(["cls"] if head.classes else []), *head.extras),
        splits={name: tuple(entries) for name, entries in splits.items()},
        rejects=rejects,
        mean=mean,
        std=std,
    )


def _common_engines(summaries: Sequence[ShardSummary]) -> dict[str, str]:
    """Return the version of each engine; several, joined, where shards of different ages differ."""
    versions: dict[str, set[str]] = {}
    for summary in summaries:
        for name, version in summary.engines.items():
            versions.setdefault(name, set()).add(version)
    return {name: " | ".join(sorted(found)) for name, found in versions.items()}


Triple = tuple[float, float, float]


def mean_and_std(summaries: Sequence[ShardSummary]) -> tuple[Triple, Triple]:
    """Return mean and standard deviation of R, G and B over all pixels of all shards, each 0 to 1."""
    pixels = sum(summary.pixels for summary in summaries)
    channels = [_moments(summaries, channel, pixels) for channel in range(3)]
    (mean_r, std_r), (mean_g, std_g), (mean_b, std_b) = channels
    return (mean_r, mean_g, mean_b), (std_r, std_g, std_b)


def _moments(summaries: Sequence[ShardSummary], channel: int, pixels: int) -> tuple[float, float]:
    total = sum(summary.pixel_sum[channel] for summary in summaries)
    squares = sum(summary.pixel_sum_squares[channel] for summary in summaries)
    # In whole numbers to the end: n*sum(x^2) - sum(x)^2 loses nothing however many pixels there are.
    variance = (pixels * squares - total * total) / (pixels * pixels)
    return total / pixels / 255, math.sqrt(variance) / 255
