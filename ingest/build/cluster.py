"""The one module with Dask: runs a function over many tasks on the cores of this machine or of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import dask
from distributed import CancelledError, Client, LocalCluster, get_worker, wait

from ingest.build.image import engine_versions
from ingest.errors import DeviceError, IngestError
from ingest.processes import forgo_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

logger = logging.getLogger(__name__)

Argument = TypeVar("Argument")
Task = TypeVar("Task")
Result = TypeVar("Result")
Tick = TypeVar("Tick")

_TICK_INTERVAL_S = 0.5
_CONNECT_TIMEOUT_S = 10
_LOOK_EVERY_S = 0.5
_WARN_EVERY_S = 10
_DESERTED_S = 300  # a cluster that scales by itself may take minutes to bring the first worker back
_THREADS_A_CORE = 2
"""Of workers on this machine: while one task decodes, the one before it may finish, write and upload."""

_TASKS_A_THREAD = 2  # one that runs and one that waits: no thread idles while its result travels

_QUIET = {
    "distributed.worker.daemon": True,
    # Files cannot kill a worker. Where one is killed, two more tries tell bad luck from a lasting cause.
    "distributed.scheduler.allowed-failures": 2,
    # What Dask watches for its dashboard takes 6 % of each core, and nobody looks at it.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500 ms",
    "distributed.admin.system-monitor.interval": "10 s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.host-cpu": False,
    "distributed.admin.system-monitor.disk": False,
}


class Finished(NamedTuple):
    """A task that ended: with a result and the sum of its ticks, or with the error that stopped it.

    `name` is that of its ticks.
    """

    name: str
    task: Any
    result: Any
    total: Any
    error: BaseException | None


class _UnwantedError(Exception):
    """Nobody waits for the task that this worker is at: the driver has stopped, or is gone."""


@contextlib.contextmanager
def open_cluster(scheduler: str | None, cores: int) -> Iterator[Cluster]:
    """Connect to the Dask scheduler at `scheduler`, or start `cores` worker processes here.

    Raises:
        DeviceError: no scheduler answers, it has no workers, or their engines differ from those here.
    """
    with dask.config.set(_QUIET), _connect(scheduler, cores) as client:
        _require_like_engines(client)
        yield Cluster(client, threads_a_core=_THREADS_A_CORE if scheduler is None else 1)


@contextlib.contextmanager
def _connect(scheduler: str | None, cores: int) -> Iterator[Client]:
    if scheduler is None:
        with (
            LocalCluster(
                n_workers=cores,
                threads_per_worker=_THREADS_A_CORE,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                # Photos are in the memory of other processes, each with a limit of its own. Dask's share of
                # the machine would on many cores be less than Python takes, and pause every worker for ever.
                memory_limit=None,
            ) as local,
            Client(local) as client,
        ):
            client.run(forgo_pandas)
            yield client
        return
    try:
        client = Client(scheduler, timeout=_CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"dask.scheduler {scheduler}: no scheduler answers there ({error})"
        raise DeviceError(f"{message}: start one, or leave the key out") from error
    with client:
        yield client


def _require_like_engines(client: Client) -> None:
    """Refuse workers whose engines differ: their shards would not be byte-identical to ours."""
    expected = engine_versions()
    found: dict[str, Any] = client.run(_engines_or_error, on_error="return")
    if not found:
        raise DeviceError(
            f"{client.scheduler.address}: the scheduler has no workers: start some and run again"
        )
    for address, engines in found.items():
        if isinstance(engines, BaseException | str):
            raise DeviceError(f"worker {address} cannot run ingest ({engines}): install ingest[build] there")
        if engines != expected:
            different = sorted(name for name in expected if engines.get(name) != expected[name])
            message = ", ".join(
                f"{name} {engines.get(name)} there, {expected[name]} here" for name in different
            )
            raise DeviceError(f"worker {address} has other engines ({message}): install the same versions")


def _engines_or_error() -> dict[str, str] | str:
    try:
        return engine_versions()
    except (ImportError, DeviceError) as error:
        return str(error)


class Cluster:
    """Workers that are there and alike.

    Attributes:
        takes_turns: whether each worker has one core and more threads: only one of them should decode.
    """

    def __init__(self, client: Client, *, threads_a_core: int = 1) -> None:
        self._client = client
        self._threads_a_core = threads_a_core
        self.takes_turns = threads_a_core > 1

    @property
    def num_cores(self) -> int:
        """How many cores decode, 0 while no worker is there."""
        return self.num_threads // self._threads_a_core

    @property
    def num_threads(self) -> int:
        """How many tasks run at once, 0 while no worker is there; a cluster may grow or shrink meanwhile."""
        threads: dict[str, int] = self._client.nthreads()
        return sum(threads.values())

    def prepare(self, function: Callable[[Argument], object], argument: Argument) -> None:
        """Call `function` once on each worker; where it fails, the first task there will say why."""
        self._client.run(function, argument, on_error="ignore")

    def run(
        self,
        function: Callable[[Task, Callable[[Tick], None]], Result],
        tasks: Iterable[Task],
        on_tick: Callable[[str, Tick], None],
        *,
        stop: Callable[[], bool],
    ) -> Generator[Finished]:
        """Run `function` over `tasks`; yield each as it ends, in any order.

        Only a bounded window of tasks is with the scheduler at a time, so `tasks` may be endless. Wrap it in
        `contextlib.closing`: the tasks that run when it ends are given up at their next tick.

        Args:
            function: called on a worker with a task and a tick. What it passes to the tick is added up
                (``+``), and the sum so far is sent here now and then.
            tasks: are sent to the workers by pickle.
            on_tick: called here, in a thread of its own, with the number of a task and its sum so far.
            stop: is asked now and then; once it returns True nothing more is waited for.

        Raises:
            DeviceError: the scheduler went away, or all workers did and none came back.
        """
        topic = f"ingest-{secrets.token_hex(4)}"
        waiting: dict[Any, tuple[str, Any]] = {}
        try:
            self._client.subscribe_topic(topic, lambda event: _pass_on(event[1], on_tick))
            yield from self._run(function, enumerate(tasks), topic, waiting, stop)
        except (OSError, CancelledError) as error:
            if isinstance(error, IngestError):
                raise
            raise DeviceError("the Dask scheduler went away: start it and run again") from error
        finally:
            for future in waiting:
                future.release()

    def _run(
        self,
        function: Any,  # noqa: ANN401
        tasks: Iterator[tuple[int, Any]],
        topic: str,
        waiting: dict[Any, tuple[str, Any]],
        stop: Callable[[], bool],
    ) -> Iterator[Finished]:
        while not stop():
            free = _TASKS_A_THREAD * max(1, self.num_threads) - len(waiting)
            for index, task in itertools.islice(tasks, max(0, free)):
                name = f"{topic}-{index}"
                future = self._client.submit(
                    _on_worker, function, task, str(index), topic, key=name, pure=False
                )
                waiting[future] = (str(index), task)
            if not waiting:
                return
            for future in self._wait_for_any(list(waiting), stop):
                yield Finished(*waiting.pop(future), *_outcome(future))

    def _wait_for_any(self, futures: list[Any], stop: Callable[[], bool]) -> list[Any]:
        """Return the futures that have ended, none only to stop; say so while no worker is there."""
        deserted = _Deserted()
        while not stop():
            with contextlib.suppress(TimeoutError):
                ended = wait(futures, timeout=_LOOK_EVERY_S, return_when="FIRST_COMPLETED").done
                return [future for future in futures if future in ended]
            deserted.look(self.num_threads)
        return []


def _pass_on(event: tuple[str, bytes], on_tick: Callable[[str, Any], None]) -> None:
    name, total = event
    on_tick(name, pickle.loads(total))  # noqa: S301  as the results of our workers are


class _Deserted:
    """Notes for how long no worker has been there, says so now and then, and raises in the end."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._warnings = 0

    def look(self, num_threads: int) -> None:
        now = time.perf_counter()
        self._since = None if num_threads else self._since or now
        if self._since is None:
            self._warnings = 0
            return
        if now - self._since >= _DESERTED_S:
            raise DeviceError(f"no worker was there for {_DESERTED_S} s: start some and run again")
        if now - self._since >= (self._warnings + 1) * _WARN_EVERY_S:
            self._warnings += 1
            logger.warning("no Dask worker is there: waiting for one")


