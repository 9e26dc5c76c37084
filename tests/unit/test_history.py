"""history: what counts as the plan before, where several work folders, losses and damage are about."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from ingest.build.drive import missing_shards
from ingest.build.history import update_plan
from ingest.build.plan import PlanSettings
from ingest.build.scan import scan
from ingest.build.seal import seal
from ingest.errors import BuildError
from ingest.index import INDEX_NAME, read_index
from ingest.recipe import Recipe
from tests.builds import add_photo, build_shards, photo


def _build(folder: Path, work: str = "w1", **changes: Any) -> tuple[tuple[str, ...], int]:
    """Build `out` of `raw` with a work folder of its own; return its classes and how many samples it has."""
    (folder / work).mkdir(exist_ok=True)
    manifest, plan = folder / work / "m.parquet", folder / work / "p.parquet"
    settings = PlanSettings(
        dataset=str(folder / "out"), recipe=Recipe(size=64), samples_per_shard=3, **changes
    )
    scan(str(folder / "raw"), manifest)
    head = update_plan(manifest, plan, settings).head
    build_shards(folder / work, head)
    seal(head, missing_shards(head, as_sealed=False))
    index = read_index(str(folder / "out"))
    return index.classes, index.num_samples("train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with 6 photos of the classes m and z, built."""
    for number in range(6):
        add_photo(tmp_path / "raw", f"{'mz'[number % 2]}/{number}.jpg", photo(number))
    assert _build(tmp_path) == (("m", "z"), 6)
    return tmp_path


def test_build_from_elsewhere_is_not_undone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A work folder that knows less than was published since takes that as its history."""
    add_photo(folder / "raw", "x/1.jpg", photo(10))
    assert _build(folder, "w2") == (("m", "z", "x"), 7)
    assert _build(folder, "w1") == (("m", "z", "x"), 7)
    add_photo(folder / "raw", "b/1.jpg", photo(11))
    assert _build(folder, "w2") == (("m", "z", "x", "b"), 8)
    add_photo(folder / "raw", "a/1.jpg", photo(12))

    with caplog.at_level(logging.WARNING):
        assert _build(folder, "w1") == (("m", "z", "x", "b", "a"), 9)
    assert "was built from elsewhere since" in caplog.text


def test_archived_samples_of_another_work_folder_stay(folder: Path) -> None:
    """With `missing: keep`, what another work folder added and archived is still there."""
    add_photo(folder / "raw", "m/9.jpg", photo(9))
    assert _build(folder, "w2", missing="keep")[1] == 7
    (folder / "raw/m/9.jpg").unlink()
    assert _build(folder, "w2", missing="keep")[1] == 7

    assert _build(folder, "w1", missing="keep")[1] == 7


def test_interrupted_build_goes_on_with_its_own_plan(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A plan whose shards are not sealed yet was made from the index that stands: it counts."""
    add_photo(folder / "raw", "x/1.jpg", photo(10))
    scan(str(folder / "raw"), folder / "w1/m.parquet")
    settings = PlanSettings(dataset=str(folder / "out"), recipe=Recipe(size=64), samples_per_shard=3)
    assert update_plan(folder / "w1/m.parquet", folder / "w1/p.parquet", settings).changed

    with caplog.at_level(logging.WARNING):
        assert not update_plan(folder / "w1/m.parquet", folder / "w1/p.parquet", settings).changed
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("damage", ["broken", "gone"])
def test_lost_index_and_work_folder(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """The last index that was kept is the history: class ids and archived samples stay."""
    add_photo(folder / "raw", "b/1.jpg", photo(10))
    assert _build(folder, missing="keep") == (("m", "z", "b"), 7)
    (folder / "raw/z/1.jpg").unlink()
    shutil.rmtree(folder / "w1")
    index = folder / "out" / INDEX_NAME
    if damage == "gone":
        index.unlink()
    else:
        index.write_bytes(index.read_bytes().replace(b'"m"', b'"n"'))

    with caplog.at_level(logging.WARNING):
        assert _build(folder, missing="keep") == (("m", "z", "b"), 7)
    assert "the last one kept" in caplog.text


def test_broken_receipt_costs_no_class_id(folder: Path) -> None:
    """Without a plan, files of a broken receipt count as new; where photos are archived, that is refused."""
    add_photo(folder / "raw", "b/1.jpg", photo(10))
    assert _build(folder)[0] == ("m", "z", "b")
    shutil.rmtree(folder / "w1")
    first = min((folder / "out/train").glob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-5])

    with pytest.raises(BuildError, match="archived photos would be lost"):
        _build(folder, missing="keep")
    assert _build(folder) == (("m", "z", "b"), 7)
