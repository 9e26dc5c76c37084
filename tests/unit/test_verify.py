"""verify: every damage is found and named with its remedy, and work that is stopped ends at once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest import index, shard, store
from ingest.__main__ import main
from ingest.checks import check_shard
from ingest.errors import StoreError
from ingest.load import fetch
from ingest.verify import verify
from tests.datasets import encode

_LISTED = [{"source": f"/photos/{number}.jpg", "code": "truncated"} for number in range(3)]


def _list_rejects(dataset, rows):
    pq.write_table(
        pa.Table.from_pylist([dict.fromkeys(shard.REJECT_COLUMNS) | row for row in rows]),
        dataset / shard.REJECTS_NAME,
    )


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Check shards in this process: starting others takes a second. The last test starts some."""
    monkeypatch.setattr(
        "ingest.verify.processes.run", lambda check, items, **_: ((item, check(item)) for item in items)
    )


@pytest.fixture
def dataset(sealed, tmp_path):
    """Return a whole dataset of 3 shards that a test may damage."""
    copy = shutil.copytree(sealed, tmp_path / "dataset")
    _list_rejects(copy, _LISTED)
    return copy


def _faults(dataset, cores=2):
    return verify(str(dataset), cores=cores, on_done=lambda *_: None).faults


def _first(dataset):
    """Return the index of the dataset, and its first shard."""
    whole = index.read_index(str(dataset))
    return whole, whole.splits["train"][0]


def _change_receipt(dataset, change):
    """Write the receipt of the first shard again with its first row changed."""
    _, entry = _first(dataset)
    summary, receipt = shard.read_receipt(str(dataset), entry.name)
    rows = receipt.to_pylist()
    rows[0] |= change(rows[0])
    shard.write_receipt(str(dataset), summary, rows)


def _write_into_tar(dataset, change):
    """Change the tar of the first shard, and the index so that size and checksum still fit."""
    whole, entry = _first(dataset)
    path = dataset / f"{entry.name}.tar"
    data = bytearray(path.read_bytes())
    _, receipt = shard.read_receipt(str(dataset), entry.name)
    change(data, receipt.to_pylist()[0])
    path.write_bytes(data)
    changed = dataclasses.replace(entry, sha256=hashlib.sha256(data).hexdigest())
    summary, _ = shard.read_receipt(str(dataset), entry.name)
    summary = dataclasses.replace(summary, sha256=changed.sha256)
    shard.write_receipt(str(dataset), summary, receipt.to_pylist())
    splits = {"train": (changed, *whole.splits["train"][1:])}
    index.write_index(str(dataset), dataclasses.replace(whole, splits=splits))


def test_whole_dataset_has_no_fault(dataset):
    """All shards are read and reported, one after the other, and nothing is found."""
    seen = []
    found = verify(str(dataset), cores=2, on_done=lambda *done: seen.append(done))

    assert (found.samples, found.faults) == (20, ())
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert found.bytes == sum(path.stat().st_size for path in dataset.rglob("*.tar"))


def test_class_in_the_tar_is_compared_with_the_receipt(dataset):
    """A sample whose member `cls` holds another class is named, though every checksum fits."""

    def change(data, row):
        data[row["class_offset"] : row["class_offset"] + row["class_bytes"]] = b"3"

    _write_into_tar(dataset, change)

    name = _first(dataset)[1].name
    (fault,) = _faults(dataset)
    assert f"{name}.tar: sample " in fault
    assert f"holds the class b'3', its receipt says 0: remove {name}.* and run the build again" in fault


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"class_id": 9, "label": "class 0"}, "has the class id 9, the index has 4 classes"),
        ({"class_id": -1}, "has the class id -1"),
        ({"class_id": None}, "has the class id None"),
        ({"label": "class 1"}, "has the label 'class 1', class 0 is 'class 0'"),
    ],
    ids=str,
)
def test_class_of_the_receipt_is_compared_with_the_index(dataset, change, said):
    """A receipt whose class id or label is not in the index's table is a fault of that sample alone."""
    _change_receipt(dataset, lambda _: change)

    (fault,) = _faults(dataset)
    assert said in fault


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"hello"),
        lambda path: _list_rejects(path.parent, _LISTED[:2]),
        lambda path: _list_rejects(path.parent, [{**row, "code": "empty"} for row in _LISTED]),
        lambda path: _list_rejects(path.parent, [{"source": "/photos/1.jpg"}]),
    ],
    ids=["missing", "not parquet", "one too few", "other codes", "no codes"],
)
def test_list_of_rejects_is_compared_with_the_index(dataset, damage):
    """A list of rejects that is missing, broken or not that of the index is named, with its remedy."""
    damage(dataset / shard.REJECTS_NAME)

    (fault,) = _faults(dataset)
    assert fault.startswith(f"{dataset}/{shard.REJECTS_NAME}: ")
    assert fault.endswith(": run the build again")


