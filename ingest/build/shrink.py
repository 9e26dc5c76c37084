"""shrink: from raw files to whole shards, each with its receipt. One shard in, one shard out.

`build_shard` runs on any worker, at any time, in any order; a file that cannot become a sample costs that
file alone. The driver hands out the shards that are not there yet and shows what is going on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from ingest import store
from ingest.build.image import engine_versions
from ingest.build.isolate import Decoded, decode
from ingest.build.limits import DEFAULT_LIMITS, Limits, format_limit
from ingest.build.reuse import Copied, Copier, Origins, merge_engines
from ingest.build.sample import Provenance
from ingest.build.tally import Tally
from ingest.errors import CorruptImageError, CorruptShardError, DeviceError, StoreError
from ingest.shard import ShardSummary, TarWriter, places_of, read_receipt, write_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from ingest.build.planned import PlanHead, PlannedFile, PlannedShard
    from ingest.build.sample import Shrunk
    from ingest.recipe import Recipe


_DAMAGED = ".damaged"
"""Ending of the empty file by which `ingest verify` marks a shard that must be built again."""

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
        origins: what is known of the files from older shards.
        extras: fields that every sample has beside picture and class, see `PlanHead`.
    """

    roots: tuple[str, ...]
    dataset: str
    recipe: Recipe
    shard: PlannedShard
    labelled: bool
    engines: dict[str, str]
    limits: Limits = DEFAULT_LIMITS
    origins: Origins = dataclasses.field(default_factory=Origins)
    extras: tuple[str, ...] = ()


def pending_shards(
    head: PlanHead, present: dict[str, int], sealed: dict[str, int], limits: Limits | None = None
) -> list[str]:
    """Return the names of planned shards that are not whole yet, in order.

    Args:
        head: the plan.
        present: size of every file below the dataset, by path; a receipt is written after its tar.
        sealed: size of the tar of each shard that is in the index, by name.
        limits: what a file may cost now: a shard with rejects that may have become samples by now is not
            whole either. None: one that was built is whole, whatever it lacks.
    """
    damaged = {name for name, size in sealed.items() if present.get(f"{name}.tar") != size}
    damaged |= {path.removesuffix(_DAMAGED) for path in present if path.endswith(_DAMAGED)}
    again = set() if limits is None else _worth_another_try(head, present, limits, damaged)
    names = (shard.name for shard in head.shards)
    return [name for name in names if name in damaged | again or not _is_whole(head, name, present)]


def _is_whole(head: PlanHead, name: str, present: dict[str, int]) -> bool:
    if f"{name}.parquet" not in present:
        return False
    # A shard of nothing but rejects has no tar: only then is the receipt worth a look.
    return f"{name}.tar" in present or read_receipt(head.dataset, name)[0].samples == 0


def _worth_another_try(
    head: PlanHead, present: dict[str, int], limits: Limits, damaged: set[str]
) -> set[str]:
    names = [shard.name for shard in head.shards if shard.name not in damaged]
    marked = [name for name in names if {f"{name}.retry", f"{name}.parquet"} <= present.keys()]
    return {name for name in marked if _may_be_mended(head, name, limits)}


def _may_be_mended(head: PlanHead, name: str, limits: Limits) -> bool:
    """Return whether a file that shard `name` lacks may become a sample by now."""
    _, receipt = read_receipt(head.dataset, name)
    before = Limits.from_json(store.read_bytes(store.join(head.dataset, f"{name}.retry")))
    rows = receipt.select(["path", "root", "code", "source_sha256"]).to_pylist()
    return any(
        limits.allow_more_than(before, row["code"])
        if is_limited(row)
        else _is_readable(head.roots[0] if len(head.roots) == 1 else row["root"] or "", row["path"])
        for row in rows
        if is_passing(row)
    )


def is_limited(row: dict[str, Any]) -> bool:
    """Return whether the file of a receipt's row was given up because of the limits of that build.

    A file that was not even read is ``too_large`` for the memory limit; others are for the recipe.
    """
    unread = row.get("code") == "too_large" and row["source_sha256"] is None
    return unread or row.get("code") in {"timed_out", "out_of_memory"}


def is_passing(row: dict[str, Any]) -> bool:
    """Return whether the file of a receipt's row was rejected for a reason that may have passed later."""
    return row.get("code") == "unreadable" or is_limited(row)


def _is_readable(root: str, path: bytes) -> bool:
    """Return whether the whole file can be read: a bad sector may lie anywhere in it."""
    try:
        store.read_bytes(store.place(root, path))
    except OSError:
        return False
    return True


def build_shard(task: ShardTask, tick: Callable[[Tally], None]) -> ShardSummary:
    """Build one shard: have its files read and shrunk, write the tar and then the receipt.

    Args:
        task: what to build.
        tick: is given the tally of each file that is done; when it raises, nothing of the shard is left.

    Raises:
        StoreError: a read or write failed in a way that may pass; nothing of the shard is left.
        DeviceError: the engines of this worker are not those of the driver, or it cannot decode.
    """
    if engine_versions() != task.engines:
        message = f"this worker has the engines {engine_versions()}, expected {task.engines}"
        raise DeviceError(f"{message}: install the same versions there")
    name = task.shard.name
    store.remove(store.join(task.dataset, f"{name}.idx"))  # of an earlier tar of this name, if there was one
    work = _ShardWork(task)
    with store.create(store.join(task.dataset, f"{name}.tar")) as file:
        writer = TarWriter(file)
        with contextlib.closing(_outcomes(task)) as outcomes:
            for planned, decoded in outcomes:
                tick(work.add(planned, decoded, writer))
        num_bytes, sha256 = writer.close()
    if not work.samples:
        store.remove(store.join(task.dataset, f"{name}.tar"))
    _mark_passing(task, work.rows)
    summary = work.summarise(num_bytes, sha256)
    write_receipt(task.dataset, summary, work.rows)
    store.remove(store.join(task.dataset, f"{name}{_DAMAGED}"))
    return summary


