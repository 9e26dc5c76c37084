"""splits: shares by a stable hash, groups and equal contents in one split, copies kept once."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest import store
from ingest.build.manifest import MANIFEST_SCHEMA, read_manifest
from ingest.build.plan import PlanSettings, make_plan
from ingest.build.planned import Plan
from ingest.build.scan import ListSettings, scan
from ingest.build.splits import Settled, settle
from ingest.errors import StoreError
from ingest.recipe import Recipe
from ingest.shard import make_key

_SHARES = (("train", 0.8), ("val", 0.1), ("test", 0.1))


def _manifest(*rows: dict[str, Any]) -> pa.Table:
    defaults = {"size": 1, "version": "v", "root": 0}
    full = [
        {**defaults, "key": make_key(row["path"].encode()), **row, "path": row["path"].encode()}
        for row in rows
    ]
    for row in full:
        row["content"] = row["content"].ljust(32).encode() if row.get("content") else None
    return pa.Table.from_pylist(full, schema=MANIFEST_SCHEMA)


def _splits(settled: Settled) -> dict[str, str]:
    paths = [path.decode() for path in settled.files["path"].to_pylist()]
    return dict(zip(paths, settled.files["split"].to_pylist(), strict=True))


def _plan(manifest: pa.Table, before: Plan | None = None, **changes: Any) -> Plan:
    wanted = PlanSettings(dataset="/d", recipe=Recipe(), samples_per_shard=4, split=_SHARES, **changes)
    return make_plan(("/raw",), manifest, wanted, before)


def _planned(plan: Plan) -> dict[str, str]:
    return {file.path.decode(): shard.split for shard in plan.shards() for file in shard.files}


def test_files_without_a_split_are_for_training() -> None:
    """Without shares, what is stated stays, and the rest is train."""
    settled = settle(_manifest({"path": "1"}, {"path": "2", "split": "val"}))

    assert _splits(settled) == {"1": "train", "2": "val"}


def test_shares_are_met_and_stated_splits_stay() -> None:
    """Of 20,000 files each split gets its share within a percent; a stated split is none of them."""
    rows = [{"path": f"{number}"} for number in range(20_000)]

    splits = _splits(settle(_manifest(*rows, {"path": "own", "split": "held-out"}), _SHARES))

    counts = Counter(splits.values())
    # A percent of 20,000 is more than 4 standard deviations of any of the counts.
    assert all(abs(counts[name] - share * 20_000) < 200 for name, share in _SHARES)
    assert splits["own"] == "held-out"


def test_shares_are_parts_of_their_sum() -> None:
    """90 and 10 mean the same as 0.9 and 0.1, and a share of nothing gets nothing."""
    manifest = _manifest(*({"path": f"{number}"} for number in range(500)))

    one = _splits(settle(manifest, (("train", 0.9), ("val", 0.1))))

    assert one == _splits(settle(manifest, (("val", 10), ("train", 90), ("test", 0))))


@settings(deadline=None, max_examples=30)
@given(first=st.integers(1, 60), more=st.integers(0, 60))
def test_split_stays_as_files_are_added(first: int, more: int) -> None:
    """A file's split depends on itself alone."""
    rows = [
        {"path": f"{number}", "group": f"g{number % 7}" if number % 2 else None}
        for number in range(first + more)
    ]

    before, after = (
        _splits(settle(_manifest(*rows[:first]), _SHARES)),
        _splits(settle(_manifest(*rows), _SHARES)),
    )

    assert all(after[path] == split for path, split in before.items())


def test_group_is_never_torn() -> None:
    """All files of a group are in one split, and the groups are spread over all."""
    rows = [{"path": f"{number}", "group": f"patient {number % 90}"} for number in range(900)]

    splits = _splits(settle(_manifest(*rows), _SHARES))

    of_group = {(number % 90, splits[f"{number}"]) for number in range(900)}
    assert len(of_group) == 90
    assert {split for _, split in of_group} == {"train", "val", "test"}