def _outcome(future: Any) -> tuple[Any, Any, BaseException | None]:  # noqa: ANN401  distributed is untyped
    if future.status == "finished":
        return (*future.result(), None)
    if future.status == "error":
        return None, None, future.exception()
    return None, None, DeviceError("the scheduler went away or dropped the task: run again")


def _on_worker(function: Any, task: Any, name: str, topic: str) -> tuple[Any, Any]:  # noqa: ANN401  whatever the caller runs
    sums = _Sums(name, topic)
    result = function(task, sums.add)
    return result, sums.total


class _Sums:
    """Adds up the ticks of one task on its worker and sends the sum to the client now and then."""

    def __init__(self, name: str, topic: str) -> None:
        self._name, self._topic = name, topic
        self._worker = get_worker()
        self._key = self._worker.get_current_task()
        self._sent = time.perf_counter()
        self.total: Any = None

    def add(self, tick: Any) -> None:  # noqa: ANN401  whatever can be added up
        self.total = tick if self.total is None else self.total + tick
        if self._is_unwanted():
            raise _UnwantedError
        if time.perf_counter() - self._sent > _TICK_INTERVAL_S:
            self._sent = time.perf_counter()
            self._worker.log_event(self._topic, (self._name, pickle.dumps(self.total)))

    def _is_unwanted(self) -> bool:
        # Dask cannot stop a task that runs, but notes that its result was given up.
        state = self._worker.state.tasks.get(self._key)
        return state is not None and state.state == "cancelled"
