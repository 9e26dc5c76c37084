"""processes: results come as they get done, in a bounded window, and workers end with their parent."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from ingest import processes
from ingest.errors import ConfigError, DeviceError

_LONG_WORK = """
import contextlib, os, time
from ingest import processes
work = processes.run(time.sleep, [0, 0, 600], workers=2)
with contextlib.suppress(KeyboardInterrupt), contextlib.closing(work) as results:
    next(results), next(results)  # one worker waits for work, one is in the middle of it
    print("at work", flush=True)
    list(results)
"""


def _collect(function, items, workers=2):
    with contextlib.closing(processes.run(function, items, workers=workers)) as results:
        return list(results)


def test_each_item_comes_with_its_result():
    """More items than the window holds all come back, each with its own result."""
    assert sorted(_collect(operator.neg, range(9))) == [(number, -number) for number in range(9)]


def test_nothing_to_do():
    """Without items there is no result and no worker."""
    assert _collect(operator.neg, []) == []


def test_items_are_taken_as_needed():
    """Of endless items no more than two for each worker are taken before a result is."""
    items = itertools.count()
    with contextlib.closing(processes.run(operator.neg, items, workers=1)) as results:
        next(results)
        assert next(items) == 2


def test_leaving_early_ends_the_workers():
    """When the caller stops in the middle, workers do not finish what they have begun."""
    before = multiprocessing.active_children()
    with contextlib.closing(processes.run(time.sleep, [0, 600, 600], workers=1)) as results:
        assert next(results) == (0, None)
        assert len(multiprocessing.active_children()) == len(before) + 1

    assert multiprocessing.active_children() == before


def _refuse(item):
    raise ConfigError(f"not {item}")


def test_error_of_the_function_comes_through():
    """An error that a worker meets is raised by the caller with its sentence."""
    with pytest.raises(ConfigError, match="not 1"):
        _collect(_refuse, [1])


def test_dead_worker_is_a_sentence():
    """A worker that dies ends the work with an error of ingest."""
    with pytest.raises(DeviceError, match="a worker process died"):
        _collect(os._exit, [1, 1, 1])


@pytest.mark.parametrize(
    ("ending", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 0), (signal.SIGTERM, -15)]
)
def test_workers_end_with_their_parent(ending, status):
    """After kill -9, Ctrl-C in a terminal or a plain kill no process is left, and no worker complains."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _LONG_WORK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout.readline() == b"at work\n"
        if ending == signal.SIGINT:
            os.killpg(parent.pid, ending)  # as a terminal does
        else:
            parent.send_signal(ending)
        # The pipes close when the last process that inherited them has ended.
        _, errors = parent.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(parent.pid, signal.SIGKILL)
        raise

    assert parent.returncode == status
    assert b"Traceback" not in errors
