"""Crops, rotations and mirrors that a HEIC or AVIF names: one box of the stored picture and one turn. Pure.

ISO/IEC 23008-12 has them applied one after another, in the order in which the file associates them: ``clap``
(6.5.9) cuts a part out, ``irot`` (6.5.10) rotates, ``imir`` (6.5.12) mirrors.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = frozenset({b"clap", b"irot", b"imir"})

_Matrix = tuple[int, int, int, int]
"""Row by row: where a step to the right and one down lead, of a turn by a multiple of 90 degrees."""

# EXIF orientations: what is done to a stored picture to see it upright.
_TURNS: dict[int, _Matrix] = {
    1: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, -1, 1, 0),
    7: (0, -1, -1, 0),
    8: (0, 1, -1, 0),
}
_ORIENTATIONS = {matrix: orientation for orientation, matrix in _TURNS.items()}
_ROTATIONS = (1, 8, 3, 6)  # by so many times 90 degrees, counter-clockwise
_MIRRORS = (4, 2)  # top and bottom change places, left and right do
_APERTURE_NUMBERS = 8


class Placement(NamedTuple):
    """What is to be done to a picture as it was decoded.

    Attributes:
        box: left, top, right, bottom of what is cut out, in its pixels.
        orientation: EXIF orientation of that, 1 to 8.
        notes: what the file names and cannot be done.
    """

    box: tuple[int, int, int, int]
    orientation: int
    notes: tuple[str, ...] = ()


def place(transforms: Iterable[tuple[bytes, bytes]], width: int, height: int) -> Placement:
    """Put transforms together.

    Args:
        transforms: name and payload of each box, in their order.
        width: of the decoded picture, in pixels.
        height: of the decoded picture, in pixels.

    Returns:
        One crop and one turn that do the same. An aperture that is none, or does not lie in the picture, is
        left out with a note: every pixel is there.
    """
    turn, size = _TURNS[1], (width, height)
    notes: list[str] = []
    # Twice where the middle of the part lies from the middle of the picture, as stored.
    middle = (0, 0)
    for name, payload in transforms:
        if name == b"clap":
            found = _aperture(payload, *size)
            if found is None:
                notes.append("Its clean aperture (clap) is not within the picture: nothing was cropped.")
                continue
            left, top, across, down = found
            step = _undo(turn, (2 * left + across - size[0], 2 * top + down - size[1]))
            middle, size = (middle[0] + step[0], middle[1] + step[1]), (across, down)
        else:
            number = payload[0] if payload else 0
            more = _ROTATIONS[number & 3] if name == b"irot" else _MIRRORS[number & 1]
            turn = _after(turn, _TURNS[more])
            size = size[::-1] if _TURNS[more][0] == 0 else size
    across, down = size if turn[0] else size[::-1]
    left, top = (width + middle[0] - across) // 2, (height + middle[1] - down) // 2
    return Placement((left, top, left + across, top + down), _ORIENTATIONS[turn], tuple(notes))


def _after(first: _Matrix, then: _Matrix) -> _Matrix:
    """Return the turn that two make, one after another."""
    a, b, c, d = then
    e, f, g, h = first
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _undo(turn: _Matrix, step: tuple[int, int]) -> tuple[int, int]:
    """Return a step in the turned picture as one in the stored picture: turns are orthogonal."""
    a, b, c, d = turn
    return a * step[0] + c * step[1], b * step[0] + d * step[1]


def _aperture(payload: bytes, width: int, height: int) -> tuple[int, int, int, int] | None:
    """Return left, top, width and height of a clean aperture, in whole pixels; None if it is not within."""
    numbers = [int.from_bytes(payload[at : at + 4], "big", signed=True) for at in range(0, 32, 4)]
    sizes, below = numbers[::2], numbers[1::2]
    if len(payload) < 4 * _APERTURE_NUMBERS or min(below) < 1:
        return None
    across, down, right, lower = map(Fraction, sizes, below)
    size = round(across), round(down)
    left = int((width - size[0] + 2 * right) // 2)
    top = int((height - size[1] + 2 * lower) // 2)
    is_within = min(size) > 0 and min(left, top) >= 0 and left + size[0] <= width and top + size[1] <= height
    return (left, top, *size) if is_within else None
