"""inputs: globs, roots, tables and side files arrive with their own identity and what is known of them."""

from __future__ import annotations

import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest import store
from ingest.build.facts import Roles, sort_facts
from ingest.build.manifest import read_manifest, read_roots
from ingest.build.names import label_of
from ingest.build.scan import list_settings, scan
from ingest.build.sources import Root, name_sources, read_source
from ingest.build.tables import resolve
from ingest.errors import ConfigError, StoreError
from ingest.shard import make_key

_JPEG = b"\xff\xd8\xff\xe0\0\x10JFIF\0"


def _write(root: Path | str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        store.write_bytes(store.join(str(root), name), data)


def _scan(raw: Any, folder: Path, **values: Any) -> tuple[dict[bytes, dict[str, Any]], dict[str, int]]:
    """Return the rows of the manifest by path, and what was skipped."""
    identify = values.pop("identify", False)
    found = scan(raw, folder / "m.parquet", list_settings(values), identify=identify)
    rows = read_manifest(folder / "m.parquet")[1].to_pylist()
    return {row["path"]: row for row in rows}, found.skipped


# ---- roots


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("**/*.jpg", {"1.jpg", "a/1.jpg", "a/b/1.jpg"}),
        ("*.jpg", {"1.jpg"}),
        ("*/*", {"a/1.jpg", "a/2.PNG"}),
        ("a/**", {"1.jpg", "2.PNG", "b/1.jpg"}),
        ("a/[!1].*", {"2.PNG"}),
        ("a/?.PNG", {"2.PNG"}),
    ],
)
@pytest.mark.parametrize("place", ["folder", "memory"])
def test_glob_takes_what_matches(tmp_path: Path, place: str, glob: str, expected: set[str]) -> None:
    """Paths and keys are those below the part of a glob without wildcards, on disk as in a bucket."""
    raw = f"{tmp_path}/raw" if place == "folder" else f"memory://{uuid.uuid4()}"
    _write(raw, {"1.jpg": b"x", "a/1.jpg": b"x", "a/2.PNG": b"x", "a/b/1.jpg": b"x"})

    rows, skipped = _scan(f"{raw}/{glob}", tmp_path)

    assert {os.fsdecode(path) for path in rows} == expected
    assert all(row["key"] == make_key(path) for path, row in rows.items())
    below = 3 if glob.startswith("a/") else 4
    assert skipped == ({"not matched": below - len(expected)} if below > len(expected) else {})


def test_folder_with_brackets_in_its_name_is_a_folder(tmp_path: Path) -> None:
    """A folder that is there is no glob, whatever characters its name holds."""
    _write(tmp_path / "me [2020]*", {"1.jpg": b"x"})

    assert set(_scan(f"{tmp_path}/me [2020]*", tmp_path)[0]) == {b"1.jpg"}


def test_several_roots_have_names_and_keys_of_their_own(tmp_path: Path) -> None:
    """The same path below two roots is two samples; an empty name keeps the keys of a lone root."""
    _write(tmp_path / "a", {"c/1.jpg": b"x"})
    _write(tmp_path / "b", {"c/1.jpg": b"y"})

    scan([f"{tmp_path}/a", f"{tmp_path}/b"], tmp_path / "m.parquet")
    table = read_manifest(tmp_path / "m.parquet")[1]
    assert read_roots(table.schema) == (Root("a", f"{tmp_path}/a"), Root("b", f"{tmp_path}/b"))
    assert table["root"].to_pylist() == [0, 1]
    assert table["key"].to_pylist() == [make_key(b"a\0c/1.jpg"), make_key(b"b\0c/1.jpg")]

    scan({"": f"{tmp_path}/a", "more": f"{tmp_path}/b"}, tmp_path / "m.parquet")
    keys = read_manifest(tmp_path / "m.parquet")[1]["key"].to_pylist()
    assert keys == [make_key(b"c/1.jpg"), make_key(b"more\0c/1.jpg")]


