"""scan: every candidate arrives once, with its class and split; what is plainly something else is counted."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import tarfile
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ingest import store
from ingest.build import folders
from ingest.build import scan as scan_module
from ingest.build.manifest import read_manifest
from ingest.build.names import claims_to_be_a_picture, has_split_folders, place, skip_reason
from ingest.build.scan import describe_skipped, scan
from ingest.errors import StoreError

_DATA = Path(__file__).resolve().parents[3] / "shared/data"
_needs_corpus = pytest.mark.skipif(not _DATA.exists(), reason="the shared pictures are not here")

_JPEG = b"\xff\xd8\xff\xe0\0\x10JFIF\0"
_MP4 = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2"


def _write(root: Path, *names: str, content: bytes = b"x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _rows(manifest: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = read_manifest(manifest)[1].to_pylist()
    return rows


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (b"cat/1.jpg", None),
        (b"cat/noending", None),
        (b"cat/1.JPG", None),
        (b"cat/1.xyz", None),
        (b"cat/.1.jpg", "hidden"),
        (b".ipynb_checkpoints/1.jpg", "hidden"),
        (b"cat/._1.jpg", "hidden"),
        (b"__MACOSX/1.jpg", "litter"),
        (b"cat/Thumbs.db", "litter"),
        (b"cat/MVI_0001.THM", "litter"),
        (b"labels.csv", None),
        (b"cat/thm", None),
        (b"cat/\xff\xfe.jpg", None),
    ],
)
def test_what_is_skipped_by_name(path: bytes, reason: str | None) -> None:
    """Hidden files, litter and the side files of cameras are known by their names; nothing else is."""
    assert skip_reason(path) == reason


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        (b"cat/1.jpg", True),
        (b"cat/1.JpG", True),
        (b"cat/\xff\xfe.jpeg", True),
        (b"cat/1.v2.HEIC", True),
        (b"cat/1.Nef", True),
        (b"cat/1.jpg_large", False),
        (b"cat/1.jpg/2", False),
        (b"cat/jpg", False),
        (b"cat/1", False),
        (b"clip.mp4", False),
        (b"labels.csv", False),
    ],
)
def test_what_claims_to_be_a_picture(path: bytes, claims: bool) -> None:  # noqa: FBT001
    """The ending of the last part of a path counts, in any case."""
    assert claims_to_be_a_picture(path) is claims


@pytest.mark.parametrize(
    ("path", "has_splits", "expected"),
    [
        (b"cat/1.jpg", False, (None, "cat")),
        (b"cat/deep/er/1.jpg", False, (None, "cat")),
        (b"1.jpg", False, (None, None)),
        (b"train/cat/1.jpg", True, ("train", "cat")),
        (b"valid/cat/1.jpg", True, ("val", "cat")),
        (b"Test/1.jpg", True, ("test", None)),
        (b"caf\xc3\xa9/1.jpg", False, (None, "café")),
        (b"\xff/1.jpg", False, (None, "\\xff")),
    ],
)
def test_class_and_split_of_a_path(
    path: bytes,
    has_splits: bool,  # noqa: FBT001
    expected: tuple[str | None, str | None],
) -> None:
    """The first folder is the class; below split folders, the second."""
    assert place(path, has_splits=has_splits) == expected


def test_split_folders_are_recognised_only_where_all_are_splits() -> None:
    """`train` among classes of other names is a class, not a split."""
    assert has_split_folders(["train", "val"])
    assert has_split_folders(["Train"])
    assert not has_split_folders(["train", "cat"])
    assert has_split_folders(["val", "test"])
    assert has_split_folders(["train", "val", "annotations"])
    assert not has_split_folders(["val"])
    assert not has_split_folders([])


def test_manifest_lists_every_candidate_once(tmp_path: Path) -> None:
    """The manifest holds each candidate with size and version, and nothing else."""
    raw = tmp_path / "raw"
    _write(raw, "a/1.jpg", "a/2.png", "b/deep/1.jpg", "b/.DS_Store", "notes.txt")

    found = scan(str(raw), tmp_path / "m.parquet")

    assert [(row["path"], row["label"]) for row in _rows(tmp_path / "m.parquet")] == [
        (b"a/1.jpg", "a"),
        (b"a/2.png", "a"),
        (b"b/deep/1.jpg", "b"),
    ]
    assert (found.candidates, found.bytes, found.skipped, found.changed) == (
        3,
        3,
        {"hidden": 1, "text": 1},
        True,
    )


def test_content_decides_where_the_name_claims_nothing(tmp_path: Path) -> None:
    """A picture without an ending or with a foreign one is a candidate; all else is counted by its kind."""
    raw = tmp_path / "raw"
    _write(raw, "a/0001", "a/1.jpg_large", "a/2.json", content=_JPEG)
    _write(raw, "a/poster", content=b"8BPS\0\1")  # a picture that is not read: shrink says so
    _write(raw, "a/raw", content=b"FUJIFILMCCD-RAW 0201")
    _write(raw, "README", "a/labels.csv", "a/x.json", content=b"a text\n")
    _write(raw, "a/clip.mp4", "a/clip", content=_MP4)
    _write(raw, "a/all", content=b"PK\3\4")
    _write(raw, "a/done", "a/zero.txt", content=b"")
    _write(raw, "a/noise", content=b"\x17\x03\x01\x00")
    _write(raw, "a/side", content=b"\0\5\x16\7\0\2\0\0")

    found = scan(str(raw), tmp_path / "m.parquet")

    paths = [row["path"] for row in _rows(tmp_path / "m.parquet")]
    assert paths == [b"a/0001", b"a/1.jpg_large", b"a/2.json", b"a/poster", b"a/raw"]
    assert found.skipped == {"text": 3, "video": 2, "archive": 1, "empty": 2, "other": 1, "litter": 1}


def test_claimed_picture_is_a_candidate_whatever_is_in_it(tmp_path: Path) -> None:
    """An HTML page, nothing, and a video with the ending of a picture are left to shrink, which says why."""
    raw = tmp_path / "raw"
    _write(raw, "a/page.jpg", content=b"<!doctype html>")
    _write(raw, "a/empty.PNG", content=b"")
    _write(raw, "a/video.heic", content=_MP4)

    found = scan(str(raw), tmp_path / "m.parquet")

    assert (found.candidates, found.skipped) == (3, {})


def test_claimed_pictures_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what claims nothing is read, and of it no more than its head."""
    raw, asked = tmp_path / "raw", []
    _write(raw, "a/1.jpg", "a/2.png", "a/.hidden", "a/Thumbs.db", "a/notes", content=b"notes " * 1000)
    read_head = store.read_head

    def spy(url: str, num_bytes: int) -> bytes:
        asked.append((Path(url).name, num_bytes))
        return read_head(url, num_bytes)

    monkeypatch.setattr(store, "read_head", spy)
    scan(str(raw), tmp_path / "m.parquet")

    assert asked == [("notes", 512)]