@pytest.mark.parametrize("suffix", [".tar", ".idx"])
def test_file_that_may_not_be_read_is_a_sentence(dataset, monkeypatch, suffix):
    """A file without the right to read it is named; it is no traceback and no damage."""
    whole, entry = _first(dataset)
    read_bytes = store.read_bytes

    def refuse(url):
        if url.endswith(suffix):
            raise PermissionError(13, "Permission denied", url)
        return read_bytes(url)

    monkeypatch.setattr(store, "read_bytes", refuse)

    found, _ = check_shard(str(dataset), whole, entry)

    assert [(fault.what, fault.shard) for fault in found] == [
        (f"{dataset}/{entry.name}{suffix}: may not be read: Permission denied", "")
    ]


def test_same_remedy_everywhere(dataset):
    """A damaged shard is mended by the same words whether verify or the loader met it."""
    _, entry = _first(dataset)
    path = dataset / f"{entry.name}.tar"
    path.write_bytes(path.read_bytes()[:-512])

    fault = _faults(dataset)[0]

    assert fetch.remedy(entry).endswith(fault.rpartition(": ")[2])


@pytest.mark.parametrize("damaged", [".tar", ".idx", ".parquet"])
def test_following_the_remedy_mends_the_dataset(tmp_path, damaged):
    """After the files that the sentence names are removed, the next build makes the dataset whole."""
    raw = _raw_photos(tmp_path / "raw")
    _build(tmp_path, raw)
    out = tmp_path / "out"
    path = min(out.rglob(f"*{damaged}"), key=lambda path: (path.parent == out, path))
    path.write_bytes(path.read_bytes()[:-100])
    (fault, *_) = _faults(out)
    remedy = fault.rpartition(": ")[2]
    assert remedy.startswith("remove ")
    assert remedy.endswith(" and run the build again")

    named = remedy.removeprefix("remove ").removesuffix(" and run the build again")
    for each in [path] if named == "it" else list(out.glob(named)):
        each.unlink()
    _build(tmp_path, raw)

    assert _faults(out) == ()


def _raw_photos(folder):
    for number in range(4):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grain = np.random.default_rng(number).integers(0, 256, (12, 16, 3), np.uint8)
        path.write_bytes(encode(np.ascontiguousarray(np.kron(grain, np.ones((8, 8, 1), np.uint8)))))
    return folder


def _build(folder, raw):
    """Run the verbs of a build, as the workflow does, but for the cluster."""
    from ingest.build import drive, history, image, plan, planned, scan, seal, shrink
    from ingest.recipe import Recipe

    manifest, file = folder / "m.parquet", folder / "p.parquet"
    scan.scan(str(raw), manifest)
    settings = plan.PlanSettings(dataset=str(folder / "out"), recipe=Recipe(size=64), samples_per_shard=2)
    head = history.update_plan(manifest, file, settings, allow_delete=True).head
    for wanted in planned.read_planned_shards(file, head, set(drive.missing_shards(head))):
        task = shrink.ShardTask(
            roots=head.roots,
            dataset=head.dataset,
            recipe=head.recipe,
            shard=wanted,
            labelled=bool(head.classes),
            engines=image.engine_versions(),
        )
        shrink.build_shard(task, lambda _: None)
    seal.seal(head, drive.missing_shards(head))