def test_roots_of_one_name_are_refused() -> None:
    """Two roots of one name would share keys: the sentence says what to write."""
    with pytest.raises(ConfigError, match=r"/a/x and /b/x are both called 'x'.*name of its own"):
        name_sources(["/a/x", "/b/x"])
    assert name_sources(["/a/x"]) == {"": "/a/x"}
    assert name_sources(["/a/x", "/a/*.jpg", "/t/rows.csv"]) == {
        "x": "/a/x", "a": "/a/*.jpg", "rows": "/t/rows.csv",
    }  # fmt: skip


def test_kinds_of_sources_are_told_by_their_names() -> None:
    """A table by its ending, a glob by its wildcards, all else is a folder."""
    kinds = {
        url: read_source("", url).kind for url in ("s3://b/p", "s3://b/*/x.jpg", "s3://b/t.CSV", "/t.jsonl")
    }
    assert list(kinds.values()) == ["folder", "glob", "table", "table"]
    assert read_source("", "https://h/p?q=1").kind == "folder"
    assert read_source("", "s3://b/p/*/x.jpg").root == Root("", "s3://b/p")


# ---- labels


def test_no_two_class_folders_share_a_label() -> None:
    """An invalid byte and the text that it is written as are two classes; a plain name is kept as it is."""
    names = [
        b"caf\xe9",
        b"caf\\xe9",
        b"caf\\\xe9",
        b"caf\\\\xe9",
        b"a\\b",
        b"caf\xc3\xa9",
        b"\\x",
        b"00",
        b"\xff\\xff",
    ]

    labels = [label_of(name) for name in names]

    assert labels[:2] == ["caf\\xe9", "caf\\\\xe9"]
    assert labels[4:8] == ["a\\b", "café", "\\x", "00"]
    assert len(set(labels)) == len(names)


@pytest.mark.parametrize(
    ("labels", "values", "label", "meta"),
    [
        ("auto", {"label": "00"}, "00", None),
        ("auto", {"label": 7, "x": 1}, "7", {"x": 1}),
        ("auto", {"label": ["b", "a"]}, None, {"labels": ["b", "a"]}),
        ("auto", {"label": 0.5}, None, {"label": 0.5}),
        ("auto", {"label": float("nan"), "x": float("nan")}, None, None),
        ("auto", {"label": "", "class": "cat"}, "cat", None),
        ("none", {"label": "cat"}, None, None),
        ("folder", {"label": "cat"}, None, {"label": "cat"}),
        ("multi", {"label": "cat; dog;"}, None, {"labels": ["cat", "dog"]}),
        ("multi", {"label": '["cat", "hot; dog"]'}, None, {"labels": ["cat", "hot; dog"]}),
        ("multi", {"label": 3}, None, {"labels": ["3"]}),
        ("regression", {"label": "1e3"}, None, {"label": 1000.0}),
        ("regression", {"label": [1, "2.5"]}, None, {"label": [1, 2.5]}),
    ],
)
def test_label_is_a_class_or_goes_to_json(
    labels: Any, values: dict[str, Any], label: str | None, meta: dict[str, Any] | None
) -> None:
    """One text or whole number is a class; several, and targets, are kept with the rest."""
    facts = sort_facts(values, Roles(labels=labels))

    assert facts.label == label
    assert (None if facts.meta is None else json.loads(facts.meta)) == meta


# ---- side files


def test_side_files_say_what_is_known(tmp_path: Path) -> None:
    """A text beside a picture is its caption; an object its label, split, caption, and the rest metadata."""
    _write(
        tmp_path / "raw",
        {
            "a/1.jpg": b"x",
            "a/1.txt": "ein Häuschen\n".encode(),
            "a/1.v2.jpg": b"x",
            "a/1.json": b'{"label": "house", "split": "valid", "z": [1], "b": {"y": 1}, "who": "p7"}',
            "a/2.JPG": b"x",
            "a/2.jpeg": b"x",
            "a/2.json": b'{"caption": "two"}',
            "a/alone.txt": b"nobody's",
        },
    )

    rows, skipped = _scan(f"{tmp_path}/raw", tmp_path, split_by="who")

    one = rows[b"a/1.jpg"]
    assert (one["text"], one["label"], one["split"], one["group"]) == ("ein Häuschen", "house", "val", "p7")
    assert one["meta"] == '{"b": {"y": 1}, "who": "p7", "z": [1]}'
    assert rows[b"a/1.v2.jpg"]["text"] is None
    assert (rows[b"a/2.JPG"]["text"], rows[b"a/2.jpeg"]["text"], rows[b"a/2.JPG"]["label"]) == (
        "two",
        "two",
        "a",
    )
    assert skipped == {"text": 1}
    ignored, skipped = _scan(f"{tmp_path}/raw", tmp_path, sidecars=False)
    assert ignored[b"a/1.jpg"]["text"] is None
    assert skipped == {"text": 4}


