"""The image kernel: geometry, orientations, fits, fidelity, and what it refuses."""

import csv
import io
import math
import re
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import imagecodecs
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from ingest.build import pillow, turbo
from ingest.build.geometry import plan_geometry
from ingest.build.image import (
    check_single_pil,
    decode_jpeg,
    encode_jpeg,
    engine_versions,
    shrink_image,
    shrink_pixels,
)
from ingest.build.jpeg import read_jpeg_header
from ingest.build.sample import Shrunk
from ingest.errors import REJECT_CODES, CorruptImageError, DeviceError
from ingest.recipe import DEFAULT_MAX_PIXELS, Recipe

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CODES = set(REJECT_CODES)
# Accepted by decoders that overlook bytes left over among the pixels: this picture is garbled.
DAMAGED = {"tricky/corrupt-meta/hopper_bad_exif.jpg"}
# Refused by other decoders, and wanted here; of the last one nothing but the end marker is missing.
WANTED = {
    "tricky/other-format/chelsea.jxl",
    "tricky/process/cat-3449999_640_grayscale_12bit.jpg",
    "tricky/process/monkey12.jpg",
    "tricky/truncated/truncated_jpeg.jpg",
}
STORE_AS = {  # how an upright picture is stored so that the orientation turns it back
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: image.transpose(1, 0, 2)[::-1],
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: image.transpose(1, 0, 2)[:, ::-1],
}


