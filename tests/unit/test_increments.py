"""plan over time: what was dealt keeps its place, so that a small change to the files is a small change."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest import store
from ingest.build.changes import Changes, compare, require_few_vanished
from ingest.build.history import read_history, update_plan
from ingest.build.plan import PlanSettings, make_plan
from ingest.build.planned import Plan, read_plan
from ingest.build.scan import MANIFEST_SCHEMA, scan
from ingest.errors import BuildError
from ingest.forgotten import add_forgotten, read_forgotten
from ingest.recipe import Recipe
from ingest.shard import make_key

Row = tuple[bytes, int, str, str, str | None]


def _manifest(rows: list[Row]) -> pa.Table:
    full = [(make_key(row[0]), *row) for row in rows]
    columns = [{**dict(zip(MANIFEST_SCHEMA.names, row, strict=False)), "root": 0} for row in full]
    return pa.Table.from_pylist(columns, schema=MANIFEST_SCHEMA)


def _rows(begin: int, end: int, classes: int = 3, split: str = "train") -> list[Row]:
    return [
        (b"c%d/%d.jpg" % (i % classes, i), 100 + i, "v1", split, f"c{i % classes}") for i in range(begin, end)
    ]


def _settings(**changes: object) -> PlanSettings:
    values = {"dataset": "/d", "recipe": Recipe(), "samples_per_shard": 4}
    return PlanSettings(**{**values, **changes})  # type: ignore[arg-type]


def _plan(rows: list[Row], before: Plan | None = None, *, reshuffle: bool = False, **changes: object) -> Plan:
    return make_plan(("/raw",), _manifest(rows), _settings(**changes), before, reshuffle=reshuffle)


def _names(plan: Plan) -> set[str]:
    return {shard.name for shard in plan.head.shards}


def _paths(plan: Plan) -> list[bytes]:
    return sorted(plan.rows["path"].to_pylist())


@settings(deadline=None)
@given(first=st.integers(0, 60), more=st.integers(0, 60), size=st.integers(1, 9))
def test_new_files_touch_few_shards(first: int, more: int, size: int) -> None:
    """Adding k files touches at most ceil(k / samples a shard) + 1 shards; the plan stays a partition."""
    before = _plan(_rows(0, first), samples_per_shard=size)
    after = _plan(_rows(0, first + more), before, samples_per_shard=size)

    assert len(_names(after) - _names(before)) <= math.ceil(more / size) + 1
    assert len(_names(before) - _names(after)) <= 1
    assert _paths(after) == sorted(row[0] for row in _rows(0, first + more))
    assert max((shard.files for shard in after.head.shards), default=0) <= size


@settings(deadline=None)
@given(gone=st.sets(st.integers(0, 39), max_size=5), edited=st.sets(st.integers(0, 39), max_size=5))
def test_change_or_deletion_touches_the_shard_that_it_is_in(gone: set[int], edited: set[int]) -> None:
    """Each file that is edited or deleted renames the shard it is in and no other."""
    rows = _rows(0, 40)
    before = _plan(rows)
    hit = {row[0] for number, row in enumerate(rows) if number in gone | edited}
    touched = {shard.name for shard in before.shards() if any(file.path in hit for file in shard.files)}

    changed = [
        (*row[:2], "v2", *row[3:]) if number in edited else row
        for number, row in enumerate(rows)
        if number not in gone
    ]
    after = _plan(changed, before)

    assert _names(before) - _names(after) == touched
    assert len(_names(after) - _names(before)) <= len(touched)
    assert _paths(after) == sorted(row[0] for row in changed)


@given(steps=st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=1, max_size=4))
@settings(deadline=None)
def test_planning_again_changes_nothing(steps: list[set[int]]) -> None:
    """Whatever the history, the same manifest on top of its own plan gives that plan."""
    plan, rows = None, []
    for numbers in steps:
        rows = [row for number, row in enumerate(_rows(0, 31)) if number in numbers]
        plan = _plan(rows, plan)

    assert _plan(rows, plan) == plan


def test_file_that_changes_split_leaves_its_shard() -> None:
    """A file that moves from train to val is dealt to a shard of val, and only the two shards change."""
    rows = [*_rows(0, 12), *_rows(12, 18, split="val")]
    before = _plan(rows)
    moved = (*rows[0][:3], "val", rows[0][4])

    after = _plan([moved, *rows[1:]], before)

    assert {shard.split for shard in after.shards() for file in shard.files if file.path == moved[0]} == {
        "val"
    }
    assert len(_names(after) - _names(before)) == 2


def test_class_ids_stay() -> None:
    """New classes get new ids behind the old ones, and the id of a class without files is not given away."""
    before = _plan([*_rows(0, 6), (b"zebra/1.jpg", 1, "v", "train", "zebra")])
    assert before.head.classes == ("c0", "c1", "c2", "zebra")

    after = _plan([*_rows(0, 6), (b"ant/1.jpg", 1, "v", "train", "ant")], before)

    assert after.head.classes == ("c0", "c1", "c2", "zebra", "ant")
    assert after.rows["class_id"].to_pylist().count(4) == 1
    assert 3 not in after.rows["class_id"].to_pylist()


def test_preview_grows_into_the_whole() -> None:
    """The shards of a preview are those that the whole begins with: nothing of it is built twice."""
    preview = _plan(_rows(0, 40), limit=8)

    whole = _plan(_rows(0, 40), preview)

    assert _names(preview) < _names(whole)
    assert whole == _plan(_rows(0, 40))


def test_reshuffle_mixes_what_was_added() -> None:
    """A class that came later fills shards of its own until all files are dealt anew; ids stay."""
    old = _rows(0, 400)
    new: list[Row] = [(b"late/%d.jpg" % i, 1, "v", "train", "late") for i in range(400)]
    grown = _plan([*old, *new], _plan(old, samples_per_shard=40), samples_per_shard=40)
    assert [_share(shard.files, "late") for shard in grown.shards()] == [0.0] * 10 + [1.0] * 10

    mixed = _plan([*old, *new], grown, samples_per_shard=40, reshuffle=True)

    # 40 draws of one half: below 8 or above 32 with a chance of 1.5e-4 a shard.
    assert all(0.2 <= _share(shard.files, "late") <= 0.8 for shard in mixed.shards())
    assert mixed.head.classes == grown.head.classes
    assert _plan([*old, *new], mixed, samples_per_shard=40) == mixed


def _share(files, label: str) -> float:
    return sum(file.label == label for file in files) / len(files)


@pytest.mark.parametrize("change", [{"seed": 5}, {"samples_per_shard": 5}])
def test_other_order_deals_anew(change: dict[str, int]) -> None:
    """A new seed or shard size holds for all files, not only for those to come."""
    before = _plan(_rows(0, 40))

    assert _plan(_rows(0, 40), before, **change) == _plan(_rows(0, 40), **change)


def test_other_recipe_keeps_the_order() -> None:
    """A new recipe builds every shard anew, with the same files in each."""
    before = _plan(_rows(0, 20))
    after = _plan(_rows(0, 20), before, recipe=Recipe(quality=80))

    assert not _names(before) & _names(after)
    assert after.rows == before.rows


def test_archived_photos_stay_in_the_plan() -> None:
    """With `missing: keep`, files that are not listed any more change no shard, and new ones are added."""
    before = _plan(_rows(0, 20))

    after = _plan(_rows(16, 24), before, missing="keep")

    assert _names(before) < _names(after)
    assert _paths(after) == sorted(row[0] for row in _rows(0, 24))
    assert _paths(_plan(_rows(16, 24), before)) == sorted(row[0] for row in _rows(16, 24))


def test_forgotten_file_stays_away() -> None:
    """A forgotten key leaves its shard though the file is still listed, or kept as missing."""
    rows = _rows(0, 20)
    before = _plan(rows)
    key = make_key(rows[3][0])

    for listed in (rows, rows[10:]):
        after = make_plan(
            ("/raw",), _manifest(listed), _settings(missing="keep"), before, forgotten=frozenset({key})
        )
        assert _paths(after) == sorted(row[0] for row in rows if row != rows[3])
        assert len(_names(after) - _names(before)) == 1


def _changes(before: list[Row], after: list[Row], **changes: object) -> Changes:
    old = _plan(before)
    return compare(old, _plan(after, old, **changes), _manifest(after))


def test_changes_are_counted() -> None:
    """New, edited, moved and vanished files are told apart, and what they cost is foretold."""
    rows = _rows(0, 40)
    edited: Row = (rows[0][0], 7, "v2", "train", "c0")
    moved: Row = (b"c9/1.jpg", rows[1][1], "v7", "train", "c9")

    found = _changes(rows, [edited, moved, *rows[3:], (b"c0/new.jpg", 1, "v", "train", "c0")])

    assert (found.files_before, found.added, found.edited, found.moved, found.vanished) == (40, 2, 1, 1, 1)
    assert found.shards_kept + found.shards_built in {10, 11}
    assert found.decoded == 3
    assert found.copied == 40 - 4 * found.shards_kept - 3
    assert "1 vanished" in found.sentences()[0]
    assert "3 files read" in found.sentences()[1]


def test_other_recipe_copies_nothing() -> None:
    """With another recipe every file is read, and no sample copied."""
    found = _changes(_rows(0, 20), _rows(0, 20), recipe=Recipe(quality=50))

    assert (found.shards_kept, found.copied, found.decoded) == (0, 0, 20)


def test_files_beyond_a_preview_have_not_vanished() -> None:
    """A smaller preview leaves files out; they are still listed."""
    found = _changes(_rows(0, 40), _rows(0, 40), limit=8)

    assert (found.vanished, found.left_out) == (0, 32)


@pytest.mark.parametrize(("gone", "stops"), [(0, False), (2, False), (3, True), (200, True)])
def test_many_vanished_files_stop_the_plan(gone: int, *, stops: bool) -> None:
    """More than 1 % is a mishap until a person says otherwise: the message says how."""
    rows = _rows(0, 200)
    found = _changes(rows, rows[gone:])

    if not stops:
        require_few_vanished(found, "/raw")
        return
    with pytest.raises(BuildError, match=f"/raw: {gone} of 200 files have vanished.*'allow_delete'"):
        require_few_vanished(found, "/raw")


def test_moved_class_folder_is_no_mishap() -> None:
    """A renamed folder is new files and vanished ones of the same name and size: nothing is lost."""
    rows = _rows(0, 200)
    renamed = [(b"renamed/" + row[0].split(b"/")[1], *row[1:]) if row[4] == "c1" else row for row in rows]

    found = _changes(rows, renamed)  # type: ignore[arg-type]

    assert (found.vanished, found.moved) == (0, 67)
    require_few_vanished(found, "/raw")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a folder with 24 files of two classes."""
    for number in range(24):
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (number + 1))
    return tmp_path / "raw"


