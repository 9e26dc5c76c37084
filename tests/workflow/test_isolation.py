"""Hostile files through the real Snakefile: each costs itself; too many rejects stop the build."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from ingest.index import read_index
from tests.workflow.conftest import Outcome, Project, environment, picture, processes_in, wait_until

pytestmark = pytest.mark.workflow

_PLANTED = Path(__file__).parents[1] / "planted"
_DEADLINE_S = 240
_FAULTS = {
    "SEGFAULT": "crashed",
    "ABORT": "crashed",
    "EXIT": "crashed",
    "ODD": "crashed",
    "HANG": "timed_out",
    "GREEDY": "out_of_memory",
    "BAD-ALLOC": "out_of_memory",
    "EIO": "unreadable",
}


def _build(project: Project, *config: str, cores: int = 2) -> Outcome:
    """Run the workflow with decoder faults planted in the processes that decode, and only there."""
    done = subprocess.run(
        project.command(*config, cores=cores), cwd=project.folder, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=_DEADLINE_S, check=False,
        env={**environment(), "PYTHONPATH": f"{_PLANTED}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout.decode(errors="replace"))


def test_hostile_files_cost_only_themselves(project: Project) -> None:
    """Files that crash, hang or exhaust the decoder are rejected with that reason; all others are samples."""
    for name in _FAULTS:
        project.add(f"cats/{name}.jpg", name.encode())
    limits = ("time_limit=2", "memory_limit=256MiB")

    built = _build(project, *limits)

    assert built.status == 0, built.text
    assert project.rejects() == {f"cats/{name}.jpg": code for name, code in _FAULTS.items()}
    assert read_index(str(project.dataset)).num_samples("train") == 20
    assert "20 samples, 8 rejects: 4 crashed, 2 out_of_memory, 1 unreadable, 1 timed_out" in built.text
    assert "Traceback" not in built.text
    assert project.ingest("verify", str(project.dataset)).status == 0
    wait_until(lambda: not processes_in(project.folder), "the end of every process of the build")

    again = _build(project, *limits)
    higher = _build(project, "time_limit=3", "memory_limit=256MiB")

    assert re.search(r"0 of \d+ shards to build", again.text), again.text
    assert re.search(r"shrink: 1 of \d+ shards to build: \d samples", higher.text), higher.text
    assert project.rejects()["cats/HANG.jpg"] == "timed_out"


def test_process_killed_from_outside_leaves_the_shard_unbuilt(project: Project) -> None:
    """A kill as the kernel does it for want of memory is no reject: the build fails, other shards stay."""
    project.add("cats/KILL.jpg", b"KILL")

    failed = _build(project)

    assert failed.status != 0
    assert "cats/KILL.jpg: the process that decodes was killed at it, twice: killed (signal 9)" in failed.text
    assert "1 shard not built" in failed.text
    assert not (project.dataset / "dataset.json").exists()
    shards = len(project.shards())
    (project.raw / "cats/KILL.jpg").write_bytes(picture(77))

    mended = _build(project)

    assert mended.status == 0, mended.text
    assert shards > 0
    assert project.rejects() == {}


def test_too_many_rejects_stop_a_shard_in_the_middle(project: Project) -> None:
    """A build that rejects nearly everything ends long before its first shard, with the commonest reasons."""
    for number in range(3000):
        project.add(f"cats/bad-{number}.jpg", b"SLOW %d" % number)
    for number in range(30):
        project.add(f"cats/empty-{number}.jpg", b"")

    stopped = _build(project, "samples_per_shard=4096")

    assert stopped.status != 0
    found = re.search(r"([\d,]+) of ([\d,]+) files were rejected \(([\d,]+) corrupt.*\)", stopped.text)
    assert found, stopped.text
    assert 100 <= int(found[2].replace(",", "")) < 3000
    assert "more than the config key 'max_rejects' allows (0.5); for example " in stopped.text
    assert ": Slowly refused. Mend the cause, or raise 'max_rejects' (null: never stop)" in stopped.text
    assert "Traceback" not in stopped.text
    assert list(project.dataset.rglob("*.parquet")) == []
    wait_until(lambda: not processes_in(project.folder), "the end of every process of the build")


def test_rejects_of_several_runs_are_counted_together(project: Project) -> None:
    """Shards that were built under a larger budget are not sealed under a smaller one."""
    for number in range(100):
        project.add(f"cats/empty-{number}.jpg", b"")

    built = _build(project, "max_rejects=null")
    (project.dataset / "dataset.json").unlink()
    refused = _build(project, "max_rejects=99")
    allowed = _build(project, "max_rejects=100")

    assert built.status == 0, built.text
    assert refused.status != 0
    assert "ingest seal: 100 of 120 files were rejected (100 empty)" in refused.text
    assert "'max_rejects' allows (99)" in refused.text
    assert allowed.status == 0, allowed.text
    assert read_index(str(project.dataset)).rejects == {"empty": 100}


def test_estimate_decodes_nothing_in_the_driver(project: Project) -> None:
    """Even the files that are tried beforehand are tried where a crash costs nothing."""
    for number in range(300):
        project.add(f"cats/bad-{number}.jpg", b"SEGFAULT" if number % 50 == 0 else picture(number, 64, 48))

    built = _build(project)

    assert built.status == 0, built.text
    assert "estimate: " in built.text
    assert "(294 enlarged)" in built.text
    assert read_index(str(project.dataset)).rejects == {"crashed": 6}