def scene(width, height):
    """Return a smooth picture without any symmetry: uint8 (height, width, 3)."""
    rows, columns = np.mgrid[0:height, 0:width] / max(width, height)
    red = 40 + 180 * columns
    green = 40 + 180 * rows
    blue = 128 + 90 * np.sin(9 * columns + 5 * rows * rows)
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def exif(orientation, order="<", kind=3):
    """Return a TIFF block with one entry: the orientation, as a short or as a long (`kind` 4)."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "IH", 8, 1)
    value = struct.pack(order + ("H2x" if kind == 3 else "I"), orientation)
    return head + struct.pack(order + "HHI", 0x0112, kind, 1) + value + bytes(4)


def jpeg(width=640, height=480, quality=95, orientation=None):
    """Return a JPEG of the scene."""
    block = None if orientation is None else exif(orientation)
    return encode_jpeg(scene(width, height), quality, block)


def saved(image, name, **options):
    """Return what Pillow writes."""
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def tagged(name, orientation):
    """Return a picture of a format with an orientation, None for no EXIF block at all."""
    block, image = None if orientation is None else exif(orientation), Image.fromarray(scene(96, 64))
    options = {} if block is None else {"exif": b"Exif\0\0" + block}
    if name == "JPEG":
        return jpeg(96, 64, orientation=orientation)
    if name == "12-bit JPEG":
        deep = imagecodecs.jpeg8_encode(scene(96, 64).astype(np.uint16) << 4, level=95, bitspersample=12)
        marked = jpeg(96, 64, orientation=orientation)
        return (deep[:2] if block is None else marked[: 2 + 10 + len(block)]) + deep[2:]
    if name == "WebP":
        chunks = imagecodecs.webp_encode(scene(96, 64), lossless=True)[12:]
        if block is not None:
            chunks += b"EXIF" + struct.pack("<I", len(block)) + block
        return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks
    if name == "AVIF":
        pillow._load_plugin("AVIF")
    if name == "TIFF":
        options = {} if block is None else {"tiffinfo": {0x0112: orientation}}
    return saved(image, name, **options)


def rejection(data, recipe=None):
    """Return the error that shrinking raises."""
    with pytest.raises(CorruptImageError) as caught:
        shrink_image(data, recipe or Recipe())
    return caught.value


def outcome(data, recipe):
    """Return the sample or the refusal; anything else that is raised fails the test."""
    try:
        return shrink_image(data, recipe)
    except CorruptImageError as error:
        return error


def psnr_db(image, expected):
    """Return the peak signal-to-noise ratio in dB."""
    error = np.mean((image.astype(float) - np.asarray(expected, dtype=float)) ** 2)
    return 10 * math.log10(255**2 / max(error, 1e-9))


sides = st.integers(1, 12_000)
recipes = st.builds(
    Recipe,
    size=st.integers(1, 512),
    fit=st.sampled_from(["cover", "contain", "stretch"]),
    fidelity=st.sampled_from(["high", "fast", "exact"]),
)


class TestGeometry:
    @given(sides, sides, recipes)
    def test_box_is_centred_and_inside(self, width, height, recipe):
        """The box lies within the picture, and its margins are equal left and right, top and bottom."""
        left, top, right, bottom = plan_geometry(width, height, recipe).box
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert (left, top) == (width - right, height - bottom)

    @given(sides, sides, recipes)
    def test_size_fits(self, width, height, recipe):
        """Cover and stretch fill the square; contain touches it on at least one side and never exceeds it."""
        plan = plan_geometry(width, height, recipe)
        assert max(plan.width, plan.height) == recipe.size
        assert min(plan.width, plan.height) >= 1
        if recipe.fit != "contain":
            assert min(plan.width, plan.height) == recipe.size

    @given(sides, sides, recipes)
    def test_scale_leaves_what_fidelity_promises(self, width, height, recipe):
        """The decoded box has 3x (high) or 1x (fast) the target in each direction, and no more."""
        plan = plan_geometry(width, height, recipe)
        spare = min((plan.box[2] - plan.box[0]) / plan.width, (plan.box[3] - plan.box[1]) / plan.height)
        needed = {"high": 3, "fast": 1, "exact": math.inf}[recipe.fidelity]
        scale = plan.scale_denominator
        assert scale == 1 or spare / scale >= needed
        assert scale == 8 or spare / (2 * scale) < needed

    @given(sides, sides, recipes)
    def test_turning_the_picture_turns_the_plan(self, width, height, recipe):
        """Swapping width and height swaps the box and the size, and keeps the scale."""
        plan, turned = plan_geometry(width, height, recipe), plan_geometry(height, width, recipe)
        left, top, right, bottom = plan.box
        assert turned.box == (top, left, bottom, right)
        assert (turned.width, turned.height) == (plan.height, plan.width)
        assert turned.scale_denominator == plan.scale_denominator

    @pytest.mark.parametrize(
        ("width", "height", "fidelity", "scale"),
        [
            (4000, 3000, "high", 4),
            (4000, 3000, "fast", 8),
            (4000, 3000, "exact", 1),
            (4000, 2687, "high", 2),
            (4000, 2688, "high", 4),
            (12000, 9000, "high", 8),
            (1344, 1343, "high", 1),
            (447, 448, "fast", 1),
        ],
    )
    def test_known_scales(self, width, height, fidelity, scale):
        """Pictures of known size are decoded at the scale that the documents name."""
        assert plan_geometry(width, height, Recipe(fidelity=fidelity)).scale_denominator == scale

    def test_shortest_crops_nothing(self):
        """Shortest scales the shorter side to the size and keeps the whole picture."""
        plan = plan_geometry(4000, 3000, Recipe(fit="shortest"))
        assert plan.box == (0, 0, 4000, 3000)
        assert (plan.width, plan.height) == (299, 224)

    def test_absurd_shape_is_refused(self):
        """A sample that would be longer than a JPEG can be is refused before anything is decoded."""
        with pytest.raises(CorruptImageError) as caught:
            plan_geometry(10_000, 10, Recipe(fit="shortest"))
        assert caught.value.code == "too_large"


class TestOrientation:
    @pytest.mark.parametrize("fit", ["cover", "contain", "stretch", "shortest"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_all_eight_come_out_upright(self, orientation, fit):
        """Stored in any of eight ways, the picture equals the upright one (within 3 levels: two JPEGs)."""
        recipe = Recipe(size=64, fit=fit)
        upright = scene(400, 304)
        stored = np.ascontiguousarray(STORE_AS[orientation](upright))
        data = encode_jpeg(stored, 100, exif(orientation))
        shrunk = shrink_image(data, recipe)
        assert (
            shrunk.provenance.orientation,
            shrunk.provenance.source_width,
            shrunk.provenance.source_height,
        ) == (orientation, 400, 304)
        expected = shrink_pixels(encode_jpeg(upright, 100), recipe).astype(int)
        assert np.abs(shrink_pixels(data, recipe) - expected).max() <= 3

    @pytest.mark.parametrize("value", [0, 9, 65535])
    def test_impossible_values_mean_as_stored(self, value):
        """An orientation outside 1 to 8 turns nothing."""
        shrunk = shrink_image(jpeg(320, 240, orientation=value), Recipe(size=32))
        assert (shrunk.provenance.orientation, shrunk.provenance.source_width) == (1, 320)

    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("kind", [3, 4])
    def test_byte_orders_and_types(self, order, kind):
        """Either byte order is read, and a long where the standard wants a short."""
        data = encode_jpeg(scene(320, 240), 90, exif(6, order, kind))
        assert read_jpeg_header(data).orientation == 6

    @pytest.mark.parametrize(
        "block", [b"", b"II", b"II*\0", exif(6)[:12], b"II*\0\xff\xff\xff\xff\xff\xff", b"XX" + exif(6)[2:]]
    )
    def test_broken_exif_is_ignored(self, block):
        """A broken EXIF block costs the orientation, not the picture."""
        made = shrink_image(encode_jpeg(scene(64, 48), 90, block), Recipe(size=32)).provenance
        assert made.orientation == 1
        assert made.notes == ("The EXIF block cannot be read: the picture stays as stored.",)

    @pytest.mark.parametrize("name", ["JPEG", "12-bit JPEG", "PNG", "WebP", "TIFF"])
    @pytest.mark.parametrize(
        ("orientation", "word"), [(0, "is 0"), (9, "is 9"), (None, None), (1, None), (6, None)]
    )
    def test_a_broken_orientation_is_noted(self, name, orientation, word):
        """In every format that has EXIF: a value that is none of the eight leaves one note, others none."""
        made = shrink_image(tagged(name, orientation), Recipe(size=32)).provenance
        assert made.orientation == (6 if orientation == 6 else 1)
        assert len(made.notes) == (word is not None)
        assert word is None or word in made.notes[0]

    def test_a_jpeg_that_pillow_decodes_has_one_note(self, monkeypatch):
        """Sampling factors that TurboJPEG refuses bring no second note."""

        def refuse(*_):
            raise turbo.OddSamplingError("unsupported", "odd")

        monkeypatch.setattr(turbo, "decode", refuse)
        (note,) = shrink_image(jpeg(96, 64, orientation=9), Recipe(size=32)).provenance.notes
        assert "is 9" in note

    def test_avif_is_turned_by_its_container(self):
        """Its EXIF block says nothing of its own, so there is nothing to note."""
        made = shrink_image(tagged("AVIF", 9), Recipe(size=32)).provenance
        assert (made.orientation, made.notes) == (1, ())

    def test_entry_beyond_the_directory_is_not_read(self):
        """A directory that claims no entries has none, whatever bytes follow it."""
        block = bytearray(exif(6))
        block[8:10] = b"\0\0"
        header = read_jpeg_header(encode_jpeg(scene(64, 48), 90, bytes(block)))
        assert (header.orientation, header.notes) == (1, ())

    def test_png_is_turned(self):
        """The eXIf chunk of a PNG counts as the EXIF of a JPEG does."""
        upright = scene(120, 80)
        stored = Image.fromarray(np.ascontiguousarray(STORE_AS[6](upright)))
        data = saved(stored, "PNG", exif=b"Exif\0\0" + exif(6))
        recipe = Recipe(size=32, fit="stretch")
        assert shrink_image(data, recipe).provenance.orientation == 6
        expected = shrink_pixels(saved(Image.fromarray(upright), "PNG"), recipe).astype(int)
        assert np.abs(shrink_pixels(data, recipe) - expected).max() <= 1

    def test_tiff_is_turned_once(self):
        """A TIFF, which Pillow turns itself, is not turned again."""
        upright = scene(120, 80)
        stored = Image.fromarray(np.ascontiguousarray(STORE_AS[6](upright)))
        data = saved(stored, "TIFF", tiffinfo={0x0112: 6})
        shrunk = shrink_image(data, Recipe(size=32, fit="stretch"))
        assert (shrunk.provenance.source_width, shrunk.provenance.source_height) == (120, 80)
        expected = shrink_pixels(saved(Image.fromarray(upright), "PNG"), Recipe(size=32, fit="stretch"))
        assert np.abs(shrink_pixels(data, Recipe(size=32, fit="stretch")) - expected.astype(int)).max() <= 1


class TestPixels:
    @pytest.mark.parametrize(
        ("fit", "size"),
        [("cover", (96, 96)), ("contain", (96, 96)), ("stretch", (96, 96)), ("shortest", (128, 96))],
    )
    def test_exact_sizes(self, fit, size):
        """The JPEG has the size that the record states and the fit asks for."""
        shrunk = shrink_image(jpeg(640, 480), Recipe(size=96, fit=fit))
        assert (shrunk.width, shrunk.height) == size
        assert decode_jpeg(shrunk.data).shape == (*size[::-1], 3)

    @pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 7), (1, 1000), (3, 90), (640, 2)])
    def test_small_and_thin_pictures_are_enlarged(self, width, height):
        """No picture is too small or too thin for a full-sized sample."""
        assert decode_jpeg(shrink_image(jpeg(width, height), Recipe()).data).shape == (224, 224, 3)

    @pytest.mark.parametrize(("fidelity", "bar_db"), [("high", 50), ("fast", 35), ("exact", 55)])
    @pytest.mark.parametrize("orientation", [1, 8])
    def test_close_to_full_decode(self, fidelity, bar_db, orientation):
        """Before encoding the pixels are close (in dB) to those of a full decode and one Lanczos resize."""
        noise = np.random.default_rng(5).integers(-25, 25, (1601, 1203, 3))
        rough = np.clip(scene(1203, 1601) + noise, 0, 255).astype(np.uint8)
        data = encode_jpeg(rough, 92, exif(orientation))
        with Image.open(io.BytesIO(data)) as image:
            full = ImageOps.exif_transpose(image)
        side = min(full.size)
        left, top = (full.width - side) / 2, (full.height - side) / 2
        box = (left, top, left + side, top + side)
        expected = full.resize((64, 64), Image.Resampling.LANCZOS, box=box)
        assert psnr_db(shrink_pixels(data, Recipe(size=64, fidelity=fidelity)), expected) > bar_db

    @pytest.mark.parametrize(("fidelity", "scale"), [("high", 4), ("fast", 8), ("exact", 1)])
    def test_record_names_the_scale(self, fidelity, scale):
        """The record names the DCT scale at which the JPEG was decoded."""
        shrunk = shrink_image(jpeg(1200, 1000), Recipe(size=80, fidelity=fidelity))
        assert shrunk.provenance.scale_denominator == scale

    def test_same_bytes_again(self):
        """The same picture and recipe give the same bytes, and another quality gives others."""
        data = jpeg()
        assert shrink_image(data, Recipe()) == shrink_image(data, Recipe())
        assert shrink_image(data, Recipe()).data != shrink_image(data, Recipe(quality=80)).data

    def test_output_is_plain(self):
        """A sample is a baseline 4:2:0 JPEG without EXIF, whatever the raw file was."""
        sample = shrink_image(jpeg(orientation=6), Recipe()).data
        assert read_jpeg_header(sample).kind == (0, 8, 3)
        assert simplejpeg.decode_jpeg_header(sample) == (224, 224, "YCbCr", "420")
        assert b"Exif" not in sample

    def test_histogram_counts_the_pixels(self):
        """256 counts each of R, G and B, and they are those of the pixels before encoding."""
        data = jpeg()
        histogram = np.reshape(shrink_image(data, Recipe()).histogram, (3, 256))
        pixels = shrink_pixels(data, Recipe())
        for channel in range(3):
            counts = np.bincount(pixels[..., channel].ravel(), minlength=256)
            assert (histogram[channel] == counts).all()

    def test_contain_pads_with_the_background(self):
        """Contain leaves equal bars of the background above and below a wide picture."""
        pixels = shrink_pixels(jpeg(400, 200), Recipe(size=64, fit="contain", background=(9, 8, 7)))
        assert (pixels[:16] == (9, 8, 7)).all()
        assert (pixels[48:] == (9, 8, 7)).all()
        assert (pixels[16:48] != (9, 8, 7)).any(axis=2).all()

    def test_gray_becomes_three_equal_channels(self):
        """A gray JPEG becomes RGB with equal channels."""
        data = saved(Image.fromarray(scene(300, 200)).convert("L"), "JPEG")
        pixels = shrink_pixels(data, Recipe(size=64))
        assert (pixels[..., 0] == pixels[..., 1]).all()
        assert (pixels[..., 0] == pixels[..., 2]).all()

    def test_cmyk_is_not_a_negative(self):
        """A CMYK JPEG comes out in its own colours, not inverted."""
        inks = Image.fromarray(scene(300, 200)).convert("CMYK")
        expected = shrink_pixels(saved(inks.convert("RGB"), "PNG"), Recipe(size=64))
        assert psnr_db(shrink_pixels(saved(inks, "JPEG", quality=95), Recipe(size=64)), expected) > 30

    def test_progressive_is_decoded(self):
        """A progressive JPEG gives the pixels of the baseline JPEG with the same coefficients."""
        image = Image.fromarray(scene(700, 500))
        baseline, progressive = (saved(image, "JPEG", progressive=value) for value in (False, True))
        assert read_jpeg_header(progressive).kind[0] == 2
        assert (shrink_pixels(progressive, Recipe(size=64)) == shrink_pixels(baseline, Recipe(size=64))).all()


class TestOtherFormats:
    @pytest.mark.parametrize("name", ["PNG", "BMP", "TIFF", "GIF"])
    def test_format_is_told_from_the_bytes(self, name):
        """Any format that Pillow reads is taken and named, by its content."""
        shrunk = shrink_image(saved(Image.fromarray(scene(90, 60)), name), Recipe(size=32))
        assert (shrunk.provenance.source_format, shrunk.width, shrunk.provenance.scale_denominator) == (
            name,
            32,
            1,
        )

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
    def test_transparency_shows_the_background(self, mode):
        """Where a picture is transparent the background shows, never the colour hidden beneath."""
        hidden = Image.new("RGBA", (40, 40), (255, 0, 0, 0))
        image = hidden.convert(mode) if mode != "P" else Image.new("P", (40, 40), 0)
        options = {"transparency": 0} if mode == "P" else {}
        pixels = shrink_pixels(saved(image, "PNG", **options), Recipe(size=16, background=(0, 90, 180)))
        assert (pixels == (0, 90, 180)).all()

    def test_edges_of_transparency_do_not_bleed(self):
        """Resampling across the edge of a transparent part mixes with the background alone."""
        image = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
        image.paste((0, 0, 255, 255), (0, 0, 32, 64))
        pixels = shrink_pixels(saved(image, "PNG"), Recipe(size=16, background=(0, 0, 255)))
        assert np.abs(pixels.astype(int) - (0, 0, 255)).max() <= 1  # weighted by alpha, in whole numbers

    @pytest.mark.parametrize("level", [0, 1, 128, 255])
    def test_sixteen_bits_are_scaled(self, level):
        """16-bit gray is scaled to 8 bits over its whole range, not clipped to white."""
        gray = Image.fromarray(np.full((40, 40), level * 257, np.uint16))
        assert (shrink_pixels(saved(gray, "PNG"), Recipe(size=16)) == level).all()

    def test_first_frame_of_an_animation(self):
        """Of an animation the first frame is taken."""
        frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "blue")]
        data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
        assert (shrink_pixels(data, Recipe(size=8)) == (255, 0, 0)).all()


def with_junk_before_tables(data):
    """Put stray bytes between the first two segments of a JPEG."""
    end = read_jpeg_header(data).segments[0][2]
    return data[:end] + b"\x01\x02\x03" + data[end:]


class TestHarmlessFaults:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data: data + bytes(1000),
            lambda data: data + data,
            lambda data: data[:-2] + bytes(10) + data[-2:],
            with_junk_before_tables,
            lambda data: with_junk_before_tables(data[:-2] + bytes(10) + data[-2:]),
        ],
        ids=["zeros after", "a second picture after", "padding before the end", "junk in the header", "both"],
    )
    def test_every_pixel_is_there(self, spoil):
        """Junk that costs no pixel changes nothing."""
        data = jpeg()
        assert shrink_image(spoil(data), Recipe()).data == shrink_image(data, Recipe()).data


class TestRefusals:
    @pytest.mark.parametrize("keep", [0.02, 0.1, 0.5, 0.9, 0.999])
    def test_cut_jpeg_is_truncated(self, keep):
        """A JPEG that was cut off is refused, wherever the cut is."""
        data = jpeg(1600, 1200)
        assert rejection(data[: int(len(data) * keep)]).code == "truncated"

    def test_cut_jpeg_with_an_end_marker_is_corrupt(self):
        """An end marker after the cut does not hide that pixels are missing."""
        data = jpeg(1600, 1200)
        assert rejection(data[: len(data) // 2] + b"\xff\xd9").code == "corrupt"

    def test_harmless_fault_does_not_hide_a_cut(self):
        """Junk in the header of a JPEG that was cut off does not save it."""
        data = with_junk_before_tables(jpeg(1600, 1200))
        assert rejection(data[: len(data) // 2]).code == "truncated"

    @pytest.mark.parametrize("name", ["PNG", "BMP", "GIF", "TIFF"])
    def test_cut_files_of_other_formats(self, name):
        """A file of any other format that was cut off is refused too."""
        data = saved(Image.fromarray(scene(300, 200)), name)
        assert rejection(data[: len(data) * 2 // 3]).code in {"truncated", "corrupt"}

    @pytest.mark.parametrize(
        ("data", "code", "words"),
        [
            (b"", "empty", "empty"),
            (b"\xff\xd8", "truncated", "header"),
            (b"\n<!DOCTYPE html><html>403</html>", "not_an_image", "HTML"),
            (b'<?xml version="1.0"?><svg/>', "not_an_image", "SVG"),
            (b"version https://git-lfs.github.com/spec/v1\n", "not_an_image", "Git LFS"),
            (b"just some text", "not_an_image", "a text"),
            (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "truncated", "ends before"),
            (b"\x89PNG\r\n\x1a\n", "truncated", "PNG"),
        ],
    )
    def test_code_and_reason(self, data, code, words):
        """What is no picture is refused with a stable code and a reason that names it."""
        error = rejection(data)
        assert error.code == code
        assert words in error.reason

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
    def test_size_is_checked_in_the_header(self, kind):
        """A few bytes that claim more than 200 megapixels are refused, whatever the format."""
        if kind == "JPEG":
            data = jpeg().replace(struct.pack(">HH", 480, 640), struct.pack(">HH", 15_000, 15_000))
        elif kind == "PNG":
            ihdr = b"IHDR" + struct.pack(">IIBBBBB", 15_000, 15_000, 1, 0, 0, 0, 0)
            crc = struct.pack(">I", zlib.crc32(ihdr))
            data = (
                b"\x89PNG\r\n\x1a\n\0\0\0\r"
                + ihdr
                + crc
                + b"\0\0\0\0IDAT"
                + struct.pack(">I", zlib.crc32(b"IDAT"))
            )
        else:
            size = struct.pack("<HH", 60_000, 60_000)
            data = b"GIF89a" + size + bytes(3) + b"," + bytes(4) + size + b"\0\x02\x01\0\0;"
        assert DEFAULT_MAX_PIXELS < 15_000**2
        assert rejection(data).code == "too_large"

    def test_lossless_never_reaches_simplejpeg(self, monkeypatch):
        """A lossless JPEG, which makes simplejpeg write past its buffer, is not given to it."""
        monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: pytest.fail("it was asked"))
        data = jpeg().replace(b"\xff\xc0", b"\xff\xc3", 1)
        assert rejection(data).code == "corrupt"

    def test_camera_raw_is_not_its_thumbnail(self):
        """A TIFF with the version of a digital negative is refused, whatever its first picture shows."""
        data = saved(Image.fromarray(scene(60, 40)), "TIFF", tiffinfo={50706: b"\1\4\0\0"})
        assert rejection(data).code == "camera_raw"

    @given(
        st.binary(max_size=200),
        st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"GIF89a", b"BM"]),
    )
    def test_any_bytes(self, data, magic):
        """Whatever the bytes, nothing but CorruptImageError is raised, and no warning leaks."""
        result = outcome(magic + data, Recipe(size=8))
        assert isinstance(result, Shrunk) or result.code in CODES

    @given(st.integers(0, 900), st.binary(min_size=1, max_size=6))
    def test_damaged_header(self, position, patch):
        """A JPEG with a damaged header is a sample or a refusal, never another error."""
        data = bytearray(jpeg(64, 48))
        data[position : position + len(patch)] = patch
        result = outcome(bytes(data), Recipe(size=8))
        assert isinstance(result, Shrunk) or result.code in CODES

    def test_decode_refuses_a_cut_sample(self):
        """Verifying a sample decodes all of it: a cut one is refused."""
        sample = shrink_image(jpeg(), Recipe()).data
        with pytest.raises(CorruptImageError):
            decode_jpeg(sample[:-100])

    def test_decode_refuses_what_is_no_jpeg(self):
        """Verifying a sample does not accept a PNG."""
        with pytest.raises(CorruptImageError) as caught:
            decode_jpeg(saved(Image.fromarray(scene(20, 20)), "PNG"))
        assert caught.value.code == "not_an_image"


class TestEncode:
    def test_round_trip(self):
        """What is encoded decodes to nearly the same pixels (35 dB: 4:2:0 at quality 95)."""
        assert psnr_db(decode_jpeg(encode_jpeg(scene(101, 67), 95)), scene(101, 67)) > 35

    def test_pillow_reads_the_exif(self):
        """The EXIF block that is written is found by another reader."""
        with Image.open(io.BytesIO(jpeg(orientation=5))) as image:
            assert image.getexif()[0x0112] == 5


class TestEngines:
    def test_versions_are_named(self):
        """Each engine that decides a sample's bytes is named with its version."""
        versions = engine_versions()
        named = {"pillow", "pillow_distribution", "pillow_libjpeg_turbo", "simplejpeg", "numpy"}
        named |= {"imagecodecs", "pillow_heif", "pillow_avif_plugin", "pillow_jxl_plugin"}
        assert named <= set(versions)
        assert all(isinstance(version, str) and version for version in versions.values())

    def test_this_environment_passes(self):
        """The environment that runs the tests has one PIL."""
        check_single_pil()

    @pytest.mark.parametrize(
        ("installed", "is_clash"),
        [
            ({"pillow-simd": True}, False),
            ({"pillow": True}, False),
            ({"pillow-simd": True, "pillow": False}, False),
            ({"pillow-simd": True, "pillow": True}, True),
        ],
        ids=["simd", "pillow", "a shim without files", "both"],
    )
    def test_two_owners_clash(self, monkeypatch, installed, is_clash):
        """Two distributions with files of PIL are refused with the remedy; one without files is no owner."""
        self.install(monkeypatch, installed, pillow.PIL.__version__)
        if is_clash:
            with pytest.raises(DeviceError, match="pip uninstall"):
                check_single_pil()
        else:
            check_single_pil()

    def test_overwritten_package_is_noticed(self, monkeypatch):
        """A distribution whose version is not that of the package PIL has been overwritten."""
        self.install(monkeypatch, {"pillow-simd": True}, "1.0")
        with pytest.raises(DeviceError, match=r"pillow-simd 1\.0"):
            check_single_pil()

    @staticmethod
    def install(monkeypatch, installed, version):
        """Pretend that these distributions are installed, with or without files of PIL."""

        def distribution(name):
            if name not in installed:
                raise pillow.importlib.metadata.PackageNotFoundError(name)
            files = [Path("PIL/Image.py")] if installed[name] else [Path("pillow.dist-info/METADATA")]
            return SimpleNamespace(version=version, files=files)

        monkeypatch.setattr(pillow.importlib.metadata, "distribution", distribution)