def _update(folder: Path, **options: object):
    scan(str(folder / "raw"), folder / "m.parquet")
    wanted = _settings(dataset=str(folder / "out"))
    return update_plan(folder / "m.parquet", folder / "p.parquet", wanted, **options)  # type: ignore[arg-type]


def test_plan_is_updated_in_place(tmp_path: Path, raw: Path) -> None:
    """Nothing changed: nothing is done. A new file: one shard. A lost disk: the plan stays."""
    first = _update(tmp_path)
    assert (first.changed, first.changes) == (True, None)
    assert (_update(tmp_path).changed, _update(tmp_path).changes) == (False, None)

    (raw / "a/new.jpg").write_bytes(b"new")
    grown = _update(tmp_path)
    assert (grown.changed, grown.changes.added, grown.changes.shards_built) == (True, 1, 1)

    kept = read_plan(tmp_path / "p.parquet")
    for path in (raw / "b").iterdir():
        path.unlink()
    with pytest.raises(BuildError, match="12 of 25 files have vanished"):
        _update(tmp_path)
    assert read_plan(tmp_path / "p.parquet") == kept
    assert _update(tmp_path, allow_delete=True).head.num_files == 13


def test_dry_plan_writes_nothing(tmp_path: Path, raw: Path) -> None:
    """`--diff` foretells and leaves the plan as it was."""
    _update(tmp_path)
    kept = (tmp_path / "p.parquet").read_bytes()
    (raw / "a/new.jpg").write_bytes(b"new")

    told = _update(tmp_path, dry=True)

    assert (told.changed, told.changes.added) == (False, 1)
    assert (tmp_path / "p.parquet").read_bytes() == kept


