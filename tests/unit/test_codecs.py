"""What imagecodecs decodes: against independent decoders, and that no file with a part missing passes."""

import csv
import struct
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.build import codecs, png, streams
from ingest.build.jpeg import read_jpeg_header
from ingest.errors import REJECT_CODES, CorruptImageError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
MOST = 200_000_000
ROWS, COLUMNS = np.mgrid[0:61, 0:83]
RGB = np.stack([COLUMNS * 3, ROWS * 4, (COLUMNS * ROWS) % 256], axis=2).astype(np.uint8)
DEEP = (RGB.astype(np.uint16) * 257 + 3 * COLUMNS[..., None].astype(np.uint16)) % 65_535
ALPHA = np.dstack([RGB, ((COLUMNS + ROWS) * 2 % 256).astype(np.uint8)])
TURNS = {1: lambda image: image, 6: lambda image: image.transpose(1, 0, 2)[:, ::-1]}


def read(data):
    """Decode bytes by what they begin with."""
    if data.startswith(b"RIFF"):
        return codecs.read_webp(data, MOST)
    if data.startswith((b"II", b"MM")):
        return codecs.read_tiff(data, MOST)
    if data.startswith(b"\x89PNG"):
        return codecs.read_png(data, MOST)
    if data.startswith(b"\xff\xd8"):
        return codecs.read_deep_jpeg(data, read_jpeg_header(data))
    return codecs.read_jpeg2000(data, MOST)


def outcome(data):
    """Return the picture, or the error with which it is refused."""
    try:
        return read(data)
    except CorruptImageError as error:
        return error


def code_of(data):
    """Return the code with which bytes are refused."""
    with pytest.raises(CorruptImageError) as caught:
        read(data)
    return caught.value.code


def scaled(values, bits):
    """Return exact 8-bit levels."""
    most = (1 << bits) - 1
    return (values.astype(np.int64) * 510 + most) // (2 * most)


def riff(*chunks):
    """Return a WebP of chunks: name and payload."""
    body = b"".join(
        name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)
        for name, payload in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def still_chunks(pixels):
    """Return the chunks of lossless pixels."""
    data = imagecodecs.webp_encode(pixels, lossless=True)
    return [(data[12:16], data[20 : 20 + int.from_bytes(data[16:20], "little")])]


def u24(*numbers):
    """Return 24-bit numbers as WebP has them."""
    return b"".join(number.to_bytes(3, "little") for number in numbers)


def animated(canvas, left, top, *frames):
    """Return an animated WebP; width and height of the canvas."""
    chunks = [(b"VP8X", b"\x12\0\0\0" + u24(canvas[0] - 1, canvas[1] - 1)), (b"ANIM", bytes(6))]
    for pixels in frames:
        ((name, payload),) = still_chunks(pixels)
        head = u24(left // 2, top // 2, pixels.shape[1] - 1, pixels.shape[0] - 1, 100) + b"\0"
        inner = name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)
        chunks.append((b"ANMF", head + inner))
    return riff(*chunks)


WHOLE = {
    "lossy.webp": imagecodecs.webp_encode(RGB, level=80),
    "alpha.webp": imagecodecs.webp_encode(ALPHA, level=80),
    "lossless.webp": imagecodecs.webp_encode(ALPHA, lossless=True),
    "animated.webp": animated((83, 61), 0, 0, RGB, RGB[::-1].copy()),
    "rgb16.png": imagecodecs.png_encode(DEEP),
    "gray16.png": imagecodecs.png_encode(DEEP[..., 0].copy()),
    "rgb12.jpg": imagecodecs.jpeg8_encode(DEEP >> 4, level=95, bitspersample=12),
    "gray12.jpg": imagecodecs.jpeg8_encode(DEEP[..., 0] >> 4, level=95, bitspersample=12),
    **{
        f"lossless{bits}.jpg": imagecodecs.jpeg8_encode(
            (DEEP >> (16 - bits)).astype(np.uint8 if bits <= 8 else np.uint16),
            lossless=True,
            bitspersample=bits,
        )
        for bits in (2, 5, 8, 12, 16)
    },
    "rgb.jp2": imagecodecs.jpeg2k_encode(RGB, reversible=True),
    "rgb16.j2k": imagecodecs.jpeg2k_encode(DEEP, reversible=True, codecformat="j2k"),
    "lossy.jp2": imagecodecs.jpeg2k_encode(RGB, level=40),
}
EXACT = {
    "lossless.webp": ALPHA,
    "animated.webp": RGB,
    "rgb16.png": scaled(DEEP, 16),
    "gray16.png": scaled(DEEP[..., :1], 16),
    **{f"lossless{bits}.jpg": scaled(DEEP >> (16 - bits), bits) for bits in (2, 5, 8, 12, 16)},
    "rgb.jp2": RGB,
    "rgb16.j2k": scaled(DEEP, 16),
}