def test_order_of_the_listing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late first bytes arrive, rows and counts are the same, also where more wait than may."""
    raw, numbers = tmp_path / "raw", [f"{number:04}" for number in range(300)]
    for number in numbers:
        _write(raw, f"a/{number}", content=_JPEG if int(number) % 3 else b"a text")
    monkeypatch.setattr(folders, "_READ_AHEAD", 7)
    first_may_go, read_head, chance = threading.Event(), store.read_head, random.Random(5)

    def late(url: str, num_bytes: int) -> bytes:
        if url.endswith("0000"):
            first_may_go.wait(30)
        if url.endswith("0005"):
            first_may_go.set()
        threading.Event().wait(chance.random() / 1000)
        return read_head(url, num_bytes)

    monkeypatch.setattr(store, "read_head", late)
    found = scan(str(raw), tmp_path / "m.parquet")

    expected = [f"a/{number}".encode() for number in numbers if int(number) % 3]
    assert [row["path"] for row in _rows(tmp_path / "m.parquet")] == expected
    assert found.skipped == {"text": 100}


@pytest.mark.parametrize("error", [PermissionError(13, "no"), FileNotFoundError(2, "gone")])
def test_file_that_cannot_be_looked_at_is_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """What may not be read, or vanished meanwhile, is left to shrink, which says why it is no sample."""
    raw = tmp_path / "raw"
    _write(raw, "a/0001")

    def refuse(url: str, num_bytes: int) -> bytes:  # noqa: ARG001
        raise error

    monkeypatch.setattr(store, "read_head", refuse)

    assert scan(str(raw), tmp_path / "m.parquet").candidates == 1


def test_passing_fault_stops_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short listing would look like deleted files: a read that fails ends the scan; the manifest stays."""
    raw, manifest = tmp_path / "raw", tmp_path / "m.parquet"
    _write(raw, "a/0001", content=_JPEG)
    scan(str(raw), manifest)
    before = manifest.read_bytes()
    _write(raw, *(f"a/{number}" for number in range(50)))

    def fail(url: str, num_bytes: int) -> bytes:  # noqa: ARG001
        raise StoreError(f"{url}: cannot read: Connection reset")

    monkeypatch.setattr(store, "read_head", fail)

    with pytest.raises(StoreError, match="a/0: cannot read: Connection reset"):
        scan(str(raw), manifest)
    assert manifest.read_bytes() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ingest-heads")]


