"""The pixels of a PNG: those of one that was cut off are its first rows, and nothing else passes for them."""

import gc
import io
import struct
import sys
import tracemalloc
import zlib

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ingest.build import codecs, png, streams
from ingest.build.image import shrink_image, shrink_pixels
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

MOST = 200_000_000
KEEP = Recipe(size=32, fit="stretch", on_truncated="keep")
NOISE = np.random.default_rng(3).integers(0, 256, (90, 70, 4), dtype=np.uint8)
RGB = np.ascontiguousarray(NOISE[..., :3])
TO_UPRIGHT = {  # how each orientation brings stored pixels upright
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: image.transpose(1, 0, 2)[:, ::-1],
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: image.transpose(1, 0, 2)[::-1],
}


def saved(image, name="PNG", **options):
    """Return what Pillow writes."""
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def exif(orientation):
    """Return an EXIF block of one entry."""
    return b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0) + bytes(4)


def chunk(name, payload):
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def written(width, height, packed, *, bits=8, kind=2, interlaced=0, chunk_bytes=1 << 13):
    """Return a PNG of packed pixels, without the chunk that ends it."""
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, interlaced))
    parts = [packed[begin : begin + chunk_bytes] for begin in range(0, len(packed), chunk_bytes)]
    return b"\x89PNG\r\n\x1a\n" + ihdr + b"".join(chunk(b"IDAT", part) for part in parts)


def refusal(data, recipe=KEEP):
    """Return the error with which bytes are refused."""
    with pytest.raises(CorruptImageError) as caught:
        shrink_image(data, recipe)
    return caught.value


def rows_of(data):
    """Return how many rows of a cut PNG are there, its width and its height."""
    with pytest.raises(png.CutOffError) as caught:
        codecs.read_png(data, MOST)
    return caught.value.rows


def outcome(data):
    """Return how the sample was made, or the error with which it is refused."""
    try:
        return shrink_image(data, KEEP).provenance
    except CorruptImageError as error:
        return error


WHOLE = {
    "RGB": saved(Image.fromarray(RGB)),
    "RGBA": saved(Image.fromarray(NOISE)),
    "gray": saved(Image.fromarray(RGB[..., 0])),
    "gray+alpha": saved(Image.fromarray(NOISE).convert("LA")),
    "palette": saved(Image.fromarray(RGB[..., 0]).convert("P"), transparency=7),
    "4 bits": saved(Image.fromarray(RGB).quantize(13)),
    "1 bit": saved(Image.fromarray(RGB).convert("1")),
    "16 bits": imagecodecs.png_encode(NOISE.astype(np.uint16) * 256 + NOISE[::-1]),
    "one chunk": imagecodecs.png_encode(RGB),
    "small chunks": written(70, 90, zlib.compress(np.insert(RGB.reshape(90, 210), 0, 0, 1)), chunk_bytes=99),
}


class TestGamma:
    @pytest.mark.parametrize(
        ("gamma", "chunks", "is_noted"),
        [
            (None, [], False),
            (45_455, [], False),
            (45_000, [], False),
            (100_000, [], True),
            (55_555, [(b"cHRM", bytes(32))], True),
            (100_000, [(b"sRGB", b"\0")], False),
            (100_000, [(b"cICP", b"\1\x0d\0\1")], False),
            (0, [], False),
        ],
    )
    def test_a_gamma_that_is_not_applied_is_noted(self, gamma, chunks, is_noted):
        """Where nothing of more weight says what the numbers mean; the pixels stay as they are."""
        data = WHOLE["RGB"]
        listed = chunks + ([] if gamma is None else [(b"gAMA", struct.pack(">I", gamma))])
        packed = b"".join(png._png_chunk(name, payload) for name, payload in listed)
        made = shrink_image(data[:33] + packed + data[33:], Recipe(size=32))
        assert any("gAMA" in note for note in made.provenance.notes) == is_noted
        assert made.data == shrink_image(data, Recipe(size=32)).data


