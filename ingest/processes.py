"""Worker processes of this machine that never outlive what they are for, and what ours can do without.

They hold the reading end of a pipe whose writing end this process alone has: it closes when the work is left
early and when this process is killed, and then they end, whatever they were doing.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, TypeVar

from ingest.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.connection import Connection

    Item = TypeVar("Item")
    Result = TypeVar("Result")

_IN_HAND_A_WORKER = 2
"""Items handed out and not yet yielded, for each worker: one in work and one to go on with."""


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not needed", name=fullname)


def forgo_pandas() -> None:
    """Have pyarrow do without pandas in this process, which must be wholly ours.

    Where pandas is installed, pyarrow imports it at first use, half a second in each process, to ask whether
    a list might be a series of pandas. It asks once, and here it is told no.
    """
    import pyarrow as pa  # noqa: PLC0415  not every process that imports this module needs it

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def run(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int
) -> Generator[tuple[Item, Result]]:
    """Yield each of `items` with what `function` makes of it, in the order in which they get done.

    Wrap it in `contextlib.closing`: the workers end with it, and nothing more is begun.

    Args:
        function: can be pickled, like the items; an error that it raises is raised here.
        items: taken as they are needed.
        workers: number of processes.

    Raises:
        DeviceError: a worker died.
    """
    spawn = multiprocessing.get_context("spawn")
    lifeline, held = spawn.Pipe(duplex=False)
    with lifeline, held:
        pool = ProcessPoolExecutor(workers, spawn, initializer=_follow, initargs=(lifeline,))
        try:
            yield from _results(pool, function, items, _IN_HAND_A_WORKER * workers)
            pool.shutdown()
        except BrokenProcessPool as error:
            message = "a worker process died: it was killed, memory ran out, or a file crashed it"
            raise DeviceError(f"{message}: run it again, with fewer cores if memory is short") from error
        finally:
            held.close()
            pool.shutdown(cancel_futures=True)


def _results(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Iterator[tuple[Item, Result]]:
    remaining = iter(items)
    waiting: dict[Future[Result], Item] = {}
    while True:
        for item in itertools.islice(remaining, most - len(waiting)):
            with _deaf_to_ctrl_c():
                waiting[pool.submit(function, item)] = item
        if not waiting:
            return
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            yield waiting.pop(future), future.result()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Let workers started inside never see Ctrl-C, which a terminal sends to them too: they follow us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(lifeline: Connection) -> None:
    """End this worker when the other end of `lifeline` closes."""

    def wait_for_end() -> None:
        lifeline.poll(None)  # nothing is ever sent: what comes is the end
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True, name="lifeline").start()
