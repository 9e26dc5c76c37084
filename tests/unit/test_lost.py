"""Zero bytes where pixels should be, in every format; and zeros that cost nothing."""

import io
import struct

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ingest.build import pillow, zeros
from ingest.build.heif_items import find_pixels
from ingest.build.image import shrink_image
from ingest.build.jpeg import read_jpeg_header
from ingest.build.jpeg2000 import iter_boxes
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

BLOCK = zeros.BLOCK_BYTES
RECIPE = Recipe(size=32)
NOISE = np.random.default_rng(3).integers(1, 255, (200, 220, 3)).astype(np.uint8)
DEEP = NOISE.astype(np.uint16) << 4


def saved(name, **options):
    """Return what Pillow or its plugin writes of the noise."""
    pillow._load_plugin({"HEIF": "HEIC", "JXL": "JPEG XL"}.get(name, name))
    file = io.BytesIO()
    Image.fromarray(NOISE).save(file, name, **options)
    return file.getvalue()


def packed(pixels, compression):
    """Return a TIFF of one strip: 5 is LZW, 8 Deflate, 50000 Zstandard."""
    pack = {5: imagecodecs.lzw_encode, 8: imagecodecs.zlib_encode, 50000: imagecodecs.zstd_encode}[
        compression
    ]
    strip = bytes(pack(pixels.tobytes()))
    height, width, channels = pixels.shape
    photometric = 2 if channels == 3 else 1
    tags = [(256, width), (257, height), (258, 8), (259, compression), (262, photometric)]
    tags += [(273, 8), (277, channels), (278, height), (279, len(strip))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    strip += bytes(len(strip) % 2)
    return b"II*\0" + struct.pack("<I", 8 + len(strip)) + strip + struct.pack("<H", 9) + entries + bytes(4)


COMPRESSED = {
    "JPEG": saved("JPEG", quality=97),
    "progressive JPEG": saved("JPEG", quality=97, progressive=True),
    "12-bit JPEG": imagecodecs.jpeg8_encode(DEEP, level=97, bitspersample=12),
    "lossless JPEG": imagecodecs.jpeg8_encode(NOISE, lossless=True),
    "PNG": saved("PNG"),
    "GIF": saved("GIF"),
    "WebP": imagecodecs.webp_encode(NOISE, level=97),
    "lossless WebP": imagecodecs.webp_encode(NOISE, lossless=True),
    "TIFF LZW": packed(NOISE, 5),
    "TIFF Deflate": packed(NOISE, 8),
    "JPEG 2000": imagecodecs.jpeg2k_encode(NOISE, level=0, codecformat="jp2"),
    "JPEG 2000 codestream": imagecodecs.jpeg2k_encode(NOISE, level=0, codecformat="j2k"),
    "HEIC": saved("HEIF", quality=95),
    "AVIF": saved("AVIF", quality=97),
    "JPEG XL": saved("JXL", quality=97),
}


def code_of(data):
    """Return the code of the refusal, "sample" without one."""
    try:
        shrink_image(data, RECIPE)
    except CorruptImageError as error:
        return error.code
    return "sample"


def with_zeros(data, begin, end):
    """Return the data with zeros between two positions."""
    return data[:begin] + bytes(end - begin) + data[end:]


def notes_of(data):
    """Return the notes of the sample."""
    return shrink_image(data, RECIPE).provenance.notes


class TestEveryCompressedFormat:
    @pytest.mark.parametrize("name", COMPRESSED)
    @pytest.mark.parametrize("share", [50, 90])
    def test_an_end_that_was_never_written(self, name, share):
        """The right size, the rest zeros: no picture, whichever the decoder."""
        data = COMPRESSED[name]
        assert code_of(data) == "sample"
        assert len(data) > 4 * BLOCK
        assert code_of(with_zeros(data, len(data) * share // 100, len(data))) in {"corrupt", "truncated"}

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_a_lost_block(self, name):
        """One block of zeros in the middle, as disks and networks lose them."""
        data = COMPRESSED[name]
        begin = len(data) // 2 // BLOCK * BLOCK
        assert code_of(with_zeros(data, begin, begin + BLOCK)) == "corrupt"

    def test_zeros_beside_a_lost_block(self):
        """A byte before it that is zero by chance does not hide it."""
        data = COMPRESSED["lossless WebP"]
        assert code_of(with_zeros(data, 2 * BLOCK - 3, 3 * BLOCK + 1)) == "corrupt"


class TestUncompressed:
    @pytest.mark.parametrize("name", ["BMP", "TIFF"])
    def test_zeros_may_be_black(self, name):
        """A sample, with a note that tells how much of it is in doubt."""
        data = saved(name)
        assert notes_of(data) == ()
        (note,) = notes_of(with_zeros(data, len(data) * 3 // 4, len(data)))
        assert "25% of the file" in note or "24% of the file" in note

    @pytest.mark.parametrize("name", ["BMP", "TIFF"])
    def test_a_black_picture_has_the_note_too(self, name):
        """It cannot be told from one that was never written."""
        file = io.BytesIO()
        Image.new("RGB", (64, 64)).save(file, name)
        assert len(notes_of(file.getvalue())) == 1


class TestZerosThatCostNothing:
    def padded_exif(self):
        """Return an EXIF block that is padded with blocks of zeros, as makers' notes are."""
        head = b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 3, 1, 1) + bytes(4)
        return head + bytes(5 * BLOCK)

    def test_in_an_exif_block(self):
        """Before the first pixel, aligned or not."""
        data, exif = COMPRESSED["JPEG"], b"Exif\0\0" + self.padded_exif()
        for shift in range(0, BLOCK, 512):
            segment = b"\xff\xe1" + struct.pack(">H", len(exif) + shift + 2) + exif + bytes(shift)
            assert code_of(data[:2] + segment + data[2:]) == "sample"

    @pytest.mark.parametrize("behind", [bytes(3 * BLOCK), bytes(3 * BLOCK) + b"ftypmp42 a film"])
    @pytest.mark.parametrize("name", ["JPEG", "progressive JPEG", "lossless JPEG", "WebP", "PNG", "GIF"])
    def test_behind_the_picture(self, name, behind):
        """Padding, and what phones write there, whatever it is."""
        data = COMPRESSED[name]
        data += bytes(-len(data) % BLOCK) + behind
        assert code_of(data) == "sample"

    def test_in_a_chunk_of_a_webp(self):
        """An EXIF chunk of zeros at the end of the file, so that the file ends in them."""
        exif = self.padded_exif()
        chunks = COMPRESSED["lossless WebP"][12:] + b"EXIF" + struct.pack("<I", len(exif)) + exif
        assert code_of(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks) == "sample"

    @pytest.mark.parametrize("name", ["HEIC", "AVIF"])
    def test_in_a_free_box(self, name):
        """A box that is free, at the end, of whole blocks."""
        data = COMPRESSED[name]
        data += struct.pack(">I4s", 8 + -(len(data) + 8) % BLOCK, b"free")
        data += bytes(-len(data) % BLOCK)
        assert code_of(data + struct.pack(">I4s", 3 * BLOCK, b"free") + bytes(3 * BLOCK - 8)) == "sample"

    def test_in_flat_pictures(self):
        """What compressors make of a black picture is zero bytes for long, too."""
        black = np.zeros((3000, 3000), np.uint8)
        for data in (
            imagecodecs.png_encode(black),
            imagecodecs.jpeg8_encode(black, optimize=True),
            imagecodecs.jpeg8_encode(black, lossless=True),
            imagecodecs.webp_encode(np.zeros((3000, 3000, 3), np.uint8), lossless=True),
            imagecodecs.jpeg2k_encode(black),
        ):
            assert code_of(data) == "sample"
        for compression in (5, 8, 50000):
            assert code_of(packed(black[..., np.newaxis], compression)) == "sample"


class TestZeros:
    @given(st.integers(1, 3 * BLOCK), st.integers(0, 3 * BLOCK))
    def test_only_whole_blocks_count(self, begin, length):
        """A stretch counts if it is whole blocks, give or take a few bytes, and the file goes on."""
        data = b"\1" * begin + bytes(length) + b"\1"
        blocks = zeros.lost_blocks(data)
        edges = -begin % BLOCK, (begin + length) % BLOCK
        is_whole = length >= BLOCK and max(edges) <= 16 and length - sum(edges) >= BLOCK
        assert bool(blocks) == is_whole
        assert all(data[one.begin : one.end].count(0) == one.end - one.begin for one in blocks)

    def test_the_end_is_no_block(self):
        """It is told apart, however long it is; less than a sector is no end."""
        data = b"\1" * BLOCK + bytes(2 * BLOCK)
        assert zeros.lost_blocks(data) == []
        assert zeros.tail(data) == (BLOCK, 3 * BLOCK)
        assert zeros.tail(b"\1" + bytes(511)) == (512, 512)

    def test_before_the_begin_nothing_counts(self):
        """Nor does what is before the first scan of a JPEG."""
        data = b"\1" * BLOCK + bytes(BLOCK) + b"\1"
        assert zeros.lost_blocks(data, 2 * BLOCK) == []
        assert zeros.lost_blocks(data, 0) == [(BLOCK, 2 * BLOCK)]
        assert read_jpeg_header(COMPRESSED["JPEG"]).segments[-1][2] < BLOCK


class TestItems:
    @pytest.mark.parametrize("name", ["HEIC", "AVIF"])
    def test_pixels_are_found(self, name):
        """The coded picture is most of the file, and lies in its media data."""
        data = COMPRESSED[name]
        media = next(box for box in iter_boxes(data) if box.name == b"mdat")
        places = find_pixels(data)
        assert sum(end - begin for begin, end in places) > len(data) * 0.9
        assert all(media.begin <= begin < end <= media.end for begin, end in places)

    @given(st.integers(0, 500), st.binary(min_size=1, max_size=8))
    def test_hostile_bytes(self, position, patch):
        """Whatever the boxes say, something is returned, and soon."""
        data = bytearray(COMPRESSED["HEIC"])
        data[position : position + len(patch)] = patch
        assert isinstance(find_pixels(bytes(data)), list)
