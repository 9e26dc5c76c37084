"""gc: what no kept index names goes after its grace time, and nothing else does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ingest import store
from ingest.__main__ import main
from ingest.build.collect import Collected, choose_kept, collect, parse_grace
from ingest.build.drive import missing_shards
from ingest.errors import ConfigError, CorruptShardError, NotSealedError, StoreError
from ingest.index import read_index
from ingest.lock import hold
from ingest.shard import members_of, read_receipt
from ingest.verify import verify
from tests.builds import add_photo, add_photos, build, build_shards, photo, plan_build

_DAY = 86400.0


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose dataset was sealed at time 1000, and again at 2000 with a changed photo."""
    folder = tmp_path_factory.mktemp("rebuilt")
    raw = add_photos(folder / "raw")
    build(folder)
    _date(folder / "out", 1000.0)
    add_photo(raw, "a/0.jpg", photo(100))
    build(folder)
    _date(folder / "out", 2000.0, later_than=1000.0)
    return folder


@pytest.fixture
def folder(rebuilt: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, times included."""
    return shutil.copytree(rebuilt, tmp_path / "copy")


def _date(dataset: Path, time: float, later_than: float = 0.0) -> None:
    """Give all files but those that are dated already a time at which they were written."""
    for path in dataset.rglob("*"):
        if path.is_file() and path.stat().st_mtime != later_than:
            os.utime(path, (time, time))


def _shards(dataset: Path, version: str | None = None) -> set[str]:
    index = read_index(str(dataset), version)
    return {shard.name for shards in index.splits.values() for shard in shards}


def _older(dataset: Path) -> str:
    """Return the version of the index that does not stand any more."""
    current = read_index(str(dataset)).version
    (name,) = [p.name for p in (dataset / "history").iterdir() if current not in p.name]
    return name.removeprefix("dataset-").removesuffix(".json")


def _collect(folder: Path, *, grace: float, now: float, dry: bool = False) -> Collected:
    return collect(str(folder / "out"), folder / "work", grace=grace, now=now, dry=dry)


def _read(dataset: Path, version: str | None) -> int:
    """Read every sample of an index as a training job does that opened it; return how many."""
    index = read_index(str(dataset), version)
    pictures = []
    for shard in (shard for shards in index.splits.values() for shard in shards):
        data = (dataset / f"{shard.name}.tar").read_bytes()
        assert len(data) == shard.bytes
        places = [image for _, (image, *_) in members_of(read_receipt(str(dataset), shard.name)[1])]
        pictures += [data[place.offset : place.offset + place.size] for place in places]
    assert all(picture.startswith(b"\xff\xd8") for picture in pictures)
    return len(pictures)


def test_older_index_is_read_within_its_grace_time(folder: Path) -> None:
    """A job that began with the older index still finds all that it names, to the end of the grace time."""
    older = _older(folder / "out")

    found = _collect(folder, grace=7 * _DAY, now=2000 + 7 * _DAY - 1)

    assert (found.files, found.bytes, found.kept) == (0, 0, (older,))
    assert _read(folder / "out", older) == 8
    assert _read(folder / "out", None) == 8


def test_what_the_older_index_alone_names_goes(folder: Path) -> None:
    """After the grace time its file and the shards that it alone names are gone; the dataset is whole."""
    dataset, older = folder / "out", _older(folder / "out")
    retired = _shards(dataset, older) - _shards(dataset)
    sizes = [p.stat().st_size for name in retired for p in dataset.glob(f"{name}.*")]
    sizes.append((dataset / f"history/dataset-{older}.json").stat().st_size)

    found = _collect(folder, grace=7 * _DAY, now=2000 + 7 * _DAY)

    assert len(retired) == 1
    assert (set(found.shards), found.indexes, found.kept) == (retired, (older,), ())
    assert (found.files, found.bytes) == (len(sizes), sum(sizes)) == (4, sum(sizes))
    assert [p for name in retired for p in dataset.glob(f"{name}.*")] == []
    assert _read(dataset, None) == 8
    assert verify(str(dataset), cores=1, on_done=lambda *_: None).faults == ()
    with pytest.raises(NotSealedError, match=f"no index of version {older}"):
        read_index(str(dataset), older)
    assert _collect(folder, grace=0, now=9e9).files == 0


def test_dry_run_removes_nothing(folder: Path) -> None:
    """With `dry` the same is found, and every file stays."""
    before = store.list_files(str(folder / "out"))

    found = _collect(folder, grace=0, now=3000, dry=True)

    assert found.files == 4
    assert store.list_files(str(folder / "out")) == before


def test_shards_of_a_build_under_way_stay(folder: Path) -> None:
    """Shards that are newer than the index are of a build under way; marks go with their shard."""
    add_photo(folder / "raw", "b/1.jpg", photo(101))
    head = plan_build(folder)
    (built,) = build_shards(folder, head)
    (stale,) = _shards(folder / "out", _older(folder / "out")) - _shards(folder / "out")
    for ending in (".damaged", ".retry"):
        path = folder / f"out/{stale}{ending}"
        path.touch()
        os.utime(path, (1000, 1000))

    found = _collect(folder, grace=0, now=3000)

    assert set(found.shards) == {stale}
    assert found.shards[stale][0] == 5
    assert missing_shards(head) == []
    assert (folder / f"out/{built}.tar").exists()


def test_unfinished_files_go(folder: Path) -> None:
    """What killed writers left goes, from every folder; other files that ingest did not write stay."""
    dataset = folder / "out"
    (split,) = {name.partition("/")[0] for name in _shards(dataset)}
    leftovers = [".tmp-0123abcd-dataset.json", f"{split}/.tmp-0123abcd-000009-00000000.tar"]
    others = ["README.md", f"{split}/notes.txt", f"{split}/.tmp-notes"]
    for name in (*leftovers, *others):
        (dataset / name).write_bytes(b"12345")

    found = _collect(folder, grace=9e9, now=3000)

    assert (sorted(found.leftovers), found.bytes) == (sorted(leftovers), 10)
    assert [name for name in leftovers if (dataset / name).exists()] == []
    assert [name for name in others if not (dataset / name).exists()] == []


def test_shard_of_rejects_alone_stays_while_it_is_used(tmp_path: Path) -> None:
    """No index names a shard without a sample; it stays, and goes once its files are not planned any more."""
    raw = add_photos(tmp_path / "raw", 3)
    head = plan_build(tmp_path)
    build(tmp_path)
    for number in range(3):
        add_photo(raw, f"a/bad {number}.jpg", b"")
    build(tmp_path)
    head = plan_build(tmp_path)
    alone = [s.name for s in head.shards if not (tmp_path / f"out/{s.name}.tar").exists()]

    _collect(tmp_path, grace=0, now=9e9)

    assert len(alone) == 1
    assert missing_shards(head) == []
    for path in (tmp_path / "raw/a").glob("bad*"):
        path.unlink()
    build(tmp_path)
    assert alone[0] in _collect(tmp_path, grace=0, now=9e9).shards
    assert missing_shards(plan_build(tmp_path)) == []


def test_place_without_an_index_is_refused(tmp_path: Path) -> None:
    """A folder that is no dataset is refused, and nothing is left there, not even a lock."""
    (tmp_path / "out/train").mkdir(parents=True)
    (tmp_path / "out/train/000000-00000000.tar").write_bytes(b"1")

    with pytest.raises(NotSealedError):
        _collect(tmp_path, grace=0, now=9e9)

    assert list(store.list_files(str(tmp_path / "out"))) == ["train/000000-00000000.tar"]


def test_dataset_that_is_being_built_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a build holds the dataset nothing is removed."""
    monkeypatch.setattr("ingest.build.drive.time.sleep", lambda _: None)

    with hold(folder / "out/.ingest.lock", wait=iter(())):
        with pytest.raises(StoreError, match="is being built by process"):
            _collect(folder, grace=0, now=9e9)

    assert _read(folder / "out", _older(folder / "out")) == 8


def test_kept_index_that_is_broken_stops_it(folder: Path) -> None:
    """Where the shards of a kept index are not known, nothing is removed, and the file is named."""
    path = folder / f"out/history/dataset-{_older(folder / 'out')}.json"
    path.write_text("{")
    os.utime(path, (1000, 1000))

    with pytest.raises(CorruptShardError, match=f"{path}: cannot be read, .*: remove it"):
        _collect(folder, grace=7 * _DAY, now=3000)


@pytest.mark.parametrize(
    ("times", "before", "kept"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, 0.0, {"a", "b"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, 2.0, {"b"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, 3.0, set()),
        ({"a": 1.0}, 2.9, {"a"}),  # the index that stands was written at 3, and has no copy
        ({"a": None, "c": 3.0}, 9.0, {"a"}),
        ({"c": 3.0}, 9.0, set()),
    ],
)
def test_an_index_goes_some_time_after_the_next_one_came(
    times: dict[str, float | None], before: float, kept: set[str]
) -> None:
    """Not its age counts but how long another has stood in its place; what is not dated is kept."""
    assert choose_kept(times, "c", 3.0, before=before) == kept


def test_index_that_came_back_supersedes(tmp_path: Path) -> None:
    """Where an older index stands again, the one between goes, and nothing of the one that stands."""
    raw = add_photos(tmp_path / "raw", 3)
    path = raw / "a/0.jpg"
    build(tmp_path)
    first, stamp = read_index(str(tmp_path / "out")).version, path.stat().st_mtime_ns
    path.write_bytes(photo(100))
    build(tmp_path)
    second = read_index(str(tmp_path / "out")).version
    path.write_bytes(photo(0))
    os.utime(path, ns=(stamp, stamp))
    build(tmp_path)

    found = _collect(tmp_path, grace=0, now=9e9)

    assert read_index(str(tmp_path / "out")).version == first
    assert found.indexes == (second,)
    assert _read(tmp_path / "out", first) == 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7d", 604800), ("12h", 43200), ("1.5h", 5400), ("90s", 90), ("30m", 1800), ("0", 0)],
)
def test_grace_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """Days, hours, minutes, seconds and nothing are read."""
    assert parse_grace(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "week", "-1d", "7 d"])