class TestPixels:
    @pytest.mark.parametrize("name", EXACT)
    def test_lossless_pixels_come_back(self, name):
        """What was written without loss is read without loss, scaled to 8 bits exactly."""
        raster = read(WHOLE[name])
        assert np.array_equal(raster.pixels, EXACT[name])
        assert raster.pixels.flags.c_contiguous
        assert raster.notes == ()

    @pytest.mark.parametrize("name", sorted(set(WHOLE) - set(EXACT)))
    def test_lossy_pixels_come_close(self, name):
        """What was written with loss has the right channels in the right places."""
        raster = read(WHOLE[name])
        original = {1: scaled(DEEP[..., :1], 16), 3: RGB, 4: ALPHA}[raster.pixels.shape[2]]
        assert np.abs(raster.pixels[..., :3].mean((0, 1)) - original[..., :3].mean((0, 1))).max() < 6
        assert raster.pixels.shape == original.shape

    def test_bits_and_channels_are_named(self):
        """A receipt says what the file had."""
        named = {name: (raster.source_mode, raster.source_bits) for name, raster in map(self._read, WHOLE)}
        assert named["gray16.png"] == ("gray", 16)
        assert named["lossless5.jpg"] == ("RGB", 5)
        assert named["alpha.webp"] == ("RGB+alpha", 8)
        assert named["rgb16.j2k"] == ("RGB", 16)

    def _read(self, name):
        return name, read(WHOLE[name])

    def test_what_is_too_large_is_refused_by_its_header(self):
        """The size is checked before there are pixels."""
        for name in ("lossy.webp", "animated.webp", "rgb16.png", "rgb.jp2"):
            reader = {"webp": codecs.read_webp, "png": codecs.read_png, "jp2": codecs.read_jpeg2000}
            with pytest.raises(CorruptImageError) as caught:
                reader[name.rpartition(".")[2]](WHOLE[name], RGB.shape[0] * RGB.shape[1] - 1)
            assert caught.value.code == "too_large"


