"""JPEG 2000: boxes, channels, and codestreams of which a part is missing."""

import struct

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.build import jpeg2000
from ingest.build.codecs import read_jpeg2000
from ingest.errors import REJECT_CODES, CorruptImageError

MOST = 200_000_000
ROWS, COLUMNS = np.mgrid[0:37, 0:53]
RGB = np.stack([COLUMNS * 4, ROWS * 6, (COLUMNS * ROWS) % 256], axis=2).astype(np.uint8)
ALPHA = np.dstack([RGB, ((COLUMNS + ROWS) * 3 % 256).astype(np.uint8)])
SIGNATURE = struct.pack(">I4sI", 12, b"jP  ", 0x0D0A870A) + struct.pack(
    ">I4s4sI4s", 20, b"ftyp", b"jp2 ", 0, b"jp2 "
)
SRGB, GRAY, SYCC, CMYK = 16, 17, 18, 12


def box(name, payload):
    """Return a box."""
    return struct.pack(">I4s", 8 + len(payload), name) + payload


def colr(space):
    """Return a colour box of an enumerated space."""
    return box(b"colr", b"\1\0\0" + struct.pack(">I", space))


def stream(pixels, **options):
    """Return a codestream without loss."""
    return bytes(imagecodecs.jpeg2k_encode(pixels, reversible=True, codecformat="j2k", mct=False, **options))


def jp2(codestream, *boxes):
    """Return a JP2 file of a codestream and boxes of its header."""
    return SIGNATURE + box(b"jp2h", b"".join(boxes)) + box(b"jp2c", codestream)


def cdef(*definitions):
    """Return a box of channel definitions: channel, type, association."""
    return box(
        b"cdef", struct.pack(">H", len(definitions)) + b"".join(struct.pack(">3H", *d) for d in definitions)
    )


def read(data):
    """Decode a JPEG 2000."""
    return read_jpeg2000(data, MOST)


def code_of(data):
    """Return the code with which bytes are refused."""
    with pytest.raises(CorruptImageError) as caught:
        read(data)
    return caught.value.code


