"""The plan as it is kept: a Parquet file with one row group a shard, so that any shard is read alone."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.build.artifact import replace_if_changed
from ingest.build.deal import Places
from ingest.errors import StoreError
from ingest.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PLAN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("path", pa.binary(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("class_id", pa.int32()),
        pa.field("root", pa.int16(), nullable=False),  # place in `PlanHead.roots`
        pa.field("text", pa.string()),  # caption
        pa.field("meta", pa.string()),  # a JSON object
    ]
)

EXTRAS = {"json": "meta", "txt": "text"}
"""Fields of a sample beside its picture and class, in their order, and the column that each is of."""


class PlannedFile(NamedTuple):
    """One raw file with its place in the dataset; columns of `PLAN_SCHEMA`."""

    key: str
    path: bytes
    size: int
    version: str
    label: str | None
    class_id: int | None
    root: int = 0
    text: str | None = None
    meta: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard to be: its name below the dataset, its split and its files in order."""

    name: str
    split: str
    files: tuple[PlannedFile, ...]


class ShardHead(NamedTuple):
    """Name, split, number of files and raw bytes of one planned shard.

    `content` is a hash of its files alone: shards of two datasets that have it in common differ by recipe.
    """

    name: str
    split: str
    files: int
    bytes: int
    content: str = ""

    @property
    def number(self) -> int:
        """Its number within the split."""
        return int(self.name.rpartition("/")[2].partition("-")[0])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanHead:
    """Everything of a plan but its rows.

    Attributes:
        roots: folders of the raw files; below an empty one, paths are whole URLs.
        dataset: where the shards go.
        recipe: how each picture is shrunk.
        classes: label of each class id; an id stays a label's own, even after its last file is gone.
        shards: name, split, number of files and raw bytes of each shard, in order.
        dealing: `PlanSettings.dealing` that the files were dealt with.
        extras: fields beside picture and class that every sample has: ``json`` and ``txt``, if any file has
            metadata, a caption.
    """

    roots: tuple[str, ...]
    dataset: str
    recipe: Recipe
    classes: tuple[str, ...]
    shards: tuple[ShardHead, ...]
    dealing: tuple[Any, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def num_files(self) -> int:
        """Return how many raw files the plan holds."""
        return sum(shard.files for shard in self.shards)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan: its head, and its rows (`PLAN_SCHEMA`), shard after shard."""

    head: PlanHead
    rows: pa.Table

    def places(self) -> Places:
        """Return where each file stands."""
        sizes = [shard.files for shard in self.head.shards]
        numbers = np.repeat(np.array([shard.number for shard in self.head.shards], np.int64), sizes)
        splits = [pa.repeat(shard.split, shard.files) for shard in self.head.shards]
        begins = np.cumsum([0, *sizes[:-1]]) if sizes else np.empty(0, np.int64)
        return Places(
            keys=one_array(self.rows["key"]),
            splits=pa.concat_arrays(splits) if splits else pa.array([], pa.string()),
            numbers=numbers,
            rows=np.arange(len(numbers), dtype=np.int64) - np.repeat(begins, sizes).astype(np.int64),
        )

    def shards(self) -> Iterator[PlannedShard]:
        """Yield the shards with their files."""
        begin = 0
        for shard in self.head.shards:
            rows = _rows(self.rows.slice(begin, shard.files))
            yield PlannedShard(shard.name, shard.split, tuple(PlannedFile(*row) for row in rows))
            begin += shard.files


def describe_roots(roots: Sequence[str]) -> str:
    """Return for a person where files come from."""
    return ", ".join(filter(None, roots)) or "a table of URLs"


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in table.schema.names), strict=True)


class Origin(NamedTuple):
    """What a plan was made from.

    Attributes:
        inputs: fingerprint of manifest, settings and the like; "" if unknown.
        base: version of the index that stood in the dataset; "" if there was none.
    """

    inputs: str = ""
    base: str = ""


_UNKNOWN = Origin()


def write_plan(path: Path, plan: Plan, origin: Origin = _UNKNOWN) -> bool:
    """Write a plan to `path`; return whether the file changed.

    Args:
        path: a local file.
        plan: what to write.
        origin: what it was made from.

    Raises:
        StoreError: the plan cannot be written.
    """
    notes = {f"ingest.{name}": value for name, value in origin._asdict().items()}
    schema = PLAN_SCHEMA.with_metadata({"ingest.plan": _head_to_json(plan.head), **notes})
    with (
        replace_if_changed(path) as (temporary, outcome),
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        begin = 0
        for shard in plan.head.shards:
            writer.write_table(plan.rows.slice(begin, shard.files), row_group_size=shard.files)
            begin += shard.files
    return outcome.changed


def _head_to_json(head: PlanHead) -> str:
    return json.dumps({**dataclasses.asdict(head), "recipe": head.recipe.to_dict()}, sort_keys=True)


def read_plan_head(path: Path) -> PlanHead:
    """Read what a plan says of itself, without its rows.

    Raises:
        StoreError: the plan is missing or cannot be read.
    """
    try:
        return _head_from_json(pq.read_schema(path).metadata[b"ingest.plan"])
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise StoreError(f"{path}: no plan that can be read ({error}): run `ingest plan` again") from error


def read_origin(path: Path) -> Origin:
    """Return what a plan was made from; all of it empty where there is no plan, or none that says so."""
    try:
        notes = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return _UNKNOWN
    return Origin(*(notes.get(f"ingest.{name}".encode(), b"").decode() for name in Origin._fields))


def _head_from_json(data: bytes) -> PlanHead:
    values = json.loads(data)
    return PlanHead(
        roots=tuple(values["roots"]),
        dataset=values["dataset"],
        recipe=Recipe.from_dict(values["recipe"]),
        classes=tuple(values["classes"]),
        shards=tuple(ShardHead(*shard) for shard in values["shards"]),
        dealing=tuple(values["dealing"]),
        extras=tuple(values["extras"]),
    )


def read_plan(path: Path) -> Plan:
    """Read a whole plan.

    Raises:
        StoreError: the plan is missing or cannot be read.
    """
    head = read_plan_head(path)
    try:
        return Plan(head, pq.read_table(path).select(PLAN_SCHEMA.names).replace_schema_metadata(None))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise StoreError(f"{path}: no plan that can be read ({error}): run `ingest plan` again") from error


def read_planned_shards(path: Path, head: PlanHead, names: set[str]) -> Iterator[PlannedShard]:
    """Yield the shards of a plan that are named in `names`, reading one row group at a time."""
    with pq.ParquetFile(path) as file:
        for number, shard in enumerate(head.shards):
            if shard.name in names:
                rows = _rows(file.read_row_group(number))
                yield PlannedShard(shard.name, shard.split, tuple(PlannedFile(*row) for row in rows))
