"""isolate: what a file does to the process that decodes costs that file, and nobody else."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ingest.build import child, isolate
from ingest.build.child import Begun, Content, Order, read_ahead
from ingest.build.image import encode_jpeg
from ingest.build.isolate import decode, explain_end
from ingest.build.limits import Limits
from ingest.build.sample import Shrunk
from ingest.errors import CorruptImageError, DeviceError, StoreError
from ingest.recipe import Recipe

PLANTED = Path(__file__).parents[1] / "planted"
SMALL = Limits(time_limit=2, memory_limit=2**28)
PHOTO = encode_jpeg(np.full((240, 320, 3), 90, np.uint8), 90)

_HUNG_WORKER = """
import contextlib, sys
sys.path.insert(0, sys.argv[1])
from ingest.build import isolate
from ingest.build.limits import Limits
from ingest.recipe import Recipe
isolate.start(Limits())
(decoder,) = isolate._IDLE
print(decoder._process.pid, flush=True)
list(isolate.decode([(b"hung", 4)], raw=sys.argv[2], recipe=Recipe(), limits=Limits()))
"""

_FULL_DECODER = """
import sys
sys.path.insert(0, sys.argv[1])
from ingest.build import isolate
from ingest.build.limits import Limits
from ingest.recipe import Recipe
limits = Limits(time_limit=60, memory_limit=2**29)
(decoded,) = isolate.decode([(b"bad", 8)], raw=sys.argv[2], recipe=Recipe(), limits=limits)
print(decoded.result.code)
"""


@pytest.fixture
def planted(monkeypatch):
    """Have processes that decode meet the faults of `tests/planted`."""
    isolate.end_idle()
    monkeypatch.setattr(sys, "path", [str(PLANTED), *sys.path])
    yield
    isolate.end_idle()


def _decode(folder, files, limits=SMALL):
    """Write files by name and decode them in order; return an outcome each: a code, or ``sample``."""
    listed = []
    for name, data in files.items():
        (folder / name).write_bytes(data)
        listed.append((os.fsencode(name), len(data)))
    with contextlib.closing(decode(listed, raw=str(folder), recipe=Recipe(), limits=limits)) as results:
        return list(results)


def _code(decoded):
    return "sample" if isinstance(decoded.result, Shrunk) else decoded.result.code


def _idle_pids():
    return [decoder._process.pid for decoder in isolate._IDLE]


def _is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def _wait_until(happens):
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.02)


# ---- faults of files


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (b"SEGFAULT", "crashed", "The decoder crashed on this file, twice: segmentation fault (signal 11)."),
        (b"ABORT", "crashed", "The decoder crashed on this file, twice: aborted (signal 6)."),
        (b"EXIT", "crashed", "The decoder crashed on this file, twice: exit status 3."),
        (b"ODD", "crashed", "failed on this file in an unforeseen way: ZeroDivisionError: width is 0."),
        (b"HANG", "timed_out", "Decoding takes longer than 2 s: raise 'time_limit'"),
        (b"GREEDY", "out_of_memory", "Decoding takes more memory than 256 MiB: raise 'memory_limit'"),
        (b"BAD-ALLOC", "out_of_memory", "Decoding takes more memory than 256 MiB"),
    ],
)
def test_fault_costs_its_file(tmp_path, fault, code, words):
    """A process that dies, hangs or has no memory left is replaced; the files beside are samples."""
    files = {"a.jpg": PHOTO, "bad": fault, "b.jpg": PHOTO, "c.jpg": PHOTO}

    before, bad, *after = _decode(tmp_path, files)

    assert [_code(decoded) for decoded in (before, bad, *after)] == ["sample", code, "sample", "sample"]
    assert words in bad.result.reason
    assert (bad.num_bytes, len(bad.sha256)) == (len(fault), 64)
    assert before == after[0]


def test_crash_of_a_full_process_is_for_want_of_memory(tmp_path):
    """A decoder that does not look at what malloc returned crashes; how large it was tells why.

    From a process of its own: a child's peak is never below that of the process that started it.
    """
    (tmp_path / "bad").write_bytes(b"C-GREEDY")

    command = [sys.executable, "-c", _FULL_DECODER, str(PLANTED), str(tmp_path)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)

    assert ended.stdout == "out_of_memory\n"


@pytest.mark.usefixtures("planted")
def test_file_gets_a_second_try_alone(tmp_path):
    """A file that crashes the process once, as one may that was hurt by its neighbour, becomes a sample."""
    once = b"ONCE %s\n" % os.fsencode(tmp_path / "mark")

    results = _decode(tmp_path, {"a": once + PHOTO, "b": PHOTO})

    assert [_code(decoded) for decoded in results] == ["sample", "sample"]
    assert (tmp_path / "mark").exists()


@pytest.mark.usefixtures("planted")
def test_faults_one_after_the_other(tmp_path):
    """First, last and neighbouring files may all be bad."""
    files = {"1": b"SEGFAULT", "2": b"EXIT", "3": PHOTO, "4": b"", "5": b"ABORT"}

    results = _decode(tmp_path, files)

    assert [_code(decoded) for decoded in results] == ["crashed", "crashed", "sample", "empty", "crashed"]


@pytest.mark.usefixtures("planted")
def test_file_that_is_too_much_to_read_costs_itself(tmp_path):
    """A file that grew, or whose size its store does not tell, may exhaust memory before it is decoded."""
    (tmp_path / "HUGE").touch()
    listed = [(b"a", 1), (b"HUGE", 1), (b"a", 1)]
    (tmp_path / "a").write_bytes(PHOTO)

    with contextlib.closing(decode(listed, raw=str(tmp_path), recipe=Recipe(), limits=SMALL)) as results:
        before, huge, after = results

    assert (_code(before), _code(huge), _code(after)) == ("sample", "out_of_memory", "sample")
    assert huge.sha256 is None


def test_real_file_that_corrupts_the_heap(tmp_path, shared_data):
    """An animated AVIF, on which a real decoder crashes when asked for one frame, costs itself alone."""
    pytest.importorskip("imagecodecs")
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('ingest.build.child' in argument for argument in sys.orig_argv):\n"
        "    import imagecodecs\n"
        "    from ingest.build import image\n"
        "    before = image.shrink_image\n"
        "    def shrink(data, recipe):\n"
        "        if data[4:8] == b'ftyp':\n"
        "            imagecodecs.avif_decode(data, index=0)\n"
        "        return before(data, recipe)\n"
        "    image.shrink_image = shrink\n"
    )
    animated = (shared_data / "tricky/avif/colors-animated-8bpc-alpha-exif-xmp.avif").read_bytes()
    isolate.end_idle()
    path, sys.path = sys.path, [str(hook), *sys.path]
    try:
        results = _decode(tmp_path, {"a": PHOTO, "b": animated, "c": PHOTO}, Limits())
    finally:
        sys.path = path
        isolate.end_idle()

    assert [_code(decoded) for decoded in results] == ["sample", "crashed", "sample"]


# ---- faults of others


@pytest.mark.usefixtures("planted")
def test_kill_from_outside_is_no_reject(tmp_path):
    """A process that is killed twice as the kernel does it, for want of memory, leaves the shard unbuilt."""
    with pytest.raises(
        StoreError, match=r"bad: .* was killed at it, twice: killed \(signal 9\): .*fewer cores"
    ):
        _decode(tmp_path, {"a": PHOTO, "bad": b"KILL"})

    assert _idle_pids() == []


@pytest.mark.usefixtures("planted")
def test_passing_fault_is_raised(tmp_path):
    """A read that may succeed later is an error of the whole; the process goes on to the next shard."""
    with pytest.raises(StoreError, match=r"ETIMEDOUT: cannot read: Connection timed out"):
        _decode(tmp_path, {"a": PHOTO, "ETIMEDOUT": PHOTO, "b": PHOTO})

    (pid,) = _idle_pids()
    assert [_code(decoded) for decoded in _decode(tmp_path, {"c": PHOTO})] == ["sample"]
    assert _idle_pids() == [pid]


@pytest.mark.usefixtures("planted")
def test_missing_engine_is_no_reject(tmp_path):
    """A library that is not installed is no fault of the file that needs it."""
    with pytest.raises(ModuleNotFoundError, match="engine_that_is_not_there"):
        _decode(tmp_path, {"a": b"NO-ENGINE"})


def test_process_that_does_not_start_is_a_sentence(tmp_path, monkeypatch):
    """The last line that it printed says why."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.write(2, b'no such thing')\nos._exit(5)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    isolate.end_idle()

    with pytest.raises(DeviceError, match=r"does not start \(exit status 5\): no such thing: see whether"):
        isolate.start(SMALL)


