"""inputs, built: several roots, tables and side files become samples with their own pictures and fields."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ingest.build.drive import missing_shards
from ingest.build.history import update_plan
from ingest.build.plan import PlanSettings
from ingest.build.planned import PlanHead
from ingest.build.scan import list_settings, scan
from ingest.build.seal import seal
from ingest.index import read_index
from ingest.recipe import Recipe
from ingest.shard import read_receipt
from ingest.verify import verify
from tests.builds import add_photo, build_shards, photo
from tests.web import serve_folder


def _plan(folder: Path, raw: Any, **changes: Any) -> PlanHead:
    scan(raw, folder / "m.parquet", list_settings({}), identify=True)
    settings = PlanSettings(
        dataset=str(folder / "out"), recipe=Recipe(size=64), samples_per_shard=3, **changes
    )
    return update_plan(folder / "m.parquet", folder / "p.parquet", settings, allow_delete=True).head


def _build(folder: Path, raw: Any, **changes: Any) -> list[str]:
    """Build and seal; return the names of the shards that were built."""
    head = _plan(folder, raw, **changes)
    built = build_shards(folder, head)
    seal(head, missing_shards(head, as_sealed=False))
    return built


def _samples(dataset: Path) -> dict[str, dict[str, bytes]]:
    """Return the fields of each sample by the source that its receipt names."""
    found: dict[str, dict[str, bytes]] = {}
    for shards in read_index(str(dataset)).splits.values():
        for shard in shards:
            sources = {
                row["key"]: row["source"] for row in read_receipt(str(dataset), shard.name)[1].to_pylist()
            }
            with tarfile.open(fileobj=io.BytesIO((dataset / f"{shard.name}.tar").read_bytes())) as tar:
                for member in tar:
                    key, field = member.name.split(".")
                    found.setdefault(sources[key], {})[field] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return found


def test_roots_and_tables_are_built_together(tmp_path: Path) -> None:
    """The same path below two roots, a table and whole URLs: each is its own sample, with its own picture."""
    for number in range(4):
        add_photo(tmp_path / "old", f"a/{number}.jpg", photo(number))
        add_photo(tmp_path / "new", f"a/{number}.jpg", photo(10 + number))
    add_photo(tmp_path / "table", "x.jpg", photo(20))
    add_photo(tmp_path / "far", "y.jpg", photo(21))
    rows = f"url,label,caption,age\nx.jpg,a,one,4\n{tmp_path}/far/y.jpg,b,,\n"
    (tmp_path / "table/rows.csv").write_text(rows)
    raw = [f"{tmp_path}/old", f"{tmp_path}/new", f"{tmp_path}/table/rows.csv"]

    _build(tmp_path, raw)

    samples = _samples(tmp_path / "out")
    wanted = {f"{tmp_path}/{root}/a/{number}.jpg" for root in ("old", "new") for number in range(4)}
    assert set(samples) == wanted | {f"{tmp_path}/table/x.jpg", f"{tmp_path}/far/y.jpg"}
    assert len({fields["jpg"] for fields in samples.values()}) == 10
    assert {tuple(fields) for fields in samples.values()} == {("jpg", "cls", "json", "txt")}
    one = samples[f"{tmp_path}/table/x.jpg"]
    assert (one["cls"], json.loads(one["json"]), one["txt"]) == (b"0", {"age": "4"}, b"one")
    assert samples[f"{tmp_path}/old/a/0.jpg"]["json"] == b"{}"
    assert read_index(str(tmp_path / "out")).fields == ("jpg", "cls", "json", "txt")
    assert list(verify(str(tmp_path / "out"), cores=1, on_done=lambda *_: None).faults) == []
    assert _build(tmp_path, raw) == []


def test_photos_of_a_web_server_are_built(tmp_path: Path) -> None:
    """A table of URLs of a web server: a missing photo is a reject, an edited one is built anew."""
    add_photo(tmp_path / "web", "a b.jpg", photo(1))
    add_photo(tmp_path / "web", "写真.jpg", photo(2))
    with serve_folder(tmp_path / "web") as url:
        rows = "".join(f"{url}/{name},x\n" for name in ("a%20b.jpg", quote("写真.jpg"), "gone.jpg?w=1"))
        (tmp_path / "rows.csv").write_text("url,label\n" + rows)

        assert len(_build(tmp_path, f"{tmp_path}/rows.csv")) == 1
        assert set(_samples(tmp_path / "out")) == {f"{url}/a%20b.jpg", f"{url}/{quote('写真.jpg')}"}
        assert read_index(str(tmp_path / "out")).rejects == {"unreadable": 1}
        assert _build(tmp_path, f"{tmp_path}/rows.csv") == []
        edited = add_photo(tmp_path / "web", "a b.jpg", photo(3))
        os.utime(edited, (2**30, 2**30))
        assert len(_build(tmp_path, f"{tmp_path}/rows.csv")) == 1


def test_new_caption_changes_one_shard(tmp_path: Path) -> None:
    """A caption that is edited changes the shard that its photo is in, and what readers find there."""
    for number in range(9):
        add_photo(tmp_path / "raw", f"a/{number}.jpg", photo(number))
    (tmp_path / "raw/a/4.txt").write_text("before")
    assert len(_build(tmp_path, f"{tmp_path}/raw")) == 3
    (tmp_path / "raw/a/4.txt").write_text("and after")

    assert len(_build(tmp_path, f"{tmp_path}/raw")) == 1
    assert _samples(tmp_path / "out")[f"{tmp_path}/raw/a/4.jpg"]["txt"] == b"and after"


def test_root_that_is_not_mounted_is_no_fault_of_its_files(tmp_path: Path) -> None:
    """Where files of two roots are mixed, a missing root stops the build, and a missing file is a reject."""
    for number in range(2):
        add_photo(tmp_path / "old", f"{number}.jpg", photo(number))
        add_photo(tmp_path / "new", f"{number}.jpg", photo(5 + number))
    head = _plan(tmp_path, [f"{tmp_path}/old", f"{tmp_path}/new"])
    (tmp_path / "new").rename(tmp_path / "away")

    with pytest.raises(OSError, match="new: is missing or empty: mount it there"):
        build_shards(tmp_path, head)
    (tmp_path / "away").rename(tmp_path / "new")
    (tmp_path / "new/1.jpg").unlink()
    build_shards(tmp_path, head)
    assert seal(head, missing_shards(head, as_sealed=False)).rejects == {"unreadable": 1}


def test_photos_of_another_root_stay_when_archived(tmp_path: Path) -> None:
    """With `missing: keep`, samples of a root that is taken out of the configuration stay as they are."""
    for number in range(3):
        add_photo(tmp_path / "old", f"{number}.jpg", photo(number))
        add_photo(tmp_path / "new", f"{number}.jpg", photo(5 + number))
    _build(tmp_path, {"old": f"{tmp_path}/old", "new": f"{tmp_path}/new"})
    before = _samples(tmp_path / "out")

    head = _plan(tmp_path, {"new": f"{tmp_path}/new"}, missing="keep")

    assert missing_shards(head) == []
    assert head.roots == (f"{tmp_path}/new", f"{tmp_path}/old")
    seal(head, [])
    assert _samples(tmp_path / "out") == before


def test_history_is_found_in_the_receipts(tmp_path: Path) -> None:
    """A lost plan of several roots, captions and metadata is made again from the dataset, the same."""
    add_photo(tmp_path / "old", "1.jpg", photo(1))
    add_photo(tmp_path / "new", "1.jpg", photo(2))
    (tmp_path / "new/1.json").write_text('{"caption": "c", "age": 3}')
    raw = {"a": f"{tmp_path}/old", "b": f"{tmp_path}/new"}
    _build(tmp_path, raw)
    (tmp_path / "p.parquet").unlink()

    assert _build(tmp_path, raw) == []


def test_long_path_arrives(tmp_path: Path) -> None:
    """A path of 4,000 bytes is one like any other."""
    below = 4000 - len(f"{tmp_path}/raw/")
    folders = ["d" * 200] * (below // 201 - 1)
    name = "x" * (below - 201 * len(folders) - len(".jpg") - 202) + ".jpg"
    folders.append("e" * 201)
    path = "/".join([*folders, name])
    here = os.getcwd()
    (tmp_path / "raw").mkdir()
    try:
        os.chdir(tmp_path / "raw")
        for part in folders:
            os.mkdir(part)
            os.chdir(part)
        Path(name).write_bytes(photo(1))
    finally:
        os.chdir(here)

    _build(tmp_path, f"{tmp_path}/raw")

    (source,) = _samples(tmp_path / "out")
    assert source == f"{tmp_path}/raw/{path}"
    assert len(source) == 4000
