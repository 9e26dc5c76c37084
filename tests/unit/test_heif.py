"""HEIC and AVIF: what their container says of the picture is done once, and no pixel is invented."""

import contextlib
import io
import itertools
import struct

import numpy as np
import pytest
import pyvips
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ingest.build import heif, heif_picture, heif_turn, hevc, pillow
from ingest.build.heif_items import find_pixels, read_listing
from ingest.build.image import shrink_image, shrink_pixels
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe
from tests.heif_files import assembled, clap, encoded, imir, irot, ispe, nclx, one_piece, tiled

BOTH = ["HEIC", "AVIF"]
RECIPE = Recipe(size=64, fit="stretch")
EXIF_SIDEWAYS = b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + bytes(4)
APERTURE, HALF_PIXEL = clap(60, 40, 10, -7), clap(61, 40, 1, 1, over=2)


def scene(width, height):
    """Return a picture of which each corner looks different."""
    rows, columns = np.mgrid[0:height, 0:width]
    corner = (columns < width // 3) & (rows < height // 3)
    return np.stack(
        [columns * 200 // width + 20, rows * 200 // height + 20, corner * 180 + 30], axis=2
    ).astype(np.uint8)


def done_by_hand(pixels, transforms):
    """Do what boxes say, one after another: ISO/IEC 23008-12, 6.5.9, 6.5.10 and 6.5.12."""
    for box in transforms:
        if box[4:8] == b"irot":
            pixels = np.rot90(pixels, box[8])
        elif box[4:8] == b"imir":
            pixels = pixels[::-1] if box[8] == 0 else pixels[:, ::-1]
        else:
            width, _, height, _, right, over, down, _ = struct.unpack(">IIIIiIiI", box[8:])
            left = (pixels.shape[1] - width + 2 * right // over) // 2
            top = (pixels.shape[0] - height + 2 * down // over) // 2
            pixels = pixels[top : top + height, left : left + width]
    return pixels


def rejection(data, recipe=RECIPE):
    """Return the refusal of a file."""
    with pytest.raises(CorruptImageError) as caught:
        shrink_image(data, recipe)
    assert "\n" not in str(caught.value)
    return caught.value


TURNS = [
    [irot(quarters), *mirrors]
    for quarters, mirrors in itertools.product(range(4), ([], [imir(0)], [imir(1)]))
]


class TestTransforms:
    @pytest.mark.parametrize("name", BOTH)
    @pytest.mark.parametrize("turns", TURNS, ids=lambda turns: "".join(str(box[8]) for box in turns))
    def test_crops_rotations_and_mirrors_are_done_once_in_the_order_of_the_file(self, name, turns):
        """Each way round, before an aperture and after one; the EXIF orientation beside them is ignored."""
        pixels = scene(96, 80)
        orders = [turns, turns[::-1], [APERTURE, *turns], [*turns, APERTURE], [HALF_PIXEL, *turns]]
        for transforms in orders:
            expected = done_by_hand(pixels, transforms)
            height, width = expected.shape[:2]
            data = one_piece(name, pixels, *transforms, exif=EXIF_SIDEWAYS)
            made = shrink_image(data, Recipe(size=64)).provenance
            assert (made.source_width, made.source_height, made.notes) == (width, height, ())
            square = Recipe(size=min(width, height))
            left, top = (width - square.size) // 2, (height - square.size) // 2
            if (width - height) % 2 == 0:
                part = expected[top : top + square.size, left : left + square.size].astype(int)
                assert np.abs(shrink_pixels(data, square) - part).mean() < 4

    def test_libheif_reads_the_files_of_these_tests_alike(self):
        """Left to do it itself, it crops and turns as is done by hand here."""
        pixels = scene(96, 80)
        for transforms in ([APERTURE, irot(1), imir(0)], [imir(1), irot(3), APERTURE]):
            data = one_piece("HEIC", pixels, *transforms)
            pillow._load_plugin("HEIC")
            shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
            assert np.abs(shown - done_by_hand(pixels, transforms)).mean() < 4

    @pytest.mark.parametrize("name", BOTH)
    def test_the_receipt_names_the_turn(self, name):
        """What the container turns is counted as an orientation."""
        made = shrink_image(one_piece(name, scene(96, 80), irot(3), exif=EXIF_SIDEWAYS), RECIPE).provenance
        assert (made.orientation, made.source_width, made.source_height) == (6, 80, 96)

    @pytest.mark.parametrize("box", [clap(97, 80), clap(60, 40, 50), clap(0, 40), b"\0\0\0\x09clap\0"])
    def test_an_aperture_that_is_not_within_the_picture_is_noted(self, box):
        """Nothing is cropped, for every pixel is there."""
        place = heif_turn.place([(box[4:8], box[8:])], 96, 80)
        assert (place.box, place.orientation) == ((0, 0, 96, 80), 1)
        assert "clap" in place.notes[0]

    def test_tiles_are_put_together_and_then_turned(self):
        """A grid is cropped and turned as one picture."""
        pixels = scene(256, 128)
        tiles = [pixels[:, :128], pixels[:, 128:]]
        data = tiled("HEIC", [np.ascontiguousarray(tile) for tile in tiles], irot(1), columns=2)
        made = shrink_pixels(data, Recipe(size=128)).astype(int)
        assert np.abs(made - np.rot90(pixels)[64:192]).mean() < 4


# ---- colours

# CSS Color 4, 17: from the linear light of each space to that of sRGB.
P3_TO_SRGB = np.array(
    [[1.2249402, -0.2249402, 0], [-0.0420570, 1.0420570, 0], [-0.0196376, -0.0786360, 1.0982736]]
)
BT2020_TO_SRGB = np.array(
    [
        [1.6604910, -0.5876411, -0.0728499],
        [-0.1245505, 1.1328999, -0.0083494],
        [-0.0181508, -0.1005789, 1.1187297],
    ]
)


def srgb_light(stored):
    """Return light: IEC 61966-2-1."""
    return np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)


def pq_light(stored):
    """Return light as a share of 203 cd/m2: SMPTE ST 2084."""
    root = stored ** (1 / 78.84375)
    return (
        10_000
        / 203
        * (np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)) ** (1 / 0.1593017578125)
    )


def hlg_light(stored):
    """Return light as a share of 203 cd/m2: ARIB STD-B67 on a screen of 1,000 cd/m2."""
    scene_light = np.where(
        stored <= 0.5, stored**2 / 3, (np.exp((stored - 0.55991073) / 0.17883277) + 0.28466892) / 12
    )
    return 1000 / 203 * scene_light**1.2


def to_srgb(pixels, curve, matrix):
    """Return pixels of sRGB, clipped."""
    light = np.clip(np.clip(curve(pixels / 255), 0, 1) @ matrix.T, 0, 1)
    level = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.rint(level * 255).astype(np.uint8)


def ciede2000(ours, theirs):
    """Return the mean difference, by libvips."""
    one, other = (
        pyvips.Image.new_from_array(np.ascontiguousarray(pixels)).copy(interpretation="srgb")
        for pixels in (ours, theirs)
    )
    return one.dE00(other).avg()


COLOURS = np.repeat(np.repeat(np.random.default_rng(5).integers(30, 226, (4, 4, 3)), 16, 0), 16, 1).astype(
    np.uint8
)


class TestColours:
    @pytest.mark.parametrize("name", BOTH)
    @pytest.mark.parametrize(
        ("points", "curve", "matrix", "profile"),
        [
            ((12, 13), srgb_light, P3_TO_SRGB, "Display P3"),
            ((9, 13), srgb_light, BT2020_TO_SRGB, "BT.2020"),
            ((9, 14), srgb_light, BT2020_TO_SRGB, "BT.2020"),  # BT.709's curve is read as sRGB's
            ((1, 5), lambda stored: stored**2.8, np.eye(3), "BT.709, gamma 2.8"),
            ((9, 16), pq_light, BT2020_TO_SRGB, "BT.2020 PQ"),
            ((9, 18), hlg_light, BT2020_TO_SRGB, "BT.2020 HLG"),
        ],
    )
    def test_code_points_are_converted(self, name, points, curve, matrix, profile):
        """As the standards' formulas have it, within a CIEDE2000 of 2; high dynamic range is noted."""
        data = one_piece(name, COLOURS, nclx(*points), quality=100)
        stored = shrink_pixels(one_piece(name, COLOURS, nclx(1, 13), quality=100), RECIPE)
        made = shrink_image(data, RECIPE).provenance
        assert (made.profile, made.profile_use) == (profile, "converted")
        assert ["dynamic range" in note for note in made.notes] == [True] * (points[1] in {16, 18})
        assert ciede2000(shrink_pixels(data, RECIPE), to_srgb(stored, curve, matrix)) < 0.7
        assert ciede2000(shrink_pixels(data, RECIPE), stored) > 2

    @pytest.mark.parametrize("name", BOTH)
    def test_display_p3_is_that_of_libvips(self, name):
        """Its own profile of Display P3, through its own call of Little CMS."""
        data = one_piece(name, COLOURS, nclx(12, 13), quality=100)
        stored = shrink_pixels(one_piece(name, COLOURS, nclx(1, 13), quality=100), RECIPE)
        image = pyvips.Image.new_from_array(np.ascontiguousarray(stored)).copy(interpretation="srgb")
        theirs = image.icc_transform("srgb", input_profile="p3", intent="relative").numpy()
        assert ciede2000(shrink_pixels(data, RECIPE), theirs) < 0.5

    @pytest.mark.parametrize("name", BOTH)
    @pytest.mark.parametrize(("primaries", "transfer"), [(1, 13), (1, 1), (2, 2)])
    def test_colours_of_srgb_stay(self, name, primaries, transfer):
        """Nor are those touched that nothing is said of."""
        made = shrink_image(one_piece(name, COLOURS, nclx(primaries, transfer)), RECIPE).provenance
        assert (made.profile, made.profile_use, made.notes) == (None, "none", ())

    def test_unknown_code_points_are_noted(self):
        """Numbers of which nobody knows what they mean stay."""
        for points in ((0, 13), (1, 9), (99, 99)):
            (note,) = shrink_image(one_piece("AVIF", COLOURS, nclx(*points)), RECIPE).provenance.notes
            assert f"primaries {points[0]} and transfer {points[1]}" in note

    @pytest.mark.parametrize("name", BOTH)
    def test_an_embedded_profile_counts_before_code_points(self, name):
        """MIAF has it so where both are there."""
        icc = pyvips.Operation.call("profile_load", "srgb")
        profile = struct.pack(">I", 12 + len(icc)) + b"colrprof" + icc
        made = shrink_image(one_piece(name, COLOURS, nclx(9, 16), profile), RECIPE).provenance
        assert (made.profile_use, made.notes) == ("is_srgb", ())

    def test_code_points_of_a_tile_count_for_the_grid(self):
        """Where the grid itself says nothing."""
        payload, settings = encoded("HEIC", COLOURS.tobytes(), COLOURS.shape)
        items = [
            (b"grid", struct.pack(">BBBBHH", 0, 0, 0, 0, 64, 64), [ispe(64, 64)]),
            (b"hvc1", payload, [settings, ispe(64, 64), nclx(12, 13)]),
        ]
        data = assembled("HEIC", items, references=[(b"dimg", 1, [2])])
        assert shrink_image(data, RECIPE).provenance.profile == "Display P3"


# ---- sizes and depths


class TestHeader:
    @pytest.mark.parametrize("name", BOTH)
    def test_too_large_by_the_header(self, name, monkeypatch):
        """No decoder is asked."""
        monkeypatch.setattr(pillow, "read", lambda *_: pytest.fail("decoded"))
        for size in ((60_000, 60_000), (60_000, 4_000)):
            assert rejection(one_piece(name, COLOURS, size=size)).code == "too_large"
        tile = tiled(name, [COLOURS], columns=1)
        at = tile.rindex(b"ispe") + 8
        assert rejection(tile[:at] + struct.pack(">II", 60_000, 60_000) + tile[at + 8 :]).code == "too_large"

    def test_a_long_avif_is_unsupported(self):
        """It has few pixels, but more a side than libavif takes; the recipe's own limit comes before."""
        for size in ((1, 65_500), (65_500, 2)):
            data = one_piece("AVIF", COLOURS, size=size)
            error = rejection(data)
            assert (error.code, "32,768" in str(error)) == ("unsupported", True)
            assert rejection(data, Recipe(max_aspect=100)).code == "too_elongated"

    def test_bits_are_those_of_the_coder(self):
        """av1C and hvcC say how deep, whatever pixi says; pixi where the coder's header is not there."""
        pixi = b"\0\0\0\x10pixi\0\0\0\0\3\x0c\x0c\x0c"
        for name, kind, at, byte, bits in (
            ("AVIF", b"av1C", 2, 0x00, 8),
            ("AVIF", b"av1C", 2, 0x40, 10),
            ("AVIF", b"av1C", 2, 0x60, 12),
            ("HEIC", b"hvcC", 17, 0xF8, 8),
            ("HEIC", b"hvcC", 17, 0xFA, 10),
        ):
            data = bytearray(one_piece(name, COLOURS, pixi))
            data[data.index(kind) + 4 + at] = byte
            assert heif_picture.read_stated(bytes(data)).bits == bits
        assert heif_picture.read_stated(bytes(data).replace(b"hvcC", b"xxxx")).bits == 12

    def test_bits_of_a_deep_heic_reach_the_receipt(self):
        """Ten bits are written by pillow-heif of sixteen."""
        pillow._load_plugin("HEIC")
        import pillow_heif

        deep = COLOURS.astype(np.uint16) << 8
        file = io.BytesIO()
        pillow_heif.from_bytes("RGB;16", (64, 64), deep.tobytes()).save(file)
        assert shrink_image(file.getvalue(), RECIPE).provenance.source_bits == 10


class TestBrands:
    @pytest.mark.parametrize("name", BOTH)
    @pytest.mark.parametrize("brand", [b"mif1", b"miaf", b"mif2", b"MiHB"])
    def test_the_coder_says_what_it_is(self, name, brand):
        """Whatever the main brand, and whether the coder's own brand is among the others or not."""
        data = one_piece(name, scene(96, 80), irot(1))
        data = data[:8] + brand + data[12:]
        own = {"HEIC": b"heic", "AVIF": b"avif"}[name]
        for file in (data, data.replace(own + b"mif1miaf", b"mif1mif1miaf")):
            made = shrink_image(file, RECIPE).provenance
            assert (made.source_format, made.orientation) == (name, 8)

    def test_other_coders_are_named(self):
        """A file whose picture nobody here decodes is no damaged one."""
        data = one_piece("HEIC", COLOURS).replace(b"\0\0hvc1\0", b"\0\0unci\0")
        error = rejection(data)
        assert (error.code, "uncompressed" in str(error)) == ("unsupported", True)

    def test_a_sequence_is_what_its_track_says(self):
        """The first of the track is shown, not the item beside it."""
        pillow._load_plugin("AVIF")
        file = io.BytesIO()
        first, second = (Image.fromarray(scene(96, 80)), Image.fromarray(scene(96, 80)[::-1]))
        first.save(file, "AVIF", save_all=True, append_images=[second])
        data = file.getvalue().replace(struct.pack(">II", 96, 80), struct.pack(">II", 48, 40), 1)
        made = shrink_image(data, RECIPE).provenance
        assert (made.source_width, made.source_height, made.frames_dropped) == (96, 80, 1)


# ---- what is not there


class TestMissing:
    @pytest.mark.parametrize("name", BOTH)
    def test_cut_files_are_truncated(self, name):
        """Wherever the cut is: among the pixels with the share of them, before with none."""
        data = one_piece(name, scene(96, 80))
        ((begin, end),) = find_pixels(data)
        error = rejection(data[: begin + (end - begin) * 3 // 10])
        assert error.code == "truncated"
        assert f" {(end - begin) * 3 // 10 * 100 // (end - begin)}% of its bytes" in str(error)
        assert " 99% of its bytes" in str(rejection(data[:-1]))
        assert " 0% of its rows" in str(rejection(data[:100]))
        assert rejection(data[: data.index(b"meta") + 2]).code == "truncated"
        assert rejection(data[:20]).code == rejection(data[: data.index(b"meta") - 4]).code == "truncated"

    @pytest.mark.parametrize("name", BOTH)
    def test_extents_outside_the_file_are_truncated(self, name):
        """A list of parts that reach behind the end says that the end is missing."""
        data = bytearray(one_piece(name, scene(96, 80)))
        at = data.index(b"iloc") + 22
        length = int.from_bytes(data[at : at + 4], "big")
        assert length == len(encoded(name, scene(96, 80).tobytes(), (80, 96, 3))[0])
        data[at : at + 4] = (2 * length).to_bytes(4, "big")
        assert " 50% of its bytes" in str(rejection(bytes(data)))

    @pytest.mark.parametrize("name", BOTH)
    def test_rows_of_tiles_that_are_there_are_counted(self, name):
        """Those above the first tile that is cut."""
        tiles = [np.ascontiguousarray(scene(128, 512)[at : at + 128]) for at in range(0, 512, 128)]
        data = tiled(name, tiles, columns=1)
        shrink_image(data, RECIPE)
        spans = find_pixels(data)
        for missing, (_, end) in enumerate(spans):
            error = rejection(data[: end - 1])
            assert error.code == "truncated"
            assert f" {25 * missing}% of its rows" in str(error)

    def test_what_is_cut_beside_the_picture_costs_nothing(self):
        """A thumbnail that is not whole is no part of the picture."""
        payload, settings = encoded("AVIF", COLOURS.tobytes(), COLOURS.shape)
        part = (b"av01", payload, [settings, ispe(64, 64)])
        data = assembled("AVIF", [part, part], references=[(b"thmb", 2, [1])])
        assert shrink_image(data[:-10], RECIPE).provenance.notes == ()

    def test_zeros_in_a_unit_of_hevc_are_corrupt(self):
        """A unit cannot hold three, but for those that a writer has left behind it."""
        data = one_piece("HEIC", scene(96, 80))
        ((begin, end),) = find_pixels(data)
        middle = (begin + end) // 2
        error = rejection(data[:middle] + bytes(3) + data[middle + 3 :])
        assert (error.code, "HEVC" in str(error)) == ("corrupt", True)

    @pytest.mark.parametrize(
        ("unit", "expected"),
        [
            (b"\x26\1\0\0\3\0\0\3\1\x80", False),
            (b"\x26\1\0\0\3", False),
            (b"\x26\1\x80\0\0\0", False),
            (b"\x26\1\0\0\2\x80", True),
            (b"\x26\1\x80\0\0\0\0\0\0\0", True),
        ],
    )
    @pytest.mark.parametrize("size", [2, 4])
    def test_bytes_that_a_unit_can_have(self, unit, expected, size):
        """Behind another unit, whose length is no part of it."""
        units = b"".join(len(part).to_bytes(size, "big") + part for part in (b"\x40\1\x80", unit))
        assert hevc.has_impossible_bytes(units, size) == expected

    def test_a_tile_that_does_not_decode_is_corrupt(self):
        """Its place would stay empty; a tile that is of that colour by right is none such."""
        tile, green = COLOURS, np.zeros_like(COLOURS)
        green[..., 1] = 135  # what YCbCr of zeros is
        whole = tiled("HEIC", [tile, tile, green, tile], columns=2)
        assert shrink_image(whole, RECIPE).provenance.notes == ()
        begin, end = find_pixels(whole)[3]
        broken = whole[:begin] + b"\xff" * (end - begin) + whole[end:]
        error = rejection(broken)
        assert (error.code, "tile" in str(error)) == ("corrupt", True)


SEEDS = [tiled(name, [COLOURS] * 2, irot(1), clap(60, 40), nclx(12, 16), columns=2) for name in BOTH]


class TestHostileBytes:
    @given(st.sampled_from(SEEDS), st.integers(0, 700), st.integers(0, 700), st.binary(max_size=8))
    def test_no_bytes_upset_whoever_reads_them(self, data, cut, position, patch):
        """Cut and patched anywhere, the container is read as far as it goes."""
        data = data[:position] + patch + data[position + len(patch) : len(data) - cut]
        stated = read_listing(data) and None
        with contextlib.suppress(CorruptImageError):
            stated = heif_picture.read_stated(data)
        if stated is not None:
            heif_picture.without_transforms(data, stated)
            heif_turn.place(stated.transforms, 100, 80)


def test_places_of_tiles():
    """The last ones are cut where the picture ends; those outside have none."""
    grid = heif_picture.Grid(2, 2, (4, 5, 6, 7))
    assert heif._tile_boxes(grid, (64, 64), 100, 64) == [(4, (0, 0, 64, 64)), (5, (64, 0, 100, 64))]
