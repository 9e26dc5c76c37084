"""What the containers of PNG, WebP, JPEG 2000 and JPEG say beside the pixels: profiles, orientation, frames.

Pure functions of bytes that never raise: in a broken or hostile file they find what is there, or nothing,
in time that the limits below bound. Whether the pixels are all there is no business of theirs.
"""

from __future__ import annotations

import zlib
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ingest.build import code_points, tiff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_PROFILE_BYTES = 1 << 24
"""A colour profile is ignored above this; the largest of printing inks have some four million bytes."""

_MOST_CHUNKS = 1 << 18  # in a file; 200 million pixels in PNG chunks of 8 KiB are some 100,000
_JPEG_APP2, _ICC_MARK = 0xE2, b"ICC_PROFILE\0"
_PNG_SIGNATURE_BYTES, _PNG_CRC_BYTES = 8, 4
_PNG_COLOUR_TYPE = 25  # its place: the header is the first chunk
_BMP_HEADER, _BMP_V5_BYTES = 14, 124  # where the second header begins, and its bytes in version 5
_RIFF_HEADER_BYTES = 12


class Profile(NamedTuple):
    """The colour profile of a file.

    Attributes:
        data: its bytes, None if the file has none that is whole.
        broken: whether the file has one that could not be taken out of it.
    """

    data: bytes | None = None
    broken: bool = False


_NO_PROFILE, _BROKEN_PROFILE = Profile(), Profile(broken=True)


class Chunk(NamedTuple):
    """A chunk or box: its name, and begin and end of its payload; the end may lie outside the file."""

    name: bytes
    begin: int
    end: int

    def payload(self, data: bytes) -> bytes:
        """Return as much of the payload as there is."""
        return data[self.begin : self.end]


def _profile_of(payload: bytes | None) -> Profile:
    if payload is None or not 0 < len(payload) <= MOST_PROFILE_BYTES:
        return _BROKEN_PROFILE
    return Profile(payload)


# ---- JPEG


def jpeg_icc(data: bytes, segments: Iterable[tuple[int, int, int]]) -> Profile:
    """Put the profile of a JPEG together from its APP2 segments, in whatever order they stand.

    Args:
        data: the file.
        segments: marker, begin and end of each payload, as `jpeg.read_jpeg_header` returns them.

    Returns:
        The profile; broken if a chunk is missing, comes twice or disagrees about their number (ICC.1:2010,
        annex B.4).
    """
    head = len(_ICC_MARK) + 2
    payloads = [data[begin:end] for marker, begin, end in segments if marker == _JPEG_APP2]
    chunks = [payload for payload in payloads if payload.startswith(_ICC_MARK)]
    if not chunks:
        return _NO_PROFILE
    numbered = {chunk[head - 2]: chunk[head:] for chunk in chunks if len(chunk) >= head}
    counts = {chunk[head - 1] for chunk in chunks if len(chunk) >= head}
    if counts != {len(chunks)} or numbered.keys() != set(range(1, len(chunks) + 1)):
        return _BROKEN_PROFILE
    return _profile_of(b"".join(numbered[number] for number in sorted(numbered)))


# ---- PNG


def png_chunks(data: bytes) -> Iterator[Chunk]:
    """Yield the chunks of a PNG up to its end, the last of them perhaps cut."""
    return islice(_iter_png_chunks(data), _MOST_CHUNKS)


def _iter_png_chunks(data: bytes) -> Iterator[Chunk]:
    position = _PNG_SIGNATURE_BYTES
    while position + 8 <= len(data):
        size, name = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        yield Chunk(name, position + 8, position + 8 + size)
        if name == b"IEND":
            return
        position += 8 + size + _PNG_CRC_BYTES


