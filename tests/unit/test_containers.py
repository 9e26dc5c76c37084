"""What containers say beside the pixels, and that no bytes upset whoever asks."""

import itertools
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.build import containers
from ingest.build.code_points import meaning_of
from ingest.build.containers import Profile

PROFILE = bytes(range(256)) * 20
BROKEN = Profile(None, broken=True)
NONE = Profile(None, broken=False)


def exif(orientation):
    """Return a TIFF block of one entry."""
    return b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0) + bytes(4)


def chunk(name, payload=b""):
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def png(*chunks):
    """Return a PNG of colours, without pixels to speak of."""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(9) + b"\2\0\0\0") + b"".join(chunks) + chunk(b"IEND")


def webp(*chunks):
    """Return a WebP of chunks: name and payload."""
    body = b"".join(
        name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)
        for name, payload in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


# ---- JPEG


def icc_segments(*numbered):
    """Return bytes and segments of APP2 chunks: number, count, payload."""
    data, segments = b"", []
    for number, count, payload in numbered:
        segment = b"ICC_PROFILE\0" + bytes([number, count]) + payload
        segments.append((0xE2, len(data), len(data) + len(segment)))
        data += segment
    return data, segments


class TestJpeg:
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_chunks_of_a_jpeg_are_put_together_in_any_order(self, order):
        """Their numbers count, not their places."""
        parts = [(1, 3, PROFILE[:1000]), (2, 3, PROFILE[1000:2000]), (3, 3, PROFILE[2000:])]
        assert containers.jpeg_icc(*icc_segments(*(parts[n] for n in order))) == Profile(PROFILE)

    @pytest.mark.parametrize(
        "numbered",
        [
            [(1, 2, b"a")],
            [(1, 2, b"a"), (1, 2, b"b")],
            [(1, 2, b"a"), (3, 2, b"b")],
            [(0, 1, b"a")],
            [(1, 1, b"a"), (2, 2, b"b")],
            [(1, 1, b"")],
        ],
        ids=["missing", "twice", "number too high", "number zero", "counts disagree", "empty"],
    )
    def test_chunks_of_a_jpeg_that_do_not_fit_are_broken(self, numbered):
        """A profile of which a chunk is missing, double or wrong is none, and that is said."""
        assert containers.jpeg_icc(*icc_segments(*numbered)) == BROKEN

    def test_other_segments_of_a_jpeg_are_no_profile(self):
        """APP2 also holds MPF."""
        assert containers.jpeg_icc(b"MPF\0...", [(0xE2, 0, 7), (0xE1, 0, 7)]) == NONE


# ---- PNG


def iccp(payload=None, name=b"P3"):
    """Return an iCCP chunk."""
    return chunk(b"iCCP", name + b"\0\0" + (zlib.compress(PROFILE) if payload is None else payload))


