"""verify --against-raw: raw files that changed or vanished since are counted and named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ingest import store
from ingest.__main__ import main
from ingest.against import CHANGED, UNREADABLE, VANISHED, RawChanges, compare_raw
from ingest.errors import StoreError
from ingest.index import read_index
from ingest.shard import read_receipt, write_receipt
from tests.builds import add_photos, build, photo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with 8 photos, one of an odd name, and a dataset built from them."""
    raw = add_photos(tmp_path / "raw", 7)
    Path(os.fsdecode(os.fsencode(raw / "a") + b"/\xff odd.jpg")).write_bytes(photo(7))
    build(tmp_path)
    return tmp_path


def _compare(folder: Path, *, content: bool = False) -> dict[str, list[str]]:
    """Return the sources of each kind, below the raw folder, sorted."""
    found = compare_raw(str(folder / "out"), content=content)
    assert found.files == 8
    assert {kind: len(sources) for kind, sources in found.examples.items()} == found.counts
    return {
        kind: sorted(source.removeprefix(f"{folder}/raw/") for source in sources)
        for kind, sources in found.examples.items()
    }


def _damage(folder: Path) -> None:
    """Change one file, touch another, remove a third, and change a fourth so that only its bytes tell."""
    raw = folder / "raw"
    (raw / "a/0.jpg").write_bytes(b"other")
    os.utime(raw / "b/1.jpg", (1, 1))
    (raw / "a/2.jpg").unlink()
    path = raw / "b/3.jpg"
    stamp, data = path.stat().st_mtime_ns, bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stamp, stamp))


@pytest.mark.parametrize("content", [False, True])
def test_unchanged_files_are_none(folder: Path, *, content: bool) -> None:
    """Right after the build nothing has changed, new files do not count, odd names are found."""
    (folder / "raw/a/new.jpg").write_bytes(photo(50))

    assert _compare(folder, content=content) == {}


def test_size_and_version_tell(folder: Path) -> None:
    """By listing, a file of another size or time has changed, and one that is not there has vanished."""
    _damage(folder)

    assert _compare(folder) == {CHANGED: ["a/0.jpg", "b/1.jpg"], VANISHED: ["a/2.jpg"]}


def test_content_tells_more(folder: Path) -> None:
    """By content, a touched file is as it was, and one with the same size and time is found."""
    _damage(folder)

    assert _compare(folder, content=True) == {CHANGED: ["a/0.jpg", "b/3.jpg"], VANISHED: ["a/2.jpg"]}


def test_file_that_cannot_be_read_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose bytes cannot be read is a kind of its own, and the rest is compared all the same."""
    read_bytes = store.read_bytes

    def refuse(url: str) -> bytes:
        if url.endswith("a/0.jpg"):
            raise PermissionError(13, "Permission denied", url)
        return read_bytes(url)

    monkeypatch.setattr(store, "read_bytes", refuse)

    assert _compare(folder, content=True) == {UNREADABLE: ["a/0.jpg"]}


def test_place_that_is_gone_is_an_error(folder: Path) -> None:
    """A raw folder that is not there, perhaps a disk that is not mounted, is no list of vanished files."""
    shutil.move(folder / "raw", folder / "elsewhere")

    with pytest.raises(StoreError, match=f"{folder}/raw: cannot list"):
        compare_raw(str(folder / "out"))


def test_files_of_a_table_are_asked_for_one_by_one(folder: Path) -> None:
    """Where a receipt holds whole URLs there is nothing to list; each file is looked at."""
    dataset = str(folder / "out")
    for shard in read_index(dataset).splits["train"]:
        summary, receipt = read_receipt(dataset, shard.name)
        rows = [
            {**row, "path": os.fsencode(folder / "raw") + b"/" + row["path"]} for row in receipt.to_pylist()
        ]
        rows = [{**row, "source": row["path"].decode("utf-8", "backslashreplace")} for row in rows]
        write_receipt(dataset, summary, rows)
    _damage(folder)

    assert _compare(folder) == {CHANGED: ["a/0.jpg", "b/1.jpg"], VANISHED: ["a/2.jpg"]}


def test_only_the_first_few_are_named() -> None:
    """Of many files of a kind all are counted and five named."""
    found = RawChanges(files=9)
    for number in range(7):
        found.add(CHANGED, f"/raw/{number}\n.jpg")

    assert list(found.lines()) == [
        "7 raw files changed:",
        *(rf"  /raw/{number}\n.jpg" for number in range(5)),
        "  and 2 more",
        "verify: 9 raw files compared: run snakemake: it builds their shards again",
    ]


def test_command_compares_with_the_raw_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ingest verify --against-raw` has status 0 where nothing changed, else 1; =content reads the files."""
    arguments = ["verify", str(folder / "out"), "--against-raw"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "verify: 8 raw files compared: none changed\n"
    os.utime(folder / "raw/a/0.jpg", (1, 1))

    assert main(arguments) == 1
    assert capsys.readouterr().out.startswith(
        f"1 raw file changed:\n  {folder}/raw/a/0.jpg\nverify: 8 raw files "
    )
    assert main(["verify", str(folder / "out"), "--against-raw=content"]) == 0