# The corpus has its colours only as they are without the wide-gamut profile of the file.
WITHOUT_ITS_PROFILE = {"tricky/heic/IMG_2682.heic"}


def quads(text):
    """Return the mean colours of four quarters, None where the corpus has none."""
    triples = [part.split(",") for part in (text or "").split(" (")[0].split()]
    is_whole = len(triples) == 4 and all(len(triple) == 3 for triple in triples)
    return np.array(triples, float) if is_whole else None


class TestWhatIsTaken:
    def test_small_pictures(self):
        """Enlarged and said so, or refused."""
        shrunk = shrink_image(jpeg(100, 80), Recipe())
        assert (shrunk.provenance.upscaled, shrunk.width) == (True, 224)
        assert rejection(jpeg(100, 80), Recipe(upscale="reject")).code == "too_small"
        assert not shrink_image(jpeg(640, 480), Recipe(upscale="reject")).provenance.upscaled

    def test_long_pictures(self):
        """Refused from the configured aspect on."""
        assert rejection(jpeg(640, 64), Recipe(max_aspect=8)).code == "too_elongated"
        assert shrink_image(jpeg(640, 80), Recipe(max_aspect=8)).width == 224

    def test_limit_of_pixels(self):
        """The configured one counts."""
        assert rejection(jpeg(640, 480), Recipe(max_pixels=640 * 480 - 1)).code == "too_large"

    def test_rows_of_a_cut_picture(self):
        """The share of rows is in the sentence and the note; kept, only they are sampled."""
        whole = jpeg(1600, 1200)
        cut = whole[: len(whole) // 2]
        share = int(re.search(r"(\d+)% of its rows", rejection(cut).reason)[1])
        kept = shrink_image(cut, Recipe(on_truncated="keep")).provenance
        rows = round(kept.rows_present * 1200)
        assert share == rows * 100 // 1200
        assert f"{share}% of its rows" in kept.notes[0]
        assert (kept.source_width, kept.source_height, kept.crop_bottom) == (1600, 1200, rows)
        assert 30 < share < 70

    def test_missing_end_marker_alone(self):
        """Costs no pixel, and is noted."""
        shrunk = shrink_image(jpeg()[:-2], Recipe())
        assert shrunk.data == shrink_image(jpeg(), Recipe()).data
        assert "end marker" in shrunk.provenance.notes[0]

    def test_lost_block(self):
        """A block of zero bytes among the pixels is no picture."""
        data = bytearray(jpeg(1600, 1200))
        data[8192:16384] = bytes(8192)
        assert rejection(bytes(data)).code == "corrupt"

    @pytest.mark.parametrize("fill", [b"\0", b"\xff"])
    def test_padding_before_the_end_marker(self, fill):
        """A few bytes are padding; more of them, or any others, are pixels in the wrong place."""
        data = jpeg()
        assert len(shrink_image(data[:-2] + 16 * fill + data[-2:], Recipe()).provenance.notes) <= 1
        error = rejection(data[:-2] + bytes(100) + data[-2:])
        assert (error.code, "left over" in error.reason) == ("corrupt", True)
        assert rejection(data[:-2] + bytes(range(1, 20)) + data[-2:]).code == "corrupt"

    @pytest.mark.parametrize("kind", ["8 bits", "12 bits", "lossless"])
    def test_bytes_that_stand_twice(self, kind):
        """Where a part of the pixels is repeated, all behind it is shifted, and bytes are left over."""
        noise = np.random.default_rng(4).integers(0, 255, (160, 200, 3)).astype(np.uint8)
        data = {
            "8 bits": lambda: encode_jpeg(noise, 95),
            "12 bits": lambda: imagecodecs.jpeg8_encode(noise.astype(np.uint16) << 4, bitspersample=12),
            "lossless": lambda: imagecodecs.jpeg8_encode(noise, lossless=True),
        }[kind]()
        assert not shrink_image(data, Recipe()).provenance.notes
        middle = len(data) // 2
        assert rejection(data[: middle + 2000] + data[middle:]).code == "corrupt"

    def test_surplus_of_restart_intervals(self):
        """Whole rows more than stated are left out; what is less than a row stands in the wrong place."""
        noise = Image.fromarray(np.random.default_rng(4).integers(0, 255, (160, 320, 3)).astype(np.uint8))
        for options, code in ({"restart_marker_rows": 1}, None), ({"restart_marker_blocks": 5}, "corrupt"):
            data = saved(noise, "JPEG", quality=95, **options)
            starts = [found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data)]
            if code is None:  # a header that states less than there is
                longer = turbo.with_height(data, read_jpeg_header(data), 32)[:-2]
                assert "left over" in shrink_image(longer, Recipe()).provenance.notes[0]
            else:
                assert rejection(data[: starts[8]] + data[starts[0] :]).code == code

    def test_box_is_mapped(self):
        """The numbers of the receipt map corners of the kept part to corners of the sample."""
        shrunk = shrink_image(jpeg(640, 480), Recipe(fit="contain"))
        made = shrunk.provenance
        assert (made.offset_x, made.offset_y) == (0, 28)
        assert (640 - made.crop_left) * made.scale_x + made.offset_x == pytest.approx(224)
        assert (480 - made.crop_top) * made.scale_y + made.offset_y == pytest.approx(196)


