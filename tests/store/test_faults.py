"""store: what S3 does on a bad day costs time, or a sentence without secrets, and never a wrong byte."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import uuid

import numpy as np
import pytest

from ingest import faults, objects, remote, store
from ingest.build import child, isolate
from ingest.build.image import encode_jpeg
from ingest.build.limits import Limits
from ingest.build.sample import Shrunk
from ingest.errors import StoreError
from ingest.recipe import Recipe
from tests import s3
from tests.proxy import Fault

DATA = os.urandom(300_000)


@pytest.fixture
def place(proxy):
    """Return a place in S3 with one file, ``x``, that holds `DATA`."""
    url = f"s3://{s3.BUCKET}/{uuid.uuid4()}"
    store.write_bytes(f"{url}/x", DATA)
    proxy.heal()
    return url


@pytest.fixture
def impatient(monkeypatch):
    """Have faults be errors after a moment."""
    monkeypatch.setenv(faults.PATIENCE_VARIABLE, "0.2")


FAULTS = [
    Fault("status", status=503, times=4),
    Fault("status", status=500, times=3),
    Fault("status", status=429, times=3),
    Fault("status", status=504, times=1),
    Fault("refuse", times=4),
    Fault("truncate", times=3),
    Fault("reset", times=3),
    Fault("shorten", times=3),
]


def _names(fault):
    return f"{fault.kind}-{fault.status}" if fault.kind == "status" else fault.kind


@pytest.mark.parametrize("fault", FAULTS, ids=_names)
def test_read_outlasts_a_fault(proxy, place, fault):
    """A file comes whole in spite of refusals, resets, bodies that were cut short, and wrong lengths."""
    proxy.add(Fault(fault.kind, match="/x", times=fault.times, status=fault.status))

    assert store.read_bytes(f"{place}/x", len(DATA)) == DATA
    assert proxy.seen["faults"] == fault.times


@pytest.mark.parametrize("fault", FAULTS, ids=_names)
def test_listing_outlasts_a_fault(proxy, place, fault):
    """A page of a listing that fails or is cut short is asked for again: no file looks deleted."""
    if fault.kind == "shorten":
        pytest.skip("half a page under its own length does not parse, as one that was cut short does not")
    names = {f"{number:02d}": 1 for number in range(20)}
    for name in names:
        store.write_bytes(f"{place}/many/{name}", b"1")
    proxy.add(Fault(fault.kind, match="list-type=2", times=fault.times, status=fault.status))

    assert {os.fsdecode(info.path): info.size for info in store.walk(f"{place}/many")} == names
    assert proxy.seen["faults"] == fault.times


@pytest.mark.parametrize("size", [10_000, 40 * 2**20], ids=["in one", "in parts"])
@pytest.mark.parametrize("fault", [Fault("status", times=4), Fault("refuse", times=4)], ids=_names)
def test_write_outlasts_a_fault(proxy, place, size, fault):
    """A file arrives whole in spite of refusals, in one request or in parts."""
    proxy.add(Fault(fault.kind, "PUT", "/y", fault.times, fault.status))
    proxy.add(Fault(fault.kind, "POST", "/y", 2, fault.status))
    data = os.urandom(size)

    store.write_bytes(f"{place}/y", data)

    assert store.read_bytes(f"{place}/y", size) == data


@pytest.mark.usefixtures("impatient")
def test_fault_that_never_ends_is_a_store_error(proxy, place):
    """It says what was tried, for how long, and what to do; nothing appears under the name."""
    proxy.add(Fault("status", "*", times=1e9))

    for action, what in (
        ("read", lambda: store.read_bytes(f"{place}/x", len(DATA))),
        ("list", lambda: list(store.walk(place))),
        ("look", lambda: store.exists(f"{place}/x")),
        ("remove", lambda: store.remove(f"{place}/x")),
        ("write", lambda: store.write_bytes(f"{place}/y", b"1")),
    ):
        with pytest.raises(
            StoreError, match=rf"cannot {action}: .*503.*tried \d+ times in .*run again"
        ) as caught:
            what()
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    proxy.heal()
    assert store.list_files(place) == {"x": len(DATA)}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["truncate", "reset", "shorten"])
def test_body_that_is_always_cut_short_is_a_store_error(proxy, place, kind):
    """Half a file is never handed on as if it were the whole, and is no reject."""
    proxy.add(Fault(kind, match="/x", times=1e9))

    with pytest.raises(StoreError, match="/x: cannot read: "):
        store.read_bytes(f"{place}/x", len(DATA))
    with pytest.raises(StoreError, match="/x: cannot read: "):
        child.read_raw(place, b"x", len(DATA))


def test_range_that_was_cut_short_is_read_again(proxy, place):
    """A part of a file comes whole, too."""
    proxy.add(Fault("shorten", match="/x", times=2), Fault("reset", match="/x", times=1))

    assert store.read_range(f"{place}/x", 1000, 200_000) == DATA[1000:201_000]


def test_upload_that_arrives_short_is_sent_again(place, monkeypatch):
    """The store is asked for the size of what arrived; where that is not what was sent, it is sent again."""
    upload, sent = remote._find(place).filesystem.put_file, []

    def put_file(source, path, **options):
        sent.append(path)
        if len(sent) == 1:
            remote._find(place).filesystem.pipe_file(path, b"half")
        else:
            upload(source, path, **options)

    monkeypatch.setattr(remote._find(place).filesystem, "put_file", put_file)

    store.write_bytes(f"{place}/y", b"whole file")

    assert (len(sent), store.read_bytes(f"{place}/y")) == (2, b"whole file")


@pytest.mark.usefixtures("impatient")
def test_server_that_is_not_there_is_a_store_error(monkeypatch):
    """No server at all, as while a network is down, is not a missing file."""
    monkeypatch.setattr(remote, "_filesystem", remote._filesystem.__wrapped__)
    for name, value in s3.environment(s3.free_port()).items():
        monkeypatch.setenv(name, value)

    with pytest.raises(StoreError, match="see whether the store and the network are up"):
        store.read_bytes("s3://bucket/x")
    with pytest.raises(StoreError, match="see whether the store and the network are up"):
        store.exists("s3://bucket/x")


@pytest.mark.parametrize("status", [403], ids=["expired"])
def test_bad_credentials_are_no_fault_of_the_file(proxy, place, status):
    """Credentials that ran out in the middle of a build make no rejects."""
    proxy.add(Fault("status", match="/x", times=1, status=status))

    with pytest.raises(StoreError, match="see to the credentials"):
        child.read_raw(place, b"x", len(DATA))


def test_no_credentials_is_a_store_error(place, monkeypatch):
    """Where there are none at all, the sentence says what is missing."""
    monkeypatch.setattr(remote, "_filesystem", remote._filesystem.__wrapped__)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(StoreError, match="credentials"):
        store.read_bytes(f"{place}/x")


def test_want_of_memory_is_no_fault_of_the_network(place, monkeypatch):
    """A library may wrap it as one, and trying again would be in vain."""

    def cat_file(*_args, **_options):
        try:
            raise MemoryError  # noqa: TRY301
        except MemoryError:
            raise ConnectionResetError  # noqa: B904

    monkeypatch.setattr(remote._find(place).filesystem, "cat_file", cat_file)

    with pytest.raises(MemoryError):
        store.read_bytes(f"{place}/x")


def test_little_memory_suffices_to_read(place):
    """The least memory limit is enough for photos that come from a store many at a time."""
    photo = encode_jpeg(np.random.default_rng(0).integers(0, 256, (600, 800, 3), np.uint8), 95)
    for number in range(20):
        store.write_bytes(f"{place}/{number}.jpg", photo)
    files = [(b"%d.jpg" % number, len(photo)) for number in range(20)]
    limits = Limits(memory_limit=2**28)
    isolate.end_idle()  # one of an earlier test would have the credentials of then

    with contextlib.closing(isolate.decode(files, raw=place, recipe=Recipe(), limits=limits)) as results:
        assert [type(decoded.result) for decoded in results] == [Shrunk] * 20
    isolate.end_idle()


def test_waiting_is_said(proxy, place, monkeypatch, caplog):
    """Who waits for a store for more than a moment is told so, in one line for all threads."""
    monkeypatch.setattr(faults, "_QUIET_S", 0.0)
    monkeypatch.setattr(faults, "_said", {"at": 0.0})
    proxy.add(Fault("status", match="/x", times=4))

    with caplog.at_level(logging.WARNING):
        store.read_bytes(f"{place}/x")

    (record,) = caplog.records
    assert "/x: cannot read yet (" in record.getMessage()
    assert "503" in record.getMessage()


# ---- listings


def test_listing_comes_in_pages(proxy, place, monkeypatch):
    """A prefix of any size is listed page by page; a folder that is passed by is not listed to its end."""
    for name in (
        [f"a/{number:03d}" for number in range(12)] + [f".x/{number:03d}" for number in range(40)] + ["b"]
    ):
        store.write_bytes(f"{place}/p/{name}", b"1")
    ask = remote._find(place).filesystem.call_s3
    monkeypatch.setattr(
        remote._find(place).filesystem, "call_s3", lambda method, **request: ask(method, **request, MaxKeys=5)
    )
    proxy.heal()

    found = [info.path for info in store.walk(f"{place}/p", pass_by=lambda path: path == b".x")]

    assert found == [b".x"] + [b"a/%03d" % number for number in range(12)] + [b"b"]
    assert sum("list-type=2" in request for request in proxy.requests) == 4


def test_marks_of_folders_are_no_files():
    """An empty object whose name ends in a slash stands for a folder; one with bytes is no file."""
    keys = [("p/", 0), ("p/a/", 0), ("p/a/1", 5), ("p/b/", 7), ("p//2", 1)]
    page = {"Contents": [{"Key": key, "Size": size, "ETag": '""', "LastModified": 3} for key, size in keys]}

    found = list(objects._Reader("p/", lambda _: False).read(page))

    assert [(info.path, info.size) for info in found] == [(b"a/1", 5), (b"b/", -1), (b"/2", 1)]
    assert found[0].version == "LastModified:3"


def test_unfinished_uploads_of_killed_writers_are_given_up(place):
    """Parts that were sent and never made a file would be paid for for ever; others' stay."""
    filesystem = remote._find(place).filesystem
    prefix = place.removeprefix(f"s3://{s3.BUCKET}/")
    for name in ("000001-aaaaaaaa.tar", "notes.txt"):
        filesystem.call_s3("create_multipart_upload", Bucket=s3.BUCKET, Key=f"{prefix}/train/{name}")

    assert store.remove_temporaries(f"{place}/train", r"[0-9]{6}-[0-9a-f]{8}\.tar") == 1
    assert store.remove_temporaries(f"{place}/train", r"[0-9]{6}-[0-9a-f]{8}\.tar") == 0


