"""Whether the units of an HEVC picture can be what an encoder wrote (ITU-T H.265). Pure.

HEVC has no checksums, and its decoder here shows something for whatever it is given. But no unit can hold two
zero bytes before one of 0, 1 or 2: an encoder puts a 3 between them (7.3.1.1). Of zeros in place of a lost
part, and of some other damage, that tells.
"""

from __future__ import annotations

_EMULATION_PREVENTION = 3
_MOST_TRAILING_ZEROS = 3
# That careless writers take over from the start of the next unit, as files of MPEG have it.


def has_impossible_bytes(data: bytes, length_bytes: int) -> bool:
    """Return whether a coded picture has bytes in a unit that no unit can have.

    Args:
        data: units, each behind its length.
        length_bytes: of each length, 1 to 4.
    """
    position = 0
    while position + length_bytes < len(data):
        begin = position + length_bytes
        position = begin + int.from_bytes(data[position:begin], "big")
        if _is_impossible(data, begin, min(position, len(data))):
            return True
    return False


def _is_impossible(data: bytes, begin: int, end: int) -> bool:
    last = max(begin, end - _MOST_TRAILING_ZEROS)
    while end > last and data[end - 1] == 0:
        end -= 1
    at = data.find(b"\0\0", begin, end)
    while at >= 0:
        if at + 2 < end and data[at + 2] < _EMULATION_PREVENTION:
            return True
        at = data.find(b"\0\0", at + 2, end)
    return False
