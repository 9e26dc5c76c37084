"""The markers of a JPEG: what stands before its pixels, and how to leave out what does not matter.

Pure functions of bytes; the pixels themselves are decoded elsewhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING

from ingest.build import tiff
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

END = b"\xff\xd9"
"""The marker behind the last pixel."""

MARKER = re.compile(rb"\xff+([^\x00\xff])")
"""A marker, as libjpeg looks for one: after any junk, any number of FF, then neither 00 nor FF."""

_SOF0, _SOI, _EOI, _SOS, _APP0, _APP1, _APP2, _APP14, _APP15, _SOF55, _COM = (
    *(0xC0, 0xD8, 0xD9, 0xDA),
    *(0xE0, 0xE1, 0xE2, 0xEE, 0xEF, 0xF7, 0xFE),
)
_DRI = 0xDD
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({2, 6, 10, 14})  # numbers of SOF
_WITHOUT_PAYLOAD = frozenset({0x01, *range(0xD0, 0xD8)})
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_BEHIND_SCAN = re.compile(rb"\xff+([^\x00\x01\xd0-\xd7\xff])")  # neither data nor a restart
_SCAN = b"\xff\xda"
_DNL = re.compile(rb"\xff\xdc\x00\x04(..)", re.DOTALL)
_MOST_PADDING = 64  # bytes before the end marker: to a word, a cache line
_MPF_NUMBER_OF_IMAGES = 0xB001
_MOST_PICTURES = 1000
_ADOBE_BYTES = 12  # its name, version, two words of flags, and the transform


@dataclasses.dataclass(frozen=True, slots=True)
class JpegHeader:
    """What stands before the pixels of a JPEG.

    Attributes:
        width: as stored, in pixels.
        height: as stored, in pixels.
        kind: SOF0 baseline, SOF2 progressive, SOF3 lossless, ...; bits a sample; number of components.
        orientation: EXIF orientation, 1 to 8; 1 where it is missing or broken.
        segments: marker, begin and end of the payload of every segment, the first scan's header last.
        notes: a sentence if the orientation is broken.
    """

    width: int
    height: int
    kind: tuple[int, int, int]
    orientation: int
    segments: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...] = ()


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Read what stands before the first scan, finding the same segments as libjpeg.

    Raises:
        CorruptImageError: ``not_an_image``, ``truncated`` or ``corrupt``, or ``unsupported``: it is JPEG-LS.
    """
    if not data.startswith(b"\xff\xd8"):
        raise CorruptImageError("not_an_image", "The bytes do not begin as a JPEG does.")
    segments = tuple(_iter_segments(data))
    frame = next((data[begin - 3 : end] for marker, begin, end in segments if marker in _FRAMES), b"")
    if not frame and any(marker == _SOF55 for marker, _, _ in segments):
        raise CorruptImageError("unsupported", "JPEG-LS is not read: convert it to PNG or JPEG.")
    # Marker, length, precision, height, width, number of components, and three bytes for each.
    if len(frame) < len("MLLPHHWWC") or len(frame) < len("MLLPHHWWC") + 3 * frame[8]:
        raise CorruptImageError("corrupt", "The JPEG has no frame header before its pixels.")
    height, width = int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big")
    kind = frame[0] - _SOF0, frame[3], frame[8]
    orientation = _jpeg_orientation(data, segments)
    return JpegHeader(width, height, kind, orientation.value, segments, orientation.notes)


def _iter_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of the payload of each segment, up to the first scan's header."""
    position, marker = 2, 0
    while marker != _SOS:
        found = MARKER.search(data, position)
        if found is None:
            raise CorruptImageError(
                "truncated", "The file ends within its header: none of its picture is there."
            )
        marker, position = found[1][0], found.end()
        if marker in {_SOI, _EOI}:
            raise CorruptImageError("corrupt", "The JPEG begins or ends again before its first pixel.")
        if marker not in _WITHOUT_PAYLOAD:
            begin, end = position + 2, position + int.from_bytes(data[position : position + 2], "big")
            if not begin <= end <= len(data):
                raise CorruptImageError(
                    "truncated", "The file ends within its header: none of its picture is there."
                )
            yield marker, begin, end
            position = end


