"""plan: a partition of the manifest into shards, the same for the same inputs, mixed over the classes."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.build.artifact import DEMO_FOLDER
from ingest.build.deal import FULL_SHARD, choose_shard_size
from ingest.build.plan import PlanSettings, make_plan, warn_of_other_source
from ingest.build.planned import (
    Plan,
    PlannedShard,
    read_plan,
    read_plan_head,
    read_planned_shards,
    write_plan,
)
from ingest.build.scan import MANIFEST_SCHEMA
from ingest.errors import BuildError
from ingest.recipe import Recipe
from ingest.shard import make_key
from ingest.store import normalise


def _manifest(rows: list[tuple[bytes, int, str, str, str | None]]) -> pa.Table:
    names = MANIFEST_SCHEMA.names
    full = [(make_key(row[0]), *row) for row in rows]
    return pa.Table.from_pylist(
        [{**dict(zip(names, row, strict=False)), "root": 0} for row in full], schema=MANIFEST_SCHEMA
    )


def _rows(number: int, classes: int = 3) -> list[tuple[bytes, int, str, str, str | None]]:
    return [
        (b"c%d/%d.jpg" % (i % classes, i), 100 + i, "v1", "train", f"c{i % classes}") for i in range(number)
    ]


def _plan(rows: list[tuple[bytes, int, str, str, str | None]], **changes: object) -> Plan:
    return make_plan(("/raw",), _manifest(rows), _settings(**changes))


def _shards(rows: list[tuple[bytes, int, str, str, str | None]], **changes: object) -> list[PlannedShard]:
    return list(_plan(rows, **changes).shards())


def _settings(**changes: object) -> PlanSettings:
    return PlanSettings(**{"dataset": "/d", "recipe": Recipe(), "samples_per_shard": 4, **changes})  # type: ignore[arg-type]


paths = st.lists(
    st.binary(min_size=1, max_size=30).filter(lambda b: b"\0" not in b), unique=True, max_size=60
)


@settings(deadline=None)
@given(paths=paths, shard_size=st.integers(1, 10), seed=st.integers(0, 2**40))
def test_plan_is_a_partition(paths: list[bytes], shard_size: int, seed: int) -> None:
    """Every file is in exactly one shard, no shard is larger than asked, and only the last is smaller."""
    shards = _shards(
        [(path, 1, "v", "train", None) for path in paths], samples_per_shard=shard_size, seed=seed
    )

    assert sorted(file.path for shard in shards for file in shard.files) == sorted(paths)
    assert all(len(shard.files) == shard_size for shard in shards[:-1])
    keys = [file.key for shard in shards for file in shard.files]
    assert len(set(keys)) == len(keys)
    assert all(key.isalnum() and key.isascii() for key in keys)


@given(order=st.randoms())
def test_order_of_the_listing_does_not_matter(order: random.Random) -> None:
    """The same files listed in another order give the same plan."""
    rows = _rows(20)
    shuffled = rows.copy()
    order.shuffle(shuffled)

    assert _plan(rows) == _plan(shuffled)


def test_files_sorted_by_class_are_mixed() -> None:
    """A listing sorted by class gives shards that each hold about every class."""
    rows = sorted(_rows(3000, classes=10))

    shards = _shards(rows, samples_per_shard=100)

    # 100 draws from 10 classes miss one with a chance of 10 * 0.9^100 = 3e-4 a shard.
    assert min(len({file.label for file in shard.files}) for shard in shards) >= 9


def test_seed_changes_the_order() -> None:
    """Another seed deals the files anew; the same seed gives the same plan."""
    assert _shards(_rows(40), seed=1) == _shards(_rows(40), seed=1)
    assert _shards(_rows(40), seed=1) != _shards(_rows(40), seed=2)


def test_edited_file_renames_one_shard() -> None:
    """A file with a new version gives its shard a new name and leaves the names of all others."""
    rows = _rows(20)
    edited = [(*rows[0][:2], "v2", *rows[0][3:]), *rows[1:]]

    before = {shard.name for shard in _shards(rows)}
    after = {shard.name for shard in _shards(edited)}

    assert len(before - after) == 1
    assert len(after - before) == 1


def test_recipe_renames_every_shard() -> None:
    """A changed recipe gives every shard a new name."""
    before = {shard.name for shard in _shards(_rows(20))}
    after = {shard.name for shard in _shards(_rows(20), recipe=Recipe(quality=80))}

    assert not before & after


def test_labels_rename_every_shard() -> None:
    """The first class folder of a flat dataset gives every shard a new name: their fields change."""
    flat = [(b"%d.jpg" % i, 1, "v", "train", None) for i in range(20)]

    before = {shard.name for shard in _shards(flat)}  # type: ignore[arg-type]
    rows = [*flat, (b"cats/1.jpg", 1, "v", "train", "cats")]
    after = {shard.name for shard in _shards(rows)}  # type: ignore[arg-type]

    assert not before & after


def test_sample_photos_do_not_replace_a_dataset(caplog: pytest.LogCaptureFixture) -> None:
    """Another raw folder for a planned dataset is said; the sample made by code is refused."""
    before = _plan(_rows(4)).head
    warn_of_other_source(None, ("/raw",), "/d")

    warn_of_other_source(before, ("/raw",), "/d")
    assert caplog.records == []
    warn_of_other_source(before, ("/other",), "/d")
    assert "was built from /raw before, and is now from /other" in caplog.text
    with pytest.raises(BuildError, match="'raw' is empty now"):
        warn_of_other_source(before, (normalise(DEMO_FOLDER),), "/d")


def test_sample_photos_do_not_replace_a_dataset_planned_elsewhere(tmp_path: Path) -> None:
    """Without a plan of its own here, a sealed dataset is not replaced by the sample either."""
    (tmp_path / "dataset.json").write_text("{}")

    with pytest.raises(BuildError, match=r"holds a dataset, and the config key 'raw' is empty"):
        warn_of_other_source(None, (normalise(DEMO_FOLDER),), str(tmp_path))


def test_classes_are_numbered_in_sorted_order() -> None:
    """Class ids follow the sorted labels, and a file without a label has none."""
    rows: list[tuple[bytes, int, str, str, str | None]] = [
        (b"b/1", 1, "v", "train", "b"),
        (b"a/1", 1, "v", "train", "a"),
        (b"1", 1, "v", "train", None),
    ]

    plan = _plan(rows)

    assert plan.head.classes == ("a", "b")
    assert {file.path: file.class_id for shard in plan.shards() for file in shard.files} == {
        b"b/1": 1,
        b"a/1": 0,
        b"1": None,
    }


def test_splits_share_no_shard() -> None:
    """Each split has shards of its own, named after it and numbered from 0."""
    rows = [(b"%d" % i, 1, "v", "train" if i % 2 else "val", "c") for i in range(10)]

    shards = _shards(rows)  # type: ignore[arg-type]

    numbered = [shard.name.split("-")[0] for shard in shards]
    assert numbered == ["train/000000", "train/000001", "val/000000", "val/000001"]
    assert all(file.path[-1] % 2 == (shard.split == "train") for shard in shards for file in shard.files)


def test_limit_takes_an_even_part() -> None:
    """A preview of n files holds n files, drawn from all classes."""
    shards = _shards(sorted(_rows(1000, classes=4)), limit=80)

    files = [file for shard in shards for file in shard.files]
    assert len(files) == 80
    assert len({file.label for file in files}) == 4


@pytest.mark.parametrize(
    ("num_files", "configured", "expected"),
    [
        (24, "auto", 16),
        (1000, "auto", 16),
        (10_000, "auto", 40),
        (5_000_000, "auto", FULL_SHARD),
        (24, 100, 100),
    ],
)
def test_shard_size(num_files: int, configured: int | str, expected: int) -> None:
    """`auto` makes some 256 tasks of a small dataset and full shards of a large one."""
    assert choose_shard_size(num_files, configured) == expected  # type: ignore[arg-type]


def test_plan_file_gives_back_the_plan(tmp_path: Path) -> None:
    """What is written can be read: as a whole, its head, and any shard alone."""
    plan = _plan(_rows(20))
    shards = list(plan.shards())

    assert write_plan(tmp_path / "p.parquet", plan)

    assert read_plan(tmp_path / "p.parquet") == plan
    head = read_plan_head(tmp_path / "p.parquet")
    assert (head.roots, head.dataset, head.recipe, head.num_files) == (("/raw",), "/d", Recipe(), 20)
    wanted = {shards[1].name, shards[3].name}
    assert list(read_planned_shards(tmp_path / "p.parquet", head, wanted)) == [shards[1], shards[3]]


def test_unchanged_plan_is_left_alone(tmp_path: Path) -> None:
    """Planning the same again does not touch the file."""
    write_plan(tmp_path / "p.parquet", _plan(_rows(20)))
    before = (tmp_path / "p.parquet").stat().st_mtime_ns

    assert not write_plan(tmp_path / "p.parquet", _plan(_rows(20)))
    assert (tmp_path / "p.parquet").stat().st_mtime_ns == before