def test_broken_side_file_costs_only_what_it_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is no object, no text or too large is counted; pictures stay, also one called json."""
    _write(tmp_path / "raw", {f"a/{n}.jpg": b"x" for n in range(5)})
    _write(tmp_path / "raw", {"a/0.json": b"[1]", "a/1.json": b"{", "a/2.txt": b"\xff\xfe\xff"})
    _write(tmp_path / "raw", {"a/3.json": _JPEG, "a/4.txt": b"long " * 300_000})

    rows, skipped = _scan(f"{tmp_path}/raw", tmp_path)

    assert len(rows) == 6
    assert skipped == {"broken side file": 3, "text": 1}
    assert "the side file of a/0.jpg is left out: holds a list, expected an object" in caplog.text


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found in a file is remembered until its size or version changes."""
    _write(tmp_path / "raw", {"a/1.jpg": b"x", "a/1.txt": b"caption", "a/2": _JPEG, "a/notes": b"text"})
    first = _scan(f"{tmp_path}/raw", tmp_path)
    read: list[str] = []
    read_head, read_bytes = store.read_head, store.read_bytes

    def head(url: str, num_bytes: int) -> bytes:
        read.append(Path(url).name)
        return read_head(url, num_bytes)

    def whole(url: str) -> bytes:
        read.append(Path(url).name)
        return read_bytes(url)

    monkeypatch.setattr(store, "read_head", head)
    monkeypatch.setattr(store, "read_bytes", whole)

    assert _scan(f"{tmp_path}/raw", tmp_path) == first
    assert read == []
    os.utime(tmp_path / "raw/a/1.txt", ns=(1, 1))
    os.utime(tmp_path / "raw/a/2", ns=(1, 1))
    _scan(f"{tmp_path}/raw", tmp_path)
    assert sorted(read) == ["1.txt", "2"]


# ---- tables

_ROWS = [
    {
        "url": "p/1.jpg",
        "label": "00",
        "split": "Validation",
        "caption": 'one, "1"\nline',
        "age": "41",
        "id": "007",
    },
    {"url": "p/2.jpg", "label": "NA", "split": "", "caption": "", "age": "", "id": "x"},
]


