"""shard: tars that any reader opens, offsets that agree with them, receipts that come back."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import store
from ingest.errors import CorruptShardError
from ingest.shard import (
    RECEIPT_SCHEMA,
    ShardSummary,
    TarWriter,
    format_offsets,
    make_key,
    members_of,
    read_receipt,
    samples_of,
    write_receipt,
)


@given(path=st.binary(min_size=1, max_size=5000))
def test_key_is_safe_for_every_name(path: bytes) -> None:
    """Whatever the name, its key is 16 characters that no reader splits, folds or escapes."""
    key = make_key(path)

    assert len(key) == 16
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz234567")


def test_key_depends_on_the_whole_path() -> None:
    """The same name in two folders, or in another case, gives other keys."""
    assert len({make_key(path) for path in (b"a/1.jpg", b"b/1.jpg", b"a/1.JPG", b"a/1.png", b"1.jpg")}) == 5


@given(samples=st.lists(st.tuples(st.binary(max_size=2000), st.integers(0, 9999)), max_size=12))
def test_tar_and_offsets_agree(samples: list[tuple[bytes, int]]) -> None:
    """Every member lies where the writer said, by Python's own tar reader."""
    file = io.BytesIO()
    writer = TarWriter(file)
    placed = [
        (f"key{n}", writer.add(f"key{n}", {"jpg": data, "cls": b"%d" % label}))
        for n, (data, label) in enumerate(samples)
    ]
    num_bytes, _ = writer.close()

    data = file.getvalue()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = [(info.name, info.offset_data, info.size) for info in tar]

    assert num_bytes == len(data)
    assert found == [(f"{key}.{m.field}", m.offset, m.size) for key, members in placed for m in members]
    for (key, (image, _)), (expected, _) in zip(placed, samples, strict=True):
        assert data[image.offset : image.offset + image.size] == expected, key
    lines = format_offsets(placed, len(placed)).decode().splitlines()
    assert lines[0] == f"v1.2 {len(samples)}"
    assert [line.split()[1::4] for line in lines[1:]] == [
        [str(m.offset) for m in members] for _, members in placed
    ]


def test_tar_holds_nothing_of_this_machine() -> None:
    """Members carry no time, owner or name of who wrote them, so the same samples give the same bytes."""
    files = [io.BytesIO(), io.BytesIO()]
    hashes = set()
    for file in files:
        writer = TarWriter(file)
        writer.add("k", {"jpg": b"123"})
        hashes.add(writer.close())

    with tarfile.open(fileobj=io.BytesIO(files[0].getvalue())) as tar:
        info = tar.getmembers()[0]
    assert (info.mtime, info.uid, info.gid, info.uname, info.gname) == (0, 0, 0, "", "")
    assert files[0].getvalue()[257:263] == b"ustar\0"
    assert len(hashes) == 1


def _summary() -> ShardSummary:
    return ShardSummary(
        name="train/000000-ab", samples=1, rejects=1, bytes=10240, sha256="00", pixels=4,
        pixel_sum=(1, 2, 3), pixel_sum_squares=(4, 5, 6), engines={"pillow": "1"},
    )  # fmt: skip


def _row(**values: object) -> dict[str, object]:
    row = dict.fromkeys(RECEIPT_SCHEMA.names)
    needed = {
        "key": "k",
        "path": b"p",
        "source": "s",
        "source_version": "v",
        "source_bytes": 1,
        "split": "train",
    }
    return {**row, **needed, **values}


def test_receipt_comes_back(tmp_path: Path) -> None:
    """Summary and rows are read as they were written; members come from the rows that are samples."""
    place = {
        "image_field": "jpg",
        "image_offset": 512,
        "image_bytes": 9,
        "class_offset": 1536,
        "class_bytes": 1,
    }
    rows = [
        _row(status="sample", **place),
        _row(key="r", status="rejected", code="empty", reason="It is empty."),
    ]

    write_receipt(str(tmp_path), _summary(), rows)
    summary, table = read_receipt(str(tmp_path), "train/000000-ab")

    assert summary == _summary()
    assert table.to_pylist() == rows
    assert samples_of(table)["key"].to_pylist() == ["k"]
    ((key, (image, label)),) = members_of(table)
    assert (key, image.field, image.offset, label.field, label.offset, label.size) == (
        "k",
        "jpg",
        512,
        "cls",
        1536,
        1,
    )


@pytest.mark.parametrize("damage", ["missing", "cut", "not parquet", "no summary"])
def test_broken_receipt_is_named(tmp_path: Path, damage: str) -> None:
    """A receipt that cannot be read is an error with its path and a remedy."""
    write_receipt(str(tmp_path), _summary(), [_row(status="sample")])
    path = tmp_path / "train/000000-ab.parquet"
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "not parquet":
        path.write_bytes(b"hello")
    else:
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)

    with pytest.raises(
        CorruptShardError, match=r"000000-ab\.parquet: (not a receipt|is missing).*run the build again"
    ):
        read_receipt(str(tmp_path), "train/000000-ab")


def test_summary_is_plain_data() -> None:
    """A summary has one field for each thing that the receipt's metadata keeps."""
    assert set(dataclasses.asdict(_summary())) == {
        "name", "samples", "rejects", "bytes", "sha256", "pixels", "pixel_sum", "pixel_sum_squares",
        "engines", "recipe_sha256",
    }  # fmt: skip


def test_store_lists_what_the_shard_wrote(tmp_path: Path) -> None:
    """A receipt lies under its shard's name."""
    write_receipt(str(tmp_path), _summary(), [])

    assert list(store.list_files(str(tmp_path))) == ["train/000000-ab.parquet"]
