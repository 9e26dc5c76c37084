"""collect: files that no kept index names go, once they have been out of use for a while.

An index is kept while it stands, and then for a grace time from when the next one took its place. Shards that
are newer than the index that stands belong to a build that is under way, and stay.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ingest import store
from ingest.build.drive import hold_dataset
from ingest.errors import ConfigError, CorruptShardError
from ingest.index import HISTORY, INDEX_NAME, Index, kept_url, kept_versions, read_index
from ingest.receipts import shard_of
from ingest.shard import read_receipt, read_rejects
from ingest.units import count, format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

_CONNECTIONS = 16
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LEFTOVER = re.compile(rf"(.*/)?{re.escape(store.TEMPORARY_PREFIX)}[0-9a-f]{{8}}-[^/]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Collected:
    """What went, or would go.

    Attributes:
        shards: files and bytes of each shard.
        indexes: versions of the indexes.
        leftovers: files that were never finished.
        files: how many files that are.
        bytes: of them all.
        kept: versions of the older indexes that stay.
    """

    shards: dict[str, tuple[int, int]]
    indexes: tuple[str, ...]
    leftovers: tuple[str, ...]
    files: int
    bytes: int
    kept: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield a line for each thing that went."""
        for name, (files, num_bytes) in sorted(self.shards.items()):
            yield f"{name}: {count(files, 'file')}, {format_bytes(num_bytes)}"
        yield from (f"index {version}" for version in self.indexes)
        yield from (f"unfinished {path}" for path in self.leftovers)

    def sentence(self) -> str:
        """Return how much went, and which indexes stay."""
        older = f"and {', '.join(self.kept)}" if self.kept else "alone"
        what = f"{count(self.files, 'file')}, {format_bytes(self.bytes)}"
        return f"{what}; what the index that stands {older} names is kept"