@settings(deadline=None, max_examples=60)
@given(
    contents=st.lists(
        st.tuples(st.sampled_from("abcdef-"), st.sampled_from("pqrs-")), min_size=1, max_size=40
    )
)
def test_equal_contents_and_their_groups_share_a_split(contents: list[tuple[str, str]]) -> None:
    """No content and no group is in two splits, however they are tied to each other."""
    rows = [
        {"path": f"{n}", "content": None if c == "-" else c, "group": None if g == "-" else g}
        for n, (c, g) in enumerate(contents)
    ]

    settled = settle(_manifest(*rows), _SHARES)

    splits = _splits(settled)
    for column in (0, 1):
        pairs = {(tie[column], splits[f"{n}"]) for n, tie in enumerate(contents) if tie[column] != "-"}
        assert len(pairs) == len({value for value, _ in pairs})
    assert settled.crossing == ()


def test_copy_follows_the_file_that_was_there() -> None:
    """A copy added later does not move the file that it equals, also where its own hash says otherwise."""
    rows = [{"path": f"{number}", "content": f"c{number}"} for number in range(60)]
    before = _plan(_manifest(*rows))
    copies = [{"path": f"copy of {number}", "content": f"c{number}"} for number in range(60)]

    after = _planned(_plan(_manifest(*rows, *copies), before))

    assert {path: after[path] for path in _planned(before)} == _planned(before)
    assert all(after[f"copy of {number}"] == after[f"{number}"] for number in range(60))
    again = _plan(_manifest(*rows, *copies), _plan(_manifest(*rows, *copies), before))
    assert _planned(again) == after


def test_copies_follow_a_stated_split() -> None:
    """A file that equals one with a stated split is in that split."""
    rows = [{"path": f"{number}", "content": "c"} for number in range(9)]

    splits = _splits(settle(_manifest(*rows, {"path": "own", "split": "test", "content": "c"}), _SHARES))

    assert set(splits.values()) == {"test"}


def test_conflicts_are_told_with_examples(caplog: pytest.LogCaptureFixture) -> None:
    """The same content in two stated splits, or under two labels, is said with its paths; none is moved."""
    manifest = _manifest(
        {"path": "train/a/1", "split": "train", "label": "a", "content": "x"},
        {"path": "val/a/1", "split": "val", "label": "a", "content": "x"},
        {"path": "train/a/2", "split": "train", "label": "a", "content": "y"},
        {"path": "train/b/2", "split": "train", "label": "b", "content": "y"},
    )

    settled = settle(manifest)
    make_plan(("/raw",), manifest, PlanSettings(dataset="/d", recipe=Recipe()))

    assert {frozenset(paths) for paths in settled.crossing} == {frozenset({"train/a/1", "val/a/1"})}
    assert {frozenset(paths) for paths in settled.torn} == {frozenset({"train/a/2", "train/b/2"})}
    assert len(settled.files) == 4
    assert "1 content in several splits, first " in caplog.text
    assert "1 content under several labels, first " in caplog.text


def test_dropped_copies_leave_evaluation_whole() -> None:
    """Of equal files one stays: in test before val before train, and the one that was in the plan before."""
    splits = {"1": "train", "2": "val", "3": "test", "4": "train"}
    rows = [{"path": path, "split": split, "content": "x"} for path, split in splits.items()]

    assert _splits(settle(_manifest(*rows), drop=True)) == {"3": "test"}
    assert settle(_manifest(*rows), drop=True).dropped == 3
    assert _splits(settle(_manifest(rows[0], rows[1]), drop=True)) == {"2": "val"}
    for first in (rows[0], rows[3]):
        before = _plan(_manifest(first), duplicates="drop")
        kept = _plan(_manifest(rows[0], rows[3]), before, duplicates="drop")
        assert set(_planned(kept)) == {first["path"]}


def test_dropped_copy_does_not_come_back_as_missing() -> None:
    """With `missing: keep`, a copy that is dropped is listed still, and so does not stay."""
    manifest = _manifest({"path": "1", "content": "x"}, {"path": "2", "content": "x"})
    before = _plan(manifest)

    after = _plan(manifest, before, duplicates="drop", missing="keep")

    assert len(_planned(after)) == 1


# ---- content


def _files(folder: Path, **contents: bytes) -> None:
    for name, data in contents.items():
        store.write_bytes(f"{folder}/raw/{name}.jpg", data)


