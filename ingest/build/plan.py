"""plan: which sample goes to which shard. Pure: the same manifest and settings give the same plan.

The plan is a Parquet file with one row group a shard. A shard's name carries a hash of its sample list
and of the recipe, so a shard that need not change keeps its name, and one that must change gets a new one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ingest import store
from ingest.build.artifact import DEMO_FOLDER, replace_if_changed
from ingest.errors import BuildError, StoreError
from ingest.index import INDEX_NAME
from ingest.recipe import Recipe
from ingest.shard import make_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

FULL_SHARD = 4096
"""Samples in a shard of a large dataset: about 70 MB of 224 px JPEGs, a good size for one sequential read."""

_SMALLEST_SHARD = 8
_AIM_SHARDS = 256  # 8 tasks for each of 32 cores, so that the last ones do not leave cores idle

PLAN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("path", pa.binary(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("class_id", pa.int32()),
    ]
)


class PlannedFile(NamedTuple):
    """One raw file with its place in the dataset; columns of `PLAN_SCHEMA`."""

    key: str
    path: bytes
    size: int
    version: str
    label: str | None
    class_id: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What a plan depends on beside the manifest; meanings as in `ingest.build.config.Settings`."""

    dataset: str
    recipe: Recipe
    samples_per_shard: int | Literal["auto"] = "auto"
    seed: int = 0
    limit: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard to be: its name below the dataset, its split and its files in order."""

    name: str
    split: str
    files: tuple[PlannedFile, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanHead:
    """Everything of a plan but its rows.

    Attributes:
        raw: root of the raw files.
        dataset: where the shards go.
        recipe: how each picture is shrunk.
        classes: label of each class id.
        shards: name, split, number of files and raw bytes of each shard, in order.
    """

    raw: str
    dataset: str
    recipe: Recipe
    classes: tuple[str, ...]
    shards: tuple[ShardHead, ...]

    @property
    def num_files(self) -> int:
        """Return how many raw files the plan holds."""
        return sum(shard.files for shard in self.shards)


class ShardHead(NamedTuple):
    """Name, split, number of files and raw bytes of one planned shard."""

    name: str
    split: str
    files: int
    bytes: int


def choose_shard_size(num_files: int, configured: int | Literal["auto"]) -> int:
    """Return the samples of a shard: as configured, or so that a small dataset still makes many tasks."""
    if configured != "auto":
        return configured
    return min(FULL_SHARD, max(_SMALLEST_SHARD, -(-num_files // _AIM_SHARDS)))


def class_table(labels: Sequence[str | None]) -> tuple[str, ...]:
    """Return the labels in the order of their class ids: sorted, as in torchvision's ImageFolder."""
    return tuple(sorted({label for label in labels if label is not None}))


def make_plan(manifest: pa.Table, settings: PlanSettings) -> tuple[tuple[str, ...], list[PlannedShard]]:
    """Deal the files of a manifest to shards.

    The order is that of a hash of seed and key: mixed over the whole dataset, whatever the order of the
    listing, so that files sorted by class do not make shards of one class.

    Returns:
        The class table, and the shards, split by split.

    Raises:
        BuildError: two files have the same key.
    """
    classes = class_table(manifest["label"].unique().to_pylist())
    class_ids = {label: number for number, label in enumerate(classes)}
    chosen = sorted(_ranked(manifest, settings.seed))[: settings.limit]
    _require_distinct([key for _, key, _ in chosen])
    by_split: dict[str, list[PlannedFile]] = {}
    rows = manifest.take(pa.array([row for _, _, row in chosen], pa.int64()))
    for (_, key, _), row in zip(chosen, _rows(rows), strict=True):
        path, size, version, split, label = row
        file = PlannedFile(key, path, size, version, label, None if label is None else class_ids[label])
        by_split.setdefault(split, []).append(file)
    shard_size = choose_shard_size(len(chosen), settings.samples_per_shard)
    salt = f"{settings.recipe.hash()} {'labelled' if classes else 'unlabelled'}"
    return classes, [
        shard for split in sorted(by_split) for shard in _cut(by_split[split], split, shard_size, salt)
    ]


def _ranked(manifest: pa.Table, seed: int) -> Iterator[tuple[bytes, str, int]]:
    salt = seed.to_bytes(8, "big")
    for row, path in enumerate(manifest["path"].to_pylist()):
        key = make_key(path)
        yield hashlib.blake2b(key.encode(), digest_size=8, key=salt).digest(), key, row


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in table.schema.names), strict=True)


