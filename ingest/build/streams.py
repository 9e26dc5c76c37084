"""The part of a file that a lenient decoder is given, once it is known that no pixel is missing from it.

Pure functions of bytes. libwebp and libjpeg fill what is missing with gray or with whatever
memory holds, or get lost in broken metadata; so each is handed its picture alone, found here and checked.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ingest.build.containers import Chunk, webp_chunks
from ingest.build.jpeg import END, MARKER
from ingest.errors import CorruptImageError

ENDS_EARLY = "The file ends early, after its last pixel."


# ---- WebP

_ANMF_BYTES = 16


class StillWebp(NamedTuple):
    """The first picture of a WebP, as a file of its own.

    Attributes:
        data: the file.
        width: of the picture, in pixels.
        height: of the picture, in pixels.
        canvas: width and height of the whole; those of the picture unless it is animated.
        left: where the picture lies on the canvas, in pixels.
        top: where the picture lies on the canvas, in pixels.
        notes: what is missing and costs no pixel.
    """

    data: bytes
    width: int
    height: int
    canvas: tuple[int, int]
    left: int
    top: int
    notes: tuple[str, ...]


def still_webp(data: bytes) -> StillWebp:
    """Cut the first picture out of a WebP (RFC 9649).

    Raises:
        CorruptImageError: ``truncated`` or ``corrupt``.
    """
    chunks = list(webp_chunks(data))
    is_cut = 8 + int.from_bytes(data[4:8], "little") > len(data)
    notes = (ENDS_EARLY,) * is_cut
    frame = next((chunk for chunk in chunks if chunk.name in {b"ANMF", b"VP8 ", b"VP8L"}), None)
    if frame is None or frame.name != b"ANMF":
        still, width, height = _wrap_picture(data, chunks, is_cut=is_cut)
        return StillWebp(still, width, height, (width, height), 0, 0, notes)
    head = frame.payload(data)[:_ANMF_BYTES].ljust(_ANMF_BYTES, b"\0")
    left, top, wide, high = (int.from_bytes(head[n : n + 3], "little") for n in (0, 3, 6, 9))
    inner = webp_chunks(data, frame.begin + _ANMF_BYTES, frame.end)
    still, width, height = _wrap_picture(data, list(inner), is_cut=is_cut)
    canvas = _canvas_of(data, chunks)
    is_inside = 2 * left + width <= canvas[0] and 2 * top + height <= canvas[1]
    if (width, height) != (wide + 1, high + 1) or not is_inside:
        raise CorruptImageError("corrupt", "The first frame of the WebP does not fit where it belongs.")
    return StillWebp(still, width, height, canvas, 2 * left, 2 * top, notes)


def _wrap_picture(data: bytes, chunks: list[Chunk], *, is_cut: bool) -> tuple[bytes, int, int]:
    """Return a WebP of the first picture among chunks and its alpha alone, its width and its height."""
    pixels = next((chunk for chunk in chunks if chunk.name in {b"VP8 ", b"VP8L"}), None)
    if pixels is None:
        code = "truncated" if is_cut else "corrupt"
        raise CorruptImageError(code, "There is no picture in the WebP, or the file ends before it.")
    if pixels.end > len(data):
        raise CorruptImageError("truncated", _missing(pixels, data, "WebP"))
    width, height = _webp_size(pixels.payload(data)[:10], is_lossless=pixels.name == b"VP8L")
    before = chunks[: chunks.index(pixels)] if pixels.name == b"VP8 " else []
    alpha = next((chunk for chunk in before if chunk.name == b"ALPH"), None)
    body = _riff_chunk(pixels.name, pixels.payload(data))
    if alpha is not None:
        size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        extended = _riff_chunk(b"VP8X", b"\x10\0\0\0" + size)
        body = extended + _riff_chunk(b"ALPH", alpha.payload(data)) + body
    return b"RIFF" + (4 + len(body)).to_bytes(4, "little") + b"WEBP" + body, width, height


def _webp_size(head: bytes, *, is_lossless: bool) -> tuple[int, int]:
    """Read width and height, in pixels, of a VP8 key frame (RFC 6386, 9.1) or of a VP8L picture."""
    if is_lossless and head[:1] == b"\x2f":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if not is_lossless and head[3:6] == b"\x9d\x01\x2a":
        bits = int.from_bytes(head[6:10], "little")
        return bits & 0x3FFF, bits >> 16 & 0x3FFF
    raise CorruptImageError("corrupt", "The picture of the WebP does not begin as one.")


def _canvas_of(data: bytes, chunks: list[Chunk]) -> tuple[int, int]:
    payload = next((chunk.payload(data) for chunk in chunks if chunk.name == b"VP8X"), b"").ljust(10, b"\0")
    return int.from_bytes(payload[4:7], "little") + 1, int.from_bytes(payload[7:10], "little") + 1


def _riff_chunk(name: bytes, payload: bytes) -> bytes:
    return name + len(payload).to_bytes(4, "little") + payload + b"\0" * (len(payload) % 2)


def _missing(chunk: Chunk, data: bytes, kind: str) -> str:
    """Say how much of a chunk is in the file."""
    share = max(0, len(data) - chunk.begin) / (chunk.end - chunk.begin)
    return f"The file ends within the pixels of the {kind}: it has {share:.0%} of them."


# ---- JPEG


_SOS, _END_OF_IMAGE, _RESTARTS = 0xDA, 0xD9, range(0xD0, 0xD8)
_WITHOUT_PAYLOAD = frozenset({0x01, 0xD8, *_RESTARTS})
_MOST_PADDING = 64  # bytes, as in `jpeg`
_NEEDED_BYTES = 8  # too many to decode to the same pixels by chance when they are others
# Where libjpeg makes zero bits of what is missing, this begins with a one. No FF, so that it is read as
# entropy-coded; no pattern, so that it decodes to something that shows.
_JUNK = bytes((n * n * 89 + n * 167 + 165) % 251 for n in range(64))


class JpegScans(NamedTuple):
    """A JPEG and where its scans are.

    Attributes:
        data: the file, with an end marker after its last scan.
        ends: where each run of entropy-coded bytes ends, in bytes: at a restart marker or after the scan.
        is_ended: whether the file had the end marker.
    """

    data: bytes
    ends: tuple[int, ...]
    is_ended: bool

    def with_junk(self) -> bytes:
        """Return the file with junk behind every run of entropy-coded bytes.

        libjpeg reads past the end of a run that is too short, and puts up with one that is too long. So this
        decodes to the same pixels as the file itself if, and (but for luck) only if, each run is long enough.
        """
        edges = (0, *self.ends, len(self.data))
        return _JUNK.join(self.data[begin:end] for begin, end in pairwise(edges))


def find_scans(data: bytes, begin: int) -> JpegScans:
    """Find the scans of a JPEG.

    Args:
        data: the file.
        begin: where the entropy-coded bytes of the first scan begin.

    Raises:
        CorruptImageError: ``truncated`` if a header after the first scan is cut, ``corrupt`` if restart
            markers are not in their order: something between them is missing.
    """
    ends, position, num_restarts, is_in_scan = [], begin, 0, True
    while (found := MARKER.search(data, position)) is not None:
        marker, position = found[1][0], found.end()
        if is_in_scan:
            ends.append(found.start())
        if marker == _END_OF_IMAGE:
            return JpegScans(data, tuple(ends), is_ended=True)
        if is_in_scan and marker in _RESTARTS:
            _check_restart(marker, num_restarts)
            num_restarts += 1
        elif marker not in _WITHOUT_PAYLOAD:
            position += int.from_bytes(data[position : position + 2], "big")
            num_restarts, is_in_scan = 0, marker == _SOS
    if position > len(data):
        raise CorruptImageError("truncated", "The JPEG ends within a header after its first scan.")
    whole = data.rstrip(b"\xff")  # the first half of an end marker
    ends += [len(whole)] * is_in_scan
    return JpegScans(whole + END, tuple(ends), is_ended=False)


def without_last_bytes(data: bytes, begin: int) -> bytes:
    """Return a JPEG without the last bytes of its last scan that are not padding.

    One that is whole nevertheless had more of them than its pixels need.

    Args:
        data: the file.
        begin: where the entropy-coded bytes of the first scan begin.
    """
    scans = find_scans(data, begin)
    end = scans.ends[-1]
    end -= min(_MOST_PADDING, len(data[:end]) - len(data[:end].rstrip(b"\0\xff")))
    return data[: end - _NEEDED_BYTES] + END


def _check_restart(marker: int, number: int) -> None:
    if marker != _RESTARTS[number % len(_RESTARTS)]:
        raise CorruptImageError("corrupt", "The restart markers of the JPEG are not in order.")