class TestRows:
    @pytest.mark.parametrize("name", WHOLE)
    def test_what_is_kept_are_the_first_rows(self, name):
        """Cut anywhere among its pixels, every row that is counted has the pixels that it had."""
        data = WHOLE[name]
        whole = codecs.read_png(data, MOST)
        counts = []
        for share in (30, 45, 60, 75, 90, 95):
            cut = data[: len(data) * share // 100]
            rows, width, height = rows_of(cut)
            assert (width, height) == (70, 90)
            counts.append(rows)
            kept = codecs.read_png(png.first_rows(cut, rows), MOST)
            assert np.array_equal(kept.pixels, whole.pixels[:rows])
            named = [(raster.mode, raster.source_mode, raster.source_bits) for raster in (kept, whole)]
            assert named[0] == named[1]
        assert counts == sorted(counts)
        assert counts[1] > 0
        assert counts[-1] < 90

    def test_no_row_more_is_kept_than_there_is_in_full(self):
        """Rows that are stored as they are: each byte that is missing is known."""
        rows = np.insert(RGB.reshape(90, 210), 0, 0, 1).tobytes()
        data = written(70, 90, zlib.compress(rows, 0))
        begin = data.index(b"IDAT") + 4 + 2 + 5  # behind the heads of zlib and of its block
        assert rows_of(data[: begin + 211 * 20])[0] == 20
        assert rows_of(data[: begin + 211 * 20 - 1])[0] == 19
        assert rows_of(data[: begin + 210])[0] == 0

    @pytest.mark.parametrize("missing", [17, 18, 19, 20])
    def test_a_checksum_alone_is_no_pixel(self, missing):
        """A PNG that lacks the end of its checksum has every pixel, whatever the recipe wants of others."""
        data = WHOLE["RGB"]
        made = shrink_image(data[:-missing], Recipe(size=32))
        assert made.data == shrink_image(data, Recipe(size=32)).data
        assert made.provenance.notes == (streams.ENDS_EARLY,)
        assert made.provenance.rows_present == 1

    def test_surplus_is_not_unpacked(self):
        """Pixels that go on for 200 MB behind the last row cost neither memory nor rows."""
        packer = zlib.compressobj(9)
        packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200))
        data = written(70, 90, packed)
        tracemalloc.start()
        assert len(png.mend(data).data) < 1000
        png.first_rows(data, 90)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 60e6