def _require_distinct(keys: list[str]) -> None:
    if len(set(keys)) < len(keys):
        twice = [key for key, number in Counter(keys).items() if number > 1]
        raise BuildError(f"key {twice[0]} stands for two files: rename one of them; this is a chance of 4e-7")


def _cut(files: list[PlannedFile], split: str, shard_size: int, salt: str) -> Iterator[PlannedShard]:
    for number, begin in enumerate(range(0, len(files), shard_size)):
        part = tuple(files[begin : begin + shard_size])
        yield PlannedShard(f"{split}/{number:06d}-{shard_hash(part, salt)}", split, part)


def shard_hash(files: Sequence[PlannedFile], salt: str) -> str:
    """Return 8 hex digits that change whenever the bytes of the shard may change.

    Args:
        files: what is in the shard, in order.
        salt: what else decides its bytes: the recipe, and whether the dataset has labels.
    """
    digest = hashlib.sha256(salt.encode())
    for file in files:
        digest.update(f"\n{file.key} {file.size} {file.version} {file.class_id}".encode())
    return digest.hexdigest()[:8]


def warn_of_other_source(plan: Path, raw: str, dataset: str) -> None:
    """Say so where a dataset was planned from another root before; refuse to put the sample in its place.

    Raises:
        BuildError: `raw` is the sample made by code, and the dataset is of something else.
    """
    is_sample = raw == store.normalise(DEMO_FOLDER)
    if not plan.exists():
        is_default = dataset.startswith(f"{store.normalise(DEMO_FOLDER)}-")
        if is_sample and not is_default and store.exists(store.join(dataset, INDEX_NAME)):
            message = f"{dataset}: holds a dataset, and the config key 'raw' is empty"
            raise BuildError(f"{message}: set it, or choose another 'dataset' for the sample photos")
        return
    before = read_plan_head(plan)
    if before.raw == raw:
        return
    if is_sample:
        message = f"{before.dataset}: was built from {before.raw}, and the config key 'raw' is empty now"
        raise BuildError(f"{message}: set it, or choose another 'dataset' for the sample photos")
    logger.warning("plan: %s was built from %s before, and is now from %s", before.dataset, before.raw, raw)


def write_plan(path: Path, raw: str, settings: PlanSettings, manifest: pa.Table) -> tuple[PlanHead, bool]:
    """Make the plan and write it to `path`; return its head and whether the file changed.

    Raises:
        BuildError: two files have the same key.
        StoreError: the plan cannot be written.
    """
    classes, shards = make_plan(manifest, settings)
    heads = tuple(
        ShardHead(shard.name, shard.split, len(shard.files), sum(file.size for file in shard.files))
        for shard in shards
    )
    head = PlanHead(raw=raw, dataset=settings.dataset, recipe=settings.recipe, classes=classes, shards=heads)
    with replace_if_changed(path) as (temporary, outcome):
        schema = PLAN_SCHEMA.with_metadata({"ingest.plan": _head_to_json(head)})
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for shard in shards:
                columns = [list(column) for column in zip(*shard.files, strict=True)]
                writer.write_table(pa.table(columns, schema=PLAN_SCHEMA), row_group_size=len(shard.files))
    return head, outcome.changed


def _head_to_json(head: PlanHead) -> str:
    return json.dumps({**dataclasses.asdict(head), "recipe": head.recipe.to_dict()}, sort_keys=True)


def read_plan_head(path: Path) -> PlanHead:
    """Read what a plan says of itself, without its rows.

    Raises:
        StoreError: the plan is missing or cannot be read.
    """
    try:
        values = json.loads(pq.read_schema(path).metadata[b"ingest.plan"])
        return PlanHead(
            raw=values["raw"],
            dataset=values["dataset"],
            recipe=Recipe.from_dict(values["recipe"]),
            classes=tuple(values["classes"]),
            shards=tuple(ShardHead(*shard) for shard in values["shards"]),
        )
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise StoreError(f"{path}: no plan that can be read ({error}): run `ingest plan` again") from error


def read_planned_shards(path: Path, head: PlanHead, names: set[str]) -> Iterator[PlannedShard]:
    """Yield the shards of a plan that are named in `names`, reading one row group at a time."""
    with pq.ParquetFile(path) as file:
        for number, shard in enumerate(head.shards):
            if shard.name in names:
                rows = _rows(file.read_row_group(number))
                yield PlannedShard(shard.name, shard.split, tuple(PlannedFile(*row) for row in rows))
