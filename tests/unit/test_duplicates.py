"""duplicates: equal bytes are found over all shards, conflicts come first, the list follows the dataset."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.__main__ import main
from ingest.build.duplicates import (
    DUPLICATES_SCHEMA,
    Duplicates,
    count_duplicates,
    find_duplicates,
    list_duplicates,
    marks_of,
    read_duplicates,
)
from ingest.errors import CorruptShardError
from tests.builds import add_photo, add_photos, build, photo


def _names(rows: pa.Table, raw: Path) -> list[str]:
    return [source.removeprefix(f"{raw}/") for source in rows["source"].to_pylist()]


def _row(source: str, content: str, label: str | None = None, split: str = "train") -> dict[str, str | None]:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return {"source": source, "key": source, "label": label, "split": split, "sha256": sha256}


def test_equal_files_are_listed_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of the same bytes are listed as groups; the same bytes under two labels are a warning at seal."""
    raw = add_photos(tmp_path / "raw")
    add_photo(raw, "a/copy of 0.jpg", photo(0))
    add_photo(raw, "a/other copy of 0.jpg", photo(0))
    add_photo(raw, "b/copy of 2.jpg", photo(2))

    with caplog.at_level(logging.WARNING):
        done = build(tmp_path)

    assert done.duplicates == Duplicates(files=5, groups=2, labels=1, splits=0)
    assert done.duplicates.sentence() == "duplicates: 5 files in 2 groups, 1 group under two labels"
    assert f"1 group under two labels: list them: ingest inspect {tmp_path}/out --duplicates" in caplog.text
    rows = read_duplicates(str(tmp_path / "out"))
    assert sorted(_names(rows, raw)) == [
        "a/0.jpg", "a/2.jpg", "a/copy of 0.jpg", "a/other copy of 0.jpg", "b/copy of 2.jpg",
    ]  # fmt: skip
    assert rows["sha256"].to_pylist() == sorted(rows["sha256"].to_pylist())
    assert set(rows["sha256"].to_pylist()) == {hashlib.sha256(photo(n)).hexdigest() for n in (0, 2)}


def test_list_goes_with_the_last_duplicate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without duplicates there is no list and no warning; one of an older build is removed."""
    raw = add_photos(tmp_path / "raw")
    copy = add_photo(raw, "b/copy.jpg", photo(0))
    build(tmp_path)
    assert (tmp_path / "out/duplicates.parquet").exists()
    copy.unlink()
    caplog.clear()

    done = build(tmp_path)

    assert done.duplicates.sentence() == "no duplicates"
    assert not (tmp_path / "out/duplicates.parquet").exists()
    assert "WARNING" not in caplog.text
    assert list(list_duplicates(str(tmp_path / "out"))) == [f"{tmp_path}/out: no duplicates"]


def test_same_duplicates_are_not_written_twice(tmp_path: Path) -> None:
    """A second seal leaves the list alone."""
    raw = add_photos(tmp_path / "raw", 3)
    add_photo(raw, "a/copy.jpg", photo(0))
    build(tmp_path)
    stamp = (tmp_path / "out/duplicates.parquet").stat().st_mtime_ns

    build(tmp_path)

    assert (tmp_path / "out/duplicates.parquet").stat().st_mtime_ns == stamp


def test_conflicts_are_counted_by_kind() -> None:
    """Groups that differ in label, in split, in both or in neither are told apart; none is a label too."""
    rows = [
        _row("a", "1", "cat"), _row("b", "1", "cat"),
        _row("c", "2", "cat"), _row("d", "2", "dog"),
        _row("e", "3", "cat"), _row("f", "3", "cat", "val"),
        _row("g", "4", "cat"), _row("h", "4", None, "val"),
    ]  # fmt: skip

    found = count_duplicates(pa.Table.from_pylist(rows, DUPLICATES_SCHEMA))

    assert found == Duplicates(files=8, groups=4, labels=2, splits=2)
    assert found.conflicts == "2 groups under two labels, 2 groups in two splits"


def test_conflicts_are_printed_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ingest inspect --duplicates` prints groups, those that differ in label first, names made printable."""
    raw = add_photos(tmp_path / "raw", 6)
    for number in (0, 1, 2, 3):
        add_photo(raw, f"a/copy {number}\n.jpg", photo(number))
    build(tmp_path)

    assert main(["inspect", str(tmp_path / "out"), "--duplicates"]) == 0

    head, *lines = capsys.readouterr().out.splitlines()
    assert head == f"{tmp_path}/out: duplicates: 8 files in 4 groups, 2 groups under two labels"
    groups = [line for line in lines if line.startswith("sha256")]
    assert [line.endswith("  CONFLICT: labels differ") for line in groups] == [True, True, False, False]
    assert {line.split()[1] for line in groups[:2]} == {
        hashlib.sha256(photo(number)).hexdigest()[:16] for number in (1, 3)
    }
    assert sum(rf"{raw}/a/copy 1\n.jpg" in line for line in lines) == 1


def test_hashes_that_only_begin_alike_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that share the first 64 bits of their hash, and not the rest, are not taken for duplicates."""
    begin = "0123456789abcdef"
    hashes = [begin + "0" * 48, begin + "1" * 48, begin + "2" * 48, begin + "2" * 48, "f" * 64, None]
    receipt = pa.table(
        {
            "status": ["sample"] * 6,
            "source": list("abcdef"),
            "key": list("abcdef"),
            "label": pa.nulls(6, pa.string()),
            "split": ["train"] * 6,
            "source_sha256": hashes,
        }
    )
    monkeypatch.setattr("ingest.build.duplicates.read_all", lambda *_: [("train/000000-00000000", receipt)])
    marks = marks_of(receipt.select(["status", "source_sha256"]))

    found = find_duplicates(str(tmp_path), {"train/000000-00000000": marks})

    assert [f"{mark.tobytes().hex()}" for mark in marks] == [begin] * 4 + ["f" * 16]
    assert found["source"].to_pylist() == ["c", "d"]


def test_marks_of_a_slice_are_its_own() -> None:
    """Only the rows at hand count, though an array of strings may lie in the middle of another's memory."""
    hashes = pa.array([hashlib.sha256(bytes([n])).hexdigest() for n in range(9)])
    receipt = pa.table({"status": ["sample"] * 9, "source_sha256": hashes})

    assert np.array_equal(marks_of(receipt.slice(4, 3)), marks_of(receipt)[4:7])


def test_broken_list_is_named(tmp_path: Path) -> None:
    """A list that is not Parquet is an error that names it and what mends it."""
    (tmp_path / "duplicates.parquet").write_bytes(b"hello")

    with pytest.raises(
        CorruptShardError, match=r"duplicates\.parquet: cannot be read .*: run snakemake again"
    ):
        read_duplicates(str(tmp_path))


def test_list_is_a_plain_parquet_file(tmp_path: Path) -> None:
    """Other programs read source, key, label, split and hash from it."""
    raw = add_photos(tmp_path / "raw", 3)
    add_photo(raw, "a/copy.jpg", photo(0))
    build(tmp_path)

    rows = pq.read_table(tmp_path / "out/duplicates.parquet")

    assert rows.schema.names == ["source", "key", "label", "split", "sha256"]
    assert (rows["label"].to_pylist(), rows["split"].to_pylist()) == (["a", "a"], ["train", "train"])