# ---- the life of the process


@pytest.mark.usefixtures("planted")
def test_process_is_kept_from_shard_to_shard(tmp_path):
    """Two shards one after the other are decoded by one process; another memory limit takes another."""
    noted = tmp_path / "pids"
    files = {"a": b"PID %s" % os.fsencode(noted)}

    _decode(tmp_path, files)
    _decode(tmp_path, files)
    one, two = noted.read_text().split()
    _decode(tmp_path, files, Limits(memory_limit=2**29))

    assert one == two
    assert noted.read_text().split()[2] != one
    assert not _is_running(int(one))


def test_process_that_died_between_shards_is_replaced(tmp_path):
    """A process that was killed while it had nothing to do is noticed, and costs nothing."""
    isolate.start(SMALL)
    (pid,) = _idle_pids()
    os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: not _is_running(pid))

    assert [_code(decoded) for decoded in _decode(tmp_path, {"a": PHOTO, "b": PHOTO})] == ["sample"] * 2
    assert _idle_pids() != [pid]


def test_process_that_dies_between_files_is_replaced(tmp_path):
    """A process that is killed between two files of a shard costs neither."""
    slow = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), np.uint8)
    files = {f"{number}.jpg": encode_jpeg(slow, 95) for number in range(6)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    listed = [(name.encode(), len(data)) for name, data in files.items()]
    isolate.start(SMALL)
    (pid,) = _idle_pids()

    results = decode(listed, raw=str(tmp_path), recipe=Recipe(), limits=SMALL)
    with contextlib.closing(results):
        codes = [_code(next(results))]
        os.kill(pid, signal.SIGKILL)
        codes += [_code(decoded) for decoded in results]

    assert codes == ["sample"] * 6
    assert _idle_pids() != [pid]


def test_process_is_light_and_the_first_to_go():
    """It computes on one core, leaves no core file, and goes first when the machine has no memory left."""
    isolate.start(SMALL)
    (pid,) = _idle_pids()
    limits = Path(f"/proc/{pid}/limits").read_text()
    environment = Path(f"/proc/{pid}/environ").read_bytes()

    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    assert f"Max data size             {2**28} " in limits
    assert "Max core file size        0 " in limits
    assert b"OPENBLAS_NUM_THREADS=1\0" in environment
    assert os.getsid(pid) == pid


def test_leaving_early_ends_the_process(tmp_path):
    """A caller that stops in the middle of a shard leaves no process that goes on with it."""
    files = {f"{number}.jpg": PHOTO for number in range(5)}
    isolate.start(SMALL)
    (pid,) = _idle_pids()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)

    results = decode([(name.encode(), 1) for name in files], raw=str(tmp_path), recipe=Recipe(), limits=SMALL)
    with contextlib.closing(results):
        next(results)

    assert not _is_running(pid)
    assert _idle_pids() == []