def scans_of(data):
    """Return where the header of each scan begins, and at last where the end marker does."""
    return [found.start() for found in re.finditer(rb"\xff\xda", data)] + [len(data) - 2]


def in_three_scans():
    """Return a baseline JPEG with a scan for each component: three gray ones, put together."""
    planes = [saved(Image.fromarray(scene(320, 200)[..., n]), "JPEG", quality=90) for n in range(3)]
    header = read_jpeg_header(planes[0])
    frame = next(begin for marker, begin, _ in header.segments if marker == 0xC0)
    begin = header.segments[-1][1] - 4
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    head = planes[0][: frame - 2] + struct.pack(">H", 17) + planes[0][frame : frame + 5] + b"\3" + components
    tables = planes[0][frame + 9 : begin]
    scans = [
        b"\xff\xda\0\x08\1" + bytes([number, 0, 0, 63, 0]) + plane[begin + 10 : -2]
        for number, plane in enumerate(planes, 1)
    ]
    return head + tables + b"".join(scans) + b"\xff\xd9"


class TestScans:
    PROGRESSIVE = saved(Image.fromarray(scene(640, 480)), "JPEG", quality=90, progressive=True)

    @pytest.mark.parametrize("ending", [b"", b"\xff\xd9"], ids=["cut", "with an end marker"])
    @pytest.mark.parametrize("number", [1, 2, -2])
    def test_a_progressive_picture_without_its_last_scans(self, number, ending):
        """Truncated, whether an end marker stands behind the scans that are there or not."""
        data = self.PROGRESSIVE
        cut = data[: scans_of(data)[number]] + ending
        error = rejection(cut)
        assert (error.code, "scans" in error.reason) == ("truncated", True)
        kept = shrink_image(cut, Recipe(on_truncated="keep")).provenance
        assert (kept.rows_present, "coarser" in kept.notes[0]) == (1, True)
        assert shrink_image(data, Recipe()).provenance.notes == ()

    @pytest.mark.parametrize("ending", [b"", b"\xff\xd9"], ids=["cut", "with an end marker"])
    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("policy", ["reject", "keep"])
    def test_a_picture_without_some_of_its_colours(self, number, ending, policy):
        """Nothing of it is kept: it would be gray, or of false colours."""
        data = in_three_scans()
        assert shrink_image(data, Recipe()).provenance.notes == ()
        cut = data[: scans_of(data)[number]] + ending
        assert rejection(cut, Recipe(on_truncated=policy)).code == "truncated"
        within = data[: scans_of(data)[number] - 500]
        assert rejection(within, Recipe(on_truncated=policy)).code == "truncated"

    def test_a_height_behind_the_first_scan(self):
        """A header that states no height is completed from the DNL segment behind the first scan."""
        data = in_three_scans()
        second = scans_of(data)[1]
        dnl = b"\xff\xdc\0\4" + struct.pack(">H", 200)
        moved = data[:second].replace(struct.pack(">HH", 200, 320), struct.pack(">HH", 0, 320), 1)
        shrunk = shrink_image(moved + dnl + data[second:], Recipe())
        assert shrunk == shrink_image(data, Recipe())
        assert rejection(moved + data[second:]).code == "corrupt"

    def test_jpeg_ls_is_named(self):
        """JPEG-LS looks like a JPEG, and is none that is read."""
        head = b"\xff\xd8\xff\xe8\0\4ab"
        frame = b"\xff\xf7\0\x0b\x08\0\x08\0\x08\1\1\x11\0\xff\xda\0\x08\1\1\0\0\0\0"
        for data in (head[:2] + frame, head + frame):
            error = rejection(data)
            assert (error.code, "JPEG-LS" in error.reason) == ("unsupported", True)

    def test_a_gray_profile_is_applied(self):
        """To a gray JPEG as to a gray PNG; one for three channels is not."""
        gray = Image.fromarray(scene(320, 200)[..., 0])
        profile = imagecodecs.cms_profile("gray", gamma=1.0, whitepoint=(0.3127, 0.329))
        recipe = Recipe(size=32)
        plain = shrink_pixels(saved(gray, "JPEG", quality=100), recipe)
        data = saved(gray, "JPEG", quality=100, icc_profile=profile)
        assert shrink_image(data, recipe).provenance.profile_use == "converted"
        expected = shrink_pixels(saved(gray, "PNG", icc_profile=profile), recipe)
        assert np.abs(shrink_pixels(data, recipe).astype(int) - expected).max() <= 3
        assert np.abs(plain.astype(int) - expected).max() > 30
        colour = saved(gray, "JPEG", quality=100, icc_profile=imagecodecs.cms_profile("adobergb"))
        assert shrink_image(colour, recipe).provenance.profile_use == "ignored"
        assert (shrink_pixels(colour, recipe) == plain).all()