class TestKept:
    @pytest.mark.parametrize("name", ["RGB", "gray", "palette"])
    def test_the_sample_is_that_of_the_rows(self, name):
        """Cut off and kept, a PNG gives the sample of a PNG of those rows; sentence and note say how many."""
        cut = WHOLE[name][: len(WHOLE[name]) * 2 // 3]
        rows = rows_of(cut)[0]
        made = shrink_image(cut, KEEP)
        expected = saved(Image.open(io.BytesIO(WHOLE[name])).crop((0, 0, 70, rows)))
        assert np.array_equal(shrink_pixels(cut, KEEP), shrink_pixels(expected, KEEP))
        share = f"{rows * 100 // 90}% of its rows are there"
        assert share in made.provenance.notes[0]
        assert made.provenance.rows_present == rows / 90
        error = refusal(cut, Recipe())
        assert error.code == "truncated"
        assert share in error.reason

    def test_metadata_is_kept(self):
        """Profile and orientation count as in the whole file."""
        profile = bytes(imagecodecs.cms_profile("adobergb"))
        data = saved(Image.fromarray(RGB), icc_profile=profile, exif=b"Exif\0\0" + exif(6))
        made = shrink_image(data[: len(data) * 2 // 3], KEEP).provenance
        whole = shrink_image(data, KEEP).provenance
        assert whole.profile_use == "converted"
        assert (made.profile, made.profile_use, made.orientation) == (whole.profile, "converted", 6)
        assert (made.source_width, made.source_height) == (whole.source_width, whole.source_height)

    @pytest.mark.parametrize("fit", ["cover", "contain", "stretch"])
    @pytest.mark.parametrize("name", ["PNG", "JPEG"])
    @pytest.mark.parametrize("orientation", TO_UPRIGHT)
    def test_a_box_of_the_whole_picture_is_mapped(self, name, orientation, fit):
        """A mark among the rows that are there is in the sample where the receipt maps it to."""
        stored = np.random.default_rng(1).integers(0, 60, (480, 320, 3)).astype(np.uint8)
        stored[100:140, 140:180] = 255
        upright = TO_UPRIGHT[orientation](stored)
        y, x = np.argwhere((upright == 255).all(axis=2)).mean(axis=0) + 0.5
        options = {"quality": 95} if name == "JPEG" else {}
        data = saved(Image.fromarray(stored), name, exif=b"Exif\0\0" + exif(orientation), **options)
        recipe = Recipe(size=120, fit=fit, background=(0, 0, 0), on_truncated="keep")
        cut = data[: len(data) * 6 // 10]
        made = shrink_image(cut, recipe).provenance
        assert (made.source_height, made.source_width) == upright.shape[:2]
        assert made.rows_present < 0.7
        sample = shrink_pixels(cut, recipe).mean(axis=2)
        row, column = np.argwhere(sample > 200).mean(axis=0) + 0.5
        assert (x - made.crop_left) * made.scale_x + made.offset_x == pytest.approx(column, abs=1)
        assert (y - made.crop_top) * made.scale_y + made.offset_y == pytest.approx(row, abs=1)
        assert 0 <= made.crop_left < made.crop_right <= made.source_width
        assert 0 <= made.crop_top < made.crop_bottom <= made.source_height


class TestNotKept:
    @given(st.sampled_from(sorted(WHOLE)), st.data())
    def test_hostile_bytes(self, name, draw):
        """Cut and patched anywhere: a sample with a share of rows, or one of the known codes."""
        data = bytearray(WHOLE[name])
        for _ in range(draw.draw(st.integers(0, 2))):
            patch = draw.draw(st.binary(min_size=1, max_size=4))
            place = draw.draw(st.integers(8, len(data) - 5))
            data[place : place + len(patch)] = patch
        cut = bytes(data[: draw.draw(st.integers(8, len(data)))])
        made = outcome(cut)
        if isinstance(made, CorruptImageError):
            assert made.code in {"truncated", "corrupt", "too_large", "not_an_image"}
        else:
            assert 0 < made.rows_present <= 1
            assert made.rows_present == 1 or made.notes

    @pytest.mark.parametrize(("width", "height"), [(70, 90), (1, 1), (3, 2), (4, 5), (9, 17)])
    def test_interlaced_is_whole_or_refused(self, width, height):
        """An interlaced PNG without its last chunk has every pixel; with one byte of them less it is cut."""
        pixels = np.ascontiguousarray(RGB[:height, :width])
        passes = [pixels[y::dy, x::dx] for x, y, dx, dy in png._ADAM7]
        packed = zlib.compress(
            b"".join(b"\0" + row.tobytes() for part in passes for row in part if part.size), 0
        )
        data = written(width, height, packed, interlaced=1)
        raster = codecs.read_png(data, MOST)
        assert np.array_equal(raster.pixels, pixels)
        assert raster.notes == (streams.ENDS_EARLY,)
        assert "interlaced" in refusal(data[: -4 - 4 - 1]).reason

    def test_refusals_give_no_reference_away(self):
        """Cut files in one process leave it as it was: no reference to None is given away with each."""
        cut = WHOLE["RGB"][:9000]
        counts = []
        for number in (10, 500):
            for _ in range(number):
                outcome(cut)
            gc.collect()
            counts.append(sys.getrefcount(None))
        assert counts[1] > counts[0] - 250

    def test_interlaced(self):
        """Rows of an interlaced PNG come in seven passes: it is refused, and the sentence says why."""
        cut = written(70, 90, zlib.compress(RGB.tobytes())[:9000], interlaced=1)
        for recipe in (KEEP, Recipe()):
            error = refusal(cut, recipe)
            assert error.code == "truncated"
            assert "interlaced" in error.reason

    def test_no_row(self):
        """A PNG that ends before or within its first row has nothing to keep."""
        data = WHOLE["RGB"]
        for end in (data.index(b"IDAT") - 4, data.index(b"IDAT") + 6, data.index(b"IDAT") + 60):
            error = refusal(data[:end])
            assert error.code == "truncated"
            assert "0% of its rows" in error.reason
        assert refusal(data[:20]).code == "truncated"

    def test_damage_before_the_cut(self):
        """A chunk that is there and does not agree with its sum is corrupt, and nothing of it is kept."""
        data = bytearray(WHOLE["small chunks"][:9000])
        data[3000] ^= 1
        assert refusal(bytes(data)).code == "corrupt"

    def test_pixels_that_are_no_deflate(self):
        """What does not inflate is corrupt, although no sum is there to tell."""
        cut = WHOLE["one chunk"][: len(WHOLE["one chunk"]) // 2]
        begin = cut.index(b"IDAT") + 6
        assert refusal(cut[:begin] + b"\xff" * 300 + cut[begin:]).code == "corrupt"

    def test_zeros_that_were_never_written(self):
        """A file that was allocated and not filled is corrupt: its zeros would inflate to something."""
        data = WHOLE["one chunk"]
        assert refusal(data[: len(data) // 2] + bytes(len(data) // 2 - 100)).code == "corrupt"

    def test_header_that_states_nonsense(self):
        """A depth or colour type that PNG has not is corrupt."""
        for bits, kind in ((8, 5), (77, 2)):
            assert refusal(written(70, 90, b"x\x9c", bits=bits, kind=kind)).code == "corrupt"

    def test_too_large(self):
        """The whole picture counts, not what is there of it."""
        cut = WHOLE["RGB"][:9000]
        recipe = Recipe(size=32, on_truncated="keep", max_pixels=70 * 90 - 1)
        assert refusal(cut, recipe).code == "too_large"