def test_threads_have_processes_of_their_own(tmp_path):
    """Two shards at a time in one worker are decoded by two processes, both kept."""
    isolate.end_idle()
    (tmp_path / "a.jpg").write_bytes(PHOTO)
    both = threading.Barrier(2)

    def shard(_):
        results = decode([(b"a.jpg", 1)] * 3, raw=str(tmp_path), recipe=Recipe(), limits=SMALL)
        with contextlib.closing(results):
            codes = [_code(next(results))]
            both.wait(timeout=60)
            return codes + [_code(decoded) for decoded in results]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(shard, range(2))) == [["sample"] * 3] * 2
    assert len(set(_idle_pids())) == 2
    isolate.end_idle()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_hung_process_ends_with_its_parent(tmp_path, ending):
    """It does not outlive its parent even in C code that never returns and holds the interpreter."""
    (tmp_path / "hung").write_bytes(b"HANG %s" % os.fsencode(tmp_path / "asleep"))
    parent = subprocess.Popen(
        [sys.executable, "-c", _HUNG_WORKER, str(PLANTED), str(tmp_path)], stdout=subprocess.PIPE
    )
    with parent:
        pid = int(parent.stdout.readline())
        _wait_until((tmp_path / "asleep").exists)
        time.sleep(0.2)  # from the mark to the call that never returns
        assert _is_running(pid)

        parent.send_signal(ending)
        parent.wait()

        _wait_until(lambda: not _is_running(pid))


# ---- what an end means


@pytest.mark.parametrize(
    ("status", "printed", "is_full", "expected"),
    [
        (-11, b"", False, ("crashed", "segmentation fault (signal 11)")),
        (-11, b"", True, ("out_of_memory", "segmentation fault (signal 11)")),
        (-6, b"what(): std::bad_alloc\n", False, ("out_of_memory", "aborted (signal 6)")),
        (-6, b"corrupted double-linked list\n", False, ("crashed", "aborted (signal 6)")),
        (-7, b"", False, ("crashed", "bus error (signal 7)")),
        (1, b"MemoryError\n", False, ("out_of_memory", "an allocation failed")),
        (77, b"", False, ("out_of_memory", "an allocation failed")),
        (0, b"", False, ("crashed", "exit status 0")),
        (-9, b"", False, ("killed", "killed (signal 9)")),
        (-9, b"", True, ("killed", "killed (signal 9)")),
        (-15, b"", False, ("killed", "terminated (signal 15)")),
    ],
)
def test_end_of_a_process_is_explained(status, printed, is_full, expected):
    """Signals that a process brings on itself are its file's fault, those from outside are not."""
    assert explain_end(status, printed, is_full=is_full) == expected


