"""TIFFs of every kind: what their samples mean, where they are, and what is refused."""

import io
import struct

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ingest.build import tiff, tiff_directory
from ingest.build.codecs import read_tiff
from ingest.build.image import shrink_image, shrink_pixels
from ingest.errors import REJECT_CODES, CorruptImageError
from ingest.recipe import Recipe

MOST = 200_000_000
ROWS, COLUMNS = np.mgrid[0:37, 0:53]
RGB = np.stack([COLUMNS * 4, ROWS * 6, (COLUMNS * ROWS) % 256], axis=2).astype(np.uint8)
GRAY = RGB[..., 2:]
ALPHA = np.dstack([RGB, ((COLUMNS + ROWS) * 3 % 256).astype(np.uint8)])

WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, OFFSETS, ORIENTATION = 256, 257, 258, 259, 262, 273, 274
SAMPLES, ROWS_PER_STRIP, COUNTS, PLANAR, COLOR_MAP, EXTRA, FORMAT = 277, 278, 279, 284, 320, 338, 339
TILE_WIDTH, TILE_LENGTH, TILE_OFFSETS, TILE_COUNTS, ICC = 322, 323, 324, 325, 34675


def build(segments, tags, *, order="<", is_big=False, is_first=False):
    """Return a TIFF.

    Args:
        segments: bytes of each strip, or of each tile where there is a tag of tiles.
        tags: values by number; None leaves a tag out that would be written; bytes are UNDEFINED.
        order: of bytes.
        is_big: BigTIFF.
        is_first: whether the directory stands before the strips rather than after them.
    """
    head, sizes = (16 if is_big else 8), tuple(map(len, segments))
    names = (TILE_OFFSETS, TILE_COUNTS) if TILE_WIDTH in tags else (OFFSETS, COUNTS)

    def directory_at(place, begin):
        offsets = tuple(begin + sum(sizes[:n]) for n in range(len(sizes)))
        found = dict(zip(names, (offsets, sizes), strict=True))
        return directory({**found, COMPRESSION: 1, **tags}, place, order, is_big)

    place = head if is_first else head + sum(sizes)
    begin = head + len(directory_at(head, 0)) if is_first else head
    entries = directory_at(place, begin)
    start = struct.pack(order + "HHHQ", 43, 8, 0, place) if is_big else struct.pack(order + "HI", 42, place)
    parts = [b"".join(segments), entries]
    return (b"II" if order == "<" else b"MM") + start + b"".join(reversed(parts) if is_first else parts)


def directory(values, place, order, is_big):
    """Return the directory at `place`, with the values that do not fit into its entries behind them."""
    listed = sorted((tag, value) for tag, value in values.items() if value is not None)
    inline, code = (8, "Q") if is_big else (4, "I")
    entries, behind = struct.pack(order + ("Q" if is_big else "H"), len(listed)), b""
    behind_at = place + len(entries) + len(listed) * (4 + 2 * inline) + inline
    for tag, value in listed:
        kind, count, packed = pack(tag, value, order)
        if len(packed) > inline:
            behind, packed = behind + packed, struct.pack(order + code, behind_at + len(behind))
        entries += struct.pack(order + "HH" + code, tag, kind, count) + packed.ljust(inline, b"\0")
    return entries + bytes(inline) + behind


def pack(tag, value, order):
    """Return type, count and bytes of a value."""
    if isinstance(value, bytes):
        return 7, len(value), value
    numbers = value if isinstance(value, tuple) else (value,)
    is_long = max(numbers) > 65_535 or tag in {OFFSETS, COUNTS, TILE_OFFSETS, TILE_COUNTS}
    kind, code = (4, "I") if is_long else (3, "H")
    return kind, len(numbers), struct.pack(f"{order}{len(numbers)}{code}", *numbers)


def simple(pixels, tags=(), **layout):
    """Return a TIFF of one strip that is not compressed."""
    known = {
        WIDTH: pixels.shape[1],
        LENGTH: pixels.shape[0],
        BITS: (pixels.itemsize * 8,) * pixels.shape[2],
        PHOTOMETRIC: 1 if pixels.shape[2] < 3 else 2,
        SAMPLES: pixels.shape[2],
    }
    raw = pixels.astype(pixels.dtype.newbyteorder(layout.get("order", "<"))).tobytes()
    return build([raw], known | dict(tags), **layout)