# ---- secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a/b.jpg", "s3://bucket/a/b.jpg"),
        ("/data/a@b:c/x?sig=1", "/data/a@b:c/x?sig=1"),
        (
            "abfs://container@account.dfs.core.windows.net/x",
            "abfs://container@account.dfs.core.windows.net/x",
        ),
        ("ftp://me:secret@host/x", "ftp://***@host/x"),
        ("https://token@host/x: cannot read", "https://***@host/x: cannot read"),
        ("http://me:se@cr:et@host/x", "http://***@host/x"),
        (
            "cannot get 'https://b.s3.amazonaws.com/x?X-Amz-Credential=AK%2F1&X-Amz-Date=2&X-Amz-Signature=ab'",
            "cannot get 'https://b.s3.amazonaws.com/x?X-Amz-Credential=***&X-Amz-Date=2&X-Amz-Signature=***'",
        ),
        (
            "https://a.blob.core.windows.net/c/x?sv=1&se=2&sig=s%3D",
            "https://a.blob.core.windows.net/c/x?sv=1&se=2&sig=***",
        ),
        (
            "https://h/x?AWSAccessKeyId=1&Signature=2&Expires=3",
            "https://h/x?AWSAccessKeyId=***&Signature=***&Expires=3",
        ),
    ],
)
def test_secrets_are_blotted_out(text, shown):
    """Passwords before the host and parameters that sign are not shown; all else is."""
    assert store.redact(text) == shown