def _jpeg_orientation(data: bytes, segments: tuple[tuple[int, int, int], ...]) -> tiff.Orientation:
    """Return the orientation of the first EXIF block."""
    for marker, begin, end in segments:
        if marker == _APP1 and data.startswith(b"Exif\0", begin, end):
            return tiff.read_orientation(data[begin + 6 : end])
    return tiff.Orientation()


def without_junk(data: bytes) -> bytes:
    """Keep the header segments that pixels depend on, and nothing between them."""
    segments = read_jpeg_header(data).segments
    kept = [
        b"\xff" + data[begin - 3 : end]
        for marker, begin, end in segments
        if marker in {_APP0, _APP14} or not (_APP0 <= marker <= _APP15 or marker == _COM)
    ]
    return b"\xff\xd8" + b"".join(kept) + data[segments[-1][2] :]


def with_stated_height(data: bytes, header: JpegHeader) -> bytes:
    """Put the height into a header that has 0, from behind the first scan (DNL: ISO 10918-1, B.2.5).

    libjpeg does not look there. A file that has none is returned as it is.
    """
    found = _DNL.search(data, header.segments[-1][2])
    begin = _frame(header)
    return data if found is None else data[: begin + 1] + found[1] + data[begin + 3 :]


def without_padding(data: bytes, header: JpegHeader, num_bytes: int) -> bytes:
    """Leave out `num_bytes` of padding before the end marker.

    Raises:
        CorruptImageError: ``corrupt``: they are not padding, so there is more among the pixels than belongs
            there.
    """
    end = data.find(END, header.segments[-1][2])
    if num_bytes > _MOST_PADDING or data[end - num_bytes : end].strip(b"\0\xff"):
        sentence = f"Bytes are left over behind the last pixel of the JPEG ({num_bytes}): it is garbled."
        raise CorruptImageError("corrupt", sentence)
    return data[: end - num_bytes] + data[end:]


