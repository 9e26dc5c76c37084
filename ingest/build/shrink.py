"""shrink: from raw files to whole shards, each with its receipt. One shard in, one shard out.

`build_shard` runs on any worker, at any time, in any order; a file that cannot become a sample costs that
file alone. The driver hands out the shards that are not there yet and shows what is going on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import socket
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ingest import store
from ingest.build.image import engine_versions, shrink_image
from ingest.errors import CorruptImageError, DeviceError, StoreError
from ingest.shard import Member, ShardSummary, TarWriter, read_receipt, write_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ingest.build.plan import PlanHead, PlannedFile, PlannedShard
    from ingest.build.sample import Shrunk
    from ingest.recipe import Recipe

_READ_AHEAD = 4
# Files read before they are needed: hides the latency of a disk or network behind the decoding.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Everything a worker needs to build one shard.

    Attributes:
        raw: root of the raw files.
        dataset: where the shard goes.
        recipe: how each picture is shrunk.
        shard: its name and files.
        labelled: whether every sample must have a class.
        engines: versions that the worker must have, or its bytes would differ from those of others.
    """

    raw: str
    dataset: str
    recipe: Recipe
    shard: PlannedShard
    labelled: bool
    engines: dict[str, str]


class _RawFile(NamedTuple):
    """Content of a raw file with its SHA-256, or the reason why it cannot be read."""

    data: bytes
    sha256: str | None
    fault: CorruptImageError | None


def pending_shards(head: PlanHead, present: dict[str, int], sealed: dict[str, int]) -> list[str]:
    """Return the names of planned shards that are not whole yet, in order.

    Args:
        head: the plan.
        present: size of every file below the dataset, by path; a receipt is written after its tar.
        sealed: size of the tar of each shard that is in the index, by name.
    """
    damaged = {name for name, size in sealed.items() if present.get(f"{name}.tar") != size}
    names = (shard.name for shard in head.shards)
    return [name for name in names if name in damaged or not _is_whole(head, name, present)]


def _is_whole(head: PlanHead, name: str, present: dict[str, int]) -> bool:
    if f"{name}.parquet" not in present:
        return False
    if f"{name}.retry" in present and _can_be_read_now(head, name):
        return False
    # A shard of nothing but rejects has no tar: only then is the receipt worth a look.
    return f"{name}.tar" in present or read_receipt(head.dataset, name)[0].samples == 0


def _can_be_read_now(head: PlanHead, name: str) -> bool:
    """Return whether a file that could not be read when shard `name` was built can be read by now."""
    _, receipt = read_receipt(head.dataset, name)
    unreadable = receipt.filter(pa.compute.equal(receipt["code"], "unreadable"))
    return any(store.is_readable(store.join_bytes(head.raw, path)) for path in unreadable["path"].to_pylist())


def build_shard(task: ShardTask, tick: Callable[[tuple[int, ...]], None]) -> ShardSummary:
    """Build one shard: read its files, shrink each, write the tar and then the receipt.

    Args:
        task: what to build.
        tick: is given, for each file that is done, 1 and whether it was rejected (0 or 1).

    Raises:
        StoreError: a read or write failed in a way that may pass; nothing of the shard is left.
        DeviceError: the engines of this worker are not those of the driver.
    """
    if engine_versions() != task.engines:
        message = f"this worker has the engines {engine_versions()}, expected {task.engines}"
        raise DeviceError(f"{message}: install the same versions there")
    name = task.shard.name
    store.remove(store.join(task.dataset, f"{name}.idx"))  # of an earlier tar of this name, if there was one
    work = _ShardWork(task)
    with store.create(store.join(task.dataset, f"{name}.tar")) as file:
        writer = TarWriter(file)
        for planned, raw in _read_ahead(task.raw, task.shard.files):
            accepted = work.add(planned, raw, writer)
            tick((1, 0 if accepted else 1))
        num_bytes, sha256 = writer.close()
    if not work.samples:
        store.remove(store.join(task.dataset, f"{name}.tar"))
    _note_unreadable(task.dataset, name, work.rows)
    summary = work.summarise(num_bytes, sha256)
    write_receipt(task.dataset, summary, work.rows)
    return summary


def _note_unreadable(dataset: str, name: str, rows: list[dict[str, Any]]) -> None:
    """Mark a shard that lacks files which could not be read, so that the next run tries them again."""
    mark = store.join(dataset, f"{name}.retry")
    if any(row.get("code") == "unreadable" for row in rows):
        store.write_bytes(mark, b"")
    else:
        store.remove(mark)


