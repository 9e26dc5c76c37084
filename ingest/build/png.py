"""The pixels of a PNG: taken out and checked, and as many rows as there are of one that was cut off.

Pure functions of bytes. libpng gets lost in broken metadata, and tells nothing of how far a cut file reaches;
so it is handed the pixels alone, and of a cut file a PNG that has only the rows that are there.
"""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, NamedTuple

from ingest.build.containers import Chunk, png_chunks
from ingest.build.zeros import has_tail
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_IHDR_BYTES, _MOST_CHUNK_BYTES = 13, (1 << 31) - 1
_MADE_ANEW = frozenset({b"IHDR", b"IDAT", b"IEND"})
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_DEPTHS = frozenset({1, 2, 4, 8, 16})
_INPUT_BYTES = 1 << 14  # inflates to 17 MB at most
_ADAM7 = (  # first column and row of each pass, and its steps
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_FAST = 1  # level of deflate: what is packed is unpacked at once


class CutOffError(CorruptImageError):
    """A PNG ends among its pixels; `rows`: how many are there in full, then its width and its height."""

    def __init__(self, code: str, reason: str, rows: tuple[int, int, int] = (0, 1, 1)) -> None:
        super().__init__(code, reason)
        self.rows = rows


class PngStream(NamedTuple):
    """The pixels of a PNG.

    Attributes:
        data: a PNG of nothing but what decides about them.
        width: in pixels.
        height: in pixels.
        bits: bits a sample.
        is_cut: whether the file ends before the chunk that ends it, so that pixels may be missing.
    """

    data: bytes
    width: int
    height: int
    bits: int
    is_cut: bool


def png_stream(data: bytes) -> PngStream:
    """Take the pixels out of a PNG, each chunk checked against its CRC.

    The decoder that is given them alone tells whether there are enough, or `mend` where it is cut.

    Raises:
        CorruptImageError: ``truncated`` or ``corrupt``.
    """
    chunks = [
        chunk for chunk in png_chunks(data) if chunk.name in {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
    ]
    for chunk in chunks:
        _check_crc(data, chunk)
    header = chunks[0].payload(data) if chunks else b""
    if len(header) < _IHDR_BYTES or chunks[0].name != b"IHDR":
        code = "truncated" if not chunks or chunks[0].end > len(data) else "corrupt"
        raise CorruptImageError(code, "The PNG has no whole header: none of its picture is there.")
    pixels = b"".join(chunk.payload(data) for chunk in chunks if chunk.name == b"IDAT")
    if len(pixels) > _MOST_CHUNK_BYTES:
        raise CorruptImageError("unsupported", "The pixels of the PNG take more than 2 GiB.")
    rest = {chunk.name: chunk.payload(data) for chunk in chunks if chunk.name in {b"PLTE", b"tRNS"}}
    parts = {b"IHDR": header, **dict(sorted(rest.items())), b"IDAT": pixels, b"IEND": b""}
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    is_cut = chunks[-1].name != b"IEND" or chunks[-1].end + 4 > len(data)
    stream = _SIGNATURE + b"".join(_png_chunk(name, payload) for name, payload in parts.items())
    return PngStream(stream, width, height, header[8], is_cut)


def _check_crc(data: bytes, chunk: Chunk) -> None:
    """Refuse a chunk that is all there, its CRC too, and does not agree with it."""
    stated = data[chunk.end : chunk.end + 4]
    if len(stated) == 4 and zlib.crc32(data[chunk.begin - 4 : chunk.end]) != int.from_bytes(stated, "big"):  # noqa: PLR2004
        raise CorruptImageError("corrupt", f"A chunk {chunk.name.decode()} of the PNG is damaged.")


def _png_chunk(name: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(name))
    return len(payload).to_bytes(4, "big") + name + payload + crc.to_bytes(4, "big")


_SRGB_GAMMA, _GAMMA_SLACK = 45_455, 2_500  # times 100,000: 1 / 2.2, give or take what writers round to
_SAYS_MORE = frozenset({b"cICP", b"iCCP", b"sRGB"})


def gamma_notes(data: bytes) -> tuple[str, ...]:
    """Return a note where a PNG states by gAMA alone that its numbers are not those of sRGB.

    They are kept as they are: a wrong gAMA is commoner than a meant one (programs wrote that of their
    screen), and Pillow and libvips, through which other datasets are made, ignore it.
    """
    chunks = itertools.takewhile(lambda chunk: chunk.name != b"IDAT", png_chunks(data))
    payloads = {chunk.name: chunk.payload(data) for chunk in chunks}
    gamma = int.from_bytes(payloads.get(b"gAMA", b"")[:4], "big")
    if not gamma or not _SAYS_MORE.isdisjoint(payloads) or abs(gamma - _SRGB_GAMMA) <= _GAMMA_SLACK:
        return ()
    return (f"Its gAMA chunk states {gamma / 100_000:.5g}, not sRGB's 0.45455: it was not applied.",)


# ---- cut off


def mend(data: bytes) -> PngStream:
    """Return the pixels of a PNG that was cut off behind the last of them.

    libpng is not asked whether they are all there: png_decode of imagecodecs 2026.3.6 gives a reference to
    None away with each error in the pixels, and Python 3.11 aborts after some thousands. What cut files and
    wrong checksums are is found without it, so few are left; and the file at which a child that decodes many
    aborts all the same is tried again in a fresh one.

    Args:
        data: a file of which `png_stream` says that it is cut.

    Raises:
        CutOffError: ``truncated``: rows are missing.
        CorruptImageError: ``truncated`` if it is interlaced, so that no row is there for sure, ``corrupt`` if
            what is there is no picture either.
    """
    header = _read_header(data)
    num_bytes = sum(len(piece) for piece in _inflate(data, header.num_bytes))
    if num_bytes == header.num_bytes:
        return png_stream(_rebuild(data, header, header.height, num_bytes))
    if has_tail(data):
        raise CorruptImageError("corrupt", "The file ends in zero bytes: its last part was never written.")
    if header.is_interlaced:
        why = "it is interlaced (Adam7), so its rows are spread over the whole file and none can be kept"
        raise CorruptImageError("truncated", f"The file ends before its picture does: {why}.")
    rows = num_bytes // header.row_bytes, header.width, header.height
    raise CutOffError("truncated", "The file ends before its picture does.", rows)


def first_rows(data: bytes, num_rows: int) -> bytes:
    """Return a whole PNG of the first rows of one that was cut off, with the other chunks as they are.

    Args:
        data: a file of which `mend` has found so many rows.
        num_rows: at least 1.
    """
    header = _read_header(data)
    return _rebuild(data, header, num_rows, num_rows * header.row_bytes)


def _rebuild(data: bytes, header: _Header, num_rows: int, num_bytes: int) -> bytes:
    kept = [
        data[chunk.begin - 8 : chunk.end + 4]
        for chunk in png_chunks(data)
        if chunk.name not in _MADE_ANEW and chunk.end + 4 <= len(data)
    ]
    payload = header.payload[:4] + num_rows.to_bytes(4, "big") + header.payload[8:]
    pixels = _deflate(_inflate(data, num_bytes))
    return b"".join([_SIGNATURE, _png_chunk(b"IHDR", payload), *kept, *pixels, _png_chunk(b"IEND", b"")])


class _Header(NamedTuple):
    """What the header of a PNG states.

    Attributes:
        payload: the header itself.
        width: in pixels.
        height: in rows.
        row_bytes: of a row of the whole width once inflated, with its filter.
        num_bytes: of all rows once inflated; interlaced, of those of seven pictures.
        is_interlaced: whether it is.
    """

    payload: bytes
    width: int
    height: int
    row_bytes: int
    num_bytes: int
    is_interlaced: bool


def _read_header(data: bytes) -> _Header:
    """Read the header, of which `png_stream` has seen that it is there."""
    payload = next(chunk for chunk in png_chunks(data) if chunk.name == b"IHDR").payload(data)
    width, height = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
    depth, kind, is_interlaced = payload[8], payload[9], payload[12] != 0
    if depth not in _DEPTHS or kind not in _CHANNELS:
        raise CorruptImageError("corrupt", f"The PNG states {depth} bits a sample and colour type {kind}.")
    passes = _ADAM7 if is_interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in passes]
    row_bytes = [1 + -(-across * _CHANNELS[kind] * depth // 8) for across, _ in sizes]
    num_bytes = sum(size * down for size, (across, down) in zip(row_bytes, sizes, strict=True) if across > 0)
    return _Header(payload, width, height, row_bytes[0], num_bytes, is_interlaced)


def _inflate(data: bytes, most: int) -> Iterator[bytes]:
    """Yield what the pixels' chunks hold, as far as it goes, in pieces; `most` bytes in all."""
    unpacker = zlib.decompressobj()
    for chunk in png_chunks(data):
        end = min(chunk.end, len(data))
        for begin in range(chunk.begin, end, _INPUT_BYTES) if chunk.name == b"IDAT" else ():
            try:
                piece = unpacker.decompress(data[begin : min(end, begin + _INPUT_BYTES)])
            except zlib.error as error:
                raise CorruptImageError("corrupt", f"The PNG does not decode: {error}.") from error
            yield piece[:most]
            most -= len(piece)
            if most <= 0 or unpacker.eof:
                return


def _deflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks of packed pixels."""
    packer = zlib.compressobj(_FAST)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield _png_chunk(b"IDAT", packed)
    yield _png_chunk(b"IDAT", packer.flush())