def test_forgetting_makes_a_new_plan(tmp_path: Path, raw: Path) -> None:
    """A key on the list of the dataset leaves the plan at the next run, though nothing else changed."""
    assert raw.is_dir()
    before = _update(tmp_path)
    key = make_key(b"a/0.jpg")
    assert read_forgotten(str(tmp_path / "out")) == frozenset()

    assert add_forgotten(str(tmp_path / "out"), [key, key]) == 1
    assert add_forgotten(str(tmp_path / "out"), [key]) == 0
    after = _update(tmp_path)

    assert after.head.num_files == before.head.num_files - 1
    assert key not in read_plan(tmp_path / "p.parquet").rows["key"].to_pylist()


def test_damaged_plan_of_an_unsealed_dataset_is_made_anew(
    tmp_path: Path, raw: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan that cannot be read is said, and planned again without a history."""
    assert raw.is_dir()
    before = _update(tmp_path).head
    (tmp_path / "p.parquet").write_bytes(b"PAR1 cut off")

    with caplog.at_level(logging.WARNING):
        assert read_history(tmp_path / "p.parquet", None, _settings(dataset=str(tmp_path / "out"))) is None
        assert _update(tmp_path).head == before
    assert "no plan that can be read" in caplog.text
    assert store.exists(str(tmp_path / "p.parquet"))
