"""lifeline: a verb ends with the workflow that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from ingest.build.lifeline import WORKFLOW_PID, follow_workflow

_CHILD = (
    "from ingest.build.lifeline import follow_workflow; import time; follow_workflow();"
    "print('up', flush=True); time.sleep(600)"
)
_SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_verb_ends_when_its_workflow_is_killed() -> None:
    """After kill -9 of the named process the follower ends by itself, with a status that is not 0."""
    workflow = subprocess.Popen(_SLEEPER)
    environment = {**os.environ, WORKFLOW_PID: str(workflow.pid)}
    verb = subprocess.Popen(
        [sys.executable, "-c", _CHILD], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert verb.stdout is not None
    assert verb.stdout.readline() == b"up\n"
    time.sleep(0.6)
    assert verb.poll() is None

    workflow.send_signal(signal.SIGKILL)
    workflow.wait()
    _, errors = verb.communicate(timeout=30)

    assert verb.returncode == 1
    assert f"process {workflow.pid}) is gone: stopping".encode() in errors


def test_verb_by_hand_follows_nobody(monkeypatch) -> None:
    """Without a workflow in the environment no thread is started."""
    import threading

    monkeypatch.delenv(WORKFLOW_PID, raising=False)
    before = threading.active_count()

    follow_workflow()

    assert threading.active_count() == before


def test_every_verb_follows_its_workflow(monkeypatch) -> None:
    """The command starts to watch before it runs a verb, whichever that is."""
    from ingest import __main__ as command

    order = []
    monkeypatch.setattr(command, "follow_workflow", lambda: order.append("follow"))
    monkeypatch.setattr("ingest.doctor.examine", lambda: order.append("verb") or [])

    assert command.main(["doctor"]) == 0
    assert command.main(["inspect", "/nowhere"]) == 1
    assert order == ["follow", "verb", "follow"]