def parse_grace(text: str) -> float:
    """Return the seconds that ``7d``, ``12h``, ``30m``, ``90s`` or ``0`` stand for.

    Raises:
        ConfigError: it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([dhms])|0", text.strip())
    if not match:
        raise ConfigError(f"--grace {text!r}: expected a time such as 7d, 12h, 30m or 0")
    return float(match[1]) * _SECONDS[match[2]] if match[1] else 0.0


def collect(
    dataset: str, work: Path, *, grace: float, dry: bool = False, now: float | None = None
) -> Collected:
    """Remove what no index of the dataset needs any more.

    Args:
        dataset: path or URL.
        work: local folder of its build.
        grace: seconds for which an index is kept after another took its place.
        dry: remove nothing.
        now: seconds since 1970; None asks the clock.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: an index that is to be kept cannot be read.
        StoreError: the place cannot be read or written, or a build holds it.
    """
    read_index(dataset)  # before a lock is left at a place that is no dataset
    moment = dt.datetime.now(dt.UTC).timestamp() if now is None else now
    if dry:
        return _look(dataset, grace, moment)
    with hold_dataset(dataset, work):
        found = _look(dataset, grace, moment)
        _remove(dataset, found)
    return found


def _look(dataset: str, grace: float, now: float) -> Collected:
    """Return what is to go."""
    index = read_index(dataset)
    present = store.list_files(dataset)
    stands_since = _modified(dataset, [INDEX_NAME])[INDEX_NAME]
    versions = kept_versions(dataset)
    times = dict(zip(versions, _modified(dataset, map(_kept_path, versions)).values(), strict=True))
    kept = choose_kept(times, index.version, stands_since, before=now - grace)
    named = _names_of([index, *(_read_kept(dataset, version) for version in kept)])
    shards = _retired(dataset, index, present, named, stands_since)
    leftovers = [path for path in present if _LEFTOVER.fullmatch(path)]
    gone = sorted(set(versions) - kept - {index.version})
    files = [path for path in present if shard_of(path) in shards]
    files += [*leftovers, *map(_kept_path, gone)]
    return Collected(
        shards=_sizes(present, shards),
        indexes=tuple(gone),
        leftovers=tuple(leftovers),
        files=len(files),
        bytes=sum(present.get(path, 0) for path in files),
        kept=tuple(sorted(kept)),
    )


def _kept_path(version: str) -> str:
    return f"{HISTORY}/{kept_url('', version).rpartition('/')[2]}"


def choose_kept(
    times: Mapping[str, float | None], current: str, stands_since: float | None, *, before: float
) -> set[str]:
    """Return the versions that are kept beside the index that stands. Pure.

    Args:
        times: when each index was written last; None where that is not known.
        current: version of the one that stands.
        stands_since: when that one was written.
        before: an index goes where the next one took its place at this time or earlier.
    """
    written = sorted(time for time in (*times.values(), stands_since) if time is not None)

    def is_kept(time: float | None) -> bool:
        ended = None if time is None else next((later for later in written if later > time), None)
        return ended is None or ended > before

    return {version for version, time in times.items() if version != current and is_kept(time)}


def _read_kept(dataset: str, version: str) -> Index:
    try:
        return read_index(dataset, version)
    except CorruptShardError as error:
        message = f"{kept_url(dataset, version)}: cannot be read, so the shards that it names are not known"
        raise CorruptShardError(
            f"{message}: remove it, and they go too, or clear with `--grace 0`"
        ) from error


def _names_of(indexes: Iterable[Index]) -> set[str]:
    return {shard.name for index in indexes for shards in index.splits.values() for shard in shards}


def _retired(
    dataset: str,
    index: Index,
    present: Mapping[str, int],
    named: Collection[str],
    stands_since: float | None,
) -> set[str]:
    """Return the shards that no kept index names, and that are older than the index that stands."""
    files = defaultdict(list)
    for path in present:
        name = shard_of(path)
        if name is not None and name not in named:
            files[name].append(path)
    times = _modified(dataset, [path for paths in files.values() for path in paths])
    old = {name for name, paths in files.items() if _all_until(stands_since, [times[p] for p in paths])}
    alone = {name for name in old if f"{name}.tar" not in present and f"{name}.parquet" in present}
    return old - _of_rejects_alone(dataset, index, alone)


def _all_until(stands_since: float | None, times: Collection[float | None]) -> bool:
    return all(time is not None and stands_since is not None and time <= stands_since for time in times)


def _of_rejects_alone(dataset: str, index: Index, names: Collection[str]) -> set[str]:
    """Return which of these are in use: no index names a shard without samples, but a build needs it."""
    if not names:
        return set()
    rejected = read_rejects(dataset)["key"]
    return {name for name in names if _is_in_use(dataset, index, name, rejected)}


def _is_in_use(dataset: str, index: Index, name: str, rejected: pa.ChunkedArray) -> bool:
    try:
        summary, receipt = read_receipt(dataset, name)
    except CorruptShardError:
        return False
    listed = pc.all(pc.is_in(receipt["key"], value_set=rejected)).as_py()
    return bool(listed) and not summary.samples and summary.recipe_sha256 == index.recipe.hash()


def _modified(dataset: str, paths: Iterable[str]) -> dict[str, float | None]:
    """Return when each file was written last."""
    listed = list(paths)
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        times = pool.map(lambda path: store.modified(store.join(dataset, path)), listed)
        return dict(zip(listed, times, strict=True))


def _sizes(present: Mapping[str, int], shards: Collection[str]) -> dict[str, tuple[int, int]]:
    sizes = dict.fromkeys(shards, (0, 0))
    for path, num_bytes in present.items():
        name = shard_of(path)
        if name in sizes:
            files, total = sizes[name]
            sizes[name] = (files + 1, total + num_bytes)
    return sizes


def _remove(dataset: str, found: Collected) -> None:
    """Remove indexes before the shards that they name: no index is left that names what is gone."""
    for version in found.indexes:
        store.remove(kept_url(dataset, version))
    present = store.list_files(dataset)
    paths = [path for path in present if shard_of(path) in found.shards]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(lambda path: store.remove(store.join(dataset, path)), [*paths, *found.leftovers]))
    if not store.is_local(dataset):
        folders = {"", *(path.rpartition("/")[0] for path in present)}
        for folder in sorted(folders):
            store.remove_temporaries(store.join(dataset, *folder.split("/")) if folder else dataset, r".+")