def _outcomes(task: ShardTask) -> Generator[tuple[PlannedFile, Decoded | Copied]]:
    """Yield what becomes of each file, in order; those that are refused or known are not read."""
    files = task.shard.files
    copier = Copier(task.dataset, task.origins)
    refused = {number: fault for number, file in enumerate(files) if (fault := refusal(file, task))}
    known = {n: row for n, row in sorted(copier.rows_of(files).items()) if n not in refused}
    wanted = [file for number, file in enumerate(files) if number not in refused and number not in known]
    copies = copier.fetch_all(list(known.values()))
    with contextlib.closing(_decode(task, wanted, copier.contents)) as results, contextlib.closing(copies):
        for number, file in enumerate(files):
            if number in refused:
                yield file, Decoded(file.size, None, refused[number])
            elif number in known:
                yield file, next(copies) or _decode_alone(task, file)
            else:
                decoded = next(results)
                _require_root(task, file, decoded)
                _require_no_loss(task, file, decoded)
                copied = copier.of_content(decoded.sha256) if decoded.result is None else decoded
                yield file, copied or _decode_alone(task, file)


def _decode(
    task: ShardTask, files: Sequence[PlannedFile], known: frozenset[str] = frozenset()
) -> Generator[Decoded]:
    root, wanted = urls_of(files, task.roots)
    return decode(wanted, raw=root, recipe=task.recipe, limits=task.limits, known=known)


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
        remedy = f"bring it back, or keep the shard as it is and remove {task.shard.name}{_DAMAGED}"
        raise StoreError(f"{message}: {remedy}")


def _decode_alone(task: ShardTask, file: PlannedFile) -> Decoded:
    """Decode a file after all that was to be copied: what was known of it is damaged."""
    with contextlib.closing(_decode(task, [file])) as results:
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
        self._task = task
        self.rows: list[dict[str, Any]] = []
        self.samples = 0
        self._engines: list[dict[str, str]] = [task.engines]

    def add(self, planned: PlannedFile, done: Decoded | Copied, writer: TarWriter) -> Tally:
        """Put one sample into the tar, or note why there is none; return what became of the file."""
        row = self._identity(planned, done)
        if isinstance(done, Copied):
            return self._copy(row, planned, done, writer)
        if isinstance(done.result, CorruptImageError):
            return self._reject(row, done.result.code, done.result.reason)
        if done.result is None:
            raise ValueError(f"{row['source']}: neither decoded nor copied")
        return self._write(row, planned, _description(done.result), done.result.data, writer)

    def _copy(self, row: dict[str, Any], planned: PlannedFile, copied: Copied, writer: TarWriter) -> Tally:
        self._engines.append(copied.engines)
        if copied.data is None:
            return self._reject(row, copied.row["code"], copied.row["reason"])
        description = {name: copied.row[name] for name in _DESCRIPTION}
        return self._write(row, planned, description, copied.data, writer)

    def _write(
        self,
        row: dict[str, Any],
        planned: PlannedFile,
        description: dict[str, Any],
        data: bytes,
        writer: TarWriter,
    ) -> Tally:
        fields = sample_fields(self._task.recipe, data, planned.class_id)
        fields |= extra_fields(self._task.extras, planned)
        places = {**places_of(writer.add(planned.key, fields)), "image_crc32": zlib.crc32(data)}
        self.rows.append({**row, "status": "sample", **description, **places})
        self.samples += 1
        return Tally(files=1, enlarged=int(description["upscaled"]))

    def _reject(self, row: dict[str, Any], code: str, reason: str) -> Tally:
        self.rows.append({**row, "status": "rejected", "code": code, "reason": reason})
        return Tally(files=1, rejects={code: 1}, examples={code: f"{row['source']}: {reason}"})

    def _identity(self, planned: PlannedFile, done: Decoded | Copied) -> dict[str, Any]:
        root, name = self._task.roots[planned.root], planned.path.decode("utf-8", "backslashreplace")
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
            "split": self._task.shard.split,
            "label": planned.label,
            "class_id": planned.class_id,
            "text": planned.text,
            "meta": planned.meta,
        }

    def summarise(self, num_bytes: int, sha256: str) -> ShardSummary:
        samples = [row for row in self.rows if row["status"] == "sample"]
        return ShardSummary(
            name=self._task.shard.name,
            samples=self.samples,
            rejects=len(self.rows) - self.samples,
            bytes=num_bytes if self.samples else 0,
            sha256=sha256 if self.samples else "",
            pixels=sum(row["pixels"] for row in samples),
            pixel_sum=_sums(row["pixel_sum"] for row in samples),
            pixel_sum_squares=_sums(row["pixel_sum_squares"] for row in samples),
            engines=merge_engines(self._engines),
            recipe_sha256=self._task.recipe.hash(),
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
