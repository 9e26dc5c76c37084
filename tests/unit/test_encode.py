"""encode: the pixels of a sample come back from each encoding as they were, or nearly so from JPEG."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ingest.build import turbo
from ingest.build.config import check_settings
from ingest.build.encode import decode, encode
from ingest.build.image import shrink_image, shrink_several
from ingest.errors import ConfigError, CorruptImageError
from ingest.recipe import FIELDS, Encoding, Recipe

_LOSSLESS: tuple[Encoding, ...] = ("npy", "png", "webp")


def _pixels(height: int = 40, width: int = 56) -> np.ndarray:
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)
    return np.ascontiguousarray(
        np.stack([ramp % 256, (255 - ramp) % 256, (ramp * 5) % 256], 2).astype(np.uint8)
    )


@pytest.mark.parametrize("encoding", _LOSSLESS)
def test_lossless_encodings_keep_every_pixel(encoding: Encoding) -> None:
    """Pixels come back exactly, and twice the same pixels are twice the same bytes."""
    recipe = Recipe(encoding=encoding)
    data = encode(_pixels(), recipe)

    assert np.array_equal(decode(data, recipe.image_field), _pixels())
    assert encode(_pixels(), recipe) == data


@pytest.mark.parametrize("encoding", FIELDS)
def test_fourth_channel_is_left_out(encoding: Encoding) -> None:
    """Pixels with an unused fourth byte give the bytes of those without."""
    padded = np.dstack([_pixels(), np.full((40, 56), 9, np.uint8)])

    assert encode(np.ascontiguousarray(padded), Recipe(encoding=encoding)) == encode(
        _pixels(), Recipe(encoding=encoding)
    )


def test_npy_is_numpys_own_with_a_fixed_header() -> None:
    """NumPy reads it; all pictures of one size have their pixels at one place."""
    data = encode(_pixels(), Recipe(encoding="npy"))

    assert np.array_equal(np.load(io.BytesIO(data)), _pixels())
    assert len(data) == 128 + 40 * 56 * 3
    assert len(encode(_pixels(224, 224), Recipe(encoding="npy"))) == 128 + 224 * 224 * 3


def test_less_subsampling_keeps_more_colour() -> None:
    """4:4:4 is nearer to the pixels than 4:2:2, and that nearer than 4:2:0; each says so in its header."""
    far, sampling = {}, {}
    for subsampling in ("444", "422", "420"):
        data = encode(_pixels(), Recipe(subsampling=subsampling, quality=95))  # type: ignore[arg-type]
        far[subsampling] = np.abs(decode(data, "jpg").astype(int) - _pixels()).mean()
        frame = data.index(b"\xff\xc0")
        sampling[subsampling] = data[frame + 11]

    assert far["444"] < far["422"] < far["420"]
    assert sampling == {"444": 0x11, "422": 0x21, "420": 0x22}


def test_photo_becomes_what_the_recipe_says() -> None:
    """The whole path from a JPEG gives the same pixels in each lossless encoding."""
    photo = encode(_pixels(300, 400), Recipe())
    made = [
        decode(shrink_image(photo, Recipe(size=64, encoding=encoding)).data, FIELDS[encoding])
        for encoding in _LOSSLESS
    ]

    assert made[0].shape == (64, 64, 3)
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("npy", b"\x93NUMPY\x01\x00"),
        ("npy", encode(_pixels(), Recipe(encoding="npy"))[:-1]),
        ("png", encode(_pixels(), Recipe(encoding="png"))[:-40]),
        ("webp", encode(_pixels(), Recipe(encoding="webp"))[:-40]),
        ("jpg", encode(_pixels(), Recipe())[:-40]),
    ],
)
def test_cut_samples_are_refused(field: str, data: bytes) -> None:
    """A sample that is not whole is an error with a code."""
    with pytest.raises(CorruptImageError):
        decode(data, field)


def test_other_arrays_are_refused() -> None:
    """An array that is no picture says what it is."""
    file = io.BytesIO()
    np.save(file, np.zeros((4, 4), np.float32))

    with pytest.raises(CorruptImageError, match=r"float32 \(4, 4\), expected uint8"):
        decode(file.getvalue(), "npy")


def test_encoding_is_configured() -> None:
    """The keys reach the recipe, numbers on a command line too; another value is refused."""
    recipe = check_settings({"encoding": "png", "subsampling": 444}).recipe

    assert (recipe.encoding, recipe.subsampling, recipe.image_field) == ("png", "444", "png")
    assert len({Recipe(encoding=encoding).hash() for encoding in FIELDS}) == 4
    with pytest.raises(ConfigError, match="'encoding'"):
        check_settings({"encoding": "gif"})


@pytest.mark.parametrize(
    "data",
    [
        encode(_pixels(900, 1200), Recipe()),
        encode(_pixels(300, 400), Recipe(encoding="png")),
        b"",
        b"<html>no",
    ],
    ids=["jpeg", "png", "empty", "page"],
)
def test_several_recipes_make_what_each_makes_alone(data: bytes) -> None:
    """Sharing what was decoded changes no byte, and a reject by one recipe is none by another."""
    recipes = [
        Recipe(size=64),
        Recipe(size=72, encoding="png"),
        Recipe(size=64, fidelity="exact", encoding="npy"),
        Recipe(size=64, fit="contain", background=(1, 2, 3)),
        Recipe(size=4000, upscale="reject"),
        Recipe(size=32, max_pixels=100),
    ]

    assert list(map(repr, shrink_several(data, recipes))) == [
        repr(_alone(data, recipe)) for recipe in recipes
    ]


def test_several_recipes_decode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JPEG is decoded once for recipes of one scale, and once more for another scale."""
    scales: list[int] = []
    real = turbo.decode
    monkeypatch.setattr(turbo, "decode", lambda *given: (scales.append(given[2]), real(*given))[1])

    shrink_several(encode(_pixels(900, 1200), Recipe()), [Recipe(size=64), Recipe(size=72), Recipe(size=300)])

    assert scales == [4, 1]


def _alone(data: bytes, recipe: Recipe):
    try:
        return shrink_image(data, recipe)
    except CorruptImageError as fault:
        return fault