def read(data):
    """Decode a TIFF."""
    return read_tiff(data, MOST)


def code_of(data):
    """Return the code with which bytes are refused."""
    with pytest.raises(CorruptImageError) as caught:
        read(data)
    return caught.value.code


class TestSamples:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("is_big", [False, True])
    @pytest.mark.parametrize("pixels", [RGB, GRAY, ALPHA], ids=["RGB", "gray", "alpha"])
    def test_plain_pixels(self, pixels, order, is_big):
        """Either order of bytes, either size of offsets."""
        extra = {EXTRA: 2} if pixels.shape[2] == 4 else {}
        raster = read(simple(pixels, extra, order=order, is_big=is_big))
        assert np.array_equal(raster.pixels, pixels)
        assert raster.source_mode == {1: "gray", 3: "RGB", 4: "RGB+alpha"}[pixels.shape[2]]

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_sixteen_bits(self, order):
        """Scaled, not clipped, whichever byte comes first."""
        deep = RGB.astype(np.uint16) * 257
        raster = read(simple(deep, order=order))
        assert np.array_equal(raster.pixels, RGB)
        assert raster.source_bits == 16

    @pytest.mark.parametrize("bits", [1, 2, 4, 6, 10, 12, 14])
    def test_odd_depths(self, bits):
        """Samples that are packed come out scaled to white."""
        values = (GRAY[..., 0].astype(np.uint16) * ((1 << bits) - 1) // 255).astype(np.uint16)
        packed = b"".join(
            int("".join(f"{value:0{bits}b}" for value in row).ljust(-(-53 * bits // 8) * 8, "0"), 2).to_bytes(
                -(-53 * bits // 8), "big"
            )
            for row in values
        )
        raster = read(build([packed], {WIDTH: 53, LENGTH: 37, BITS: bits, PHOTOMETRIC: 1, SAMPLES: 1}))
        most = (1 << bits) - 1
        assert np.array_equal(raster.pixels[..., 0], (values.astype(int) * 510 + most) // (2 * most))
        assert raster.source_bits == bits

    def test_white_is_zero(self):
        """Negatives are turned round; alpha is not."""
        assert np.array_equal(read(simple(GRAY, {PHOTOMETRIC: 0})).pixels, 255 - GRAY)
        both = np.dstack([GRAY, ALPHA[..., 3:]])
        pixels = read(simple(both, {PHOTOMETRIC: 0, EXTRA: 2})).pixels
        assert np.array_equal(pixels, np.dstack([255 - GRAY, ALPHA[..., 3:]]))

    @pytest.mark.parametrize("factor", [257, 256, 1])
    def test_palette(self, factor):
        """Colours of 16 bits, however written, and those of 8 bits that some write."""
        colours = np.random.default_rng(0).permutation(256 * 3).reshape(3, 256) % 256
        colours[0, 0] = 255
        raster = read(simple(GRAY, {PHOTOMETRIC: 3, COLOR_MAP: tuple((colours * factor).ravel().tolist())}))
        assert np.array_equal(raster.pixels, colours.T[GRAY[..., 0]])
        assert (raster.source_mode, raster.mode) == ("palette", "RGB")

    def test_inks(self):
        """CMYK stays CMYK, for the profile to convert; 0 is no ink."""
        raster = read(simple(ALPHA, {PHOTOMETRIC: 5, ICC: b"profile"}))
        assert np.array_equal(raster.pixels, ALPHA)
        assert (raster.mode, raster.icc) == ("CMYK", b"profile")

    def test_premultiplied_alpha_is_divided(self):
        """Associated alpha is taken out of the colours; unassociated alpha is left alone."""
        share = ALPHA[..., 3:] / 255
        multiplied = np.dstack([np.rint(RGB * share).astype(np.uint8), ALPHA[..., 3:]])
        raster = read(simple(multiplied, {EXTRA: 1}))
        seen = raster.pixels[..., :3] * share
        assert np.abs(seen - multiplied[..., :3]).max() <= 0.5
        assert np.array_equal(read(simple(multiplied, {EXTRA: 2})).pixels, multiplied)

    def test_a_channel_that_is_neither_colour_nor_alpha_is_left_out(self):
        """It is said in a note; one that is not explained at all is alpha."""
        raster = read(simple(ALPHA, {EXTRA: 0}))
        assert np.array_equal(raster.pixels, RGB)
        assert "1" in raster.notes[0]
        assert read(simple(ALPHA)).mode == "RGBA"

    @pytest.mark.parametrize(("extra", "at"), [((0, 2), 4), ((2, 0), 3), ((0, 0), None), ((0, 0, 2), 5)])
    def test_alpha_behind_another_channel(self, extra, at):
        """Alpha is the first sample that says so, wherever it stands behind the colours."""
        others = [np.full((37, 53, 1), 7 * n, np.uint8) for n in range(len(extra))]
        if at is not None:
            others[at - 3] = ALPHA[..., 3:]
        raster = read(simple(np.dstack([RGB, *others]), {EXTRA: extra}))
        assert (raster.pixels == (RGB if at is None else ALPHA)).all()
        assert raster.notes == (
            f"Channels that are neither colour nor alpha were left out: {len(extra) - (at is not None)}.",
        )

    def test_negative_samples_are_black(self):
        """Signed samples have white where unsigned ones have it, as libvips reads them."""
        signed = (GRAY.astype(np.int16) - 100).clip(-128, 127).astype(np.int8)
        raster = read(simple(signed, {FORMAT: 2}))
        assert np.array_equal(raster.pixels, signed.clip(0))
        assert raster.notes

    def test_undefined_samples_are_numbers(self):
        """SampleFormat 4 says nothing, and samples are read as unsigned."""
        assert np.array_equal(read(simple(RGB, {FORMAT: (4, 4, 4)})).pixels, RGB)

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation_is_returned_not_applied(self, orientation):
        """Pixels stay as stored."""
        raster = read(simple(RGB, {ORIENTATION: orientation}))
        assert np.array_equal(raster.pixels, RGB)
        assert raster.orientation == orientation

    @pytest.mark.parametrize(
        ("pixels", "more", "word"),
        [
            (GRAY.astype(np.float32), {FORMAT: 3}, "range"),
            (GRAY.astype(np.uint32), {}, "32 bits"),
            (RGB, {PHOTOMETRIC: 8}, "CIELAB"),
            (GRAY, {PHOTOMETRIC: 32803}, "mosaic"),
            (GRAY, {PHOTOMETRIC: 77}, "77"),
            (RGB, {BITS: (8, 8, 16)}, "depth"),
            (RGB, {COMPRESSION: 34676}, "34676"),
        ],
    )
    def test_what_cannot_be_converted_is_named(self, pixels, more, word):
        """Nothing is guessed at."""
        with pytest.raises(CorruptImageError, match=word) as caught:
            read(simple(pixels, more))
        assert caught.value.code == "unsupported"


class TestSegments:
    @pytest.mark.parametrize("compression", [5, 8, 32773])
    def test_strips(self, compression):
        """The last strip is shorter; every compression gives the same pixels."""
        pack = {5: imagecodecs.lzw_encode, 8: imagecodecs.zlib_encode, 32773: imagecodecs.packbits_encode}
        strips = [bytes(pack[compression](RGB[n : n + 8].tobytes())) for n in range(0, 37, 8)]
        tags = {WIDTH: 53, LENGTH: 37, BITS: (8, 8, 8), PHOTOMETRIC: 2, SAMPLES: 3, ROWS_PER_STRIP: 8}
        data = build(strips, {**tags, COMPRESSION: compression})
        assert np.array_equal(read(data).pixels, RGB)
        short = [*strips[:2], bytes(pack[compression](RGB[:3].tobytes())), *strips[3:]]
        assert code_of(build(short, {**tags, COMPRESSION: compression})) == "corrupt"

    @pytest.mark.parametrize("is_planar", [False, True])
    def test_tiles_and_planes(self, is_planar):
        """Tiles stick out of the picture; planes come one after the other."""
        padded = np.zeros((48, 64, 3), np.uint8)
        padded[:37, :53] = RGB
        planes = [padded[..., n : n + 1] for n in range(3)] if is_planar else [padded]
        tiles = [
            plane[row : row + 16, column : column + 32].tobytes()
            for plane in planes
            for row in range(0, 48, 16)
            for column in range(0, 64, 32)
        ]
        tags = {WIDTH: 53, LENGTH: 37, BITS: (8, 8, 8), PHOTOMETRIC: 2, SAMPLES: 3, PLANAR: 1 + is_planar}
        data = build(tiles, {**tags, TILE_WIDTH: 32, TILE_LENGTH: 16})
        assert np.array_equal(read(data).pixels, RGB)
        assert code_of(build(tiles[:-1], {**tags, TILE_WIDTH: 32, TILE_LENGTH: 16})) == "corrupt"

    def test_lengths_that_are_missing_or_wrong_are_known_anyway(self):
        """What is not compressed has the size that it has."""
        assert np.array_equal(read(simple(RGB, {COUNTS: None})).pixels, RGB)
        assert np.array_equal(read(simple(RGB, {COUNTS: 4_000_000})).pixels, RGB)

    @pytest.mark.parametrize("is_first", [False, True])
    def test_a_cut_file_is_truncated(self, is_first):
        """Wherever it is cut, be the directory first or last; only its own last four bytes may be missing."""
        data = simple(RGB, is_first=is_first)
        for end in range(8, len(data), 7):
            assert code_of(data[:end]) == "truncated", end
        assert code_of(data[:-1]) == "truncated"
        assert np.array_equal(read(data).pixels, RGB)

    def test_a_strip_that_lies_elsewhere_is_truncated(self):
        """An offset outside the file, or an empty strip, is a part that is not there."""
        assert code_of(simple(RGB, {OFFSETS: 1_000_000})) == "truncated"
        packed = bytes(imagecodecs.zlib_encode(RGB.tobytes()))
        tags = {WIDTH: 53, LENGTH: 37, BITS: (8, 8, 8), PHOTOMETRIC: 2, SAMPLES: 3, COMPRESSION: 8}
        assert code_of(build([packed], {**tags, COUNTS: len(packed) + 100_000})) == "truncated"

    def test_values_outside_the_file_do_not_become_defaults(self):
        """Three depths that are cut off would else be one bit."""
        data = bytearray(simple(RGB))
        directory = struct.unpack_from("<I", data, 4)[0]
        for n in range(struct.unpack_from("<H", data, directory)[0]):
            entry = directory + 2 + 12 * n
            if struct.unpack_from("<H", data, entry)[0] == BITS:
                struct.pack_into("<I", data, entry + 8, len(data) - 2)
        assert code_of(bytes(data)) == "truncated"

    def test_a_profile_outside_the_file_is_noted(self):
        """It costs no pixel."""
        data = bytearray(simple(RGB, {ICC: b"x" * 64}))
        place = data.rindex(struct.pack("<HHI", ICC, 7, 64))
        struct.pack_into("<I", data, place + 8, len(data))
        raster = read(bytes(data))
        assert raster.icc is None
        assert "profile" in raster.notes[0]

    @pytest.mark.parametrize(
        "more",
        [
            {WIDTH: 100_000, LENGTH: 100_000},
            {SAMPLES: 60_000, WIDTH: 20_000, LENGTH: 2000},
            {TILE_WIDTH: 60_000, TILE_LENGTH: 60_000},
        ],
        ids=["picture", "samples", "tile"],
    )
    def test_what_is_too_large_is_refused_by_its_header(self, more):
        """Before any memory is asked for."""
        assert code_of(simple(GRAY, more)) == "too_large"

    def test_an_empty_picture_is_corrupt(self):
        """No width is no picture."""
        assert code_of(simple(GRAY, {WIDTH: 0})) == "corrupt"

    def test_pages_are_counted(self):
        """The first is taken; the others are frames that were dropped."""
        data = bytearray(simple(RGB))
        (place,) = struct.unpack_from("<I", data, 4)
        (count,) = struct.unpack_from("<H", data, place)
        struct.pack_into("<I", data, place + 2 + 12 * count, len(data))
        assert read(bytes(data) + bytes(6)).frames == 2

    @pytest.mark.parametrize("order", [1, 2])
    def test_a_fax_with_too_few_lines_is_truncated(self, order):
        """Libtiff would leave the rest white."""
        white = "000000000001" + "00100100"  # T.4: end of line, a run of 53 white
        whole = [int(white * 37 + "0" * 4, 2).to_bytes(93, "big")]
        tags = {WIDTH: 53, LENGTH: 37, BITS: 1, PHOTOMETRIC: 0, SAMPLES: 1, COMPRESSION: 3, 266: order}
        if order == 2:
            whole = [bytes(int(f"{byte:08b}"[::-1], 2) for byte in whole[0])]
        assert read(build(whole, tags)).pixels.min() == 255
        assert code_of(build([whole[0][:40]], tags)) == "truncated"


def pages(kinds):
    """Return a TIFF of plain pages: page n is 20 + n rows of n, and states the n-th kind."""
    images = [Image.new("RGB", (30, 20 + n), (n, n, n)) for n in range(len(kinds))]
    file = io.BytesIO()
    images[0].save(file, "TIFF", save_all=True, append_images=images[1:])
    data = bytearray(file.getvalue())
    for offset, kind in zip(tiff.directory_offsets(bytes(data)), kinds, strict=True):
        (count,) = struct.unpack_from("<H", data, offset)
        entries = range(offset + 2, offset + 2 + 12 * count, 12)
        spare = next(
            at for at in entries if struct.unpack_from("<H", data, at) == (PLANAR,)
        )  # has its default
        struct.pack_into("<HHII", data, spare, tiff.NEW_SUBFILE_TYPE, 4, 1, kind)
    return bytes(data)


class TestFirstPage:
    @pytest.mark.parametrize("kinds", [(1, 0), (1, 4, 0), (0, 1), (2, 1), (1, 1)])
    def test_the_first_full_picture_counts(self, kinds):
        """A smaller one of another page, or a mask, before it is left out and noted."""
        first = next((n for n, kind in enumerate(kinds) if not kind & 5), 0)
        made = shrink_image(pages(kinds), Recipe(size=8))
        size = made.provenance.source_height, made.provenance.frames_dropped
        assert size == (20 + first, len(kinds) - 1)
        assert len(made.provenance.notes) == (first > 0)
        assert (shrink_pixels(pages(kinds), Recipe(size=8)) == first).all()

    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("is_big", [False, True])
    def test_another_directory_becomes_the_first(self, order, is_big):
        """In every byte order and size class; nothing else of the file changes."""
        data = build([bytes(12)], {WIDTH: 2, LENGTH: 2}, order=order, is_big=is_big)
        moved = tiff_directory.with_first(data, 77)
        assert moved[:4] == data[:4]
        assert moved[16:] == data[16:]
        assert tiff_directory.with_first(moved, tiff.directory_offsets(data)[0]) == data


class TestJpegInTiff:
    def strips(self, pixels, rows, **options):
        """Return JPEG strips."""
        return [
            imagecodecs.jpeg8_encode(np.ascontiguousarray(pixels[n : n + rows]), level=95, **options)
            for n in range(0, pixels.shape[0], rows)
        ]

    def tags(self, photometric, samples, **more):
        """Return the tags of a page of JPEG strips."""
        return {
            WIDTH: 53, LENGTH: 37, BITS: (8,) * samples, PHOTOMETRIC: photometric, SAMPLES: samples,
            COMPRESSION: 7, ROWS_PER_STRIP: 16, **more,
        }  # fmt: skip

    def test_colours_are_those_of_the_page(self):
        """YCbCr is converted and RGB is not, whatever the strips say of themselves."""
        smooth = np.stack([COLUMNS * 4, ROWS * 6, 255 - COLUMNS * 2], axis=2).astype(np.uint8)
        ycc = self.strips(smooth, 16, subsampling="444")
        raster = read(build(ycc, self.tags(6, 3)))
        assert np.abs(raster.pixels.astype(int) - smooth).mean() < 2
        plain = self.strips(smooth, 16, colorspace="RGB", outcolorspace="RGB")
        assert np.abs(read(build(plain, self.tags(2, 3))).pixels.astype(int) - smooth).mean() < 2

    def test_gray_and_twelve_bits(self):
        """One channel, and samples deeper than libtiff decodes."""
        smooth = (COLUMNS * 4).astype(np.uint8)
        raster = read(build(self.strips(smooth, 16), self.tags(1, 1)))
        assert np.abs(raster.pixels[..., 0].astype(int) - smooth).mean() < 2
        deep = self.strips(smooth.astype(np.uint16) * 16, 16, bitspersample=12)
        raster = read(build(deep, {**self.tags(1, 1), BITS: 12}))
        assert np.abs(raster.pixels[..., 0].astype(int) - smooth).mean() < 2

    def test_damage_that_libtiff_overlooks_is_found(self):
        """A strip that ends early but well, is too small, or no JPEG is refused."""
        strips = self.strips(RGB, 16)
        half = strips[1][: len(strips[1]) * 2 // 3].rstrip(b"\xff") + b"\xff\xd9"
        assert code_of(build([strips[0], half, strips[2]], self.tags(6, 3))) == "truncated"
        small = self.strips(RGB[:, :20], 16)
        assert code_of(build(small, self.tags(6, 3))) == "corrupt"
        large = self.strips(np.tile(RGB, (3, 3, 1)), 100)
        assert code_of(build(large * 3, self.tags(6, 3))) == "corrupt"
        assert code_of(build([b"nothing", *strips[1:]], self.tags(6, 3))) == "corrupt"

    def test_the_older_compression_is_read_where_it_holds_a_whole_jpeg(self):
        """Its page is often wrong about the colours; the JPEG's own marker counts."""
        (jpeg,) = self.strips(RGB, 64)
        tags = self.tags(2, 3) | {COMPRESSION: 6, ROWS_PER_STRIP: 37, 513: 8}
        pixels = read(build([jpeg], tags)).pixels
        assert np.abs(pixels.astype(int) - imagecodecs.jpeg8_decode(jpeg)).max() == 0
        assert code_of(build([jpeg], {**tags, 513: 20})) == "unsupported"


class TestYcbcr:
    @pytest.mark.parametrize("orientation", [1, 3, 6])
    def test_ycbcr_without_jpeg(self, orientation):
        """It is converted, and stays as stored: libtiff would turn it by half."""
        luma, rest = RGB[..., :1], np.full((37, 53, 2), 128, np.uint8)
        tags = {
            WIDTH: 53, LENGTH: 37, BITS: (8, 8, 8), PHOTOMETRIC: 6, SAMPLES: 3, 530: (1, 1),
            ORIENTATION: orientation,
        }  # fmt: skip
        raster = read(build([np.dstack([luma, rest]).tobytes()], tags))
        assert np.abs(raster.pixels.astype(int) - np.repeat(luma, 3, axis=2)).max() <= 1
        assert raster.orientation == orientation

    def test_a_strip_that_unpacks_to_too_little_is_truncated(self):
        """Asked for RGB, libtiff would show it as far as it goes."""
        raw = np.full((37, 53, 3), 128, np.uint8).tobytes()
        tags = {
            WIDTH: 53, LENGTH: 37, BITS: (8, 8, 8), PHOTOMETRIC: 6, SAMPLES: 3, 530: (1, 1), COMPRESSION: 8,
        }  # fmt: skip
        assert read(build([bytes(imagecodecs.zlib_encode(raw))], tags)).mode == "RGB"
        assert code_of(build([bytes(imagecodecs.zlib_encode(raw[:-99]))], tags)) == "truncated"
        assert code_of(build([b"no zlib at all"], tags)) == "corrupt"


class TestDirectory:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("is_big", [False, True])
    def test_tags_are_changed_in_a_copy(self, order, is_big):
        """A value is replaced, a tag is taken away, and the original stays."""
        data = simple(RGB, {ORIENTATION: 6, FORMAT: (1, 1, 1)}, order=order, is_big=is_big)
        changed = bytes(tiff_directory.with_tags(data, {ORIENTATION: 1, FORMAT: None}))
        tags = tiff.read_tags(changed)
        assert tags[ORIENTATION] == (1,)
        assert FORMAT not in tags
        assert tiff.read_tags(data)[ORIENTATION] == (6,)
        assert tiff_directory.with_tags(data, {99: 1}) is data


class TestHostileBytes:
    WHOLE = (
        simple(RGB, {EXTRA: None}),
        simple(GRAY, {PHOTOMETRIC: 0}, is_big=True),
        simple(ALPHA, {EXTRA: 1}, order=">"),
    )

    @given(st.sampled_from(WHOLE), st.data())
    def test_every_input_ends_as_pixels_or_a_known_code(self, data, draw):
        """Directories are where most of the harm is done."""
        data = bytearray(data)
        start = draw.draw(st.sampled_from([0, max(0, len(data) - 260)]))
        for _ in range(draw.draw(st.integers(1, 4))):
            place = draw.draw(st.integers(start, len(data) - 1))
            data[place : place + 4] = draw.draw(st.binary(min_size=1, max_size=4))
        try:
            raster = read_tiff(bytes(data), 4_000_000)
        except CorruptImageError as error:
            known = error.code in REJECT_CODES
        else:
            known = raster.pixels.dtype == np.uint8
        assert known
