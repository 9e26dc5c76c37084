"""Hostile files through the real Snakefile: each costs itself; too many rejects stop the build."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingest.index import read_index
from tests.workflow.conftest import Outcome, Project, environment, kill, picture, processes_in, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.workflow

_PLANTED = Path(__file__).parents[1] / "planted"
_DEADLINE_S = 240
_WORKER_AND_SCHEDULER = 2
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


def _environment() -> dict[str, str]:
    """Return an environment that plants decoder faults in the processes that decode, and only there."""
    return {**environment(), "PYTHONPATH": f"{_PLANTED}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def _build(project: Project, *config: str) -> Outcome:
    """Run the workflow with planted faults."""
    done = subprocess.run(
        project.command(*config), cwd=project.folder, env=_environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=_DEADLINE_S, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout.decode(errors="replace"))


@contextlib.contextmanager
def _dask_cluster(folder: Path) -> Iterator[str]:
    """Run a scheduler and a worker of one thread, with planted faults, in `folder`; yield its address."""
    python, quiet = sys.executable, {"cwd": folder, "env": _environment(), "stderr": subprocess.DEVNULL}
    address = folder / "scheduler.json"
    scheduler = subprocess.Popen(
        [python, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
         "--no-dashboard", "--scheduler-file", str(address)], **quiet,
    )  # fmt: skip
    wait_until(lambda: address.exists() and address.read_text().endswith("}"), "a scheduler")
    worker = subprocess.Popen(
        [python, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(address), "--nthreads", "1",
         "--no-dashboard", "--no-nanny", "--local-directory", str(folder)], **quiet,
    )  # fmt: skip
    try:
        yield json.loads(address.read_text())["address"]
    finally:
        kill(worker)
        kill(scheduler)


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


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_stopped_build_leaves_no_process(project: Project, ending: signal.Signals) -> None:
    """After kill -9 of Snakemake or Ctrl-C nothing is left, not even a decoder that hangs in C code."""
    asleep = project.folder / "asleep"
    project.add("cats/hung.jpg", b"HANG %s" % os.fsencode(asleep))
    with (project.folder / "log").open("wb") as log:
        build = subprocess.Popen(
            project.command("time_limit=10000"), cwd=project.folder, env=_environment(), stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
        wait_until(asleep.exists, "a decoder that hangs")

        if ending == signal.SIGINT:
            os.killpg(build.pid, ending)  # as a terminal does
        else:
            build.send_signal(ending)

        assert build.wait(timeout=_DEADLINE_S) != 0
    wait_until(lambda: not processes_in(project.folder), "the end of every process of the build")
    assert list(project.dataset.rglob("dataset.json")) == []


def test_workers_of_a_cluster_give_up_what_nobody_wants(project: Project) -> None:
    """When a build stops, workers that are not its own end its shard in the middle, and their decoder."""
    for number in range(2000):
        project.add(f"cats/bad-{number}.jpg", b"SLOW %d" % number)
    elsewhere = project.folder / "worker"
    elsewhere.mkdir()
    with _dask_cluster(elsewhere) as address:
        stopped = _build(project, "samples_per_shard=4096", f"dask={{scheduler: '{address}'}}")
        # What the worker had written of the shard is removed by the worker, which lives on.
        wait_until(lambda: not list(project.dataset.rglob(".tmp-*")), "the end of the shard")
        wait_until(lambda: len(processes_in(elsewhere)) == _WORKER_AND_SCHEDULER, "the end of the decoder")

    assert stopped.status != 0
    assert "more than the config key 'max_rejects' allows" in stopped.text
    assert list(project.dataset.rglob("*.parquet")) == []


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
