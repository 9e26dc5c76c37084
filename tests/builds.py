"""Small builds for tests: every room's own function, without Snakemake and without the cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingest.build.drive import missing_shards
from ingest.build.history import update_plan
from ingest.build.image import encode_jpeg, engine_versions
from ingest.build.plan import PlanSettings
from ingest.build.planned import PlanHead, read_planned_shards
from ingest.build.scan import scan
from ingest.build.seal import SealSummary, seal
from ingest.build.shrink import ShardTask, build_shard
from ingest.recipe import Recipe


def photo(number: int) -> bytes:
    """Return a JPEG of 128 x 96 pixels that differs from every other number's."""
    grain = np.random.default_rng(number).integers(0, 256, (12, 16, 3), np.uint8)
    return encode_jpeg(np.ascontiguousarray(np.kron(grain, np.ones((8, 8, 1), np.uint8))), 90)


def add_photo(raw: Path, name: str, data: bytes) -> Path:
    """Write one raw file."""
    path = raw / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def add_photos(raw: Path, samples: int = 8) -> Path:
    """Write photos of two classes to `raw` and return it: a/0.jpg, b/1.jpg, a/2.jpg, ..."""
    for number in range(samples):
        add_photo(raw, f"{'ab'[number % 2]}/{number}.jpg", photo(number))
    return raw


def plan_build(folder: Path, recipe: Recipe | None = None) -> PlanHead:
    """Scan `folder`/raw and plan its dataset, `folder`/out, in shards of 3."""
    settings = PlanSettings(
        dataset=str(folder / "out"), recipe=recipe or Recipe(size=64), samples_per_shard=3
    )
    scan(str(folder / "raw"), folder / "m.parquet")
    return update_plan(folder / "m.parquet", folder / "p.parquet", settings, allow_delete=True).head


def build_shards(folder: Path, head: PlanHead) -> list[str]:
    """Build the shards that are not whole; return their names."""
    missing = missing_shards(head)
    for shard in read_planned_shards(folder / "p.parquet", head, set(missing)):
        task = ShardTask(
            roots=head.roots, dataset=head.dataset, recipe=head.recipe, shard=shard,
            labelled=bool(head.classes), engines=engine_versions(), extras=head.extras,
        )  # fmt: skip
        build_shard(task, lambda _: None)
    return missing


def build(folder: Path, recipe: Recipe | None = None) -> SealSummary:
    """Build and seal `folder`/out from `folder`/raw, as the workflow does."""
    head = plan_build(folder, recipe)
    build_shards(folder, head)
    return seal(head, missing_shards(head, as_sealed=False))
