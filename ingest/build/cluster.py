"""The one module with Dask: runs a function over many tasks on the cores of this machine or of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import dask
from distributed import CancelledError, Client, LocalCluster, get_worker, wait

from ingest.build.image import engine_versions
from ingest.errors import DeviceError, IngestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
Counts = tuple[int, ...]

_TICK_INTERVAL_S = 0.5
_CONNECT_TIMEOUT_S = 10
_LOOK_EVERY_S = 10
_DESERTED_S = 300  # a cluster that scales by itself may take minutes to bring the first worker back
_TASKS_A_THREAD = 2  # one that runs and one that waits: no thread idles while its result travels

_QUIET = {
    "distributed.worker.daemon": True,
    # A file that kills its worker takes two more tries: often enough to tell bad luck from a bad file.
    "distributed.scheduler.allowed-failures": 2,
    "distributed.admin.system-monitor.gil.enabled": False,
}


class Finished(NamedTuple):
    """A task that ended: with a result, or with the error that stopped it; `name` is that of its ticks."""

    name: str
    task: Any
    result: Any
    error: BaseException | None


@contextlib.contextmanager
def open_cluster(scheduler: str | None, cores: int) -> Iterator[Cluster]:
    """Connect to the Dask scheduler at `scheduler`, or start `cores` worker processes here.

    Raises:
        DeviceError: no scheduler answers, it has no workers, or their engines differ from those here.
    """
    with dask.config.set(_QUIET), _connect(scheduler, cores) as client:
        _require_like_engines(client)
        yield Cluster(client)


@contextlib.contextmanager
def _connect(scheduler: str | None, cores: int) -> Iterator[Client]:
    if scheduler is None:
        with (
            LocalCluster(
                n_workers=cores,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            ) as local,
            Client(local) as client,
        ):
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
    """Workers that are there and alike."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def num_threads(self) -> int:
        """How many tasks run at once, 0 while no worker is there; a cluster may grow or shrink meanwhile."""
        threads: dict[str, int] = self._client.nthreads()
        return sum(threads.values())

    def run(
        self,
        function: Callable[[Task, Callable[[Counts], None]], Result],
        tasks: Iterable[Task],
        on_tick: Callable[[str, Counts], None],
    ) -> Iterator[Finished]:
        """Run `function` over `tasks`; yield each as it ends, in any order.

        Only a bounded window of tasks is with the scheduler at a time, so `tasks` may be endless.

        Args:
            function: called on a worker with a task and a tick; it passes counts to the tick, which adds
                them up and sends the sums here now and then.
            tasks: are sent to the workers by pickle.
            on_tick: called here, in a thread of its own, with the number of a task and its sums so far.

        Raises:
            DeviceError: the scheduler went away, or all workers did and none came back.
        """
        topic = f"ingest-{secrets.token_hex(4)}"
        try:
            self._client.subscribe_topic(topic, lambda event: on_tick(*event[1]))
            yield from self._run(function, enumerate(tasks), topic)
        except (OSError, CancelledError) as error:
            if isinstance(error, IngestError):
                raise
            raise DeviceError("the Dask scheduler went away: start it and run again") from error

    def _run(self, function: Any, tasks: Iterator[tuple[int, Any]], topic: str) -> Iterator[Finished]:  # noqa: ANN401
        waiting: dict[Any, tuple[str, Any]] = {}
        while True:
            free = _TASKS_A_THREAD * max(1, self.num_threads) - len(waiting)
            for index, task in itertools.islice(tasks, max(0, free)):
                name = f"{topic}-{index}"
                future = self._client.submit(
                    _on_worker, function, task, str(index), topic, key=name, pure=False
                )
                waiting[future] = (str(index), task)
            if not waiting:
                return
            for future in self._wait_for_any(list(waiting)):
                yield Finished(*waiting.pop(future), *_outcome(future))

    def _wait_for_any(self, futures: list[Any]) -> list[Any]:
        """Return the futures that have ended, at least one; say so while there is no worker to end any."""
        deserted = 0
        while True:
            with contextlib.suppress(TimeoutError):
                ended = wait(futures, timeout=_LOOK_EVERY_S, return_when="FIRST_COMPLETED").done
                return [future for future in futures if future in ended]
            deserted = 0 if self.num_threads else deserted + 1
            if deserted * _LOOK_EVERY_S >= _DESERTED_S:
                raise DeviceError(f"no worker was there for {_DESERTED_S} s: start some and run again")
            if deserted:
                logger.warning("no Dask worker is there: waiting for one")


def _outcome(future: Any) -> tuple[Any, BaseException | None]:  # noqa: ANN401  distributed is untyped
    if future.status == "finished":
        return future.result(), None
    if future.status == "error":
        return None, future.exception()
    return None, DeviceError("the scheduler went away or dropped the task: run again")


def _on_worker(function: Any, task: Any, name: str, topic: str) -> Any:  # noqa: ANN401  whatever the caller runs
    sums = _Sums(name, topic)
    result = function(task, sums.add)
    sums.send()
    return result


class _Sums:
    """Adds up the counts of one task on its worker and sends the sums to the client now and then."""

    def __init__(self, name: str, topic: str) -> None:
        self._name, self._topic = name, topic
        self._sums: Counts = ()
        self._sent = time.perf_counter()

    def add(self, counts: Counts) -> None:
        self._sums = tuple(a + b for a, b in itertools.zip_longest(self._sums, counts, fillvalue=0))
        if time.perf_counter() - self._sent > _TICK_INTERVAL_S:
            self.send()

    def send(self) -> None:
        self._sent = time.perf_counter()
        get_worker().log_event(self._topic, (self._name, self._sums))
