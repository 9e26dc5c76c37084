"""store: one contract for every place, and files that are whole or not there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ingest import store
from ingest.errors import StoreError
from ingest.faults import PATIENCE_VARIABLE


@pytest.fixture(params=["folder", "file URL", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty place of each kind in turn."""
    return {
        "folder": f"{tmp_path}/p",
        "file URL": f"file://{tmp_path}/p",
        "memory": f"memory://{uuid.uuid4()}",
    }[request.param]


def test_written_bytes_come_back(place: str) -> None:
    """What is written under a name is read under it, and replaces what was there."""
    store.write_bytes(store.join(place, "a/b.bin"), b"old")
    store.write_bytes(store.join(place, "a/b.bin"), b"new bytes")

    assert store.read_bytes(store.join(place, "a/b.bin")) == b"new bytes"
    assert store.exists(store.join(place, "a/b.bin"))
    assert store.list_files(place) == {"a/b.bin": 9}
    assert store.list_folders(place) == ["a"]


def test_first_bytes_come_alone(place: str) -> None:
    """Of a longer file only the first bytes come; a shorter one comes whole; a missing one is not found."""
    store.write_bytes(store.join(place, "long"), b"0123456789")

    assert store.read_head(store.join(place, "long"), 4) == b"0123"
    assert store.read_head(store.join(place, "long"), 99) == b"0123456789"
    with pytest.raises(FileNotFoundError):
        store.read_head(store.join(place, "none"), 4)


def test_look_says_what_the_listing_says(place: str) -> None:
    """Size and version of one file are those that a listing of its folder gives; a missing one has none.

    (fsspec's memory writes the same time in two ways.)
    """
    store.write_bytes(store.join(place, "a/b.bin"), b"0123")
    (listed,) = store.walk(place)

    found = store.look(store.join(place, "a/b.bin"))

    assert found is not None
    assert found.size == listed.size == 4
    assert place.startswith("memory") or found.version == listed.version
    assert store.look(store.join(place, "a/c.bin")) is None
    folder = store.look(store.join(place, "a"))
    assert folder is not None
    assert folder.size == -1


def test_files_are_listed_folder_by_folder_and_folders_can_be_passed_by(place: str) -> None:
    """Files of a folder come before those below it, sorted; a folder that is passed by comes alone."""
    for name in ("z", "b/2", "b/1", "a/x/3", "b-c/4", "a/y/5"):
        store.write_bytes(store.join(place, name), b"12")

    assert [info.path for info in store.walk(place)] == [b"z", b"a/x/3", b"a/y/5", b"b/1", b"b/2", b"b-c/4"]
    passed_by = list(store.walk(place, pass_by=lambda folder: folder in {b"a/x", b"b"}))
    assert [(info.path, info.size) for info in passed_by] == [
        (b"b", -1), (b"z", 2), (b"a/x", -1), (b"a/y/5", 2), (b"b-c/4", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("below", ["", "/a/deep"])
def test_folder_that_cannot_be_listed_is_not_left_out(monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    """Where a server fails on one folder, however deep, the listing fails: none of it looks deleted."""
    monkeypatch.setenv(PATIENCE_VARIABLE, "0")
    url, list_folder = f"memory://{uuid.uuid4()}", MemoryFileSystem.ls
    store.write_bytes(f"{url}/a/deep/1.jpg", b"x")

    def ls(self: MemoryFileSystem, path: str, **options: object) -> object:
        if path.endswith(url.removeprefix("memory:/") + below):
            raise ConnectionResetError(104, "Connection reset by peer")
        return list_folder(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)

    with pytest.raises(StoreError, match="cannot list: Connection reset by peer"):
        list(store.walk(url))


def test_missing_file_is_file_not_found(place: str) -> None:
    """Reading what is not there raises the builtin that a caller expects."""
    with pytest.raises(FileNotFoundError):
        store.read_bytes(store.join(place, "none"))


def test_nothing_there_lists_as_empty(place: str) -> None:
    """A place that was never written has no files."""
    assert store.list_files(place) == {}
    assert not store.exists(place)


def test_removed_file_is_gone_and_removing_it_again_is_fine(place: str) -> None:
    """Remove is done when the file is not there."""
    url = store.join(place, "x")
    store.write_bytes(url, b"1")

    store.remove(url)
    store.remove(url)

    assert not store.exists(url)


def test_walk_yields_each_file_with_size_and_version(place: str) -> None:
    """A listing names every file once, with its size and something that tells versions apart."""
    for name in ("b/2", "a/1", "a/c/3", "0"):
        store.write_bytes(store.join(place, name), name.encode())

    found = {info.path: info for info in store.walk(place)}

    assert sorted(found) == [b"0", b"a/1", b"a/c/3", b"b/2"]
    assert {info.size for info in found.values()} == {1, 3, 5}
    assert all(info.version for info in found.values())


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """When the block raises, the name still holds what it held, and no leftover is seen."""
    url = f"{tmp_path}/x"
    store.write_bytes(url, b"old")

    with pytest.raises(RuntimeError), store.create(url) as file:
        file.write(b"half")
        raise RuntimeError

    assert store.read_bytes(url) == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_file_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    """While it is written, a file is not under its name."""
    url = f"{tmp_path}/x"

    with store.create(url) as file:
        file.write(b"half")
        file.flush()
        assert not store.exists(url)

    assert store.exists(url)


def test_data_is_on_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is: write, fsync the file, rename, fsync the folder; so a power cut leaves no hollow file."""
    events: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), real_fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (events.append("rename"), real_replace(a, b))[1])

    store.write_bytes(f"{tmp_path}/x", b"1")

    assert events == ["fsync", "rename", "fsync"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    """A writer killed in the middle leaves a temporary file, and cleaning up removes it and nothing else."""
    script = (
        "import os, sys; from ingest import store\n"
        "with store.create(sys.argv[1]) as f: f.write(b'half'); f.flush(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, f"{tmp_path}/t/x"], check=False)
    store.write_bytes(f"{tmp_path}/t/y", b"whole")
    (tmp_path / "t/.tmp-notes.txt").write_text("mine")
    assert len(os.listdir(tmp_path / "t")) == 3

    assert store.remove_temporaries(str(tmp_path / "t"), "x|y") == 1
    assert sorted(os.listdir(tmp_path / "t")) == [".tmp-notes.txt", "y"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/proc/nothing/x", "/proc/nothing/x: cannot write: "),
        ("/dev/null/x", "/dev/null/x: cannot write: "),
        ("nothing://bucket/x", "nothing://bucket/x: not a place that can be read"),
    ],
)
def test_place_that_cannot_be_written_is_a_sentence(url: str, words: str) -> None:
    """The error names the place and the reason."""
    with pytest.raises(StoreError, match=words):
        store.write_bytes(url, b"1")


def test_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that finds no space says so and leaves nothing under the name."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(StoreError, match="cannot write: No space left on device"):
        store.write_bytes(f"{tmp_path}/x", b"1")

    assert os.listdir(tmp_path) == []


def test_paths_and_urls_are_normalised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Relative paths become absolute, trailing slashes go, URLs stay."""
    monkeypatch.chdir(tmp_path)

    assert store.normalise("a/b/") == f"{tmp_path}/a/b"
    assert store.normalise("file:///x/y/") == "/x/y"
    assert store.normalise("s3://bucket/k/") == "s3://bucket/k"
    assert not store.is_local("s3://bucket/k")
    assert store.free_bytes("s3://bucket/k") is None
    assert store.free_bytes(f"{tmp_path}/not/there/yet")