def png_colours(data: bytes) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile that says what the numbers of a PNG mean, and notes where code points say it.

    cICP counts before iCCP, and iCCP before sRGB, as PNG (third edition) has it; code points become a profile
    of ours. Where cICP says PQ or HLG, or what `code_points` does not know, an iCCP beside it counts instead:
    that knows how to map the numbers to a screen. An sRGB chunk says what holds without it. gAMA and cHRM
    count last and are not applied, for they are often wrong: a gAMA that stands alone and is not sRGB's is
    noted (`png.gamma_notes`), a cHRM is not looked at.
    """
    chunks = {chunk.name: chunk for chunk in reversed(list(_before_pixels(data)))}  # the first of a name
    points = _code_points(data, chunks)
    if points:
        is_gray = data[_PNG_COLOUR_TYPE : _PNG_COLOUR_TYPE + 1] in {b"\0", b"\4"}
        meaning = code_points.meaning_of(points[0], points[1], is_gray=is_gray)
        if meaning.is_plain or b"iCCP" not in chunks:
            return Profile(meaning.icc), meaning.notes
    return (_unpack_profile(chunks[b"iCCP"].payload(data)) if b"iCCP" in chunks else _NO_PROFILE), ()


def _before_pixels(data: bytes) -> Iterator[Chunk]:
    for chunk in png_chunks(data):
        if chunk.name == b"IDAT":
            return
        yield chunk


def _code_points(data: bytes, chunks: dict[bytes, Chunk]) -> bytes:
    """Return colour primaries, transfer function, matrix and range flag of cICP, or nothing."""
    chunk = chunks.get(b"cICP")
    payload = b"" if chunk is None else chunk.payload(data)
    return payload if len(payload) == 4 else b""  # noqa: PLR2004 - the four just named


def _unpack_profile(payload: bytes) -> Profile:
    """Unpack name, zero, method and deflated profile; never more of it than may count."""
    name, zero, packed = payload.partition(b"\0")
    if not name or not zero or packed[:1] != b"\0":
        return _BROKEN_PROFILE
    unpacker = zlib.decompressobj()
    try:
        profile = unpacker.decompress(packed[1:], MOST_PROFILE_BYTES + 1)
    except zlib.error:
        return _BROKEN_PROFILE
    return _profile_of(profile if unpacker.eof else None)


def png_orientation(data: bytes) -> tiff.Orientation:
    """Return the orientation in the eXIf chunk of a PNG."""
    chunk = next((chunk for chunk in png_chunks(data) if chunk.name == b"eXIf"), None)
    return tiff.Orientation() if chunk is None else exif_orientation(chunk.payload(data))


def png_frames(data: bytes) -> int:
    """Return the number of pictures in a PNG: an APNG's frames, and the one before them if it is none."""
    names = [chunk.name for chunk in png_chunks(data) if chunk.name in {b"acTL", b"fcTL", b"IDAT"}]
    first_pixels = names.index(b"IDAT") if b"IDAT" in names else len(names)
    if b"acTL" not in names[:first_pixels]:
        return 1
    return max(1, names.count(b"fcTL") + (b"fcTL" not in names[:first_pixels]))


def exif_orientation(exif: bytes) -> tiff.Orientation:
    """Return the orientation of an EXIF block, with or without ``Exif`` before it."""
    return tiff.read_orientation(exif.removeprefix(b"Exif\0\0"))


# ---- BMP


def bmp_profile(data: bytes) -> Profile:
    """Return the profile in a BMP of version 5 whose colour space is ``PROFILE_EMBEDDED``.

    Fields as in Microsoft's BITMAPV5HEADER, which stands behind a file header of 14 bytes.
    """
    header_bytes = int.from_bytes(data[_BMP_HEADER : _BMP_HEADER + 4], "little")
    if header_bytes < _BMP_V5_BYTES or data[_BMP_HEADER + 56 : _BMP_HEADER + 60] != b"DEBM":
        return _NO_PROFILE
    begin, size = (
        int.from_bytes(data[_BMP_HEADER + at : _BMP_HEADER + at + 4], "little") for at in (112, 116)
    )
    payload = data[_BMP_HEADER + begin : _BMP_HEADER + begin + size]
    return _profile_of(payload if len(payload) == size else None)


# ---- WebP


def webp_chunks(data: bytes, begin: int = _RIFF_HEADER_BYTES, end: int | None = None) -> Iterator[Chunk]:
    """Yield the chunks of a WebP, or of the part of one between `begin` and `end`; the last may be cut.

    What stands after the end that the file states for itself is not looked at.
    """
    stated = 8 + int.from_bytes(data[4:8], "little")
    return islice(
        _iter_riff_chunks(data, begin, min(len(data), stated if end is None else end)), _MOST_CHUNKS
    )


def _iter_riff_chunks(data: bytes, position: int, end: int) -> Iterator[Chunk]:
    while position + 8 <= end:
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        yield Chunk(data[position : position + 4], position + 8, position + 8 + size)
        position += 8 + size + size % 2


def webp_profile(data: bytes) -> Profile:
    """Return the profile in the ICCP chunk of a WebP."""
    chunk = _webp_chunk(data, b"ICCP")
    if chunk is None:
        return _NO_PROFILE
    return _profile_of(chunk.payload(data) if chunk.end <= len(data) else None)


def webp_orientation(data: bytes) -> tiff.Orientation:
    """Return the orientation in the EXIF chunk of a WebP."""
    chunk = _webp_chunk(data, b"EXIF")
    return tiff.Orientation() if chunk is None else exif_orientation(chunk.payload(data))


def webp_frames(data: bytes) -> int:
    """Return the number of pictures in a WebP."""
    return max(1, sum(chunk.name == b"ANMF" for chunk in webp_chunks(data)))


def _webp_chunk(data: bytes, name: bytes) -> Chunk | None:
    return next((chunk for chunk in webp_chunks(data) if chunk.name == name), None)