# ---- reading


def _order(sizes, ahead=4):
    return Order("/raw", Recipe(), tuple((b"%d" % number, size) for number, size in enumerate(sizes)), ahead)


@pytest.mark.parametrize(
    ("sizes", "ahead", "begun"),
    [
        ([1] * 9, 4, [5, 6, 7, 8, 9, 9, 9, 9, 9]),  # the one in turn, and four more
        ([1] * 3, 0, [1, 2, 3]),  # alone
        ([10**9, 1, 1], 4, [3, 3, 3]),  # the size of the one in turn does not count
        ([1, 40 * 10**6, 40 * 10**6, 40 * 10**6], 4, [2, 3, 4, 4]),  # 64 MB beside it
        ([1, 10**9, 1], 4, [1, 3, 3]),  # a large one waits for its turn
        ([], 4, []),
    ],
)
def test_read_ahead_is_bounded_by_files_and_bytes(sizes, ahead, begun):
    """So many files have been begun to be read by the time that each is yielded, and they come in order."""
    asked = []

    def read(_raw, path, _size):
        return Content(path, Begun(len(path), None), None)

    class Pool:
        def submit(self, function, raw, path, size):
            asked.append(path)
            return pool.submit(function, raw, path, size)

    with ThreadPoolExecutor(1) as pool:
        seen = [(content.data, len(asked)) for content in read_ahead(_order(sizes, ahead), Pool(), read)]

    assert seen == [(b"%d" % number, count) for number, count in enumerate(begun)]


@pytest.mark.parametrize(
    ("file_system", "errors", "expected"),
    [
        ("ext4", [errno.EIO, errno.EIO], "unreadable"),
        ("ext4", [errno.EIO], "read"),
        ("ext4", [errno.EIO, errno.ETIMEDOUT], StoreError),
        ("ext4", [errno.ESTALE], StoreError),
        ("nfs4", [errno.EIO, errno.EIO], StoreError),
        ("fuse.s3fs", [errno.EIO], StoreError),
        ("fuseblk", [errno.EIO, errno.EIO], "unreadable"),
    ],
)
def test_only_a_bad_medium_makes_a_file_unreadable(tmp_path, monkeypatch, file_system, errors, expected):
    """EIO twice from a local disk is for good; from a network, or another error, it may pass."""
    (tmp_path / "x").write_bytes(b"data")
    pending = list(errors)
    open_path = Path.open

    def meet_fault(path, *args, **kwargs):
        if pending:
            number = pending.pop(0)
            raise OSError(number, os.strerror(number), str(path))
        return open_path(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", meet_fault)
    monkeypatch.setattr(child, "_file_system", lambda _: file_system)
    monkeypatch.setattr(child, "_SECOND_TRY_AFTER_S", 0)

    if expected is StoreError:
        with pytest.raises(StoreError, match="x: cannot read: "):
            child.read_raw(str(tmp_path), b"x", 4)
        return
    content = child.read_raw(str(tmp_path), b"x", 4)

    assert content.data == (b"data" if expected == "read" else b"")
    assert getattr(content.fault, "code", "read") == expected
    assert pending == []


def test_kind_of_file_system_is_found():
    """The file system of /proc is proc; a path that is not there has none."""
    assert child._file_system(Path("/proc/version")) == "proc"
    assert child._file_system(Path("/nowhere/at/all")) == ""


def test_odd_error_of_a_store_names_the_file(tmp_path, monkeypatch):
    """What the libraries behind a URL raise, whatever it is, stops the shard with the name of the file."""

    def fail(url, _size):
        raise io.UnsupportedOperation("not now") if url.endswith("1") else KeyError("body")

    monkeypatch.setattr(child.store, "read_bytes", fail)

    with pytest.raises(StoreError, match="/2: cannot read: KeyError: 'body'"):
        child.read_raw(str(tmp_path), b"2", 4)


def test_reject_survives_the_way_back(tmp_path):
    """What the decoder says of a bad file comes through whole, and its bytes were hashed."""
    (decoded,) = _decode(tmp_path, {"a": b"just text"})

    assert isinstance(decoded.result, CorruptImageError)
    assert (decoded.result.code, decoded.num_bytes) == ("not_an_image", 9)
    assert decoded.sha256 == hashlib.sha256(b"just text").hexdigest()
