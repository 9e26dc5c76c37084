"""JPEG XL: what the header says, and that samples of every kind arrive as they are."""

from __future__ import annotations

import io
import itertools

import imagecodecs
import numpy as np
import pytest
from PIL import Image

from ingest.build import jxl, picture, pillow
from ingest.build.image import shrink_image
from ingest.build.pixels import unit_to_eight_bits
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

EXACT = Recipe(size=40, fit="stretch", encoding="png")


def _bits(*fields: tuple[int, int]) -> bytes:
    """Return a codestream of (number of bits, value)."""
    value, position = 0, 0
    for number, field in fields:
        value |= field << position
        position += number
    return jxl.CODESTREAM + value.to_bytes(position // 8 + 1, "little")


_SIZE = [(1, 0), (2, 3), (30, 59_999), (3, 1)]  # 60,000 pixels square
_SMALL = [(1, 1), (5, 4), (3, 7)]  # 80 x 40
_EIGHT_BITS = [(1, 0), (2, 0)]


def _ramp(channels: int, dtype: type, most: float) -> np.ndarray:
    """Return a smooth picture of 60 x 40 pixels."""
    y, x = np.mgrid[:40, :60]
    planes = [(x / 80 + y / 200 * (n + 1) / 4) for n in range(channels)]
    values = (np.stack(planes, -1) * most).astype(dtype)
    return values[..., 0] if channels == 1 else values


def _shrunk(data: bytes) -> tuple[np.ndarray, object]:
    sample = shrink_image(data, EXACT)
    with Image.open(io.BytesIO(sample.data)) as image:
        return np.asarray(image.convert("RGB")).astype(float), sample.provenance


# ---- the header


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([[*_SIZE, (1, 1)]], jxl.Header(width=60_000, height=60_000)),
        ([[*_SMALL, (1, 1)]], jxl.Header(width=80, height=40)),
        (
            [
                [(1, 1), (5, 4), (3, 0), (5, 1), (1, 0), (1, 1), (3, 5), (1, 0), (1, 0), (1, 0)],
                [(1, 0), (2, 1), (1, 1), (2, 0), (1, 0), (1, 1)],
            ],
            jxl.Header(width=16, height=40, orientation=6, bits=10),
        ),
        (  # intrinsic size, preview, animation, float, named alpha that is premultiplied
            [
                [*_SMALL, (1, 0), (1, 1), (3, 0), (1, 1), *_SMALL, (1, 1), (1, 1), (2, 0), (3, 1)],
                [(1, 1), (2, 0), (2, 0), (2, 0), (1, 0), (1, 1), (2, 1), (4, 5), (1, 1)],
                [(2, 1), (1, 0), (2, 0), *_EIGHT_BITS, (2, 0), (2, 1), (4, 2), (16, 0x4142), (1, 1)],
                [(1, 1), (1, 0)],
            ],
            jxl.Header(
                width=80, height=40, bits=16, is_float=True, is_animated=True,
                has_alpha=True, is_premultiplied=True, is_srgb=False,
            ),
        ),
        (  # two extra channels: black ink, and alpha as usual
            [
                [*_SMALL, (1, 0), (1, 0), *_EIGHT_BITS, (1, 1), (2, 2), (4, 0)],
                [(1, 0), (2, 2), (4, 2), *_EIGHT_BITS, (2, 0), (2, 0), (1, 1), (1, 0), (1, 1)],
            ],
            jxl.Header(width=80, height=40, has_alpha=True, has_others=True, has_black=True),
        ),
    ],
)  # fmt: skip
def test_header_is_read(fields, expected):
    """Every field of the standard's order is taken, or what comes behind it would be wrong."""
    assert jxl.read_header(_bits(*itertools.chain(*fields)) + bytes(8)) == expected


