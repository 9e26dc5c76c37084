"""Decoding at arm's length: a raw file that crashes, hangs or eats memory costs itself and no other.

Each process that decodes has a child for it (`ingest.build.child`), kept from shard to shard. When it dies,
overruns the time limit or has no memory left, it is replaced, and the file that it was at is tried once more,
alone: memory may have been short because of others. Failing twice, the file is rejected. What is not the
file's fault (a read that failed, a kill from outside) is raised, and the shard stays unbuilt.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ingest import store
from ingest.build.child import OUT_OF_MEMORY, READ_AHEAD, READ_AHEAD_FROM_STORE, Begun, Notice, Order
from ingest.build.limits import Limits, format_limit
from ingest.errors import CorruptImageError, DeviceError, StoreError
from ingest.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from ingest.build.sample import Shrunk
    from ingest.recipe import Recipe

logger = logging.getLogger(__name__)

_COMMAND = "from ingest.build.child import main; main()"
# Not `-m`: what it pickles would be of `__main__`. And `-P`: the user's folder may hold a random.py.

_OF_DASK = {"MALLOC_TRIM_THRESHOLD_"}
# Dask sets it for its workers, so that they hold little memory: every photo's would be given back to the
# kernel, and be cleared by it for the next, which takes a tenth of the time of decoding.

_START_S = 300  # a thousand processes that import from one network disk take minutes
_LONGEST_WAIT_S = 10**6  # what poll(2) takes is limited to 24 days
_ENDING_S = 5  # from the end of the connection to the end of the process
_LAST_WORDS_BYTES = 65536  # of a pipe on Linux; what does not fit is lost

_NEARLY = 0.75
"""Share of the memory limit from which on a crash is taken for a failed allocation that nobody checked."""

_MEMORY_A_FILE_AHEAD = 2**26
"""Bytes of the memory limit for each file that is read ahead: what is read takes memory, as does reading."""

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024

_OF_ITS_OWN = {signal.Signals[f"SIG{name}"] for name in ("SEGV", "BUS", "ABRT", "ILL", "FPE", "TRAP", "SYS")}
# Signals that a process brings on itself; any other comes from outside.

_NO_MEMORY = re.compile(rb"MemoryError|bad_alloc|out of memory|cannot allocate memory", re.IGNORECASE)

Kind = Literal["crashed", "out_of_memory", "timed_out", "killed"]


class Decoded(NamedTuple):
    """What became of one file: its size and SHA-256 (None if it was not read), and its sample or reject.

    The result is None where the content is one of those that need not be decoded; `others` are those of
    further recipes.
    """

    num_bytes: int
    sha256: str | None
    result: Shrunk | CorruptImageError | None
    others: tuple[Shrunk | CorruptImageError, ...] = ()

    def by(self, number: int) -> Decoded:
        """Return what became of the file by one of several recipes; a reject as a whole is one by each."""
        return self._replace(result=self.others[number - 1], others=()) if number and self.others else self


class _EndedError(Exception):
    """The child ended, by itself or by us, before it was done.

    Attributes:
        kind: why.
        words: how, such as ``segmentation fault (signal 11)``.
        begun: the file that was being decoded; None between files.
    """

    def __init__(self, kind: Kind, words: str) -> None:
        super().__init__(kind, words)
        self.kind = kind
        self.words = words
        self.begun: Begun | None = None


def decode(
    files: Sequence[tuple[bytes, int]],
    *,
    raw: str,
    recipe: Recipe,
    limits: Limits,
    known: frozenset[str] = frozenset(),
    also: tuple[Recipe, ...] = (),
) -> Generator[Decoded]:
    """Yield what becomes of each file, in order. Wrap it in `contextlib.closing`.

    Args:
        files: path below `raw`, and size in bytes as listed.
        raw: root of the raw files.
        recipe: how each picture is shrunk.
        limits: what each file may cost.
        known: SHA-256, in hex, of contents that need not be decoded.
        also: further recipes by which each picture is shrunk.

    Raises:
        StoreError: a file cannot be read for a reason that may pass, or memory of this machine is short.
        DeviceError: the process that decodes does not start, or ends where no file is at fault.
    """
    done, before = 0, False
    are_local = all(store.is_local(store.place(raw, path)) for path, _ in files)
    most = READ_AHEAD if are_local else READ_AHEAD_FROM_STORE
    ahead = min(most, limits.memory_limit // _MEMORY_A_FILE_AHEAD)
    while done < len(files):
        # A second try is alone: nothing read ahead, nothing left in the memory of the process.
        part = files[done : done + 1] if before else files[done:]
        order = Order(raw, recipe, tuple(part), 0 if before else ahead, known, also)
        ended = None
        try:
            with contextlib.closing(_carry_out(order, limits)) as results:
                for decoded in results:
                    before = False
                    yield decoded
                    done += 1
        except _EndedError as error:
            ended = error
        if ended is not None and before:
            yield _give_up(store.redact(store.place(raw, files[done][0])), ended, limits)
            done += 1
        before = ended is not None and not before


def _carry_out(order: Order, limits: Limits) -> Generator[Decoded]:
    with _borrowed(limits.memory_limit) as decoder:
        yield from decoder.carry_out(order, limits.time_limit)


# ---- what an end means


def _give_up(url: str, ended: _EndedError, limits: Limits) -> Decoded:
    """Reject the file at `url`, at which the child ended twice; raise where that is not its fault."""
    if ended.kind == "killed":
        message = f"{url}: the process that decodes was killed at it, twice: {ended.words}"
        remedy = "if memory of this machine is short, use fewer cores or lower 'memory_limit', and run again"
        raise StoreError(f"{message}: {remedy}")
    if ended.begun is None and ended.kind != "out_of_memory":  # a file may be too much even to read
        message = f"{url}: the process that decodes ended before it had read this file, twice: {ended.words}"
        raise DeviceError(f"{message}: see whether the file can be read, and run again")
    fault = CorruptImageError(ended.kind, reason(ended.kind, ended.words, limits))
    return Decoded(*(ended.begun or Begun(0, None)), fault)


def reason(kind: Literal["crashed", "out_of_memory", "timed_out"], words: str, limits: Limits) -> str:
    """Return the sentence for a file that the decoder did not survive."""
    if kind == "crashed":
        return f"The decoder crashed on this file, twice: {words}."
    if kind == "timed_out":
        allowed = format_duration(limits.time_limit) if limits.time_limit >= 1 else f"{limits.time_limit:g} s"
        return f"Decoding takes longer than {allowed}: raise 'time_limit' to have it tried again."
    allowed = format_limit(limits.memory_limit)
    return f"Decoding takes more memory than {allowed}: raise 'memory_limit' to have it tried again."


def explain_end(status: int, printed: bytes, *, is_full: bool) -> tuple[Kind, str]:
    """Return why a process ended that should not have, and how in words.

    Args:
        status: its exit status; negative: the signal that ended it.
        printed: what it wrote to its standard error.
        is_full: whether its memory had come near the limit.
    """
    by = f"{signal.strsignal(-status) or 'signal'} (signal {-status})".lower() if status < 0 else ""
    if status < 0 and -status not in _OF_ITS_OWN:
        return "killed", by
    if status == OUT_OF_MEMORY or is_full or _NO_MEMORY.search(printed):
        return "out_of_memory", by or "an allocation failed"
    return "crashed", by or f"exit status {status}"


# ---- the child


class _Decoder:
    """A running child. Whoever has it is the only one to use it.

    Args:
        memory_limit: bytes that it may take.
    """

    def __init__(self, memory_limit: int) -> None:
        self.memory_limit = memory_limit
        self._is_over = False
        self._owed = 0
        self._last_words = b""
        self._peak_at_start = 0
        with contextlib.ExitStack() as stack:
            self._process, descriptor, self._printed, lifeline = _start(memory_limit)
            stack.callback(os.close, self._printed)
            stack.callback(os.close, lifeline)
            self._connection = stack.enter_context(Connection(descriptor))
            self._descriptors = stack.pop_all()
        try:
            # Its peak is also that of the process it was made from, until it grows beyond.
            self._peak_at_start = self._receive(_START_S)
        except _EndedError as error:
            last_line = self._last_words.decode(errors="replace").strip().rpartition("\n")[2]
            self.end()
            message = f"the process that decodes does not start ({error.words}): {last_line}"
            raise DeviceError(f"{message}: see whether `ingest doctor` runs here") from error

    @property
    def is_idle(self) -> bool:
        """Whether it is alive and waits for an order; what it says without one is its end."""
        return not self._is_over and not self._owed and not self._connection.poll(0)

    def carry_out(self, order: Order, time_limit: float) -> Iterator[Decoded]:
        """Yield what becomes of each file of an order.

        Raises:
            _EndedError: the child ended, or was ended because a file took longer than `time_limit` s.
            IngestError: as the child met it.
            ImportError: the same.
        """
        self._owed = len(order.files)
        self._send(order)
        while self._owed:
            begun: Begun = self._receive(None)  # reading is the business of the storage, however slow
            try:
                result = self._receive(time_limit)
            except _EndedError as error:
                error.begun = begun
                raise
            self._owed -= 1
            first, *others = result if isinstance(result, list) else [result]
            yield Decoded(*begun, first, tuple(others))

    def _send(self, order: Order) -> None:
        with contextlib.suppress(OSError):  # it has ended: `_receive` finds out how
            self._connection.send(order)

    def _receive(self, timeout: float | None) -> Any:  # noqa: ANN401  whatever is next in the conversation
        message = self._next(timeout)
        while isinstance(message, Notice):
            logger.warning("%s", message.text)
            message = self._next(timeout)
        if isinstance(message, Exception) and not isinstance(message, CorruptImageError):
            self._owed = 0  # it has given up the order
            raise message
        return message

    def _next(self, timeout: float | None) -> Any:  # noqa: ANN401
        try:
            if not self._connection.poll(None if timeout is None else min(timeout, _LONGEST_WAIT_S)):
                self.end()
                raise _EndedError("timed_out", f"not done after {timeout:g} s")
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._autopsy() from error

    def _autopsy(self) -> _EndedError:
        """Find out how the child ended, after it has hung up."""
        status, peak = _reap(self._process)
        self._is_over = True
        self._last_words = _read_all(self._printed)
        is_full = 0 < self._peak_at_start < peak and peak * _RSS_UNIT >= _NEARLY * self.memory_limit
        return _EndedError(*explain_end(status, self._last_words, is_full=is_full))

    def end(self) -> None:
        """End the child at once, whatever it is doing."""
        if not self._is_over:
            os.kill(self._process.pid, signal.SIGKILL)
            _reap(self._process)
            self._is_over = True
        self._descriptors.close()


def _start(memory_limit: int) -> tuple[subprocess.Popen[bytes], int, int, int]:
    """Start a child; return it with our ends of its socket, its standard error and its lifeline."""
    ours, its = socket.socketpair()
    its_lifeline, lifeline = os.pipe()
    printed, its_printed = os.pipe()
    for end in (printed, its_printed):  # a decoder that complains at length must not wait for a reader
        os.set_blocking(end, False)
    arguments = (its.fileno(), its_lifeline, memory_limit)
    try:
        process = subprocess.Popen(  # noqa: S603  our own interpreter and code
            [sys.executable, "-P", "-c", _COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=its_printed,
            pass_fds=arguments[:2],
            env=_environment(),
            start_new_session=True,  # Ctrl-C in a terminal goes to whole sessions
        )
    except OSError as error:
        for end in (printed, lifeline, ours.detach()):
            os.close(end)
        message = f"a process that decodes cannot be started ({error.strerror})"
        raise DeviceError(f"{message}: use fewer cores, and run again") from error
    finally:
        its.close()
        os.close(its_lifeline)
        os.close(its_printed)
    return process, ours.detach(), printed, lifeline


def _environment() -> dict[str, str]:
    """Return an environment in which the child finds the modules that we find, and uses one core."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_DASK}
    return {**inherited, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _reap(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait for the end of a process that is about to end; return its exit status and its peak RSS.

    One that does not end is killed, and its status is 0: it has closed its side of the socket, as if it had
    left by itself, and is of no use any more.
    """
    patience, is_killed = time.monotonic() + _ENDING_S, False
    while True:
        # Not `process.wait`, which does not tell of memory.
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = 0 if is_killed else os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss
        if time.monotonic() > patience and not is_killed:
            os.kill(process.pid, signal.SIGKILL)
            is_killed = True
        time.sleep(0.01)


def _read_all(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _LAST_WORDS_BYTES)
    except BlockingIOError:  # nothing was written
        return b""


# ---- children that wait for the next shard

_IDLE: list[_Decoder] = []
_LOCK = threading.Lock()


@contextlib.contextmanager
def _borrowed(memory_limit: int) -> Iterator[_Decoder]:
    """Lend a child for the length of the block; one that was left in the middle of its work is ended."""
    decoder = _take_idle(memory_limit) or _Decoder(memory_limit)
    try:
        yield decoder
    finally:
        if decoder.is_idle:
            with _LOCK:
                _IDLE.append(decoder)
        else:
            decoder.end()


def _take_idle(memory_limit: int) -> _Decoder | None:
    with _LOCK:
        while _IDLE:
            decoder = _IDLE.pop()
            if decoder.memory_limit == memory_limit and decoder.is_idle:
                return decoder
            decoder.end()
    return None


def start(limits: Limits) -> None:
    """Have a child ready, so that the next `decode` need not wait for one.

    Raises:
        DeviceError: it does not start.
    """
    with _borrowed(limits.memory_limit):
        pass


def end_idle() -> None:
    """End the children that wait for work; the next `decode` starts another."""
    with _LOCK:
        while _IDLE:
            _IDLE.pop().end()


atexit.register(end_idle)
