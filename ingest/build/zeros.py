"""Zero bytes that stand where a file was never written, or was lost: pure functions of bytes.

A download that was broken off can have its full size, its end all zeros; a disk or a network loses whole
blocks. What tells a lost block from zeros that a compressor wrote is that it begins and ends where blocks do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

BLOCK_BYTES = 4096
"""Of file systems, and a multiple of what networks and disks lose at once."""

_BLOCK = bytes(BLOCK_BYTES)
_SECTOR = bytes(512)
_SLACK = 16  # bytes beside a lost block that are zero by chance
_NOT_ZERO = re.compile(rb"[^\0]")


class Zeros(NamedTuple):
    """A stretch of zero bytes."""

    begin: int
    end: int

    def overlap(self, begin: int, end: int) -> int:
        """Return how many of the bytes between two positions belong to the stretch."""
        return max(0, min(end, self.end) - max(begin, self.begin))


def has_tail(data: bytes) -> bool:
    """Return whether the file ends in a sector or more of zero bytes: allocated, and never written."""
    return data.endswith(_SECTOR)


def tail(data: bytes) -> Zeros:
    """Return the zero bytes at the end of the file, none of them if they are fewer than a sector."""
    return Zeros(len(data.rstrip(b"\0")) if has_tail(data) else len(data), len(data))


def lost_blocks(data: bytes, begin: int = 0) -> list[Zeros]:
    """Return the stretches of zero bytes that are whole blocks, and do not reach the end of the file.

    Compressed pixels of a plain surface can be zero bytes for long, but do not begin and end with a block.

    Args:
        data: a whole file.
        begin: zeros before this position, in bytes, do not count.
    """
    found = []
    start = data.find(_BLOCK, begin)
    while start >= 0:
        end = _end_of_zeros(data, start)
        first, last = -(-start // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
        if first < last and first - start <= _SLACK and end - last <= _SLACK and end < len(data):
            found.append(Zeros(first, last))
        start = data.find(_BLOCK, end)
    return found


def _end_of_zeros(data: bytes, start: int) -> int:
    while data.startswith(_BLOCK, start):
        start += BLOCK_BYTES
    found = _NOT_ZERO.search(data, start)
    return len(data) if found is None else found.start()
