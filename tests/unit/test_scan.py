"""scan: every candidate arrives once, with its class and split; what is plainly something else is counted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ingest.build.scan import has_split_folders, place, read_manifest, scan, skip_reason
from ingest.errors import StoreError


def _write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


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
        (b"labels.csv", "other"),
        (b"cat/README.MD", "other"),
        (b"cat/movie.MOV", "other"),
        (b"cat/txt", None),
        (b"cat/\xff\xfe.jpg", None),
    ],
)
def test_what_is_a_candidate(path: bytes, reason: str | None) -> None:
    """Hidden files, litter and files that are plainly no pictures are told from candidates by their names."""
    assert skip_reason(path) == reason


@pytest.mark.parametrize(
    ("path", "has_splits", "expected"),
    [
        (b"cat/1.jpg", False, ("train", "cat")),
        (b"cat/deep/er/1.jpg", False, ("train", "cat")),
        (b"1.jpg", False, ("train", None)),
        (b"train/cat/1.jpg", True, ("train", "cat")),
        (b"valid/cat/1.jpg", True, ("val", "cat")),
        (b"Test/1.jpg", True, ("test", None)),
        (b"caf\xc3\xa9/1.jpg", False, ("train", "café")),
        (b"\xff/1.jpg", False, ("train", "\\xff")),
    ],
)
def test_class_and_split_of_a_path(path: bytes, has_splits: bool, expected: tuple[str, str | None]) -> None:  # noqa: FBT001
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
        {"hidden": 1, "other": 1},
        True,
    )


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
    assert scan(str(raw), tmp_path / "m.parquet").skipped == {"other": 1}
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