def without_surplus(data: bytes, header: JpegHeader) -> bytes:
    """End the picture behind its last row, where a scan has more rows than the header states.

    What feeds pages through writes so, not knowing how long they are. That whole rows were added is known
    only where each is a restart interval: anywhere else the surplus may lie among the pixels.

    Raises:
        CorruptImageError: ``corrupt``: it may.
    """
    begin, interval = header.segments[-1][2], _restart_interval(data, header)
    width, height = mcu_size(data, header)
    needed = -(-header.height // height)
    ends = list(itertools.islice(_RESTART.finditer(data, begin), needed))
    is_by_rows = interval == -(-header.width // width)
    if not is_by_rows or len(ends) < needed or len(list(_iter_scans(data, header))) > 1:
        raise CorruptImageError("corrupt", "Bytes that belong to nothing stand among the pixels of the JPEG.")
    return data[: ends[-1].start()] + END


def with_height(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """Make the header state `rows` rows, and end the file with the end marker."""
    begin = _frame(header)
    return data[: begin + 1] + rows.to_bytes(2, "big") + data[begin + 3 :] + END


def mcu_size(data: bytes, header: JpegHeader) -> tuple[int, int]:
    """Return width and height of the unit in which the first scan is coded, in pixels (ISO 10918-1, A.2).

    Eight times the largest sampling factors; of a single component that is alone, one block.
    """
    begin = _frame(header)
    factors = [data[begin + 7 + 3 * index] for index in range(header.kind[-1])]
    if len(factors) == 1:
        return 8, 8
    return 8 * max(1, *(factor >> 4 for factor in factors)), 8 * max(1, *(factor & 15 for factor in factors))


def is_complete(data: bytes, header: JpegHeader) -> bool:
    """Return whether a JPEG has the scans that bring every coefficient to its last bit.

    Most baseline pictures are one scan. Progressive ones come in many (ISO 10918-1, annex G), and a file that
    lacks some of them decodes without a fault, only coarser or gray.
    """
    if header.kind[0] not in _PROGRESSIVE:
        return data[header.segments[-1][1]] == header.kind[-1] or has_all_colours(data, header)
    components = _components(data, header)
    # To look at every marker takes ten times as long; what looks like a scan and is none is in no real file.
    return _bring_all(data, components, _likely_scans(data, header)) or _bring_all(
        data, components, _iter_scans(data, header)
    )


def _bring_all(data: bytes, components: list[int], scans: Iterable[tuple[int, int]]) -> bool:
    missing = {component: set(range(64)) for component in components}
    for begin, end in scans:
        scan = data[begin:end]
        first, last, bits = scan[-3:]
        for component in scan[1 : 1 + 2 * scan[0] : 2]:
            if bits & 15 == 0:
                missing.get(component, set()).difference_update(range(first, last + 1))
    return not any(missing.values())


def has_all_colours(data: bytes, header: JpegHeader) -> bool:
    """Return whether there is a scan, or the begin of one, of each component."""
    scans = _iter_scans(data, header)
    seen = {component for begin, end in scans for component in data[begin + 1 : end - 3 : 2]}
    return seen.issuperset(_components(data, header))


def before_last_scan(data: bytes, header: JpegHeader) -> bytes | None:
    """Leave out the last scan of a file that was cut in it; None where it has no other."""
    *complete, last = _iter_scans(data, header)
    seen = {component for begin, end in complete for component in data[begin + 1 : end - 3 : 2]}
    if not seen.issuperset(_components(data, header)):
        return None
    return data[: last[0] - 4] + END


def count_pictures(data: bytes, header: JpegHeader) -> int:
    """Return the number of pictures in the file as its multi-picture block states (CIPA DC-007), else 1."""
    for marker, begin, end in header.segments:
        if marker == _APP2 and data.startswith(b"MPF\0", begin, end):
            (number, *_) = tiff.read_tags(data[begin + 4 : end]).get(_MPF_NUMBER_OF_IMAGES, (1,))
            return number if isinstance(number, int) and 1 <= number <= _MOST_PICTURES else 1
    return 1


def adobe_transform(data: bytes, header: JpegHeader) -> int | None:
    """Return the transform that Adobe's marker states: 0 none, 1 YCbCr, 2 YCCK; None without the marker.

    Where Adobe wrote the file, its inks are inverted: 255 is none.
    """
    for marker, begin, end in header.segments:
        if marker == _APP14 and data.startswith(b"Adobe", begin, end) and end - begin >= _ADOBE_BYTES:
            return data[begin + _ADOBE_BYTES - 1]
    return None


def _frame(header: JpegHeader) -> int:
    """Return where the payload of the frame header begins."""
    return next(begin for marker, begin, _ in header.segments if marker in _FRAMES)


def _components(data: bytes, header: JpegHeader) -> list[int]:
    """Return the numbers that the components have in scan headers."""
    begin = _frame(header)
    return [data[begin + 6 + 3 * index] for index in range(header.kind[-1])]


def _restart_interval(data: bytes, header: JpegHeader) -> int:
    return next(
        (
            int.from_bytes(data[begin : begin + 2], "big")
            for marker, begin, _ in header.segments
            if marker == _DRI
        ),
        0,
    )


def _iter_scans(data: bytes, header: JpegHeader) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the payload of each scan's header, in the order of the file."""
    begin, position = header.segments[-1][1:]
    yield begin, position
    while found := _BEHIND_SCAN.search(data, position):
        marker, begin = found[1][0], found.end() + 2
        position = found.end() + int.from_bytes(data[found.end() : begin], "big")
        if marker in {_SOI, _EOI} or not begin <= position <= len(data):
            return
        if marker == _SOS and position - begin >= len("NCTSEA"):
            yield begin, position


def _likely_scans(data: bytes, header: JpegHeader) -> Iterator[tuple[int, int]]:
    """Yield what `_iter_scans` does, and what else looks like it."""
    yield header.segments[-1][1:]
    position = header.segments[-1][2]
    stop = data.find(END, position)
    stop = len(data) if stop < 0 else stop
    while (position := data.find(_SCAN, position, stop)) >= 0:
        begin = position + 4
        position += 2 + int.from_bytes(data[position + 2 : begin], "big")
        if begin < position <= len(data) and position - begin == len("NSEA") + 2 * data[begin]:
            yield begin, position
        position = max(begin, position)