def test_lines_of_a_log_show_no_secret():
    """Whatever a message is made of, the line that is written is blotted."""
    record = logging.LogRecord("x", 30, "", 0, "%s is bad", ("http://me:pass@h/x?sig=pass",), None)

    line = faults.RedactingFormatter("%(levelname)s %(message)s").format(record)

    assert line == "WARNING http://***@h/x?sig=*** is bad"


@pytest.mark.usefixtures("impatient")
def test_errors_show_no_secret():
    """A URL that opens by itself is read as it is and shown without what opens it."""
    url = f"http://me:pass1@127.0.0.1:{s3.free_port()}/x.jpg?X-Amz-Signature=pass2"

    for what in (
        lambda: store.read_bytes(url),
        lambda: store.exists(url),
        lambda: list(store.walk(url)),
        lambda: store.write_bytes(url, b"1"),
        lambda: child.read_raw(url, b"x", 1),
        lambda: store.read_bytes(url.replace("http", "nothing")),
    ):
        with pytest.raises(StoreError) as caught:
            what()
        assert "127.0.0.1" in str(caught.value)
        assert "pass1" not in str(caught.value)
        assert "pass2" not in str(caught.value)


def test_full_folder_of_temporary_files_is_a_sentence(place):
    """What is sent is held here before; where that does not fit, the sentence names the folder."""
    with pytest.raises(StoreError, match=r"cannot hold s3://.*/y until it is sent \(No space left.*TMPDIR"):
        with store.create(f"{place}/y") as file:
            file.write(b"1")
            raise OSError(28, os.strerror(28))
    assert store.list_files(place) == {"x": len(DATA)}
