"""store: one contract for a folder, memory, S3 and, where nothing is written, a web server."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from ingest import store
from ingest.errors import StoreError
from tests.s3 import BUCKET
from tests.web import serve_folder

ODD_NAMES = [
    "a b+c%20d#e.jpg",
    "a?b&c=d.jpg",
    "ü é/写真 '\"<&>.jpg",
    "s3::x.jpg",
    "line\nbreak.jpg",
    "-dash",
    "A.JPG",
    "a.jpg",
]


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request, tmp_path):
    """Return an empty place of each kind in turn."""
    if request.param == "s3":
        request.getfixturevalue("proxy")
    return {
        "folder": f"{tmp_path}/p",
        "memory": f"memory://{uuid.uuid4()}",
        "s3": f"s3://{BUCKET}/{uuid.uuid4()}",
    }[request.param]


def test_written_bytes_come_back(place):
    """What is written is read, whole and in parts, has its size in listings, and replaces what was there."""
    url = store.join(place, "a/b.bin")
    store.write_bytes(url, b"old")
    store.write_bytes(url, b"0123456789")

    assert store.read_bytes(url) == store.read_bytes(url, 10) == b"0123456789"
    assert (store.read_head(url, 4), store.read_head(url, 99)) == (b"0123", b"0123456789")
    assert (store.read_range(url, 2, 3), store.read_range(url, 9, 1)) == (b"234", b"9")
    assert store.list_files(place) == {"a/b.bin": 10}
    assert store.list_folders(place) == ["a"]


@pytest.mark.parametrize("size", [0, 1, 40 * 2**20])
def test_file_of_any_size(place, size):
    """An empty file, a byte, and one that S3 takes in parts, arrive as they were."""
    data = os.urandom(size)
    with store.create(store.join(place, "x")) as file:
        for begin in range(0, size, 2**20):
            file.write(data[begin : begin + 2**20])

    assert store.read_bytes(store.join(place, "x"), size) == data


def test_range_beyond_the_end_is_an_error(place):
    """A range is all there or an error that says how much is; it is not asked for again and again."""
    store.write_bytes(store.join(place, "x"), b"0123456789")

    with pytest.raises(StoreError, match=r"x: ends at byte 10, expected 5 bytes from 8 on: .*verify"):
        store.read_range(store.join(place, "x"), 8, 5)
    with pytest.raises(StoreError, match="/x: "):
        store.read_range(store.join(place, "x"), 30, 5)


def test_file_that_shrank_since_it_was_listed_is_read_as_it_is(place):
    """Fewer bytes than listed are what they are where the store has no more."""
    store.write_bytes(store.join(place, "x"), b"0123456789")

    assert store.read_bytes(store.join(place, "x"), 99) == b"0123456789"


def test_what_is_not_there(place):
    """Reading it raises the builtin that a caller expects; asking about it does not fail."""
    store.write_bytes(store.join(place, "there"), b"1")
    url = store.join(place, "none")

    for read in (
        store.read_bytes,
        lambda url: store.read_head(url, 3),
        lambda url: store.read_range(url, 0, 3),
    ):
        with pytest.raises(FileNotFoundError, match="none"):
            read(url)
    assert not store.exists(url)
    assert not store.has_entries(url)
    assert store.has_entries(place)
    assert store.modified(url) is None
    assert store.list_files(url) == {}
    store.remove(url)


def test_removed_file_is_gone(place):
    """Remove is done when the file is not there."""
    url = store.join(place, "x")
    store.write_bytes(url, b"1")
    assert store.exists(url)

    store.remove(url)

    assert not store.exists(url)


def test_time_of_the_last_change_is_known(place):
    """It is about now for what was written now."""
    store.write_bytes(store.join(place, "x"), b"1")

    # Whole seconds in S3, and clocks of file systems run behind by some milliseconds.
    assert store.modified(store.join(place, "x")) == pytest.approx(time.time_ns() / 1e9, abs=5)


def test_names_of_any_kind_are_listed_and_read(place):
    """Each odd name is listed as it was written, with size and version, and read under it."""
    names = [name for name in ODD_NAMES if not (place.startswith("memory") and "::" in name)]
    for name in names:
        store.write_bytes(store.join_bytes(place, os.fsencode(name)), name.encode())

    found = {info.path: info for info in store.walk(place)}

    assert sorted(found) == sorted(map(os.fsencode, names))
    assert all(info.version not in ("", "unknown") for info in found.values())
    for path, info in found.items():
        assert store.read_bytes(store.join_bytes(place, path), info.size) == path


def test_folders_can_be_passed_by(place):
    """A folder that is passed by comes once, with no size, and nothing below it."""
    for name in ("z", "b/2", "b/1", "a/x/3", "a/x/4/5", "b-c/4", "a/y/5"):
        store.write_bytes(store.join(place, name), b"12")

    found = [
        (info.path, info.size) for info in store.walk(place, pass_by=lambda path: path in {b"a/x", b"b"})
    ]

    assert sorted(found) == [(b"a/x", -1), (b"a/y/5", 2), (b"b", -1), (b"b-c/4", 2), (b"z", 2)]
    assert [
        (info.path, info.size) for info in store.walk(place, pass_by={b"a/x", b"b"}.__contains__)
    ] == found


def test_failed_write_leaves_the_old_file(place):
    """When the block raises, the name still holds what it held, and nothing else is there."""
    url = store.join(place, "x")
    store.write_bytes(url, b"old")

    with pytest.raises(ZeroDivisionError), store.create(url) as file:
        file.write(b"half" * 10**6)
        raise ZeroDivisionError

    assert store.read_bytes(url) == b"old"
    assert store.list_files(place) == {"x": 3}


def test_file_appears_only_when_the_block_ends(place):
    """While it is written, a file is not under its name."""
    url = store.join(place, "x")

    with store.create(url) as file:
        file.write(b"half" * 10**7)
        file.flush()
        assert not store.exists(url)

    assert store.list_files(place) == {"x": 4 * 10**7}


# ---- a web server


@pytest.fixture
def web(tmp_path):
    """Serve a folder as web servers do, with pages of links; return the folder and its URL."""
    (tmp_path / "photos").mkdir()
    with serve_folder(tmp_path) as url:
        yield tmp_path / "photos", f"{url}/photos"


def test_web_server_is_listed_and_read(web):
    """Pages of links make a tree: names are decoded, sizes and versions asked for."""
    folder, url = web
    names = ["cats/a b.jpg", "cats/写真.jpg", "dogs/100%.jpg", "1.jpg"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())

    found = {info.path: info for info in store.walk(url)}

    assert sorted(found) == sorted(name.encode() for name in names)
    assert {info.size for info in found.values()} == {len(name.encode()) for name in names}
    assert all(info.version.startswith("Last-Modified:") for info in found.values())
    for path, info in found.items():
        assert store.read_bytes(store.join_bytes(url, path), info.size) == path
    assert store.list_folders(url) == ["cats", "dogs"]
    assert store.exists(url)
    assert not store.exists(f"{url}/none")
    assert store.modified(f"{url}/1.jpg") == pytest.approx((folder / "1.jpg").stat().st_mtime, abs=1)


def test_web_server_without_ranges(web):
    """Of a server that sends the whole where a part was asked for, the part is taken."""
    folder, url = web
    (folder / "x").write_bytes(b"0123456789")

    assert store.read_head(f"{url}/x", 4) == b"0123"
    assert store.read_range(f"{url}/x", 3, 4) == b"3456"


def test_web_server_is_not_written(web):
    """A target must be a folder or a bucket."""
    with pytest.raises(StoreError, match="a web server can only be read"):
        store.write_bytes(f"{web[1]}/x", b"1")
