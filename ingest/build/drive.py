"""The driver of shrink: finds the shards that are missing, hands them to the cluster, sums up."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ingest import store
from ingest.build import isolate
from ingest.build.image import engine_versions
from ingest.build.limits import DEFAULT_LIMITS, Limits
from ingest.build.pending import pending_shards
from ingest.build.planned import read_plan_head, read_planned_shards
from ingest.build.progress import Progress
from ingest.build.reuse import gather
from ingest.build.sample import Shrunk
from ingest.build.shrink import ShardTask, build_shard, urls_of
from ingest.build.tally import DEFAULT_MAX_REJECTS, Tally, too_many, too_many_sentence
from ingest.errors import BuildError, CorruptShardError, NotSealedError, StoreError
from ingest.index import read_index
from ingest.lock import hold
from ingest.units import count, format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ingest.build.cluster import Cluster, Finished
    from ingest.build.planned import PlanHead, PlannedShard, ShardHead
    from ingest.build.reuse import Pool

logger = logging.getLogger(__name__)

_LONG_BUILD_FILES = 256
"""From how many files on an estimate is worth the second that it takes."""

_ESTIMATE_FILES = 5
_ESTIMATE_LIMIT_S = 10.0  # on one of them: the estimate must not wait for a file that hangs
_GIVE_UP_AFTER = 3
"""So many shards that fail with none built between them: the storage is gone, and trying on is no use."""

_WRITTEN_NAMES = (
    r"dataset(-[0-9a-f]{8})?\.json|(rejects|duplicates)\.parquet|"
    r"[0-9]{6,}-[0-9a-f]{8}\.(tar|idx|parquet|retry|damaged)"
)
"""Names that a build writes into a dataset, and so may leave unfinished."""

_TAR_OVERHEAD_BYTES = 4 * 512
# Two headers, and half a block of padding behind each of two members, rounded up.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkSettings:
    """How shards are built; meanings as in `ingest.build.config.Settings`.

    Attributes:
        scheduler: address of a running Dask scheduler; None uses processes here.
        cores: how many of those.
        limits: what the decoding of one file may cost.
        max_rejects: rejects of this run after which it stops, as `ingest.build.tally.too_many` counts them.
    """

    scheduler: str | None = None
    cores: int = 1
    limits: Limits = DEFAULT_LIMITS
    max_rejects: float | None = DEFAULT_MAX_REJECTS


@dataclasses.dataclass(frozen=True, slots=True)
class ShrinkSummary:
    """What a run of shrink did: shards planned and built, and what became of the files of the built ones."""

    planned: int
    built: int
    tally: Tally


@dataclasses.dataclass(frozen=True, slots=True)
class _Build:
    """One dataset that is being built: its plan, and the shards of it that are not whole."""

    plan: Path
    head: PlanHead
    names: tuple[str, ...]

    @property
    def pending(self) -> list[ShardHead]:
        """The shards that are not whole, in order."""
        wanted = set(self.names)
        return [shard for shard in self.head.shards if shard.name in wanted]


def shrink(plans: Sequence[Path], settings: ShrinkSettings) -> ShrinkSummary:
    """Build every shard of some plans that is not whole yet; those of the same files at once.

    Args:
        plans: files that `ingest plan` left, one for each dataset.
        settings: where, and within which limits.

    Raises:
        StoreError: a dataset cannot be written, has no room, or another build holds it.
        DeviceError: the cluster does not answer or does not fit.
        BuildError: some shards were not built, or too many files were rejected; shards that are whole stay.
    """
    heads = {plan: read_plan_head(plan) for plan in plans}
    with contextlib.ExitStack() as stack:
        for plan in sorted(plans, key=lambda plan: heads[plan].dataset):  # in one order, whoever holds them
            stack.enter_context(hold_dataset(heads[plan].dataset, plan.parent))
            clean_up(heads[plan])
        builds = [
            _Build(plan, head, tuple(missing_shards(head, settings.limits))) for plan, head in heads.items()
        ]
        num_planned = sum(len(head.shards) for head in heads.values())
        if not any(build.names for build in builds):
            return ShrinkSummary(num_planned, 0, Tally())
        return ShrinkSummary(num_planned, *_build(builds, settings))


def clean_up(head: PlanHead) -> None:
    """Remove what killed writers of this dataset left; nobody else may be writing to it."""
    folders = [
        head.dataset,
        store.join(head.dataset, "history"),
        *(store.join(head.dataset, split) for split in {shard.split for shard in head.shards}),
    ]
    leftovers = sum(store.remove_temporaries(folder, _WRITTEN_NAMES) for folder in folders)
    if leftovers:
        logger.info("removed %s of a build that was cut off", count(leftovers, "unfinished file"))


def missing_shards(head: PlanHead, limits: Limits = DEFAULT_LIMITS, *, as_sealed: bool = True) -> list[str]:
    """Return the planned shards that are not whole in the dataset, in order.

    Args:
        head: the plan.
        limits: what a file may cost now: shards whose rejects met lower ones count as missing.
        as_sealed: whether a tar that is not of the size that the index states counts as missing, and a shard
            whose rejects are worth another try. Not when a new index is about to be written: a shard that was
            built again may have another size, and one that was built is whole.
    """
    if not as_sealed:
        return pending_shards(head, store.list_files(head.dataset), {})
    try:
        index = read_index(head.dataset)
    except (NotSealedError, CorruptShardError):
        sealed = {}  # a new index will be written
    else:
        sealed = {shard.name: shard.bytes for shards in index.splits.values() for shard in shards}
    return pending_shards(head, store.list_files(head.dataset), sealed, limits)


def hold_dataset(dataset: str, work: Path) -> Any:  # noqa: ANN401  a context manager of nothing
    """Keep other builds out of `dataset` for the length of a block.

    Raises:
        StoreError: it cannot be written, or another build holds it.
    """
    store.make_folder(dataset)
    folder = store.local_path(dataset) if store.is_local(dataset) else work
    return hold(folder / ".ingest.lock", wait=_wait_for_lock())


def _wait_for_lock() -> Iterator[None]:
    # A build whose workflow was killed needs a moment to notice; one that is alive keeps the lock for long.
    for _ in range(20):
        time.sleep(0.5)
        yield


def _build(builds: Sequence[_Build], settings: ShrinkSettings) -> tuple[int, Tally]:
    from ingest.build.cluster import open_cluster  # noqa: PLC0415  a second that a no-op need not pay

    groups = list(_groups(builds))
    num_files = sum(shard.files for _, shard in (group[0] for group in groups))
    num_shards = sum(map(len, groups))
    planned = sum(len(build.head.shards) for build in builds)
    logger.info("%s of %d to build, %s", count(num_shards, "shard"), planned, count(num_files, "image"))
    with contextlib.ExitStack() as stack:
        is_long = num_files >= _LONG_BUILD_FILES
        own = stack.enter_context(
            _child_in_background(settings.limits) if is_long else contextlib.nullcontext()
        )
        cluster = stack.enter_context(open_cluster(settings.scheduler, min(settings.cores, len(groups))))
        cluster.prepare(isolate.start, settings.limits)
        if own is not None:
            own.result()
            for build in builds:
                _say_estimate(build, max(1, cluster.num_cores), settings.limits)
            isolate.end_idle()
        progress = stack.enter_context(Progress(num_files, len(groups)))
        known = [
            stack.enter_context(gather(build.head, store.list_files(build.head.dataset), build.plan.parent))
            for build in builds
        ]
        tasks = (
            dataclasses.replace(task, takes_turns=cluster.takes_turns)
            for task in _tasks(builds, groups, known, settings.limits)
        )
        return _run(cluster, tasks, progress, settings.max_rejects)


def _groups(builds: Sequence[_Build]) -> Iterator[list[tuple[int, ShardHead]]]:
    """Yield the shards to be built, those of the same files in different datasets together."""
    alike: dict[str, list[tuple[int, ShardHead]]] = {}
    for number, build in enumerate(builds):
        for shard in build.pending:
            alike.setdefault(shard.content or shard.name, []).append((number, shard))
    yield from alike.values()


def _tasks(
    builds: Sequence[_Build],
    groups: Sequence[list[tuple[int, ShardHead]]],
    known: Sequence[Pool],
    limits: Limits,
) -> Iterator[ShardTask]:
    for number, build in enumerate(builds):
        mine = {group[0][1].name: group[1:] for group in groups if group[0][0] == number}
        for shard in read_planned_shards(build.plan, build.head, set(mine)):
            siblings = tuple(
                _task(builds[other].head, dataclasses.replace(shard, name=head.name), known[other], limits)
                for other, head in mine[shard.name]
            )
            yield dataclasses.replace(_task(build.head, shard, known[number], limits), siblings=siblings)


def _task(head: PlanHead, shard: PlannedShard, known: Pool, limits: Limits) -> ShardTask:
    return ShardTask(
        roots=head.roots,
        dataset=head.dataset,
        recipe=head.recipe,
        shard=shard,
        labelled=bool(head.classes),
        engines=engine_versions(),
        limits=limits,
        origins=known.origins(shard.files),
        extras=head.extras,
    )


def _run(
    cluster: Cluster, tasks: Iterator[ShardTask], progress: Progress, max_rejects: float | None
) -> tuple[int, Tally]:
    """Build shards until all are built, too many fail or too many files are rejected; return how many."""
    built = Tally()
    num_built = 0
    failed: list[Finished] = []
    in_a_row = 0
    results = cluster.run(
        build_shard, tasks, progress.tick, stop=lambda: too_many(max_rejects, progress.tally)
    )
    with contextlib.closing(results):
        for finished in results:
            if finished.error is None:
                progress.finish(finished.name, finished.result[0], finished.total)
                built += finished.total
                num_built += len(finished.result)
                in_a_row = 0
                continue
            failed.append(finished)
            in_a_row += 1
            logger.error("%s was not built: %s", finished.task.shard.name, _explain(finished.error))
            if in_a_row >= _GIVE_UP_AFTER:
                break
    _require_few_rejects(max_rejects, progress.tally, num_built)
    if failed:
        raise BuildError(_failure_sentence(failed, num_built))
    return num_built, built


def _require_few_rejects(max_rejects: float | None, tally: Tally, num_built: int) -> None:
    if too_many(max_rejects, tally):
        kept = f"; {count(num_built, 'shard')} built in this run and kept" if num_built else ""
        raise BuildError(f"{too_many_sentence(max_rejects, tally)}{kept}")


def _explain(error: BaseException | None) -> str:
    if type(error).__name__ == "KilledWorker":
        return "its worker process died each time it was tried: it was killed, or memory ran out"
    return f"{error}" if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"


def _failure_sentence(failed: list[Finished], num_built: int) -> str:
    first = failed[0]
    return (
        f"{count(len(failed), 'shard')} not built, first {first.task.shard.name}: {_explain(first.error)}; "
        f"{count(num_built, 'shard')} built in this run and kept: mend the cause and run it again"
    )


@contextlib.contextmanager
def _child_in_background(limits: Limits) -> Iterator[Future[None]]:
    """Start a child of our own, to time files with, while the workers start."""
    with ThreadPoolExecutor(1, thread_name_prefix="estimate") as pool:
        yield pool.submit(isolate.start, limits)


def _say_estimate(build: _Build, num_cores: int, limits: Limits) -> None:
    """Time a few files and say what the build will take; refuse one that does not fit on the disk."""
    head, pending = build.head, build.pending
    if not pending:
        return
    sizes, seconds = _try_files(build.plan, head, pending[0].name, limits)
    if not sizes:
        return
    num_files = sum(shard.files for shard in pending)
    raw_bytes = sum(shard.bytes for shard in pending)
    out_bytes = round(num_files * (sum(sizes) / len(sizes) + _TAR_OVERHEAD_BYTES))
    free = store.free_bytes(head.dataset)
    logger.info(
        "estimate: %s on %s; %s in, %s out, %s free",
        format_duration(num_files * seconds / len(sizes) / num_cores),
        count(num_cores, "core"),
        format_bytes(raw_bytes),
        format_bytes(out_bytes),
        "unknown space" if free is None else format_bytes(free),
    )
    if free is not None and out_bytes > free:
        needed = f"about {format_bytes(out_bytes)} are needed and {format_bytes(free)} are free"
        raise StoreError(f"{head.dataset}: {needed}: make room")


def _try_files(plan: Path, head: PlanHead, name: str, limits: Limits) -> tuple[list[int], float]:
    """Shrink the first few files of a shard; return the bytes of each sample, and the seconds of them all.

    A read that fails ends it: the build itself says so where it matters.
    """
    shard = next(read_planned_shards(plan, head, {name}))
    files = [file for file in shard.files if file.size <= limits.largest_file][:_ESTIMATE_FILES]
    root, wanted = urls_of(files, head.roots)
    short = dataclasses.replace(limits, time_limit=min(limits.time_limit, _ESTIMATE_LIMIT_S))
    results = isolate.decode(wanted, raw=root, recipe=head.recipe, limits=short)
    sizes: list[int] = []
    isolate.start(short)
    begin = time.perf_counter()
    with contextlib.closing(results), contextlib.suppress(StoreError):
        sizes += [len(done.result.data) for done in results if isinstance(done.result, Shrunk)]
    seconds = time.perf_counter() - begin
    return sizes, seconds
