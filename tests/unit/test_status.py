"""status: how far a build is, told from its plan, a listing and the ends of receipts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingest import store
from ingest.__main__ import main
from ingest.build.config import check_settings
from ingest.build.drive import missing_shards
from ingest.build.seal import seal
from ingest.errors import StoreError
from ingest.index import read_index
from ingest.lock import hold, holder
from ingest.receipts import read_counts
from ingest.status import describe_status
from tests.builds import add_photo, add_photos, build_shards, plan_build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a plan of 9 files in 3 shards, all built, and not sealed; one is a reject."""
    folder = tmp_path_factory.mktemp("built")
    add_photo(add_photos(folder / "raw"), "a/empty.jpg", b"")
    build_shards(folder, plan_build(folder))
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, its plan where a build has it."""
    copy = shutil.copytree(built, tmp_path / "copy")
    work = copy / "work"
    work.mkdir()
    head = plan_build(copy)
    shutil.copy(copy / "p.parquet", work / "plan.parquet")
    assert missing_shards(head) == []
    return copy


def _status(folder: Path) -> list[str]:
    return list(describe_status(str(folder / "out"), folder / "work"))


def test_build_under_way_is_told(folder: Path) -> None:
    """Shards that are whole, their files, samples and rejects are counted; nothing is sealed yet."""
    shards = plan_build(folder).shards
    first = shards[0]
    (folder / f"out/{first.name}.parquet").unlink()

    said = _status(folder)

    left = [read_counts(str(folder / "out"), s.name, _size(folder, s.name)) for s in shards[1:]]
    samples, rejects = sum(each.samples for each in left), sum(each.rejects for each in left)
    assert samples + rejects == 6
    assert said[0] == f"{folder}/out: 2 of 3 shards built"
    assert said[1].startswith(f"  files    6 of 9: {samples} samples, {rejects} reject")
    assert said[2:] == ["  build    nobody is building", "  dataset  not sealed yet"]


def _size(folder: Path, name: str) -> int:
    return (folder / f"out/{name}.parquet").stat().st_size


def test_sealed_dataset_is_told(folder: Path) -> None:
    """Version, samples and shards of the index that stands are told beside the build."""
    seal(plan_build(folder), [])

    said = _status(folder)

    assert said[:2] == [f"{folder}/out: 3 of 3 shards built", "  files    9 of 9: 8 samples, 1 reject"]
    assert said[-1] == f"  dataset  index {read_index(str(folder / 'out')).version}: 8 samples in 3 shards"


def test_damaged_and_broken_shards_are_not_built(folder: Path) -> None:
    """A marked shard is named; one whose tar is gone or whose receipt is broken does not count."""
    marked, cut, broken = (shard.name for shard in plan_build(folder).shards)
    (folder / f"out/{marked}.damaged").touch()
    (folder / f"out/{cut}.tar").unlink()
    (folder / f"out/{broken}.parquet").write_bytes(b"hello")

    said = _status(folder)

    assert said[0] == f"{folder}/out: 0 of 3 shards built"
    assert said[2] == f"  damaged  {marked}: built again by the next run"


def test_who_builds_and_how_fast_is_told(folder: Path) -> None:
    """While a process holds the dataset it is named, with the last line of progress in its log."""
    log = folder / "work/logs/shrink.log"
    log.parent.mkdir()
    log.write_text(
        "2026 INFO x: train/000000-0a: 3 samples, 0 rejects; 3 of 9 images, 1 of 3 shards, 1.5 images/s\n"
        "2026 INFO x: train/000001-0b: 3 samples, 0 rejects; 6 of 9 images, 2 of 3 shards, 1.7 images/s\n"
        "2026 INFO x: something else\n"
    )
    assert "  build    nobody is building" in _status(folder)

    with hold(folder / "out/.ingest.lock", wait=iter(())):
        (said,) = [line for line in _status(folder) if line.startswith("  build")]

    assert said.startswith("  build    process ")
    assert said.endswith(" is building: 6 of 9 images, 2 of 3 shards, 1.7 images/s")


def test_nothing_is_written(folder: Path) -> None:
    """Asking changes no file and makes none."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    _status(folder)

    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_place_without_a_plan_is_named(tmp_path: Path) -> None:
    """Where no plan is, the error says which file was looked for."""
    with pytest.raises(StoreError, match=r"work/plan\.parquet: no plan that can be read"):
        list(describe_status(str(tmp_path), tmp_path / "work"))


def test_command_finds_the_work_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dataset alone, or the file of settings, is enough to find the plan; neither or both are refused."""
    monkeypatch.chdir(folder)
    values = {"raw": "raw", "dataset": "out"}
    work = check_settings(values).work_folder
    work.mkdir(parents=True)
    shutil.copy("work/plan.parquet", work / "plan.parquet")
    Path("mine.yaml").write_text("raw: raw\ndataset: out\n")

    assert main(["status", "out"]) == 0
    assert main(["status", "--settings", "mine.yaml"]) == 0
    first, second = (part for part in capsys.readouterr().out.split(f"{folder}/out: ") if part)
    assert first == second
    assert first.startswith("3 of 3 shards built\n")
    shutil.copytree(work, check_settings({**values, "dataset": "other"}).work_folder)
    Path("two.yaml").write_text("raw: raw\ndatasets: [{dataset: out}, {dataset: other}]\n")
    assert main(["status", "--settings", "two.yaml"]) == 0
    assert capsys.readouterr().out.count(" of 3 shards built\n") == 2
    assert main(["status"]) == 1
    assert main(["status", "out", "--settings", "mine.yaml"]) == 1


def test_counts_are_read_from_the_end_of_a_receipt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the last bytes of a receipt are read: there may be thousands of large ones."""
    name = plan_build(folder).shards[0].name
    asked = []
    read_range = store.read_range

    def record(url: str, offset: int, size: int) -> bytes:
        asked.append((offset, size))
        return read_range(url, offset, size)

    monkeypatch.setattr(store, "read_range", record)
    size = _size(folder, name)
    footer = int.from_bytes((folder / f"out/{name}.parquet").read_bytes()[-8:-4], "little") + 8
    monkeypatch.setattr("ingest.receipts._FOOTER_BYTES", footer)

    counts = read_counts(str(folder / "out"), name, size)

    assert sum(counts) == 3
    assert asked == [(size - footer, footer)]
    assert footer < size


def test_holder_is_named_only_while_it_holds(tmp_path: Path) -> None:
    """The lock names its holder to others, and nobody before it was taken and after it was let go."""
    lock = tmp_path / "lock"
    assert holder(lock) is None

    with hold(lock, wait=iter(())):
        assert (holder(lock) or "").startswith("process ")

    assert holder(lock) is None
    with hold(lock, wait=iter(())):  # those who asked do not hold it
        assert lock.read_text().startswith("process ")
