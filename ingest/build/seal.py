"""seal: from receipts to a dataset. Writes offsets and rejects and, last of all, the index in one step."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.build.tally import Tally, too_many, too_many_sentence
from ingest.errors import BuildError
from ingest.index import Index, ShardEntry, write_index
from ingest.shard import REJECT_COLUMNS, REJECTS_NAME, ShardSummary, format_offsets, members_of, read_receipt
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.build.planned import PlanHead

_READERS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class SealSummary:
    """What was sealed: samples, shards that hold any, rejects by code, and whether the index is new."""

    samples: int
    shards: int
    rejects: dict[str, int]
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
    with ThreadPoolExecutor(_READERS) as pool:
        receipts = list(pool.map(lambda shard: read_receipt(head.dataset, shard.name), head.shards))
        rejects = collect_rejects([table for _, table in receipts])
        summaries = [summary for summary, _ in receipts]
        if not any(summary.samples for summary in summaries):
            raise BuildError(_nothing_sealed(head, rejects))
        _require_few_rejects(max_rejects, head.num_files, rejects)
        present = store.list_files(head.dataset)
        _require_sizes(summaries, present)
        list(pool.map(lambda receipt: _write_offsets(head.dataset, receipt, present), receipts))
    _write_rejects(head.dataset, rejects)
    index = make_index(head, summaries, count_codes(rejects))
    changed = write_index(head.dataset, index)
    shards = sum(len(shards) for shards in index.splits.values())
    return SealSummary(
        sum(index.num_samples(split) for split in index.splits), shards, index.rejects, changed
    )


def collect_rejects(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rejected rows of all receipts, sorted by source."""
    rows = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
    rejected = rows.filter(pa.compute.equal(rows["status"], "rejected"))
    return rejected.select(REJECT_COLUMNS).sort_by("source")


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
        f"{head.raw}: none of {count(rejects.num_rows, 'file')} became a sample ({codes}; first "
        f"{example['source']}: {example['reason']}): set the config key 'raw' to a folder of photos"
    )


def _require_sizes(summaries: Sequence[ShardSummary], present: dict[str, int]) -> None:
    for summary in summaries:
        found = present.get(f"{summary.name}.tar", 0)
        if found != summary.bytes:
            expected = f"{found} bytes found, its receipt says {summary.bytes}"
            remedy = f"remove {summary.name}.parquet and run the build again"
            raise BuildError(f"{summary.name}.tar: {expected}: {remedy}")


def _write_offsets(dataset: str, receipt: tuple[ShardSummary, pa.Table], present: dict[str, int]) -> None:
    summary, rows = receipt
    name = f"{summary.name}.idx"
    if summary.samples and name not in present:
        store.write_bytes(store.join(dataset, name), format_offsets(members_of(rows), summary.samples))


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
        fields=(head.recipe.image_field, "cls") if head.classes else (head.recipe.image_field,),
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
