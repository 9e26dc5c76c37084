"""The image kernel: the bytes of one raw picture in, the bytes of one small JPEG out.

It reads no file and keeps no state: a function of bytes and a `Recipe`. What it cannot turn into a sample it
refuses with `CorruptImageError`.

How a JPEG is shrunk, and why (23 photos of 8 to 17 megapixels; `benchmarks/kernel.py` measures it again):
eight tenths of the time is entropy decoding, which nobody can skip. So the picture is decoded at the
smallest DCT scale that leaves enough above the target, straight to four bytes a pixel, which Pillow wraps
without a copy and resamples once. It is turned upright, converted to sRGB and laid on the background
afterwards, when it has 50,000 pixels and not 12 million.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from ingest.build import codecs, pillow, turbo
from ingest.build.colour import Mode, to_srgb
from ingest.build.encode import decode_jpeg, encode
from ingest.build.geometry import (
    Geometry,
    check_shape,
    is_enlarged,
    missing_edge,
    plan_geometry,
    upright_size,
)
from ingest.build.picture import read_picture
from ingest.build.pillow import Picture, check_single_pil
from ingest.build.sample import ProfileUse, Provenance, Shrunk
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ingest.recipe import Recipe

__all__ = [
    "check_single_pil",
    "decode_jpeg",
    "encode_jpeg",
    "engine_versions",
    "readable_formats",
    "shrink_image",
    "shrink_pixels",
    "shrink_several",
]

_SPACES: dict[str, Mode] = {"L": "L", "LA": "L", "CMYK": "CMYK"}
_CHANNELS: dict[Mode, int] = {"L": 1, "RGB": 3, "CMYK": 4}


def shrink_image(data: bytes, recipe: Recipe) -> Shrunk:
    """Turn the bytes of one raw picture into a sample.

    Args:
        data: a whole file, of any format that `readable_formats` names.
        recipe: all of it counts.

    Returns:
        The sample. The same bytes, recipe and engine versions give the same sample.

    Raises:
        CorruptImageError: with any code of `REJECT_CODES` that a file's content can have.
    """
    return _finish(read_picture(data, recipe), recipe)


def _finish(picture: Picture, recipe: Recipe) -> Shrunk:
    """Make a sample of a decoded picture, which stays as it is."""
    plan = _plan(picture, recipe)
    pixels, profile, use = _render(picture, plan, recipe)
    height, width = pixels.shape[:2]
    provenance = _provenance(picture, plan, recipe, profile, use)
    return Shrunk(encode(pixels, recipe), width, height, provenance, pillow.histogram(pixels))


def shrink_several(data: bytes, recipes: Sequence[Recipe]) -> list[Shrunk | CorruptImageError]:
    """Turn the bytes of one raw picture into a sample by each recipe, decoding it as seldom as they allow.

    Each sample is the one that `shrink_image` makes. Recipes that need a JPEG at the same scale, and all
    recipes for any other format, share what was decoded.

    Args:
        data: a whole file.
        recipes: at least one.

    Returns:
        The sample of each recipe, or why there is none.
    """
    pictures: list[tuple[Picture, Recipe]] = []
    return [_shrink_sharing(data, recipe, pictures) for recipe in recipes]


def _shrink_sharing(
    data: bytes, recipe: Recipe, pictures: list[tuple[Picture, Recipe]]
) -> Shrunk | CorruptImageError:
    try:
        shared = next((picture for picture, other in pictures if _serves(picture, other, recipe)), None)
        picture = shared or read_picture(data, recipe)
        pictures.append((picture, recipe))
        return _finish(picture, recipe)
    except CorruptImageError as fault:
        return fault


def _serves(picture: Picture, read_for: Recipe, recipe: Recipe) -> bool:
    """Return whether `picture`, decoded for one recipe, is what another would decode."""
    if (read_for.max_pixels, read_for.on_truncated) != (recipe.max_pixels, recipe.on_truncated):
        return False
    if picture.source_format != "JPEG":
        return True
    return picture.rows_present == 1 and _plan(picture, recipe).scale_denominator == picture.scale_denominator


def shrink_pixels(data: bytes, recipe: Recipe) -> NDArray[np.uint8]:
    """Return the pixels that `shrink_image` encodes: uint8 (H, W, 3), RGB, 0 to 255, upright.

    Raises:
        CorruptImageError: as `shrink_image` does.
    """
    picture = read_picture(data, recipe)
    return _render(picture, _plan(picture, recipe), recipe)[0][..., :3]


def encode_jpeg(image_HWC: NDArray[np.uint8], quality: int, exif: bytes | None = None) -> bytes:
    """Encode pixels as a baseline 4:2:0 JPEG.

    Args:
        image_HWC: uint8 (H, W, 3), RGB, 0 to 255, C-contiguous.
        quality: 1 to 100.
        exif: a TIFF-structured block, with or without the leading ``Exif`` and two zero bytes; at most
            65,527 bytes. None writes no EXIF.

    Returns:
        A JPEG file.
    """
    jpeg = turbo.encode(image_HWC, quality)
    if exif is None:
        return jpeg
    payload = b"Exif\0\0" + exif.removeprefix(b"Exif\0\0")
    return jpeg[:2] + b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload + jpeg[2:]


# ---- from a decoded picture to a sample


def _plan(picture: Picture, recipe: Recipe) -> Geometry:
    width, height = upright_size(picture.width, picture.height, picture.orientation)
    check_shape(width, height, recipe)
    return plan_geometry(width, height, recipe)


def _render(
    picture: Picture, plan: Geometry, recipe: Recipe
) -> tuple[NDArray[np.uint8], str | None, ProfileUse]:
    """Crop, resample, turn, convert, lay on the background; RGB or RGBX, and what became of the profile."""
    small, mode = pillow.resample(picture, plan), picture.image.mode
    profile: str | None = None
    use: ProfileUse = "none"
    if mode != "RGBX" or picture.icc is not None:
        alpha = small[..., -1:] if mode in {"LA", "RGBA"} else None
        space = _SPACES.get(mode, "RGB")
        small = np.ascontiguousarray(small[..., : _CHANNELS[space]])
        small, profile, use = to_srgb(small, space, picture.icc)
        small = _to_rgb(small)
        if alpha is not None:
            small = _on_background(small, alpha, recipe)
    return (_pad(small, recipe) if recipe.fit == "contain" else small), profile, use


def _to_rgb(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Spread gray to three channels; inks without a profile are light times what the black leaves of it."""
    channels = pixels_HWC.shape[2]
    if channels == 1:
        return np.ascontiguousarray(np.broadcast_to(pixels_HWC, (*pixels_HWC.shape[:2], 3)))
    if channels == turbo.CMYK:
        light = 255 - pixels_HWC.astype(np.uint16)
        return ((light[..., :3] * light[..., 3:] + 127) // 255).astype(np.uint8)
    return pixels_HWC


def _on_background(
    pixels_HWC: NDArray[np.uint8], alpha_HW1: NDArray[np.uint8], recipe: Recipe
) -> NDArray[np.uint8]:
    """Lay a picture on the background."""
    alpha = alpha_HW1.astype(np.uint32)
    background = np.array(recipe.background, np.uint32)
    return ((pixels_HWC * alpha + background * (255 - alpha) + 127) // 255).astype(np.uint8)


def _pad(pixels_HWC: NDArray[np.uint8], recipe: Recipe) -> NDArray[np.uint8]:
    """Centre a picture on a square of the background."""
    height, width = pixels_HWC.shape[:2]
    canvas = np.full((recipe.size, recipe.size, 3), recipe.background, np.uint8)
    top, left = (recipe.size - height) // 2, (recipe.size - width) // 2
    canvas[top : top + height, left : left + width] = pixels_HWC[..., :3]
    return canvas


def _provenance(
    picture: Picture, plan: Geometry, recipe: Recipe, profile: str | None, use: ProfileUse
) -> Provenance:
    left, top, right, bottom = plan.box
    beside, above = missing_edge(picture.rows_missing, picture.orientation)
    width, height = upright_size(picture.width, picture.height + picture.rows_missing, picture.orientation)
    is_padded = recipe.fit == "contain"
    return Provenance(
        source_format=picture.source_format,
        source_mode=picture.source_mode,
        source_bits=picture.source_bits,
        source_width=width,
        source_height=height,
        orientation=picture.orientation,
        scale_denominator=picture.scale_denominator,
        crop_left=left + beside,
        crop_top=top + above,
        crop_right=right + beside,
        crop_bottom=bottom + above,
        scale_x=plan.width / (right - left),
        scale_y=plan.height / (bottom - top),
        offset_x=(recipe.size - plan.width) // 2 if is_padded else 0,
        offset_y=(recipe.size - plan.height) // 2 if is_padded else 0,
        profile=profile,
        profile_use=use,
        frames_dropped=picture.frames - 1,
        alpha=pillow.has_alpha(picture.image),
        upscaled=is_enlarged(plan),
        rows_present=picture.rows_present,
        notes=picture.notes,
    )


# ---- the engines


def engine_versions() -> dict[str, str]:
    """Return what decides the bytes of a sample besides the recipe: name of each engine to its version."""
    return dict(_engines())


@functools.cache  # what is loaded stays as it is, and to ask takes 10 ms: a quarter of a photo
def _engines() -> tuple[tuple[str, str], ...]:
    versions = {
        **pillow.engine_versions(),
        **codecs.engine_versions(),
        "simplejpeg": turbo.engine_version(),
        "numpy": np.__version__,
    }
    return tuple(versions.items())


def readable_formats() -> dict[str, str | None]:
    """Return for each format None if it can be read here, else the distribution that is missing."""
    versions = pillow.engine_versions()
    plain = ["JPEG", "12-bit and lossless JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF", "JPEG 2000"]
    missing = {
        name: distribution if versions[distribution.replace("-", "_")] == "none" else None
        for name, (_, distribution) in pillow.PLUGINS.items()
    }
    return {**dict.fromkeys(plain), **missing}
