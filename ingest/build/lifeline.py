"""A build never outlives the workflow that started it.

After `kill -9` of Snakemake its shell children go on writing. The Snakefile names its own process in an
environment variable; every `ingest` verb watches that process and ends with it. Dask's worker processes
end with theirs, because they wait on a pipe to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from ingest.lock import hold

logger = logging.getLogger(__name__)

WORKFLOW_PID = "INGEST_WORKFLOW_PID"
_LOOK_EVERY_S = 0.25
_HELD = contextlib.ExitStack()


def name_workflow() -> None:
    """Name this process as the workflow that the verbs started by it belong to."""
    os.environ[WORKFLOW_PID] = str(os.getpid())


def follow_workflow() -> None:
    """End this process soon after the workflow that started it, if one did."""
    pid = os.environ.get(WORKFLOW_PID, "")
    if pid.isdecimal():
        identity = _identity(int(pid))
        threading.Thread(target=_watch, args=(int(pid), identity), daemon=True, name="lifeline").start()


def hold_work_folder(folder: Path) -> None:
    """Keep other workflows out of `folder` until this process ends, however it ends.

    Raises:
        StoreError: another workflow is at work there.
    """
    _HELD.enter_context(hold(folder / "workflow.lock", wait=iter(())))


def _watch(pid: int, identity: str | None) -> None:
    while identity is not None and _identity(pid) == identity:
        time.sleep(_LOOK_EVERY_S)
    logger.error("the workflow that started this build (process %d) is gone: stopping", pid)
    os._exit(1)


def _identity(pid: int) -> str | None:
    """Return the start time of a process, or None if it is gone: a number alone may be given out again."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between open and read
        return None if Path("/proc/self").exists() else _identity_without_proc(pid)
    state, *fields = status.rpartition(")")[2].split()
    # Field 22 of proc(5), the 20th behind the name; a zombie is gone for our purpose.
    return None if state == "Z" else fields[18]


def _identity_without_proc(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return "alive"