def test_other_grace_is_refused(text: str) -> None:
    """A number without a unit is not guessed at."""
    with pytest.raises(ConfigError, match="expected a time such as 7d, 12h, 30m or 0"):
        parse_grace(text)


def test_command_prints_what_went(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ingest gc` prints each shard and index, and the sum; with --dry-run what would go."""
    dataset, older = folder / "out", _older(folder / "out")
    (retired,) = _shards(dataset, older) - _shards(dataset)
    arguments = ["gc", str(dataset), "--grace", "0", "--work", str(folder / "work")]

    assert main([*arguments, "--dry-run"]) == 0
    shard, index, total = capsys.readouterr().out.splitlines()

    assert (shard.startswith(f"{retired}: 3 files, "), index) == (True, f"index {older}")
    assert total.startswith("gc: would remove 4 files, ")
    assert total.endswith("; what the index that stands alone names is kept")
    assert main(arguments) == 0
    assert "gc: removed 4 files, " in capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("gc: removed 0 files, 0 bytes; ")


def test_dataset_in_a_bucket_is_cleared(folder: Path) -> None:
    """Without folders and links the same goes and the same stays."""
    bucket = f"memory://{folder.parent.name}"
    older, current = _older(folder / "out"), read_index(str(folder / "out")).version
    listed = [name for name in store.list_files(str(folder / "out")) if not name.startswith(".")]
    for name in sorted(listed, key=lambda name: (folder / "out" / name).stat().st_mtime):
        store.write_bytes(f"{bucket}/{name}", (folder / "out" / name).read_bytes())
    (folder / "work").mkdir()

    found = collect(bucket, folder / "work", grace=0, now=9e9)

    assert (found.indexes, found.files) == ((older,), 4)
    assert set(store.list_files(bucket)) == set(listed) - {
        f"history/dataset-{older}.json",
        *(f"{name}{ending}" for name in found.shards for ending in (".tar", ".idx", ".parquet")),
    }
    assert read_index(bucket, current) == read_index(bucket)