@pytest.mark.skipif(not DATA.is_dir(), reason="the corpus ../shared/data is not here")
class TestCorpus:
    @staticmethod
    def rows(kind):
        with (DATA / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return [row for row in rows if row["file"].startswith(kind)]

    def test_all_of_tricky(self):
        """Every tricky file is a sample of its upright size or a refusal; no warning leaks."""
        num_samples = 0
        for row in self.rows("tricky/"):
            result = outcome((DATA / row["file"]).read_bytes(), Recipe())
            if isinstance(result, CorruptImageError):
                is_refusal_expected = not row["expected"].startswith("accepted,") or row["file"] in DAMAGED
                assert is_refusal_expected or result.code == "unsupported", (row["file"], result.reason)
                continue
            num_samples += 1
            assert not row["expected"].startswith("rejected") or row["file"] in WANTED, row["file"]
            if row["upright_wxh"]:
                assert (
                    f"{result.provenance.source_width}x{result.provenance.source_height}"
                    == row["upright_wxh"]
                ), row["file"]
        assert num_samples > 60

    def test_colours_of_the_corpus(self):
        """Squeezed whole, each sample has the colours of one of two independent decoders in each quarter."""
        compared = 0
        for row in self.rows(""):
            result = outcome((DATA / row["file"]).read_bytes(), Recipe(fit="stretch"))
            if isinstance(result, CorruptImageError):
                continue
            expected = [quads(row[name]) for name in ("quad_rgb_pil_upright", "quad_rgb_vips_icc")]
            pixels = decode_jpeg(result.data).astype(float)
            quarters = [pixels[y : y + 112, x : x + 112].mean((0, 1)) for y in (0, 112) for x in (0, 112)]
            distances = [np.abs(np.array(quarters) - quad).max() for quad in expected if quad is not None]
            if distances and row["file"] not in WITHOUT_ITS_PROFILE:
                compared += 1
                assert min(distances) <= 4, (row["file"], distances)
        assert compared > 150

    def test_orientations_of_the_corpus(self):
        """Squeezed whole, the nine Landscape files have the colours of the corpus in each quarter."""
        for row in self.rows("tricky/orientation/Landscape_"):
            pixels = shrink_pixels((DATA / row["file"]).read_bytes(), Recipe(fit="stretch")).astype(float)
            quarters = [pixels[y : y + 112, x : x + 112].mean((0, 1)) for y in (0, 112) for x in (0, 112)]
            expected = [float(number) for number in re.split(r"[, ]", row["quad_rgb_pil_upright"])]
            assert np.abs(np.concatenate(quarters) - expected).max() < 3, row["file"]