def test_ctrl_c_ends_at_once(dataset):
    """Ctrl-C ends the command and a worker in the middle of a read, with a single line and no traceback."""
    path = min(dataset.rglob("*.tar"))
    path.unlink()
    os.mkfifo(path)  # whoever reads it waits for ever
    process = subprocess.Popen(
        [sys.executable, "-m", "ingest", "verify", str(dataset), "--cores", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr.readline() == "1 of 3 shards\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise

    assert (process.returncode, out) == (130, "")
    *progress, last = errors.splitlines()
    assert last == "ingest verify: stopped; what is whole is kept"
    assert all(line.endswith(" of 3 shards") for line in progress)


# ---- naming what is hit


def _with_checksums(dataset):
    """Write the receipt of the first shard again, with the checksum of each picture; return its rows."""
    _, entry = _first(dataset)
    data = (dataset / f"{entry.name}.tar").read_bytes()
    summary, receipt = shard.read_receipt(str(dataset), entry.name)
    rows = receipt.to_pylist()
    for row in rows:
        if row["status"] == "sample":
            begin = row["image_offset"]
            row["image_crc32"] = zlib.crc32(data[begin : begin + row["image_bytes"]])
    shard.write_receipt(str(dataset), summary, rows)
    return rows


def _flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_flipped_bit_names_the_sample_it_hit(dataset):
    """With checksums a flipped bit of a picture names its key and source, and no other sample."""
    rows = _with_checksums(dataset)
    _flip(dataset / f"{_first(dataset)[1].name}.tar", rows[2]["image_offset"] + rows[2]["image_bytes"] - 40)

    faults = _faults(dataset)

    assert len(faults) == 2
    assert "its SHA-256 is not that of the index: bytes of 1 picture were changed: remove " in faults[0]
    said = f"sample {rows[2]['key']} ({rows[2]['source']}) does not hold the bytes that were written: remove "
    assert said in faults[1]


def test_flipped_bit_outside_of_the_pictures_is_named_so(dataset):
    """With checksums a flipped bit in the padding blames no sample."""
    _with_checksums(dataset)
    _flip(dataset / f"{_first(dataset)[1].name}.tar", -1)

    (fault,) = _faults(dataset)

    assert (
        "its SHA-256 is not that of the index: bytes outside of the pictures were changed: remove " in fault
    )


def test_flipped_bit_without_checksums_is_a_fault_of_the_shard(dataset):
    """A receipt without checksums cannot say which sample was hit, and says so."""
    _flip(dataset / f"{_first(dataset)[1].name}.tar", -1)

    (fault,) = _faults(dataset)

    assert "bytes were changed, in which sample its receipt cannot tell" in fault


def test_receipt_of_another_state_is_named(dataset):
    """A receipt that tells of another tar than the index is a fault, though the tar is right."""
    _, entry = _first(dataset)
    summary, receipt = shard.read_receipt(str(dataset), entry.name)
    other = dataclasses.replace(summary, sha256="0" * 64)
    shard.write_receipt(str(dataset), other, receipt.to_pylist())

    (fault,) = _faults(dataset)

    assert f"{entry.name}.tar: its receipt is of another state of the shard than the index: remove" in fault


def test_key_that_stands_in_two_shards_is_named(dataset):
    """The second shard with a key of the first is named, with the key."""
    whole, entry = _first(dataset)
    first, second = whole.splits["train"][:2]
    for ending in (".tar", ".idx", ".parquet"):
        shutil.copyfile(dataset / f"{first.name}{ending}", dataset / f"{second.name}{ending}")
    summary, receipt = shard.read_receipt(str(dataset), first.name)
    shard.write_receipt(str(dataset), dataclasses.replace(summary, name=second.name), receipt.to_pylist())
    splits = {"train": (first, dataclasses.replace(first, name=second.name), *whole.splits["train"][2:])}
    index.write_index(str(dataset), dataclasses.replace(whole, splits=splits))

    faults = _faults(dataset)

    keys = shard.samples_of(receipt)["key"].to_pylist()
    assert faults == tuple(
        sorted(f"{second.name}: key {key} stands in {entry.name} too: run the build again" for key in keys)
    )


# ---- marking what must be built again


def _markers(dataset):
    return sorted(str(path.relative_to(dataset)) for path in dataset.rglob("*.damaged"))


@pytest.mark.parametrize(
    ("ending", "damage"),
    [
        (".tar", lambda path: _flip(path, 700)),
        (".tar", lambda path: path.unlink()),
        (".tar", lambda path: path.write_bytes(path.read_bytes()[:-512])),
        (".idx", lambda path: path.unlink()),
        (".idx", lambda path: _flip(path, 8)),
        (".parquet", lambda path: path.write_bytes(b"hello")),
        (".parquet", lambda path: path.unlink()),
    ],
    ids=["bit", "missing", "cut", "no offsets", "stale offsets", "broken receipt", "no receipt"],
)
def test_damaged_shard_is_marked(dataset, ending, damage):
    """A fault of a shard leaves an empty marker beside it, beside no other, and says what mends it."""
    _, entry = _first(dataset)
    damage(dataset / f"{entry.name}{ending}")

    found = verify(str(dataset), cores=1, on_done=lambda *_: None, mark=True)

    assert (found.marked, found.unmarked) == ((entry.name,), "")
    assert _markers(dataset) == [f"{entry.name}.damaged"]
    assert (dataset / f"{entry.name}.damaged").read_bytes() == b""
    assert found.faults
    assert all(entry.name in fault for fault in found.faults)
    assert all(fault.endswith(": run snakemake again: it rebuilds this shard") for fault in found.faults)


def test_command_marks_unless_asked_not_to(dataset, capsys):
    """`--no-mark` changes nothing and gives the remedy by hand; without it the shard is marked. Status 1."""
    _, entry = _first(dataset)
    (dataset / f"{entry.name}.tar").unlink()

    assert main(["verify", str(dataset), "--cores", "1", "--no-mark"]) == 1
    by_hand = capsys.readouterr().out
    assert (_markers(dataset), "is missing: run the build again" in by_hand) == ([], True)

    assert main(["verify", str(dataset), "--cores", "1"]) == 1
    out = capsys.readouterr().out
    assert _markers(dataset) == [f"{entry.name}.damaged"]
    assert f"{entry.name}.tar: is missing: run snakemake again: it rebuilds this shard\n" in out
    assert out.endswith("1 fault; 1 shard marked: run snakemake again\n")


def test_dataset_that_cannot_be_written_is_told(dataset, monkeypatch, capsys):
    """Where no marker can be left, that is said with the reason, and the remedies are those by hand."""
    _, entry = _first(dataset)
    (dataset / f"{entry.name}.tar").write_bytes(b"")

    def refuse(url, _):
        raise StoreError(f"{url}: cannot write: Read-only file system")

    monkeypatch.setattr(store, "write_bytes", refuse)

    assert main(["verify", str(dataset), "--cores", "1"]) == 1

    out = capsys.readouterr().out
    assert f"could not be marked for the next build: {dataset}/{entry.name}.damaged: cannot write" in out
    assert f"remove {entry.name}.* and run the build again" in out
    assert "marked: run snakemake" not in out


def test_whole_dataset_is_not_marked(dataset):
    """Where there is no fault, or none of a shard, no marker is left."""
    (dataset / shard.REJECTS_NAME).unlink()

    found = verify(str(dataset), cores=1, on_done=lambda *_: None, mark=True)

    assert (len(found.faults), found.marked, _markers(dataset)) == (1, (), [])


def test_index_of_another_version_is_named(dataset, capsys, caplog):
    """An index of a later format, a broken one and a missing one each are a sentence with a remedy."""
    path = dataset / "dataset.json"
    later = path.read_text().replace('"format_version": 1', '"format_version": 99')
    said = []
    for damage in (lambda: path.write_text(later), lambda: path.write_text("{"), path.unlink):
        damage()
        caplog.clear()
        assert main(["verify", str(dataset)]) == 1
        said.append(caplog.text)

    assert "format version 99 found, 1 expected: use an ingest of its time" in said[0]
    assert "not a whole index" in said[1]
    assert ": run the build again" in said[1]
    assert "no dataset.json there" in said[2]
    assert ": run the build again" in said[2]
    assert capsys.readouterr().out == ""
