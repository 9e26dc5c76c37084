"""shrink: from raw files to whole shards, each with its receipt. One shard in, one shard out.

`build_shard` runs on any worker, at any time, in any order; a file that cannot become a sample costs that
file alone. The driver hands out the shards that are not there yet and shows what is going on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from ingest import store
from ingest.build.image import engine_versions
from ingest.build.isolate import Decoded, decode
from ingest.build.limits import DEFAULT_LIMITS, Limits, format_limit
from ingest.build.pending import DAMAGED, is_passing
from ingest.build.reuse import Copied, Copier, merge_engines
from ingest.build.sample import Provenance
from ingest.build.tally import Tally
from ingest.errors import CorruptImageError, CorruptShardError, DeviceError, StoreError
from ingest.shard import ShardSummary, TarWriter, places_of, read_receipt, write_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from ingest.build.planned import PlannedFile, PlannedShard
    from ingest.build.reuse import Origins
    from ingest.build.sample import Shrunk
    from ingest.recipe import Recipe


_PROVENANCE = tuple(field.name for field in dataclasses.fields(Provenance))
_DESCRIPTION = [name for name in _PROVENANCE if name != "scale_denominator"]
_DESCRIPTION += ["scale", "width", "height", "pixels", "pixel_sum", "pixel_sum_squares"]
"""Columns of a receipt that tell how a sample was made: those of a copied one are copied too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Everything a worker needs to build one shard.

    Attributes:
        roots: folders of the raw files; below an empty one, paths are whole URLs.
        dataset: where the shard goes.
        recipe: how each picture is shrunk.
        shard: its name and files.
        labelled: whether every sample must have a class.
        engines: versions that the worker must have, or its bytes would differ from those of others.
        limits: what the decoding of each file may cost.
        origins: what is known of the files from older shards; None: nothing.
        siblings: shards of other datasets with the same files, to be built beside this one.
        takes_turns: whether only one task of a process at a time decodes, while others write and upload.
        extras: fields that every sample has beside picture and class, see `PlanHead`.
    """

    roots: tuple[str, ...]
    dataset: str
    recipe: Recipe
    shard: PlannedShard
    labelled: bool
    engines: dict[str, str]
    limits: Limits = DEFAULT_LIMITS
    origins: Origins | None = None
    siblings: tuple[ShardTask, ...] = ()
    takes_turns: bool = False
    extras: tuple[str, ...] = ()


def build_shard(task: ShardTask, tick: Callable[[Tally], None]) -> tuple[ShardSummary, ...]:
    """Build one shard: have its files read and shrunk, write the tar and then the receipt.

    Args:
        task: what to build; its siblings are built of the same pictures as it goes.
        tick: is given the tally of each file that is done; when it raises, nothing of the shard is left.

    Returns:
        What the shard holds, and its siblings.

    Raises:
        StoreError: a read or write failed in a way that may pass; nothing of the shard is left.
        DeviceError: the engines of this worker are not those of the driver, or it cannot decode.
    """
    if engine_versions() != task.engines:
        message = f"this worker has the engines {engine_versions()}, expected {task.engines}"
        raise DeviceError(f"{message}: install the same versions there")
    works = [_ShardWork(each) for each in (task, *task.siblings)]
    with contextlib.ExitStack() as stack:
        with _TURN if task.takes_turns else contextlib.nullcontext():
            _fill(works, stack, tick)
        for work in works:
            work.close()
    return tuple(work.finish() for work in works)


_TURN = threading.Lock()


def _fill(works: Sequence[_ShardWork], stack: contextlib.ExitStack, tick: Callable[[Tally], None]) -> None:
    """Put every file into the tars, which are whole when `stack` ends."""
    for work in works:
        work.open(stack)
    with contextlib.closing(_outcomes([work.task for work in works])) as outcomes:
        for planned, *results in outcomes:
            tallies = [work.add(planned, done) for work, done in zip(works, results, strict=True)]
            tick(tallies[0])


def _outcomes(tasks: Sequence[ShardTask]) -> Generator[tuple[Any, ...]]:
    """Yield each file, in order, and what becomes of it by each task: a `Decoded`, or a `Copied`.

    What is refused or known by every task is not read.
    """
    files = tasks[0].shard.files
    sources = [_Source(task) for task in tasks]
    wanted = [n for n in range(len(files)) if not all(n in source.settled for source in sources)]
    contents = frozenset.intersection(*(source.copier.contents for source in sources))
    results = _decode(tasks, [files[number] for number in wanted], contents)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(results))
        for source in sources:
            stack.callback(source.close)
        coming = iter(wanted)
        following = next(coming, None)
        for number, file in enumerate(files):
            decoded = None
            if number == following:
                decoded, following = next(results), next(coming, None)
            done = (source.outcome(number, decoded, turn) for turn, source in enumerate(sources))
            yield file, *done


class _Source:
    """Where the files of one task come from: what is refused, what is copied, and what is to be decoded.

    Attributes:
        settled: numbers of the files that need not be read.
    """

    def __init__(self, task: ShardTask) -> None:
        files = task.shard.files
        self._task = task
        self.copier = Copier(task.dataset, task.origins)
        self._refused = {n: fault for n, file in enumerate(files) if (fault := refusal(file, task))}
        rows = self.copier.rows_of(files)
        self._known = {n: row for n, row in sorted(rows.items()) if n not in self._refused}
        self._copies = self.copier.fetch_all(list(self._known.values()))
        self.settled = frozenset({*self._refused, *self._known})

    def outcome(self, number: int, decoded: Decoded | None, turn: int) -> Decoded | Copied:
        """Return what becomes of a file; `decoded` is what was made of it, by all tasks in turn."""
        file = self._task.shard.files[number]
        if number in self._refused:
            return Decoded(file.size, None, self._refused[number])
        if number in self._known:
            return next(self._copies) or _decode_alone(self._task, file)
        if decoded is None:
            raise ValueError(f"{file.key}: neither known nor decoded")
        mine = decoded.by(turn)
        _require_root(self._task, file, mine)
        _require_no_loss(self._task, file, mine)
        if mine.result is not None:
            return mine
        return self.copier.of_content(mine.sha256) or _decode_alone(self._task, file)

    def close(self) -> None:
        """Stop fetching."""
        self._copies.close()


def _decode(
    tasks: Sequence[ShardTask], files: Sequence[PlannedFile], known: frozenset[str] = frozenset()
) -> Generator[Decoded]:
    task, *siblings = tasks
    root, wanted = urls_of(files, task.roots)
    also = tuple(sibling.recipe for sibling in siblings)
    return decode(wanted, raw=root, recipe=task.recipe, limits=task.limits, known=known, also=also)


def urls_of(files: Sequence[PlannedFile], roots: Sequence[str]) -> tuple[str, list[tuple[bytes, int]]]:
    """Return the root of files, and path and size of each; of several roots none, and their whole URLs."""
    used = {file.root for file in files}
    if len(used) == 1:
        return roots[used.pop()], [(file.path, file.size) for file in files]
    return "", [(os.fsencode(store.place(roots[file.root], file.path)), file.size) for file in files]


def _require_root(task: ShardTask, file: PlannedFile, decoded: Decoded) -> None:
    """Tell a file that is gone from a disk that is not mounted, where files of several roots are mixed.

    Raises:
        StoreError: the root of an unreadable file is missing or empty.
    """
    root = task.roots[file.root]
    is_fault = isinstance(decoded.result, CorruptImageError) and decoded.result.code == "unreadable"
    if is_fault and root and not store.has_entries(root):
        message = f"{store.redact(root)}: is missing or empty"
        raise StoreError(f"{message}: mount it there, as it was when it was scanned, and run again")


def _require_no_loss(task: ShardTask, file: PlannedFile, decoded: Decoded) -> None:
    """Refuse to replace a shard by one without a sample that only the old one holds.

    Raises:
        StoreError: the photo is gone, and this very shard, which is damaged, has its sample.
    """
    if not isinstance(decoded.result, CorruptImageError) or decoded.result.code != "unreadable":
        return
    try:
        _, receipt = read_receipt(task.dataset, task.shard.name)
    except CorruptShardError:
        return
    held = receipt.filter(pc.equal(receipt["status"], "sample"))["key"].to_pylist()
    if file.key in held:
        message = f"{task.shard.name}: is damaged, and the photo of its sample {file.key} cannot be read"
        remedy = f"bring it back, or keep the shard as it is and remove {task.shard.name}{DAMAGED}"
        raise StoreError(f"{message}: {remedy}")


def _decode_alone(task: ShardTask, file: PlannedFile) -> Decoded:
    """Decode a file after all that was to be copied: what was known of it is damaged."""
    with contextlib.closing(_decode([task], [file])) as results:
        return next(results)


def refusal(file: PlannedFile, task: ShardTask) -> CorruptImageError | None:
    """Return why a file is rejected unread, or None."""
    if task.labelled and file.class_id is None:
        return CorruptImageError(
            "no_label",
            "The file has no label while others do: move it into a class folder, or give it one in a table.",
        )
    if file.size > task.limits.largest_file:
        allowed = f"half of 'memory_limit' ({format_limit(task.limits.memory_limit)})"
        sentence = f"The file is larger than {allowed}: raise it to have the file read."
        return CorruptImageError("too_large", sentence)
    return None


def _mark_passing(task: ShardTask, rows: list[dict[str, Any]]) -> None:
    """Mark a shard that lacks files which may become samples later, with the limits that they met."""
    mark = store.join(task.dataset, f"{task.shard.name}.retry")
    if any(is_passing(row) for row in rows):
        store.write_bytes(mark, task.limits.to_json())
    else:
        store.remove(mark)


class _ShardWork:
    """What has been done of one shard so far: receipt rows, and the versions of what decoded."""

    def __init__(self, task: ShardTask) -> None:
        self.task = task
        self._rows: list[dict[str, Any]] = []
        self._samples = 0
        self._engines: list[dict[str, str]] = [task.engines]
        self._writer: TarWriter | None = None
        self._end = (0, "")

    def open(self, stack: contextlib.ExitStack) -> None:
        """Begin the tar, which is whole when `stack` ends."""
        store.remove(self._url(".idx"))  # of an earlier tar of this name, if there was one
        self._writer = TarWriter(stack.enter_context(store.create(self._url(".tar"))))

    def _url(self, suffix: str) -> str:
        return store.join(self.task.dataset, f"{self.task.shard.name}{suffix}")

    def add(self, planned: PlannedFile, done: Decoded | Copied) -> Tally:
        """Put one sample into the tar, or note why there is none; return what became of the file."""
        row = self._identity(planned, done)
        if isinstance(done, Copied):
            return self._copy(row, planned, done)
        if isinstance(done.result, CorruptImageError):
            return self._reject(row, done.result.code, done.result.reason)
        if done.result is None:
            raise ValueError(f"{row['source']}: neither decoded nor copied")
        return self._write(row, planned, _description(done.result), done.result.data)

    def close(self) -> None:
        """End the tar."""
        self._end = self._open_writer().close()

    def _open_writer(self) -> TarWriter:
        if self._writer is None:
            raise ValueError(f"{self.task.shard.name}: its tar was not begun")
        return self._writer

    def finish(self) -> ShardSummary:
        """Write the receipt, by which the shard is whole."""
        if not self._samples:
            store.remove(self._url(".tar"))
        _mark_passing(self.task, self._rows)
        summary = self._summarise(*self._end)
        write_receipt(self.task.dataset, summary, self._rows)
        store.remove(self._url(DAMAGED))
        return summary

    def _copy(self, row: dict[str, Any], planned: PlannedFile, copied: Copied) -> Tally:
        self._engines.append(copied.engines)
        if copied.data is None:
            return self._reject(row, copied.row["code"], copied.row["reason"])
        description = {name: copied.row[name] for name in _DESCRIPTION}
        return self._write(row, planned, description, copied.data)

    def _write(
        self,
        row: dict[str, Any],
        planned: PlannedFile,
        description: dict[str, Any],
        data: bytes,
    ) -> Tally:
        fields = sample_fields(self.task.recipe, data, planned.class_id)
        fields |= extra_fields(self.task.extras, planned)
        places = {**places_of(self._open_writer().add(planned.key, fields)), "image_crc32": zlib.crc32(data)}
        self._rows.append({**row, "status": "sample", **description, **places})
        self._samples += 1
        return Tally(files=1, enlarged=int(description["upscaled"]))

    def _reject(self, row: dict[str, Any], code: str, reason: str) -> Tally:
        self._rows.append({**row, "status": "rejected", "code": code, "reason": reason})
        return Tally(files=1, rejects={code: 1}, examples={code: f"{row['source']}: {reason}"})

    def _identity(self, planned: PlannedFile, done: Decoded | Copied) -> dict[str, Any]:
        root, name = self.task.roots[planned.root], planned.path.decode("utf-8", "backslashreplace")
        sha256 = done.row["source_sha256"] if isinstance(done, Copied) else done.sha256
        num_bytes = planned.size if isinstance(done, Copied) or sha256 is None else done.num_bytes
        return {
            "key": planned.key,
            "path": planned.path,
            "root": root,
            "source": store.join(root, name) if root else name,
            "source_version": planned.version,
            "source_bytes": num_bytes,
            "source_sha256": sha256,
            "split": self.task.shard.split,
            "label": planned.label,
            "class_id": planned.class_id,
            "text": planned.text,
            "meta": planned.meta,
        }

    def _summarise(self, num_bytes: int, sha256: str) -> ShardSummary:
        samples = [row for row in self._rows if row["status"] == "sample"]
        return ShardSummary(
            name=self.task.shard.name,
            samples=self._samples,
            rejects=len(self._rows) - self._samples,
            bytes=num_bytes if self._samples else 0,
            sha256=sha256 if self._samples else "",
            pixels=sum(row["pixels"] for row in samples),
            pixel_sum=_sums(row["pixel_sum"] for row in samples),
            pixel_sum_squares=_sums(row["pixel_sum_squares"] for row in samples),
            engines=merge_engines(self._engines),
            recipe_sha256=self.task.recipe.hash(),
        )


def _sums(triples: Iterable[Sequence[int]]) -> tuple[int, int, int]:
    red, green, blue = (sum(values) for values in zip((0, 0, 0), *triples, strict=True))
    return red, green, blue


def sample_fields(recipe: Recipe, image: bytes, class_id: int | None) -> dict[str, bytes]:
    """Return the members of a sample: the image and, where there are classes, ``cls`` (the id in decimal)."""
    fields = {recipe.image_field: image}
    return fields if class_id is None else {**fields, "cls": str(class_id).encode()}


def extra_fields(extras: Iterable[str], planned: PlannedFile) -> dict[str, bytes]:
    """Return the fields beside picture and class: metadata as a JSON object, the caption; or empty ones."""
    values = {"json": planned.meta or "{}", "txt": planned.text or ""}
    return {field: values[field].encode() for field in extras}


def _description(shrunk: Shrunk) -> dict[str, Any]:
    # Not `asdict`, which copies every value: a tenth of what the worker does for a file.
    described = {name: getattr(shrunk.provenance, name) for name in _PROVENANCE}
    scale = f"1/{described.pop('scale_denominator')}"
    pixels, sums, squares = moments(shrunk.histogram)
    sizes = {"width": shrunk.width, "height": shrunk.height, "pixels": pixels}
    return {**described, "scale": scale, **sizes, "pixel_sum": sums, "pixel_sum_squares": squares}


_LEVELS = np.arange(256, dtype=np.int64)


def moments(histogram: Sequence[int]) -> tuple[int, list[int], list[int]]:
    """Return the number of pixels, and the sums of R, G and B and of their squares over them; exact.

    Args:
        histogram: 768 counts: 256 of R, then of G, then of B.
    """
    counts = np.array(histogram, np.int64).reshape(3, 256)
    return int(counts[0].sum()), (counts @ _LEVELS).tolist(), (counts @ _LEVELS**2).tolist()