def _table(folder: Path, suffix: str) -> str:
    path = folder / f"rows.{suffix}"
    if suffix in ("csv", "tsv"):
        mark = {"csv": ",", "tsv": "\t"}[suffix]
        quoted = [['"' + value.replace('"', '""') + '"' for value in row.values()] for row in _ROWS]
        lines = [mark.join(_ROWS[0]), *(mark.join(row) for row in quoted)]
        path.write_text("\n".join(lines))
    elif suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(_ROWS), path)
    else:
        path.write_text("\n".join(map(json.dumps, _ROWS)) + "\n\n")
    return str(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl", "ndjson"])
def test_every_table_says_the_same(tmp_path: Path, suffix: str) -> None:
    """Texts stay as they are written; numbers are what is said to be one; all else is metadata."""
    _write(tmp_path, {"p/1.jpg": b"12345", "p/2.jpg": b"12"})

    rows, skipped = _scan(_table(tmp_path, suffix), tmp_path, columns={"numbers": ["age"]}, split_by="id")

    one, two = rows[b"p/1.jpg"], rows[b"p/2.jpg"]
    assert (one["key"], one["size"], one["root"]) == (make_key(b"p/1.jpg"), 5, 0)
    assert one["version"].startswith("mtime:")
    assert (one["label"], one["split"], one["text"]) == ("00", "val", 'one, "1"\nline')
    assert (one["meta"], one["group"]) == ('{"age": 41, "id": "007"}', "007")
    assert (two["label"], two["split"], two["text"], two["meta"]) == ("NA", None, None, '{"id": "x"}')
    assert skipped == {}


def test_table_in_a_bucket_names_files_anywhere(tmp_path: Path) -> None:
    """Relative places are below the table's folder, others are whole URLs with keys of their own."""
    bucket, other = f"memory://{uuid.uuid4()}", f"memory://{uuid.uuid4()}"
    _write(bucket, {"x/a.jpg": b"123"})
    _write(other, {"b.jpg": b"1"})
    lines = ["file", "a.jpg", f"{bucket}/x/a2.jpg", f"{other}/b.jpg", "../y/c.jpg", f"{tmp_path}/d.jpg", ""]
    _write(bucket, {"x/rows.csv": "\n".join(lines).encode()})

    rows, _ = _scan(f"{bucket}/x/rows.csv", tmp_path)

    away = {path for path, row in rows.items() if row["root"] == 1}
    assert set(rows) - away == {b"a.jpg", b"a2.jpg"}
    assert away == {f"{other}/b.jpg".encode(), f"{bucket}/y/c.jpg".encode(), f"{tmp_path}/d.jpg".encode()}
    assert rows[f"{other}/b.jpg".encode()]["key"] == make_key(f"{other}/b.jpg".encode())
    assert [rows[path]["size"] for path in (b"a.jpg", b"a2.jpg")] == [3, -1]


@pytest.mark.parametrize(
    ("folder", "url", "expected"),
    [
        ("/t", "a b.jpg", (True, b"a b.jpg")),
        ("/t", "/t/a.jpg", (True, b"a.jpg")),
        ("/t", "../a.jpg", (False, b"/a.jpg")),
        ("/t", "file:///t/a.jpg", (True, b"a.jpg")),
        ("s3://b/t", "./x/../a.jpg", (True, b"a.jpg")),
        ("s3://b/t", "s3://b/t2/a.jpg", (False, b"s3://b/t2/a.jpg")),
        ("https://h/t", "a%20b.jpg", (True, b"a b.jpg")),
        ("https://h/t", "a.jpg?w=1", (False, b"https://h/t/a.jpg?w=1")),
        ("https://h/t", "/a.jpg", (False, b"https://h/a.jpg")),
    ],
)
def test_place_in_a_table_is_resolved(folder: str, url: str, expected: tuple[bool, bytes]) -> None:
    """A place is below the table's folder if it can be, and else a whole URL."""
    assert resolve(folder, url) == expected


def test_columns_may_give_size_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With columns for both, or `sizes: table`, no place is asked."""
    (tmp_path / "rows.csv").write_text("url,n,etag\ns3://b/1.jpg,7,v1\n")
    look, asked = store.look, []

    def spy(url: str) -> Any:
        asked.append(url)
        return look(url)

    monkeypatch.setattr(store, "look", spy)
    rows, _ = _scan(f"{tmp_path}/rows.csv", tmp_path, columns={"size": "n", "version": "etag"})
    assert [(row["size"], row["version"], row["meta"]) for row in rows.values()] == [(7, "v1", None)]
    rows, _ = _scan(f"{tmp_path}/rows.csv", tmp_path, sizes=False)
    assert [(row["size"], row["version"]) for row in rows.values()] == [(-1, "")]
    assert asked == [f"{tmp_path}/rows.csv"] * 2


@pytest.mark.parametrize(
    ("suffix", "text", "words"),
    [
        (
            "csv",
            "link,label\nx,y\n",
            r"has the columns 'link', 'label', expected one of url, path.*columns: \{url",
        ),
        ("csv", "url,label\nx\n", "not a table that can be read as csv"),
        ("csv", "url,url\nx,y\n", "two columns have the same name"),
        ("csv", "", "not a table that can be read as csv"),
        ("csv", "url\n", "holds no pictures"),
        ("csv", "url\na.jpg\n./a.jpg\n", "a.jpg: named by 2 rows, and 0 more"),
        ("csv", "url,split\nx,a/b\n", r"row 1: the split is 'a/b', expected letters"),
        ("jsonl", '{"url": "x"}\n[]\n', "line 2 is a list, expected an object"),
        ("jsonl", '{"url": 5}\n', "column 'url' holds a int, expected URLs as text"),
        ("parquet", "no parquet", "not a table that can be read as parquet"),
    ],
)
def test_table_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, suffix: str, text: str, words: str
) -> None:
    """A fault in a table is named with the table, where it is, and what was expected."""
    (tmp_path / f"rows.{suffix}").write_text(text)

    with pytest.raises(StoreError, match=words) as caught:
        _scan(f"{tmp_path}/rows.{suffix}", tmp_path)

    assert "\n" not in str(caught.value)


def test_missing_table_is_one_sentence(tmp_path: Path) -> None:
    """A table that is not there says which key to set."""
    with pytest.raises(StoreError, match=r"rows\.csv: no such table: set the config key 'raw'"):
        _scan(f"{tmp_path}/rows.csv", tmp_path)


def test_columns_that_a_person_names_must_be_there(tmp_path: Path) -> None:
    """A wrong name is an error, or the dataset would have no labels, or no splits, without a word."""
    (tmp_path / "t.csv").write_text("url,label,patient\nx.jpg,a,p\n")
    (tmp_path / "x.jpg").write_bytes(_JPEG)

    named: list[tuple[str, Any]] = [
        ("label", "klass"),
        ("split", "fold"),
        ("numbers", ["age"]),
        ("size", "bytes"),
    ]
    for column, wanted in named:
        name = wanted[0] if isinstance(wanted, list) else wanted
        with pytest.raises(StoreError, match=f"expected '{name}' too"):
            _scan(f"{tmp_path}/t.csv", tmp_path, columns={column: wanted})


def test_lines_of_json_need_a_named_column_in_one_of_them(tmp_path: Path) -> None:
    """Lines may lack it, all of them may not."""
    (tmp_path / "x.jpg").write_bytes(_JPEG)
    (tmp_path / "y.jpg").write_bytes(_JPEG)
    (tmp_path / "t.jsonl").write_text('{"url": "x.jpg"}\n{"url": "y.jpg", "klass": "a"}\n')

    rows, _ = _scan(f"{tmp_path}/t.jsonl", tmp_path, columns={"label": "klass"})
    assert sorted(str(row["label"]) for row in rows.values()) == ["None", "a"]
    with pytest.raises(StoreError, match="expected 'class' too"):
        _scan(f"{tmp_path}/t.jsonl", tmp_path, columns={"label": "class"})


def test_group_that_nobody_has_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong name in `split_by` would leak groups over splits; a few files without a value are said."""
    (tmp_path / "x.jpg").write_bytes(_JPEG)
    (tmp_path / "y.jpg").write_bytes(_JPEG)
    (tmp_path / "t.csv").write_text("url,patient\nx.jpg,p\ny.jpg,\n")

    with pytest.raises(StoreError, match="'split_by' is 'Patient', and no table or side file has"):
        _scan(f"{tmp_path}/t.csv", tmp_path, split_by="Patient")
    with caplog.at_level(logging.WARNING):
        _scan(f"{tmp_path}/t.csv", tmp_path, split_by="patient")
    assert "1 candidate without 'patient'" in caplog.text


def test_spaces_around_the_name_of_a_column_are_refused(tmp_path: Path) -> None:
    """`url, label` has a column that nobody would find."""
    (tmp_path / "t.csv").write_text("url, label\nx.jpg,a\n")

    with pytest.raises(StoreError, match="the name of the column ' label' has spaces around it"):
        _scan(f"{tmp_path}/t.csv", tmp_path)