class _ShardWork:
    """What has been done of one shard so far: receipt rows and sums over its pixels."""

    def __init__(self, task: ShardTask) -> None:
        self._task = task
        self.rows: list[dict[str, Any]] = []
        self.samples = 0
        self._histogram = Histogram()

    def add(self, planned: PlannedFile, raw: _RawFile, writer: TarWriter) -> bool:
        """Shrink one file into the tar, or note why not; return whether it became a sample."""
        row = self._identity(planned, raw)
        try:
            self._refuse(planned, raw)
            shrunk = shrink_image(raw.data, self._task.recipe)
        except CorruptImageError as fault:
            self.rows.append({**row, "status": "rejected", "code": fault.code, "reason": fault.reason})
            return False
        members = writer.add(planned.key, sample_fields(shrunk, planned.class_id))
        self.rows.append({**row, "status": "sample", **_description(shrunk), **_places(members)})
        self._histogram.add(shrunk.histogram)
        self.samples += 1
        return True

    def _refuse(self, planned: PlannedFile, raw: _RawFile) -> None:
        if raw.fault is not None:
            raise raw.fault
        if self._task.labelled and planned.class_id is None:
            raise CorruptImageError(
                "no_label", "The file lies in no class folder while others do: move it into one."
            )

    def _identity(self, planned: PlannedFile, raw: _RawFile) -> dict[str, Any]:
        source = store.join(self._task.raw, planned.path.decode("utf-8", "backslashreplace"))
        return {
            "key": planned.key,
            "path": planned.path,
            "source": source,
            "source_version": planned.version,
            "source_bytes": planned.size if raw.sha256 is None else len(raw.data),
            "source_sha256": raw.sha256,
            "split": self._task.shard.split,
            "label": planned.label,
            "class_id": planned.class_id,
        }

    def summarise(self, num_bytes: int, sha256: str) -> ShardSummary:
        return ShardSummary(
            name=self._task.shard.name,
            samples=self.samples,
            rejects=len(self.rows) - self.samples,
            bytes=num_bytes if self.samples else 0,
            sha256=sha256 if self.samples else "",
            pixels=self._histogram.pixels,
            pixel_sum=self._histogram.sums(1),
            pixel_sum_squares=self._histogram.sums(2),
            engines=engine_versions(),
        )


class Histogram:
    """Counts of every value of R, G and B over many pictures."""

    def __init__(self) -> None:
        self._counts = [0] * 768

    def add(self, counts: Iterable[int]) -> None:
        """Add the 768 counts of one picture: 256 of R, then of G, then of B."""
        self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]

    @property
    def pixels(self) -> int:
        """Number of pixels counted."""
        return sum(self._counts[:256])

    def sums(self, power: int) -> tuple[int, int, int]:
        """Return the sum over all pixels of value**power, a channel each; exact."""
        red, green, blue = (
            sum(value**power * count for value, count in enumerate(self._counts[begin : begin + 256]))
            for begin in (0, 256, 512)
        )
        return red, green, blue


def sample_fields(shrunk: Shrunk, class_id: int | None) -> dict[str, bytes]:
    """Return the members of a sample: ``jpg`` and, where there are classes, ``cls`` (the id in decimal)."""
    fields = {"jpg": shrunk.jpeg}
    return fields if class_id is None else {**fields, "cls": str(class_id).encode()}


def _description(shrunk: Shrunk) -> dict[str, Any]:
    described = dataclasses.asdict(shrunk.provenance)
    scale = f"1/{described.pop('scale_denominator')}"
    return {**described, "scale": scale, "width": shrunk.width, "height": shrunk.height}


def _places(members: list[Member]) -> dict[str, Any]:
    image, *rest = members
    places = {"image_field": image.field, "image_offset": image.offset, "image_bytes": image.size}
    for member in rest:
        places |= {"class_offset": member.offset, "class_bytes": member.size}
    return places


def _read_ahead(raw: str, files: tuple[PlannedFile, ...]) -> Iterator[tuple[PlannedFile, _RawFile]]:
    """Yield each file with its content, in order, reading a few ahead."""
    with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="read-ahead") as pool:
        waiting = deque((file, pool.submit(_read_raw, raw, file)) for file in files[:_READ_AHEAD])
        for following in (*files[_READ_AHEAD:], *[None] * min(_READ_AHEAD, len(files))):
            file, content = waiting.popleft()
            if following is not None:
                waiting.append((following, pool.submit(_read_raw, raw, following)))
            yield file, content.result()


def _read_raw(raw: str, file: PlannedFile) -> _RawFile:
    try:
        data = store.read_bytes(store.join_bytes(raw, file.path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        _require_root(raw)
        return _unreadable("The file was there when it was scanned and is gone now.")
    except PermissionError:
        return _unreadable("The file may not be read: permission denied.")
    return _RawFile(data, hashlib.sha256(data).hexdigest(), None)


def _unreadable(reason: str) -> _RawFile:
    return _RawFile(b"", None, CorruptImageError("unreadable", reason))


def _require_root(raw: str) -> None:
    """Tell a file that is gone from a disk that is not mounted: the second is no fault of the file.

    Raises:
        StoreError: the root is not there, or is empty.
    """
    if not store.has_entries(raw):
        message = f"{raw}: is missing or empty on {socket.gethostname()}"
        raise StoreError(f"{message}: mount it there, as it was when it was scanned, and run again")