def _identify(folder: Path) -> tuple[set[str], set[str]]:
    """Scan; return the files of which a sketch, and those of which the content is known."""
    scan(f"{folder}/raw", folder / "m.parquet", ListSettings(), identify=True)
    rows = pq.read_table(folder / "m.parquet").to_pylist()
    names = [(Path(os.fsdecode(row["path"])).stem, row) for row in rows]
    return {name for name, row in names if row["sketch"]}, {name for name, row in names if row["content"]}


def test_content_is_read_of_files_alike_alone(tmp_path: Path) -> None:
    """A sketch is made of files that share a size, and the whole read where sketches are equal."""
    body = bytes(100_000)
    _files(
        tmp_path,
        one=b"a" + body + b"z",
        two=b"a" + body + b"z",
        middle=b"a" + bytes(50_000) + b"!" + bytes(49_999) + b"z",
        end=b"a" + body + b"y",
        other=b"a" + body,
        small=b"s",
        small2=b"s",
        empty=b"",
        empty2=b"",
    )

    sketched, known = _identify(tmp_path)

    assert sketched == {"one", "two", "middle", "end", "small", "small2"}
    assert known == {"one", "two", "middle", "small", "small2"}
    rows = read_manifest(tmp_path / "m.parquet")[1].to_pylist()
    by_name = {Path(os.fsdecode(row["path"])).stem: row["content"] for row in rows}
    assert by_name["one"] == by_name["two"] != by_name["middle"]


def test_content_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is read again only where size or version changed, or a new file has the size."""
    _files(tmp_path, one=b"same", two=b"same", three=b"diff", far=b"longer")
    first = _identify(tmp_path)
    kept = (tmp_path / "m.parquet").read_bytes()
    read: list[str] = []
    read_range = store.read_range

    def spy(url: str, offset: int, size: int) -> bytes:
        read.append(Path(url).stem)
        return read_range(url, offset, size)

    monkeypatch.setattr(store, "read_range", spy)
    assert _identify(tmp_path) == first
    assert (read, (tmp_path / "m.parquet").read_bytes()) == ([], kept)
    os.utime(tmp_path / "raw/two.jpg", ns=(1, 1))
    assert _identify(tmp_path) == first
    assert set(read) == {"two"}
    read.clear()
    _files(tmp_path, far2=b"longer")
    assert _identify(tmp_path)[1] == first[1] | {"far", "far2"}
    assert set(read) == {"far", "far2"}


def test_content_is_known_where_there_are_several_splits(tmp_path: Path) -> None:
    """With one split and nothing dropped no content is read; with two it is."""
    _files(tmp_path, **{"train/1": b"x", "train/2": b"x"})
    scan(f"{tmp_path}/raw", tmp_path / "m.parquet")
    assert pq.read_table(tmp_path / "m.parquet")["content"].null_count == 2

    _files(tmp_path, **{"val/1": b"x"})
    scan(f"{tmp_path}/raw", tmp_path / "m.parquet")
    assert pq.read_table(tmp_path / "m.parquet")["content"].null_count == 0


def test_file_that_cannot_be_read_has_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone or not allowed is left to shrink; a fault that may pass ends the scan."""
    _files(tmp_path, one=b"same", two=b"same")

    def refuse(url: str, offset: int, size: int) -> bytes:  # noqa: ARG001
        raise PermissionError(13, "no")

    monkeypatch.setattr(store, "read_range", refuse)
    assert _identify(tmp_path) == (set(), set())

    def fail(url: str, offset: int, size: int) -> bytes:  # noqa: ARG001
        raise StoreError(f"{url}: reset")

    monkeypatch.setattr(store, "read_range", fail)
    with pytest.raises(StoreError, match="reset"):
        _identify(tmp_path)


def test_group_that_is_stated_in_two_splits_is_told() -> None:
    """Stated splits count, and a person sees that they tear a group apart."""
    rows = [{"path": f"{n}", "group": "p", "split": split} for n, split in enumerate(("train", "val"))]

    settled = settle(_manifest(*rows, {"path": "x", "group": "q"}), _SHARES)

    assert settled.straddling == ("p",)
    assert settled.sentences() == [
        "1 group of 'split_by' in several splits, as stated, first p: correct the stated splits"
    ]
