"""forget: names become keys on the list; what is unknown is refused, and copies are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingest.__main__ import main
from ingest.errors import ConfigError
from ingest.forget import forget
from ingest.forgotten import add_forgotten, read_forgotten
from ingest.index import read_index
from ingest.shard import make_key
from tests.builds import add_photo, add_photos, build, photo


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a dataset of 6 photos, an odd name, a copy of a photo, and a reject."""
    folder = tmp_path_factory.mktemp("built")
    raw = add_photos(folder / "raw", 6)
    add_photo(raw, "b/copy of 0.jpg", photo(0))
    (folder / "raw/a").joinpath(b"\xff\n.jpg".decode(errors="surrogateescape")).write_bytes(photo(7))
    add_photo(raw, "a/empty.jpg", b"")
    build(folder)
    return folder


@pytest.fixture
def folder(built: Path) -> Path:
    """Return that folder; the list is emptied afterwards."""
    yield built
    (built / "out/forgotten.json").unlink(missing_ok=True)


def _forget(folder: Path, *names: str, duplicates: bool = False) -> set[str]:
    """Return the keys on the list after files were forgotten."""
    forget(str(folder / "out"), names, duplicates=duplicates)
    return set(read_forgotten(str(folder / "out")))


def test_file_is_found_by_source_path_or_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its URL, its path below the root, its path from here, and its key all stand for the same file."""
    key = make_key(b"b/1.jpg")
    monkeypatch.chdir(folder / "raw")

    for name in (f"{folder}/raw/b/1.jpg", "b/1.jpg", "./b/../b/1.jpg", key):
        assert _forget(folder, name) == {key}, name
        (folder / "out/forgotten.json").unlink()


def test_odd_names_are_found(folder: Path) -> None:
    """A name that is not UTF-8 is found as the terminal gives it, and as `ingest inspect` prints it."""
    key = make_key(b"a/\xff\n.jpg")

    assert _forget(folder, b"a/\xff\n.jpg".decode(errors="surrogateescape")) == {key}
    (folder / "out/forgotten.json").unlink()
    assert _forget(folder, f"{folder}/raw/a/\\xff\n.jpg") == {key}


def test_rejected_file_can_be_forgotten(folder: Path) -> None:
    """A file that became no sample is in a receipt too; nothing is taken for its copy."""
    done = forget(str(folder / "out"), ["a/empty.jpg"])

    assert [file.key for file in done.files] == [make_key(b"a/empty.jpg")]
    assert done.copies == ()


def test_unknown_name_is_refused_and_nothing_is_added(folder: Path) -> None:
    """One name that is in no receipt stops it before anything is on the list."""
    with pytest.raises(ConfigError, match=r"b/nowhere\.jpg: in no receipt of .*/out, so nothing was put on"):
        forget(str(folder / "out"), ["b/1.jpg", "b/nowhere.jpg"])

    assert read_forgotten(str(folder / "out")) == frozenset()


def test_copies_are_named_and_left_unless_asked_for(folder: Path) -> None:
    """A file with the same bytes under another name is reported; with `duplicates` it is forgotten too."""
    dataset, copy = str(folder / "out"), make_key(b"b/copy of 0.jpg")

    done = forget(dataset, ["a/0.jpg"])

    assert [file.key for file in done.copies] == [copy]
    assert read_forgotten(dataset) == {make_key(b"a/0.jpg")}

    done = forget(dataset, ["a/0.jpg"], duplicates=True)

    assert (done.copies, done.added) == ((), 1)
    assert read_forgotten(dataset) == {make_key(b"a/0.jpg"), copy}
    assert forget(dataset, ["a/0.jpg"]).copies == ()  # it is on the list


def test_file_of_an_old_shard_is_found(folder: Path, tmp_path: Path) -> None:
    """A file that is gone from the raw files and the dataset is found as long as an old shard holds it."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.copytree(folder / "raw", tmp_path / "raw")
    (tmp_path / "raw/b/1.jpg").unlink()
    shutil.move(copy / "out", tmp_path / "out")
    build(tmp_path)
    names = [shard.name for shard in read_index(str(tmp_path / "out")).splits["train"]]
    assert len(list((tmp_path / "out").rglob("*.tar"))) > len(names)

    assert _forget(tmp_path, "b/1.jpg") == {make_key(b"b/1.jpg")}


def test_command_says_what_is_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names files, copies and the two commands that follow; a second time nothing is added."""
    dataset = folder / "out"

    assert main(["forget", str(dataset), "a/0.jpg"]) == 0

    out = capsys.readouterr().out
    key, copy = make_key(b"a/0.jpg"), make_key(b"b/copy of 0.jpg")
    assert out.splitlines()[0] == f"  {key}  {folder}/raw/a/0.jpg"
    assert (
        f"WARNING: the same bytes stand under other names too; add --duplicates to forget these:\n  {copy}"
        in out
    )
    assert f"forget: 1 file added to {dataset}/forgotten.json, 0 there before" in out
    assert (
        f"next: run snakemake, which takes them out of the dataset; then `ingest gc {dataset} --grace 0`"
        in out
    )
    assert main(["forget", str(dataset), "a/0.jpg", "--duplicates"]) == 0
    out = capsys.readouterr().out
    assert (f"{copy}  " in out, "WARNING" in out) == (True, False)
    assert "forget: 1 file added" in out
    assert main(["forget", str(dataset), "a/0.jpg", "--duplicates"]) == 0
    assert "forget: 0 files added" in capsys.readouterr().out


def test_keys_on_the_list_stay(folder: Path) -> None:
    """What was forgotten before stays forgotten."""
    add_forgotten(str(folder / "out"), ["a" * 16])

    assert _forget(folder, "b/1.jpg") == {"a" * 16, make_key(b"b/1.jpg")}