class TestPng:
    def test_profile_of_a_png(self):
        """An iCCP before the pixels is the profile; sRGB and gAMA are none."""
        assert containers.png_colours(png(iccp(), chunk(b"IDAT")))[0] == Profile(PROFILE)
        assert containers.png_colours(png(chunk(b"sRGB", b"\0"), chunk(b"gAMA", bytes(4))))[0] == NONE
        assert containers.png_colours(png(chunk(b"IDAT"), iccp()))[0] == NONE  # too late to count

    @pytest.mark.parametrize(
        "broken",
        [
            iccp(b"no zlib"),
            iccp(zlib.compress(PROFILE)[:-9]),
            iccp(zlib.compress(b"")),
            iccp(zlib.compress(bytes(containers.MOST_PROFILE_BYTES + 1))),
            iccp(name=b""),
            chunk(b"iCCP", b"no zero at all"),
            chunk(b"iCCP"),
        ],
        ids=["no zlib", "cut", "empty", "bomb", "no name", "no zero", "nothing"],
    )
    def test_broken_profile_of_a_png(self, broken):
        """What does not unpack, or unpacks to too much, is broken."""
        assert containers.png_colours(png(broken, chunk(b"IDAT")))[0] == BROKEN

    def test_code_points_of_a_png_count_before_its_profile(self):
        """A cICP names sRGB or Display P3; a cut one does not count."""
        srgb, p3 = chunk(b"cICP", b"\1\x0d\0\1"), chunk(b"cICP", b"\x0c\x0d\0\1")
        assert containers.png_colours(png(srgb, iccp()))[0] == NONE
        assert containers.png_colours(png(p3, iccp()))[0] == Profile(meaning_of(12, 13).icc)
        assert containers.png_colours(png(chunk(b"cICP", b"\1"), iccp()))[0] == Profile(PROFILE)

    @pytest.mark.parametrize(("curve", "name"), [(16, "PQ"), (18, "HLG")])
    def test_high_dynamic_range_is_left_to_the_profile_if_there_is_one(self, curve, name):
        """Without a profile the curve is applied, and a note says so."""
        cicp = chunk(b"cICP", bytes([9, curve, 0, 1]))
        assert containers.png_colours(png(cicp, iccp()))[0] == Profile(PROFILE)
        assert containers.png_colours(png(cicp, iccp()))[1] == ()
        assert containers.png_colours(png(cicp))[0].data.startswith(b"\0\0")
        (note,) = containers.png_colours(png(cicp))[1]
        assert name in note

    def test_orientation_of_a_png(self):
        """An eXIf counts before and after the pixels, with and without its prefix; nonsense means 1."""
        behind = png(chunk(b"IDAT"), chunk(b"eXIf", b"Exif\0\0" + exif(3)))
        assert containers.png_orientation(png(chunk(b"eXIf", exif(6)))) == (6, ())
        assert containers.png_orientation(behind) == (3, ())
        assert containers.png_orientation(png()) == (1, ())
        for block, word in ((exif(9), "is 9"), (b"", "cannot be read"), (exif(6)[:20], "cannot be read")):
            value, (note,) = containers.png_orientation(png(chunk(b"eXIf", block)))
            assert value == 1
            assert word in note

    def test_frames_of_a_png(self):
        """An APNG counts its frames, and the picture that is none of them."""
        acts, frame, pixels = chunk(b"acTL", bytes(8)), chunk(b"fcTL", bytes(26)), chunk(b"IDAT")
        assert containers.png_frames(png(acts, frame, pixels, frame, frame)) == 3
        assert containers.png_frames(png(acts, pixels, frame, frame)) == 3  # the first picture is no frame
        assert containers.png_frames(png(pixels, acts, frame)) == 1
        assert containers.png_frames(png(pixels)) == 1


# ---- WebP


class TestWebp:
    def test_metadata_of_a_webp(self):
        """Chunks are found after odd ones; a cut profile is broken."""
        data = webp((b"VP8X", bytes(10)), (b"ICCP", PROFILE), (b"VP8L", b"odd"), (b"EXIF", exif(8)))
        assert containers.webp_profile(data) == Profile(PROFILE)
        assert containers.webp_orientation(data) == (8, ())
        assert containers.webp_orientation(webp((b"VP8L", b"odd"))) == (1, ())
        assert containers.webp_orientation(webp((b"EXIF", exif(0)))).notes
        assert containers.webp_frames(data) == 1
        assert containers.webp_frames(webp((b"ANMF", b"12"), (b"ANMF", b"3"))) == 2
        assert containers.webp_profile(webp((b"VP8L", b"x"))) == NONE
        assert containers.webp_profile(data[:100]) == BROKEN
        assert containers.webp_profile(webp((b"ICCP", b""))) == BROKEN


# ---- hostile bytes

ASKERS = [
    containers.png_colours,
    containers.png_orientation,
    containers.png_frames,
    containers.bmp_profile,
    containers.webp_profile,
    containers.webp_orientation,
    containers.webp_frames,
    containers.exif_orientation,
    lambda data: containers.jpeg_icc(data, [(0xE2, 0, len(data)), (0xE2, 3, len(data) * 2)]),
]
WHOLE = (
    png(
        iccp(),
        chunk(b"eXIf", exif(6)),
        chunk(b"acTL", bytes(8)),
        chunk(b"cICP", b"\1\x0d\0\1"),
        chunk(b"IDAT"),
    ),
    webp((b"VP8X", bytes(10)), (b"ICCP", PROFILE[:50]), (b"EXIF", exif(8))),
    b"ICC_PROFILE\0\1\1" + PROFILE[:50],
)


class TestHostileBytes:
    @given(st.sampled_from(WHOLE), st.integers(0, 600), st.integers(0, 600), st.binary(max_size=8))
    def test_no_bytes_upset_anyone(self, data, cut, position, patch):
        """Cut and patched anywhere, files give an answer."""
        data = data[: len(data) - cut] if cut < len(data) else b""
        data = data[:position] + patch + data[position + len(patch) :]
        for ask in ASKERS:
            ask(data)