def test_bucket_is_asked_for_first_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on this machine, too, what claims nothing is told by its head, and no more is sent."""
    raw, asked, cat_file = f"memory://{uuid.uuid4()}", [], MemoryFileSystem.cat_file
    for name, content in (
        ("a/1.jpg", b"x"),
        ("a/2", _JPEG + bytes(9000)),
        ("a/3", b"text " * 900),
        ("a/4", b""),
    ):
        store.write_bytes(store.join(raw, name), content)

    def spy(
        self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None, **options: object
    ) -> bytes:
        asked.append((path.rsplit("/", 1)[1], start, end))
        return bytes(cat_file(self, path, start=start, end=end, **options))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", spy)
    found = scan(raw, tmp_path / "m.parquet")

    assert [row["path"] for row in _rows(tmp_path / "m.parquet")] == [b"a/1.jpg", b"a/2"]
    assert found.skipped == {"text": 1, "empty": 1}
    assert sorted(asked) == [("2", 0, 512), ("3", 0, 512)]


def test_long_scan_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a scan goes on, lines say what it has found so far."""
    monkeypatch.setattr(scan_module, "_FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr(scan_module, "_LINE_SECONDS", 0.001)
    said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            said.set()

    listener = Listener()
    scan_module.logger.addHandler(listener)
    try:
        with caplog.at_level(logging.INFO, "ingest.build.scan"):
            with scan_module._heartbeat(Counter(candidates=1234), Counter(text=3)):
                assert said.wait(30)
    finally:
        scan_module.logger.removeHandler(listener)

    assert caplog.messages[0].startswith("scan: 1,234 candidates, skipped 3 text so far, ")


def test_skipped_kinds_are_one_line() -> None:
    """The kinds of skipped files are told with their numbers, the most first."""
    assert (
        describe_skipped({"hidden": 2, "text": 3000, "archive": 2})
        == "skipped 3,000 text, 2 archive, 2 hidden"
    )
    assert describe_skipped({}) == "skipped nothing"


def _what_becomes_of(expected: str) -> bool | None:
    """Return whether a row of the table of a tree tells of a candidate; None where it leaves that open."""
    return None if "judgement call" in expected else not expected.startswith("skipped")


@_needs_corpus
def test_tree_of_odd_names_is_scanned_as_expected(tmp_path: Path) -> None:
    """Every file of the tree is a candidate or skipped as its table says, and folders are classes by name."""
    # Python 3.11 knows filters from 3.11.4 on; Debian 12 has 3.11.2.
    trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    with tarfile.open(_DATA / "tricky/trees/odd-names-A.tar.gz") as tar:
        tar.extractall(tmp_path, **trusted)
    raw = tmp_path / "tree"
    lines = (_DATA / "tricky/trees/odd-names-A.expected.tsv").read_text().splitlines()[1:]
    table = [(json.loads(path), kind, expected) for path, kind, _, expected in (x.split("\t") for x in lines)]

    found = scan(str(raw), tmp_path / "m.parquet")

    rows = {bytes(row["path"]): row["label"] for row in _rows(tmp_path / "m.parquet")}  # type: ignore[call-overload]
    for path, kind, expected in table:
        below = os.fsencode(path.removeprefix("tree/"))
        if kind in ("file", "hardlink") and (wanted := _what_becomes_of(expected)) is not None:
            assert (below in rows) is wanted, path
    assert rows[b"cats/noext"] == "cats"
    assert rows[b"root_image.jpg"] is None
    assert rows[b"links/link-to-file.jpg"] == "links"
    assert rows[b"linked_class/same.jpg"] == "linked_class"
    assert {"0", "00", "1e3", "NA", "null", "True", "CON", "#tag", "Dogs", "dogs"} <= set(rows.values())
    assert {"caf\u00e9", "cafe\u0301", "hot dog", "a,b", "-v", "with.dot", "\u65e5\u672c\u8a9e"} <= set(
        rows.values()
    )
    assert not {"lost+found", "empty_class", "__MACOSX", ".ipynb_checkpoints", "loop"} & set(rows.values())
    assert found.skipped == {"hidden": 4, "litter": 4, "text": 2, "no file": 2, "empty folder": 1}


def test_hidden_folders_and_litter_are_not_looked_into(tmp_path: Path) -> None:
    """What a file system keeps for itself may be nobody's to read, or huge: it counts as one."""
    raw = tmp_path / "raw"
    _write(raw, "a/1.jpg", ".snapshot/daily/a/1.jpg", ".snapshot/daily/a/2.jpg", "lost+found/#12")
    listed: list[bytes] = []

    def pass_by(folder: bytes) -> bool:
        listed.append(folder)
        return folders.is_passed_by(folder)

    found = scan(str(raw), tmp_path / "m.parquet")

    assert (found.candidates, found.skipped) == (1, {"hidden": 1, "litter": 1})
    assert {info.path for info in store.walk(str(raw), pass_by=pass_by)} == {
        b".snapshot", b"a/1.jpg", b"lost+found",
    }  # fmt: skip
    assert sorted(listed) == [b".snapshot", b"a", b"lost+found"]


@_needs_corpus
def test_corpus_is_scanned_as_its_index_says(tmp_path: Path) -> None:
    """Of the tricky files nothing is skipped but hidden files, archives and the tables beside them."""
    found = scan(str(_DATA / "tricky"), tmp_path / "m.parquet")

    lines = [line.split("\t") for line in (_DATA / "INDEX.tsv").read_text().splitlines()[1:]]
    listed = {line[0].removeprefix("tricky/") for line in lines if line[0].startswith("tricky/")}
    skipped = {name for name in listed if name.endswith((".tar", ".gz")) or "/._" in name}
    assert {os.fsdecode(bytes(row["path"])) for row in _rows(tmp_path / "m.parquet")} == listed - skipped  # type: ignore[call-overload]
    assert found.skipped == {"archive": 13, "hidden": 1, "text": 2, "empty folder": 2}


def test_unchanged_folder_leaves_the_manifest_alone(tmp_path: Path) -> None:
    """A second scan of the same files does not touch the manifest; an edited file changes it."""
    raw, manifest = tmp_path / "raw", tmp_path / "m.parquet"
    _write(raw, "a/1.jpg")
    scan(str(raw), manifest)
    before = manifest.stat().st_mtime_ns

    assert not scan(str(raw), manifest).changed
    assert manifest.stat().st_mtime_ns == before

    os.utime(raw / "a/1.jpg", ns=(1, 1))
    assert scan(str(raw), manifest).changed


def test_names_of_any_bytes_arrive(tmp_path: Path) -> None:
    """Spaces, newlines, quotes, invalid UTF-8 and leading dashes are names like any other."""
    raw = os.fsencode(tmp_path / "raw")
    names = [b"a b.jpg", b"new\nline.jpg", b"\xff\xfe.jpg", b"-rf.jpg", b"quote'\".jpg", "日本.jpg".encode()]
    os.makedirs(raw + b"/c")
    for name in names:
        Path(os.fsdecode(raw + b"/c/" + name)).write_bytes(b"x")

    scan(os.fsdecode(raw), tmp_path / "m.parquet")

    assert {row["path"] for row in _rows(tmp_path / "m.parquet")} == {b"c/" + name for name in names}


def test_loop_of_links_ends(tmp_path: Path) -> None:
    """A folder that links to its parent is listed once."""
    raw = tmp_path / "raw"
    _write(raw, "a/1.jpg")
    (raw / "a/loop").symlink_to(raw)

    assert scan(str(raw), tmp_path / "m.parquet").candidates == 1


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    """A linked class, a linked split and a linked photo arrive, also beside what they point to."""
    pool, raw = tmp_path / "pool", tmp_path / "raw"
    _write(pool, "cats/1.jpg", "dogs/1.jpg")
    for split in ("train", "val"):
        (raw / split).mkdir(parents=True)
        for name in ("cats", "dogs"):
            (raw / split / name).symlink_to(pool / name)
    (raw / "val/dogs-too").symlink_to(raw / "val/dogs")

    scan(str(raw), tmp_path / "m.parquet")

    assert [(row["split"], row["label"]) for row in _rows(tmp_path / "m.parquet")] == [
        ("train", "cats"), ("train", "dogs"), ("val", "cats"), ("val", "dogs"), ("val", "dogs-too"),
    ]  # fmt: skip


def test_links_to_nothing_are_counted(tmp_path: Path) -> None:
    """Broken links, links to themselves and pipes cost only themselves, and are counted."""
    raw = tmp_path / "raw"
    _write(raw, "a/1.jpg")
    (raw / "a/broken.jpg").symlink_to("nowhere")
    (raw / "a/itself.jpg").symlink_to("itself.jpg")
    os.mkfifo(raw / "a/pipe.jpg")

    found = scan(str(raw), tmp_path / "m.parquet")

    assert (found.candidates, found.skipped) == (1, {"no file": 3})


def test_picture_beside_split_folders_is_named(tmp_path: Path) -> None:
    """Where folders are splits, a picture outside them has no split: the scan says where it lies."""
    raw = tmp_path / "raw"
    _write(raw, "train/a/1.jpg", "val/a/1.jpg", "annotations/a.json")
    assert scan(str(raw), tmp_path / "m.parquet").skipped == {"text": 1}
    _write(raw, "extra/1.jpg")

    with pytest.raises(StoreError, match=r"raw/extra: lies beside split folders"):
        scan(str(raw), tmp_path / "m.parquet")


def test_tree_deeper_than_the_stack_is_listed(tmp_path: Path) -> None:
    """1,500 folders one in another are no trouble."""
    raw = tmp_path / "raw"
    raw.mkdir()
    here = os.getcwd()
    try:
        os.chdir(raw)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        Path("1.jpg").write_bytes(b"x")
    finally:
        os.chdir(here)

    assert scan(str(raw), tmp_path / "m.parquet").candidates == 1
    subprocess.run(["rm", "-rf", str(raw)], check=True)


@pytest.mark.parametrize("kind", ["missing", "empty", "a file", "no pictures"])
def test_folder_without_pictures_is_one_sentence(tmp_path: Path, kind: str) -> None:
    """A raw folder that is missing, empty, a file, or holds no candidate stops with its name and a remedy."""
    raw = tmp_path / "raw"
    if kind == "a file":
        raw.write_bytes(b"x")
    elif kind != "missing":
        raw.mkdir()
    if kind == "no pictures":
        _write(raw, "README.md")

    with pytest.raises(StoreError, match=r"raw: .*config key 'raw'") as caught:
        scan(str(raw), tmp_path / "m.parquet")

    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.parquet").exists()


def test_failed_scan_keeps_the_old_manifest(tmp_path: Path) -> None:
    """When the folder is gone, the last manifest stays."""
    raw, manifest = tmp_path / "raw", tmp_path / "m.parquet"
    _write(raw, "a/1.jpg")
    scan(str(raw), manifest)
    (raw / "a/1.jpg").unlink()

    with pytest.raises(StoreError):
        scan(str(raw), manifest)

    assert len(_rows(manifest)) == 1