class TestChannels:
    def test_a_bare_codestream(self):
        """Three components are RGB, one is gray, two are gray and alpha, four are RGBA."""
        assert np.array_equal(read(stream(RGB)).pixels, RGB)
        assert read(stream(RGB[..., 0].copy())).mode == "L"
        assert read(stream(ALPHA)).source_mode == "RGB+alpha"

    def test_definitions_order_the_channels(self):
        """Blue, alpha, red, green: each goes where it belongs."""
        data = jp2(
            stream(ALPHA[..., [2, 3, 0, 1]]), colr(SRGB), cdef((0, 0, 3), (1, 1, 0), (2, 0, 1), (3, 0, 2))
        )
        raster = read(data)
        assert np.array_equal(raster.pixels, ALPHA)
        assert raster.mode == "RGBA"

    def test_premultiplied_alpha_is_divided(self):
        """Type 2 is opacity that colours have been multiplied with."""
        opaque = np.dstack([RGB // 2, np.full((37, 53), 128, np.uint8)])
        definitions = cdef((0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 2, 0))
        divided = read(jp2(stream(opaque), colr(SRGB), definitions)).pixels
        assert np.abs(divided[..., :3] * 128.0 / 255 - RGB // 2).max() <= 0.5

    def test_a_channel_of_no_known_type_is_left_out(self):
        """It is neither colour nor alpha."""
        definitions = cdef((0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0xFFFF, 0xFFFF))
        raster = read(jp2(stream(ALPHA), colr(SRGB), definitions))
        assert np.array_equal(raster.pixels, RGB)

    def test_a_palette_is_applied(self):
        """One component becomes three channels."""
        colours = np.random.default_rng(0).integers(0, 256, (200, 3), dtype=np.uint8)
        indices = (RGB[..., 0] % 200).copy()
        pclr = box(b"pclr", struct.pack(">HB3B", 200, 3, 7, 7, 7) + colours.tobytes())
        cmap = box(b"cmap", b"".join(struct.pack(">HBB", 0, 1, n) for n in range(3)))
        data = jp2(stream(indices), colr(SRGB), pclr, cmap)
        assert np.array_equal(read(data).pixels, colours[indices])
        other = box(b"cmap", struct.pack(">HBB", 7, 1, 0))
        assert code_of(jp2(stream(indices), colr(SRGB), pclr, other)) == "corrupt"
        assert code_of(jp2(stream(indices), colr(SRGB), pclr)) == "corrupt"

    def test_sycc_is_converted(self):
        """Gray of sYCC is gray."""
        ycc = np.dstack([RGB[..., 0], np.full((37, 53, 2), 128, np.uint8)])
        pixels = read(jp2(stream(ycc), colr(SYCC))).pixels
        assert np.array_equal(pixels, np.repeat(RGB[..., :1], 3, axis=2))

    def test_inks_and_profiles(self):
        """CMYK stays, a profile is returned and not applied."""
        raster = read(jp2(stream(ALPHA), colr(CMYK)))
        assert (raster.mode, np.array_equal(raster.pixels, ALPHA)) == ("CMYK", True)
        profile = bytes(imagecodecs.cms_profile("adobergb"))
        raster = read(jp2(stream(RGB), box(b"colr", b"\2\0\0" + profile)))
        assert raster.icc == profile
        assert np.array_equal(raster.pixels, RGB)

    @pytest.mark.parametrize("bits", [9, 12, 16])
    def test_deep_and_signed_components(self, bits):
        """Signed ones are around the middle, not around zero."""
        values = (RGB.astype(np.int32) * ((1 << bits) - 1)) // 255
        most = (1 << bits) - 1
        expected = (values.astype(np.int64) * 510 + most) // (2 * most)
        unsigned = read(stream(values.astype(np.uint16), bitspersample=bits))
        assert np.array_equal(unsigned.pixels, expected)
        signed = read(stream((values - (1 << (bits - 1))).astype(np.int16), bitspersample=bits))
        assert np.array_equal(signed.pixels, expected)
        assert unsigned.source_bits == signed.source_bits == bits

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (jp2(stream(RGB), colr(14)), "unsupported"),
            (jp2(stream(RGB[..., 0].copy()), colr(SRGB)), "corrupt"),
            (jp2(stream(RGB), colr(SRGB), cdef((0, 0, 1), (9, 0, 2), (2, 0, 3))), "corrupt"),
            (SIGNATURE, "truncated"),
            (jp2(b""), "truncated"),
            (jp2(bytes(100)), "corrupt"),
        ],
        ids=["CIELab", "colours missing", "no such channel", "no codestream", "empty codestream", "zeros"],
    )
    def test_what_is_no_picture_is_refused(self, data, code):
        """With the code that says why."""
        assert code_of(data) == code


class TestCodestream:
    def parts(self, *parts, tiles=2, end=b"\xff\xd9"):
        """Return a codestream of tile-parts: tile, size stated (None: as it is), number of parts stated."""
        siz = struct.pack(">HHH8IH", 0xFF51, 41, 0, 8 * tiles, 8, 0, 0, 8, 8, 0, 0, 1) + b"\7\1\1"
        body = b""
        for tile, size, total in parts:
            stated = 20 if size is None else size
            body += struct.pack(">HHHIBB", 0xFF90, 10, tile, stated, 0, total) + b"\xff\x93" + b"p" * 6
        return b"\xff\x4f" + siz + body + end

    def check(self, data):
        """Return the code, or the notes."""
        try:
            return jpeg2000.check_codestream(data, 0, len(data)).notes
        except CorruptImageError as error:
            return error.code

    def test_whole(self):
        """Every tile has every part, and the end marker stands behind them."""
        assert self.check(self.parts((0, None, 1), (1, None, 1))) == ()
        assert self.check(self.parts((0, None, 2), (1, None, 1), (0, None, 0))) == ()
        assert self.check(self.parts((0, None, 0), (1, 0, 0))) == ()

    def test_the_end_marker_may_be_missing_where_parts_are_counted(self):
        """Else nobody knows that the parts are all there."""
        assert self.check(self.parts((0, None, 1), (1, None, 1), end=b"")) == (jpeg2000.ENDS_EARLY,)
        assert self.check(self.parts((0, None, 0), (1, None, 0), end=b"")) == "truncated"
        assert self.check(self.parts((0, None, 1), (1, 0, 1), end=b"")) == "truncated"

    def test_missing_parts(self):
        """A tile without any part, with too few, or with one that is cut."""
        assert self.check(self.parts((0, None, 1))) == "truncated"
        assert self.check(self.parts((0, None, 2), (1, None, 1))) == "truncated"
        assert self.check(self.parts((0, None, 1), (1, 21, 1), end=b"")) == "truncated"
        whole = self.parts((0, None, 1), (1, None, 1))
        assert {self.check(whole[:end]) for end in range(3, len(whole) - 2)} <= {"truncated", "corrupt"}

    def test_absurd_headers(self):
        """Zero sizes and millions of tiles are corrupt before they cost anything."""
        data = bytearray(self.parts((0, None, 1), tiles=1))
        for place, value in ((8, 0), (24, 0), (28, 0), (20, 99)):
            broken = bytearray(data)
            struct.pack_into(">I", broken, place, value)
            assert self.check(bytes(broken)) == "corrupt", place
        struct.pack_into(">II", data, 8, 1 << 20, 1 << 20)
        assert self.check(bytes(data)) == "corrupt"

    def test_too_large_is_told_from_the_header(self):
        """Four components count as a pixel."""
        with pytest.raises(CorruptImageError) as caught:
            read_jpeg2000(stream(RGB), 37 * 53 - 1)
        assert caught.value.code == "too_large"


class TestHostileBytes:
    WHOLE = (
        jp2(stream(ALPHA), colr(SRGB), cdef((0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 1, 0))),
        jp2(stream(RGB[..., 0].copy()), colr(GRAY), box(b"pclr", b"\0\2\1\7ab"), box(b"cmap", b"\0\0\1\0")),
        stream(RGB),
    )

    @given(st.sampled_from(WHOLE), st.data())
    def test_every_input_ends_as_pixels_or_a_known_code(self, data, draw):
        """Boxes and headers are where most of the harm is done."""
        data = bytearray(data)
        for _ in range(draw.draw(st.integers(1, 4))):
            place = draw.draw(st.integers(0, min(len(data), draw.draw(st.sampled_from([200, 10_000]))) - 1))
            data[place : place + draw.draw(st.integers(0, 8))] = draw.draw(st.binary(min_size=1, max_size=8))
        try:
            raster = read_jpeg2000(bytes(data), 4_000_000)
        except CorruptImageError as error:
            known = error.code in REJECT_CODES
        else:
            known = raster.pixels.dtype == np.uint8
        assert known
