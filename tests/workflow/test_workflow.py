"""The main job through the real Snakefile: builds, does nothing twice, survives kills, fails clearly."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from ingest.index import read_index
from tests.workflow.conftest import (
    Project,
    environment,
    kill,
    picture,
    png,
    processes_in,
    wait_until,
)

pytestmark = pytest.mark.workflow

_HOLDER = """
import sys; from pathlib import Path; from ingest.lock import hold
with hold(Path(sys.argv[1]), wait=iter(())): print("held", flush=True); input()
"""


def test_build_rebuild_and_increments(project: Project) -> None:
    """A build seals all photos; again does nothing; edits, new files and settings rebuild what they touch."""
    project.add("dogs/page.jpg", b"<!DOCTYPE html><html><body>404</body></html>")
    project.add("dogs/empty.jpg", b"")
    project.add("cats/cut.jpg", picture(99)[:3000])
    project.add("cats/drawing.png", png())
    project.add("labels.csv", b"a,b\n")

    first = project.snakemake()

    assert first.status == 0, first.text
    index = read_index(str(project.dataset))
    assert (index.num_samples("train"), index.classes, index.fields) == (21, ("cats", "dogs"), ("jpg", "cls"))
    assert project.rejects() == {
        "cats/cut.jpg": "truncated",
        "dogs/empty.jpg": "empty",
        "dogs/page.jpg": "not_an_image",
    }
    verified = project.ingest("verify", str(project.dataset))
    assert (verified.status, "21 samples" in verified.text, "no fault" in verified.text) == (0, True, True)
    inspected = project.ingest("inspect", str(project.dataset)).text
    assert [
        word for word in ("train: 21 samples", "0 cats, 1 dogs", "1 truncated") if word not in inspected
    ] == []

    stamps = {path: path.stat().st_mtime_ns for path in project.dataset.rglob("*.*") if path.is_file()}
    again = project.snakemake()

    assert again.status == 0, again.text
    assert "0 of 3 shards to build" in again.text
    assert "nothing changed" in again.text
    assert {path: path.stat().st_mtime_ns for path in stamps if path.name != ".ingest.lock"} == {
        path: stamp for path, stamp in stamps.items() if path.name != ".ingest.lock"
    }

    before = project.shards()
    project.add("dogs/0.jpg", picture(1000))
    edited = project.snakemake()

    assert "shrink: 1 of 3 shards to build" in edited.text
    assert len(set(project.shards()) - set(before)) == 1
    assert before.items() <= project.shards().items()

    project.add("birds/new.jpg", picture(1001))
    grown = project.snakemake()

    assert grown.status == 0, grown.text
    assert read_index(str(project.dataset)).classes == ("cats", "dogs", "birds")
    assert read_index(str(project.dataset)).num_samples("train") == 22

    smaller = project.snakemake("size=96")

    assert smaller.status == 0, smaller.text
    assert read_index(str(project.dataset)).recipe.size == 96
    assert project.ingest("verify", str(project.dataset)).status == 0


def test_two_builds_are_byte_identical(project: Project, tmp_path: Path) -> None:
    """One worker or two, here or there: shards, offsets and index hold the same bytes."""
    project.snakemake(cores=1)
    other = tmp_path / "other"
    project.snakemake(f"dataset={other}", cores=2)

    def contents(dataset: Path) -> dict[str, bytes]:
        suffixes = (".tar", ".idx", ".json")
        files = (path for path in dataset.rglob("*") if path.suffix in suffixes)
        return {str(path.relative_to(dataset)): path.read_bytes() for path in files}

    assert len(contents(other)) == 8
    assert contents(project.dataset) == contents(other)


def test_killed_build_continues_by_itself(project: Project, tmp_path: Path) -> None:
    """After kill -9 of Snakemake no process is left, and the same command finishes with the same bytes."""
    for number in range(20, 60):
        project.add(f"cats/{number}.jpg", picture(number, 2400, 1800))
    build = project.start("samples_per_shard=4")
    # The name of a receipt begins with a digit; ".tmp-..." is one that is still being written.
    wait_until(lambda: list(project.dataset.rglob("[0-9]*.parquet")), "a first shard")

    kill(build)
    wait_until(lambda: not processes_in(project.folder), "the end of every process of the build")
    done_before = len(list(project.dataset.rglob("[0-9]*.parquet")))
    assert not (project.dataset / "dataset.json").exists()
    assert project.ingest("inspect", str(project.dataset)).status == 1
    resumed = project.snakemake("samples_per_shard=4")

    assert resumed.status == 0, resumed.text
    assert 0 < done_before < 15
    assert f"shrink: {15 - done_before} of 15 shards to build" in resumed.text
    assert list(project.dataset.rglob(".tmp-*")) == []
    whole = tmp_path / "whole"
    project.snakemake("samples_per_shard=4", f"dataset={whole}")
    assert {path.name: path.read_bytes() for path in whole.rglob("*.tar")} == project.shards()


def test_attaches_to_a_running_cluster(project: Project) -> None:
    """With dask.scheduler the shards are built by the workers of that cluster, none started here."""
    python = sys.executable
    quiet = {"cwd": project.folder.parent, "env": environment(), "stderr": subprocess.DEVNULL}
    address_file = project.folder / "scheduler.json"
    scheduler = subprocess.Popen(
        [python, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
         "--no-dashboard", "--scheduler-file", str(address_file)], **quiet,
    )  # fmt: skip
    wait_until(lambda: address_file.exists() and address_file.read_text().endswith("}"), "a scheduler")
    worker = subprocess.Popen(
        [python, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(address_file),
         "--nthreads", "1", "--no-dashboard", "--no-nanny", "--local-directory", str(project.folder.parent)],
        **quiet,
    )  # fmt: skip
    try:
        address = json.loads(address_file.read_text())["address"]
        built = project.snakemake(f"dask={{scheduler: '{address}'}}")
    finally:
        for process in (worker, scheduler):
            kill(process)

    assert built.status == 0, built.text
    assert "shrink: 3 of 3 shards to build: 20 samples" in built.text
    assert project.ingest("verify", str(project.dataset)).status == 0


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("sise=3", "config key 'sise' is unknown: did you mean 'size'?"),
        ("fit=crop", "config key 'fit' is 'crop': allowed are 'cover', 'contain', 'stretch' or 'shortest'"),
        ("raw=nowhere", "nowhere: no such folder of raw photos"),
        ("raw=nothing", "nothing: holds no pictures"),
        ("dataset=/proc/nothing/here", "/proc/nothing/here: cannot create the folder"),
        ("dask={scheduler: 'tcp://127.0.0.1:1'}", "tcp://127.0.0.1:1: no scheduler answers there"),
    ],
)
def test_wrong_input_is_a_sentence(project: Project, config: str, sentence: str) -> None:
    """A wrong key, a missing or empty folder, an unwritable target: status not 0, a sentence, no dataset."""
    (project.folder / "nothing").mkdir()

    outcome = project.snakemake(config)

    assert outcome.status != 0
    assert sentence in outcome.text
    assert "Traceback" not in outcome.text
    assert not list(project.folder.rglob("dataset.json"))


def test_failed_rebuild_leaves_the_dataset_as_it_was(project: Project) -> None:
    """When nothing can be built any more, readers still find the last sealed dataset, whole."""
    project.snakemake()
    before = (project.dataset / "dataset.json").read_bytes()
    for path in project.raw.rglob("*.jpg"):
        path.write_bytes(b"no picture")

    failed = project.snakemake()

    assert failed.status != 0
    assert "none of 20 files became a sample (20 not_an_image" in failed.text
    assert (project.dataset / "dataset.json").read_bytes() == before
    assert project.ingest("verify", str(project.dataset)).status == 0


def test_removed_shard_is_built_again(project: Project) -> None:
    """A shard that verify finds missing is built again by the next plain run."""
    project.snakemake()
    shard = min(project.dataset.rglob("*.tar"))
    whole = shard.read_bytes()
    shard.unlink()

    found = project.ingest("verify", str(project.dataset))
    again = project.snakemake()

    assert (found.status, f"{shard}: is missing: run snakemake again: it rebuilds" in found.text) == (1, True)
    assert "shrink: 1 of 3 shards to build" in again.text
    assert shard.read_bytes() == whole


def test_progress_bar_on_a_terminal(project: Project) -> None:
    """On a terminal the build shows images done, images/s, rejects and time left while it runs."""
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (40, 120))
    build = subprocess.Popen(
        project.command(), cwd=project.folder, env=environment(), stdout=side, stderr=side, stdin=side
    )
    os.close(side)
    shown = bytearray()
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the other side closed
            break
    os.close(terminal)

    assert build.wait() == 0
    assert b"20/20" in shown
    assert b"image/s" in shown
    assert b"0 rejects" in shown
    (log,) = project.folder.glob(".ingest/*/logs/shrink.log")
    assert log.read_text().count("; 20 of 20 images, 3 of 3 shards") == 1


def test_second_workflow_on_one_dataset_is_told(project: Project) -> None:
    """While a build runs, another one of the same dataset ends at once and names it; the first goes on."""
    for number in range(20, 60):
        project.add(f"cats/{number}.jpg", picture(number, 2400, 1800))
    first = project.start("samples_per_shard=4")
    wait_until(lambda: list(project.dataset.rglob("*.tar")), "a first shard")

    second = project.snakemake("size=64")

    assert second.status != 0
    assert f"is being built by process {first.pid} on " in second.text
    assert first.wait() == 0
    assert read_index(str(project.dataset)).recipe.size == 224


def test_second_build_waits_or_says_who_builds(project: Project) -> None:
    """While one build holds the dataset, another verb on it ends with the holder's name."""
    project.snakemake()
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(project.dataset / ".ingest.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), cwd=project.folder.parent,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        refused = project.snakemake("size=64")
    finally:
        kill(holder)
        holder.stdout.close()
        assert holder.stdin is not None
        holder.stdin.close()

    assert refused.status != 0
    assert f"is being built by process {holder.pid} on " in refused.text