class TestCuts:
    @pytest.mark.parametrize("name", WHOLE)
    def test_a_cut_file_is_refused_or_has_every_pixel(self, name):
        """Cut anywhere, a file is truncated, or its pixels are those of the whole one and a note says so."""
        data = WHOLE[name]
        pixels = read(data).pixels
        shares = {len(data) * percent // 100 for percent in (10, 50, 90, 99)}
        for end in sorted(shares | {len(data) - cut for cut in (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 21)}):
            result = outcome(data[:end])
            if isinstance(result, CorruptImageError):
                assert result.code == "truncated", (end - len(data), str(result))
            else:
                assert np.array_equal(result.pixels, pixels), end - len(data)
                assert result.notes, end - len(data)

    @pytest.mark.parametrize("name", ["rgb12.jpg", "lossless8.jpg", "lossless16.jpg"])
    def test_a_cut_jpeg_that_ends_well_is_refused(self, name):
        """An end marker behind half a scan does not hide that the other half is missing."""
        data = WHOLE[name]
        for end in (len(data) // 2, len(data) * 9 // 10, len(data) - 6):
            assert code_of(data[:end].rstrip(b"\xff") + b"\xff\xd9") == "truncated"

    def test_a_hole_between_restart_markers_is_found(self):
        """A scan whose restart markers are not in order lacks what stood between them."""
        scan = b"ab\xff\xd0cd\xff\xd1ef\xff\xd9"
        assert streams.find_scans(scan, 0).ends == (2, 6, 10)
        with pytest.raises(CorruptImageError) as caught:
            streams.find_scans(b"ab\xff\xd0cd\xff\xd2ef\xff\xd9", 0)
        assert caught.value.code == "corrupt"

    def test_a_later_scan_that_is_cut_off_is_truncated(self):
        """A header after the first scan that ends with the file is not the end of the picture."""
        with pytest.raises(CorruptImageError) as caught:
            streams.find_scans(b"ab\xff\xda\0\x08", 0)
        assert caught.value.code == "truncated"

    def test_metadata_behind_the_pixels_may_be_cut(self):
        """A WebP whose EXIF is cut has all its pixels."""
        data = riff((b"VP8X", b"\x08\0\0\0" + u24(82, 60)), *still_chunks(RGB), (b"EXIF", bytes(100)))
        raster = read(data[:-50])
        assert np.array_equal(raster.pixels, RGB)
        assert raster.notes[0] == streams.ENDS_EARLY
        assert "EXIF" in raster.notes[1]
        assert len(raster.notes) == 2


class TestWebp:
    def test_a_small_first_frame_lies_on_a_transparent_canvas(self):
        """The frame is where the file says, and nothing is around it."""
        raster = read(animated((100, 80), 10, 6, RGB, ALPHA))
        assert raster.pixels.shape == (80, 100, 4)
        assert np.array_equal(raster.pixels[6:67, 10:93, :3], RGB)
        assert raster.pixels[..., 3].sum() == 255 * 61 * 83
        assert (raster.frames, raster.source_mode) == (2, "RGB+alpha")

    def test_a_frame_that_sticks_out_is_corrupt(self):
        """No pixel is written outside the canvas."""
        assert code_of(animated((83, 61), 10, 0, RGB)) == "corrupt"

    def test_metadata(self):
        """Profile and orientation come from their chunks, and the orientation is not applied."""
        exif = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + bytes(4)
        chunks = [
            (b"VP8X", b"\x2c\0\0\0" + u24(82, 60)),
            (b"ICCP", b"profile"),
            *still_chunks(RGB),
            (b"EXIF", exif),
        ]
        raster = read(riff(*chunks))
        assert (raster.orientation, raster.icc) == (6, b"profile")
        assert np.array_equal(raster.pixels, RGB)

    @pytest.mark.parametrize("data", [riff(), riff((b"VP8X", bytes(10))), riff((b"VP8 ", b"x" * 30))])
    def test_a_webp_without_a_picture_is_corrupt(self, data):
        """Chunks that hold no picture are none."""
        assert code_of(data) == "corrupt"


class TestPng:
    def test_colour_key_becomes_alpha(self):
        """The colour that tRNS names is transparent, at 16 bits too."""
        data = WHOLE["rgb16.png"]
        key = struct.pack(">3H", *DEEP[5, 7])
        chunk = struct.pack(">I", 6) + b"tRNS" + key + struct.pack(">I", zlib.crc32(b"tRNS" + key))
        place = data.index(b"IDAT") - 4
        raster = read(data[:place] + chunk + data[place:])
        assert raster.mode == "RGBA"
        assert np.array_equal(raster.pixels[..., 3] == 0, (DEEP[5, 7] == DEEP).all(axis=2))

    @pytest.mark.parametrize("name", ["IHDR", "IDAT"])
    def test_a_flipped_bit_is_found(self, name):
        """Each chunk that decides about pixels is checked against its sum."""
        data = bytearray(WHOLE["rgb16.png"])
        data[data.index(name.encode()) + 8] ^= 1
        assert code_of(bytes(data)) == "corrupt"

    def test_broken_metadata_costs_nothing(self):
        """A damaged text chunk is never handed to libpng."""
        data = WHOLE["rgb16.png"]
        place = data.index(b"IDAT") - 4
        raster = read(data[:place] + struct.pack(">I", 4) + b"zTXtoopsXXXX" + data[place:])
        assert np.array_equal(raster.pixels, EXACT["rgb16.png"])

    def test_pixels_that_are_too_few_are_no_picture(self):
        """Sums that agree do not make up for rows that are missing."""
        stream = png.png_stream(WHOLE["rgb16.png"])
        rows = zlib.decompress(stream.data[stream.data.index(b"IDAT") + 4 :])[:-500]
        packed = zlib.compress(rows)
        chunk = struct.pack(">I", len(packed)) + b"IDAT" + packed
        chunk += struct.pack(">I", zlib.crc32(b"IDAT" + packed))
        head = stream.data[: stream.data.index(b"IDAT") - 4]
        assert code_of(head + chunk + stream.data[-12:]) == "corrupt"


class TestDeepJpeg:
    def marked(self, data, transform):
        """Return a JPEG whose Adobe marker states a transform."""
        place = data.index(b"Adobe") + 11
        return data[:place] + bytes([transform]) + data[place + 1 :]

    def test_lossless_ycc_is_converted_only_where_adobe_says_so(self):
        """JFIF's marker means nothing here: to convert would have been a loss."""
        data = WHOLE["lossless8.jpg"]
        jfif = data[:2] + b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + data[2:].replace(b"Adobe", b"Other", 1)
        assert np.array_equal(read(jfif).pixels, EXACT["lossless8.jpg"])
        converted = read(self.marked(data, 1)).pixels
        luma, _, chroma = np.moveaxis(EXACT["lossless8.jpg"], 2, 0)
        red = luma + 1.402 * (chroma - 128.0)
        assert np.abs(converted[..., 0] - np.clip(red, 0, 255)).max() <= 0.51

    def test_inks_are_turned_round_where_adobe_wrote_them(self):
        """Adobe writes how much of an ink is missing; others write how much there is."""
        inks = np.dstack([RGB, RGB[..., :1]])
        data = imagecodecs.jpeg8_encode(inks, lossless=True, colorspace="CMYK")
        raster = read(data)
        assert raster.mode == "CMYK"
        assert np.array_equal(raster.pixels, 255 - inks)
        assert np.array_equal(read(data.replace(b"Adobe", b"Other", 1)).pixels, inks)

    def test_other_kinds_are_named(self):
        """Hierarchical and arithmetic-coded ones are refused, not guessed at."""
        data = bytearray(WHOLE["rgb12.jpg"])
        place = data.index(b"\xff\xc1") if b"\xff\xc1" in data else data.index(b"\xff\xc0")
        data[place + 1] = 0xC9
        assert code_of(bytes(data)) == "unsupported"


class TestAgainstIndex:
    """Quarters of real files against those of Pillow and libvips."""

    def rows(self):
        """Yield the lines of the index that are ours."""
        path = DATA / "INDEX.tsv"
        if not path.is_file():
            pytest.skip(f"no pictures at {DATA}")
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                if self.is_ours(row):
                    yield row

    def is_ours(self, row):
        """Return whether a line is of a kind that is decoded here."""
        is_deep = "16-bit" in row["special"] or "tRNS" in row["special"] or row["mode"] == "I;16"
        is_odd_jpeg = "lossless" in row["jpeg_detail"] or "12bit" in row["jpeg_detail"]
        kinds = {"WEBP": True, "JPEG2000": True, "PNG": is_deep, "TIFF": "raw/" not in row["file"]}
        return kinds.get(row["format"], is_odd_jpeg)

    def quarters(self, raster):
        """Return the mean colour of the quarters of the upright picture over white."""
        image = raster.pixels.astype(float)
        if raster.mode in {"LA", "RGBA"}:
            share = image[..., -1:] / 255
            image = image[..., :-1] * share + 255 * (1 - share)
        image = np.broadcast_to(image, (*image.shape[:2], 3)) if image.shape[2] == 1 else image
        image = TURNS[raster.orientation](image)
        half = image.shape[0] // 2, image.shape[1] // 2
        parts = (image[: half[0]], image[half[0] :])
        return [part.mean((0, 1)) for rows in parts for part in (rows[:, : half[1]], rows[:, half[1] :])]

    def expected(self, text):
        """Return the quarters that a column states, None if it states none."""
        text = text.removesuffix(" (over white)")
        return (
            None
            if ":" in text or not text
            else [tuple(map(int, quarter.split(","))) for quarter in text.split()]
        )

    def test_every_picture_matches_an_independent_decoder(self):
        """Within one level of the mean of every quarter; the rest is refused as the index says."""
        matched = refused = 0
        for row in self.rows():
            raster = outcome((DATA / row["file"]).read_bytes())
            if isinstance(raster, CorruptImageError):
                assert row["expected"].startswith("rejected"), (row["file"], str(raster))
                assert raster.code == "unsupported", row["file"]
                refused += 1
                continue
            columns = (self.expected(row[name]) for name in ("quad_rgb_pil_upright", "quad_rgb_vips_icc"))
            known = [quarters for quarters in columns if quarters is not None]
            near = [np.abs(np.array(self.quarters(raster)) - quarters).max() <= 1 for quarters in known]
            assert any(near) or not known, row["file"]
            matched += 1
        assert (matched, refused) >= (20, 2)


class TestHostileBytes:
    @given(st.sampled_from(sorted(WHOLE)), st.data())
    def test_every_input_ends_as_pixels_or_a_known_code(self, name, draw):
        """Flipped, cut, spliced: nothing else comes out."""
        data = bytearray(WHOLE[name])
        for _ in range(draw.draw(st.integers(1, 4))):
            place = draw.draw(st.integers(0, len(data) - 1))
            patch = draw.draw(st.binary(min_size=1, max_size=4))
            data[place : place + draw.draw(st.sampled_from([0, len(patch), 40]))] = patch
        result = outcome(bytes(data))
        if isinstance(result, CorruptImageError):
            assert result.code in REJECT_CODES
        else:
            assert result.pixels.dtype == np.uint8
            assert result.pixels.flags.c_contiguous


def test_versions_are_named():
    """A receipt names what decided about pixels."""
    versions = codecs.engine_versions()
    assert versions["imagecodecs"] == imagecodecs.__version__
    assert set(versions) == {
        "imagecodecs",
        "libwebp",
        "libtiff",
        "openjpeg",
        "libpng",
        "libjpeg_turbo",
        "lcms2",
    }
    assert all(versions.values())