def test_size_is_looked_at_before_a_decoder_is_asked(monkeypatch):
    """A header of 3.6 billion pixels costs nothing, bare or in boxes."""
    monkeypatch.setattr(picture.codecs, "read_jpeg_xl", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(pillow, "jpeg_xl_profile", lambda *_: pytest.fail("decoded"))
    stream = _bits(*_SIZE, (1, 1)) + b"\1" * 40
    boxes = b"\0\0\0\x0cJXL \r\n\x87\n\0\0\0\x14ftypjxl \0\0\0\0jxl "
    boxes += (len(stream) + 8).to_bytes(4, "big") + b"jxlc" + stream

    for data in (stream, boxes):
        with pytest.raises(CorruptImageError) as caught:
            shrink_image(data, EXACT)
        assert caught.value.code == "too_large"


# ---- pixels


@pytest.mark.parametrize(
    ("channels", "dtype", "most", "bits", "mode"),
    [
        (1, np.uint8, 255, 8, "gray"),
        (1, np.uint16, 65535, 16, "gray"),
        (1, np.uint16, 1023, 10, "gray"),
        (2, np.uint16, 65535, 16, "gray+alpha"),
        (3, np.uint16, 65535, 16, "RGB"),
        (4, np.uint16, 65535, 16, "RGB+alpha"),
        (1, np.float32, 1, 32, "gray"),
        (3, np.float32, 1, 32, "RGB"),
    ],
)
def test_samples_of_every_depth(channels, dtype, most, bits, mode):
    """Deep and gray samples become what their colour space makes of them, and the receipt names the depth."""
    values = _ramp(channels, dtype, most)
    deep = {"bitspersample": 10} if bits == 10 else {}
    data = imagecodecs.jpegxl_encode(values, lossless=True, **deep)

    pixels, how = _shrunk(data)

    assert (how.source_format, how.source_bits, how.source_mode) == ("JPEG XL", bits, mode)
    unit = np.atleast_3d(values).astype(float) / most
    if bits > 8:  # what the encoder declares deep samples to be: linear (IEC 61966-2-1 gives the curve)
        colours = slice(None, 1 if channels < 3 else 3)
        unit[..., colours] = np.where(
            unit[..., colours] <= 0.0031308,
            unit[..., colours] * 12.92,
            1.055 * np.maximum(unit[..., colours], 1e-9) ** (1 / 2.4) - 0.055,
        )
    if channels in (2, 4):
        unit = unit[..., :-1] * unit[..., -1:] + 1 - unit[..., -1:]
    expected = np.broadcast_to(unit, (*unit.shape[:2], 3)) * 255
    middle = np.abs(pixels[4:-4, 4:-4].mean((0, 1)) - expected[4:-4, 6:-6].mean((0, 1)))
    assert middle.max() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_a_transcoded_jpeg_is_applied_once(orientation):
    """The picture lies as the JPEG that it was made of, whatever its orientation."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:16, :16], pixels[32:, :16], pixels[:16, 48:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0, exif=exif.tobytes())

    jpeg, _ = _shrunk(file.getvalue())
    found, how = _shrunk(imagecodecs.jpegxl_encode_jpeg(file.getvalue()))

    assert how.orientation == orientation
    assert np.abs(found - jpeg).max() < 12


def test_first_picture_of_an_animation_is_taken():
    """Later ones are dropped, and a note says so."""
    frames = np.stack([np.full((40, 60, 3), level, np.uint8) for level in (10, 100, 200)])

    pixels, how = _shrunk(imagecodecs.jpegxl_encode(frames, lossless=True))

    assert np.abs(pixels - 10).max() <= 1
    assert how.frames_dropped == 1
    assert "first picture was taken" in how.notes[0]


@pytest.mark.parametrize("container", [False, True])
def test_cut_file_is_truncated(container):
    """Wherever the file ends; a container knows how much is missing."""
    data = imagecodecs.jpegxl_encode(_ramp(3, np.uint8, 255), lossless=True, usecontainer=container)

    for end in (len(data) - 1, len(data) // 2, 60):
        with pytest.raises(CorruptImageError) as caught:
            shrink_image(data[:end], EXACT)
        assert caught.value.code == "truncated"
        assert ("% of its bytes are there" in caught.value.reason) == container


def test_unit_range_is_scaled_and_clipped():
    """0 and 1 are black and white; what lies outside is the nearest of them, what is no number is black."""
    values = np.array([[[0.0], [1.0], [0.5], [-3.0], [7.0], [np.nan], [np.inf]]], np.float16)

    assert unit_to_eight_bits(values).ravel().tolist() == [0, 255, 128, 0, 255, 0, 255]


def test_other_channels_of_a_gray_picture_are_left_out():
    """Depth and the like are no colours."""
    gray = _ramp(1, np.uint8, 255)
    planes = np.stack([gray, 255 - gray, gray // 2])
    plain = imagecodecs.jpegxl_encode(gray, lossless=True)
    data = imagecodecs.jpegxl_encode(planes, lossless=True, planar=True, photometric="GRAY")

    assert jxl.read_header(data).has_others
    assert _shrunk(data)[0].tolist() == _shrunk(plain)[0].tolist()


def test_box_of_nothing_behind_the_end_is_truncated():
    """A box whose head is cut states no bytes: that divides nothing by them."""
    data = b"\0\0\0\x0cJXL \r\n\x87\n\0\0\0\x14ftypjxl \0\0\0\0jxl \0\0\0\1jxlc\x10"

    with pytest.raises(CorruptImageError, match="0% of its bytes are there"):
        shrink_image(data, EXACT)
