"""Plants decoder faults in the process that decodes, for tests that put this folder on its path.

Python imports a module of this name at its start. In a process that decodes, a raw file that begins with the
name of a fault meets that fault in place of a decoder; reads of a file fail if its name holds an error's. In
every other process a raw file that is decoded ends the process: nobody else may do that.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from pathlib import Path

_LIBC = ctypes.PyDLL(None)  # unlike CDLL it keeps the interpreter's lock while in C
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.malloc.argtypes = [ctypes.c_size_t]
_LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_BLOCK = 20 * 10**6


def _hang(data):
    mark = data.partition(b" ")[2]
    if mark:
        Path(os.fsdecode(mark)).touch()
    _LIBC.sleep(1000)


def _fill_memory(_):
    blocks = []
    while True:
        blocks.append(bytearray(os.urandom(1) * _BLOCK))


def _fill_memory_in_c(_):
    while True:  # as a decoder does that does not look at what malloc returned
        _LIBC.memset(_LIBC.malloc(_BLOCK), 1, _BLOCK)


def _complain_of_memory(_):
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def _refuse_oddly(_):
    raise ZeroDivisionError("width is 0")


def _crash_once(data):
    mark = Path(os.fsdecode(data.partition(b"\n")[0].partition(b" ")[2]))
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGSEGV)


def _reject_slowly(_):
    from ingest.errors import CorruptImageError

    time.sleep(0.02)
    raise CorruptImageError("corrupt", "Slowly refused.")


_FAULTS = {
    b"SEGFAULT": lambda _: ctypes.string_at(0),
    b"ABORT": lambda _: os.abort(),
    b"EXIT": lambda _: os._exit(3),
    b"KILL": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    b"HANG": _hang,
    b"GREEDY": _fill_memory,
    b"C-GREEDY": _fill_memory_in_c,
    b"BAD-ALLOC": _complain_of_memory,
    b"ODD": _refuse_oddly,
    b"SLOW": _reject_slowly,
    b"NO-ENGINE": lambda _: __import__("engine_that_is_not_there"),
}


def _plant_decoder(image):
    shrink_image = image.shrink_image

    def meet_fault(data, recipe):
        for name, fault in _FAULTS.items():
            if data.startswith(name):
                fault(data)
        if data.startswith(b"ONCE"):
            _crash_once(data)
            data = data.partition(b"\n")[2]
        if data.startswith(b"PID"):
            with open(os.fsdecode(data.partition(b" ")[2]), "a") as file:
                file.write(f"{os.getpid()}\n")
        return shrink_image(data, recipe)

    image.shrink_image = meet_fault


def _plant_reader():
    open_path = Path.open

    def meet_fault(path, *args, **kwargs):
        for name in ("EIO", "ETIMEDOUT", "ESTALE"):
            if path.name.startswith(name):
                raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(path))
        if path.name.startswith("HUGE"):
            raise MemoryError
        if path.name.startswith("HICCUP") and not path.with_suffix(".seen").exists():
            path.with_suffix(".seen").touch()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return open_path(path, *args, **kwargs)

    Path.open = meet_fault


def _forbid_decoding(image):
    def end(*_):
        os.write(2, b"a raw file was decoded in a process that may not\n")
        os._exit(99)

    image.shrink_image = end


def _plant():
    with contextlib.suppress(ImportError):
        from ingest.build import image

        if any("ingest.build.child" in argument for argument in sys.orig_argv):
            _plant_decoder(image)
        else:
            _forbid_decoding(image)


_plant_reader()
_plant()
