"""verify --against-raw: which raw files are no more what they were when the dataset was built from them.

Each place that receipts name is listed once; of a file that lies below none, size and version are asked for.
With `content`, every file of the same size is read as well, and its hash compared: that finds what neither
size nor time tells of, and what merely was touched is no fault.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest import store
from ingest.index import read_index
from ingest.receipts import read_all
from ingest.units import count, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

CHANGED, VANISHED, UNREADABLE = "changed", "vanished", "cannot be read"

_COLUMNS = ("source", "path", "source_bytes", "source_version", "source_sha256")
_READERS = 16
_MOST_NAMED = 5
_ABSENT = -2
"""Size of a file that is not there; what is no file has the size -1."""


class _Recorded(NamedTuple):
    """What a receipt says of one raw file; columns of a receipt."""

    source: str
    path: bytes
    size: int
    version: str
    sha256: str | None

    @property
    def root(self) -> str:
        """The folder or bucket that it lies below; "" for a whole URL."""
        text = self.path.decode("utf-8", "backslashreplace")
        return self.source.removesuffix(text).rstrip("/") if self.source.endswith(f"/{text}") else ""

    @property
    def url(self) -> str:
        """Where it is read."""
        return store.place(self.root, self.path)


@dataclasses.dataclass(slots=True)
class RawChanges:
    """How many raw files were compared, and which are no more what they were.

    Attributes:
        files: how many were compared.
        counts: number of files of each kind.
        examples: the first few sources of each kind.
    """

    files: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    examples: dict[str, list[str]] = dataclasses.field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, source: str) -> None:
        """Note one file."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < _MOST_NAMED:
            self.examples[kind].append(plain(source))

    def lines(self) -> Iterator[str]:
        """Yield how many files there are of each kind, and the first few."""
        for kind, number in sorted(self.counts.items()):
            yield f"{count(number, 'raw file')} {kind}:"
            yield from (f"  {source}" for source in self.examples[kind])
            if number > len(self.examples[kind]):
                yield f"  and {number - len(self.examples[kind]):,} more"
        verdict = "run snakemake: it builds their shards again" if self.counts else "none changed"
        yield f"verify: {count(self.files, 'raw file')} compared: {verdict}"


def compare_raw(dataset: str, *, content: bool = False) -> RawChanges:
    """Compare the raw files with what the receipts of a dataset say of them.

    Args:
        dataset: path or URL of a sealed dataset.
        content: read each file, and compare its hash.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the index or a receipt cannot be read.
        StoreError: the raw files cannot be listed.
    """
    index = read_index(dataset)
    names = [shard.name for shards in index.splits.values() for shard in shards]
    listings: dict[str, _Listing] = {}
    found = RawChanges()
    with ThreadPoolExecutor(_READERS) as pool:
        for _, rows in read_all(dataset, names, _COLUMNS):
            files = list(_recorded(rows))
            found.files += len(files)
            states = _states(files, listings, pool)
            judged = pool.map(_judge_content if content else _judge, files, states)
            for file, kind in zip(files, judged, strict=True):
                if kind:
                    found.add(kind, file.source)
    return found


def _recorded(rows: pa.Table) -> Iterator[_Recorded]:
    columns = (rows[name].to_pylist() for name in _COLUMNS)
    return (_Recorded(*values) for values in zip(*columns, strict=True))


class _State(NamedTuple):
    """Size and version, as `_version_mark` has it, of a file now."""

    size: int
    version: int


_NOTHING = _State(_ABSENT, 0)


def _states(files: list[_Recorded], listings: dict[str, _Listing], pool: ThreadPoolExecutor) -> list[_State]:
    """Return what each file is now, in order; a place is listed when it is met first."""
    by_root = defaultdict(list)
    for number, file in enumerate(files):
        by_root[file.root].append(number)
    states = [_NOTHING] * len(files)
    for root, numbers in by_root.items():
        if root and root not in listings:
            listings[root] = _Listing(root)
        mine = [files[number] for number in numbers]
        looked = listings[root].find(mine) if root else pool.map(_look, mine)
        for number, state in zip(numbers, looked, strict=True):
            states[number] = state
    return states


def _look(file: _Recorded) -> _State:
    try:
        info = store.look(file.url)
    except PermissionError:
        return _State(-1, 0)
    return _NOTHING if info is None else _State(info.size, _version_mark(info.version))


class _Listing:
    """Size and version of every file below a place, in 24 bytes a file.

    Args:
        root: folder or bucket.
    """

    def __init__(self, root: str) -> None:
        marks, sizes, versions = array("Q"), array("q"), array("Q")
        for info in store.walk(root):
            marks.append(_mark(info.path))
            sizes.append(info.size)
            versions.append(_version_mark(info.version))
        order = np.argsort(np.array(marks, np.uint64), kind="stable")
        self._marks: NDArray[np.uint64] = np.array(marks, np.uint64)[order]
        self._sizes, self._versions = np.array(sizes, np.int64)[order], np.array(versions, np.uint64)[order]

    def find(self, files: Iterable[_Recorded]) -> Iterator[_State]:
        """Yield what each of these files is now."""
        wanted = np.array([_mark(file.path) for file in files], np.uint64)
        places = np.searchsorted(self._marks, wanted)
        for mark, place in zip(wanted.tolist(), places.tolist(), strict=True):
            if place < len(self._marks) and self._marks[place] == mark:
                yield _State(int(self._sizes[place]), int(self._versions[place]))
            else:
                yield _NOTHING


def _mark(text: bytes) -> int:
    # 64 bits: among 10^7 files the chance that a vanished one is taken for another is below 1e-5.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _version_mark(version: str) -> int:
    return _mark(version.encode(errors="surrogateescape"))


def _judge(file: _Recorded, now: _State) -> str:
    """Return what happened to a file as its size and version tell; "" for nothing."""
    if now.size == _ABSENT:
        return VANISHED
    same = file.size == now.size and _version_mark(file.version) == now.version
    return "" if same else CHANGED


def _judge_content(file: _Recorded, now: _State) -> str:
    """Return what happened to a file as its bytes tell, if they were read when it was built."""
    if now.size != file.size or file.sha256 is None:
        return _judge(file, now)
    try:
        data = store.read_bytes(file.url)
    except FileNotFoundError:
        return VANISHED
    except OSError:
        return UNREADABLE
    return "" if hashlib.sha256(data).hexdigest() == file.sha256 else CHANGED
