"""What goes wrong outside: a disk that is full, read-only or not mounted; nothing is lost or half done."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.workflow.conftest import Project, picture

pytestmark = pytest.mark.workflow

_needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0,
    reason="only root can mount a small file system here",
)


@contextlib.contextmanager
def _small_disk(place: Path, size: str):
    """Mount a file system of its own at `place`; give a function that mounts it with other options."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "ingest-test", str(place)], check=True)

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _files(dataset: Path) -> dict[str, bytes]:
    files = (path for path in dataset.rglob("*") if path.suffix in {".tar", ".idx", ".json"})
    return {str(path.relative_to(dataset)): path.read_bytes() for path in files}


@_needs_mounts
def test_full_disk_is_said_and_the_build_goes_on_once_there_is_room(project: Project, tmp_path: Path) -> None:
    """No room: one sentence with the place; what was whole stays; with room, the same bytes as ever."""
    whole = tmp_path / "whole"
    assert project.snakemake("samples_per_shard=4", f"dataset={whole}").status == 0

    with _small_disk(project.dataset, "400k") as remount:
        full = project.snakemake("samples_per_shard=4")

        assert full.status != 0
        assert "No space left on device" in full.text
        assert "Traceback" not in full.text
        assert str(project.dataset) in full.text
        assert not (project.dataset / "dataset.json").exists()
        kept = {path.stem for path in project.dataset.rglob("[0-9]*.parquet")}
        assert 0 < len(kept) < 5

        remount("size=8m")
        resumed = project.snakemake("samples_per_shard=4")

        assert resumed.status == 0, resumed.text
        assert f"shrink: {5 - len(kept)} of 5 shards to build" in resumed.text
        assert _files(project.dataset) == _files(whole)


@_needs_mounts
def test_read_only_dataset_is_said(project: Project) -> None:
    """A dataset that cannot be written stops the build with the place, and stays as it was."""
    with _small_disk(project.dataset, "8m") as remount:
        assert project.snakemake().status == 0
        before = _files(project.dataset)
        project.add("cats/new.jpg", picture(99))
        remount("ro")

        refused = project.snakemake()

        assert refused.status != 0
        assert f"{project.dataset}" in refused.text
        assert "Read-only file system" in refused.text
        assert "Traceback" not in refused.text
        assert _files(project.dataset) == before


def test_vanished_photos_stop_the_build_until_a_person_says_so(project: Project) -> None:
    """A disk that is not mounted, or half a listing: the dataset stays; `allow_delete` takes them out."""
    assert project.snakemake("samples_per_shard=4").status == 0
    before = _files(project.dataset)
    shutil.move(project.raw / "cats", project.folder / "away")

    stopped = project.snakemake("samples_per_shard=4")

    assert stopped.status != 0
    assert "10 of 20 files have vanished" in stopped.text
    assert "allow_delete=true" in stopped.text
    assert _files(project.dataset) == before

    kept = project.snakemake("samples_per_shard=4", "missing=keep")
    assert kept.status == 0, kept.text
    assert _files(project.dataset) == before

    allowed = project.snakemake("samples_per_shard=4", "allow_delete=true")
    assert allowed.status == 0, allowed.text
    assert "10 samples" in allowed.text


def test_moved_and_reshuffled_samples_are_copied(project: Project) -> None:
    """A renamed class and a new order decode nothing; `plan --diff` says so before."""
    assert project.snakemake("samples_per_shard=4").status == 0
    settings = project.add("../settings.yaml", b"samples_per_shard: 4\nseed: 7\n")
    with settings.open("a") as file:
        file.write(f"raw: {project.raw}\ndataset: {project.dataset}\n")

    told = project.ingest("plan", "--diff", "--settings", str(settings))
    assert told.status == 0, told.text
    assert "20 samples copied, 0 files read" in told.text
    shuffled = project.snakemake("samples_per_shard=4", "seed=7")
    assert shuffled.status == 0, shuffled.text
    assert project.ingest("verify", str(project.dataset)).status == 0

    (project.raw / "cats").rename(project.raw / "felines")
    renamed = project.snakemake("samples_per_shard=4", "seed=7")
    assert renamed.status == 0, renamed.text
    assert project.ingest("verify", str(project.dataset)).status == 0
    assert "20 samples" in renamed.text
