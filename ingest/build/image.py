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

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ingest.build import codecs, containers, pillow, png, sniff, turbo
from ingest.build.colour import Mode, to_srgb
from ingest.build.encode import decode_jpeg, encode
from ingest.build.geometry import (
    Geometry,
    check_shape,
    check_size,
    is_enlarged,
    missing_edge,
    plan_geometry,
    upright_size,
)
from ingest.build.jpeg import JpegHeader, adobe_transform, before_last_scan, count_pictures, read_jpeg_header
from ingest.build.pillow import Picture, check_single_pil
from ingest.build.sample import ProfileUse, Provenance, Shrunk
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Callable

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
]

_RASTER_READERS: dict[str, Callable[[bytes, int], codecs.Raster]] = {
    "WebP": codecs.read_webp,
    "TIFF": codecs.read_tiff,
    "JPEG 2000": codecs.read_jpeg2000,
}
_SPACES: dict[str, Mode] = {"L": "L", "LA": "L", "CMYK": "CMYK"}
_CHANNELS: dict[Mode, int] = {"L": 1, "RGB": 3, "CMYK": 4}
_MODES = {turbo.GRAY: "gray", turbo.COLOUR: "RGB", turbo.CMYK: "CMYK"}


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
    picture = read_picture(data, recipe)
    plan = _plan(picture, recipe)
    pixels, profile, use = _render(picture, plan, recipe)
    height, width = pixels.shape[:2]
    provenance = _provenance(picture, plan, recipe, profile, use)
    return Shrunk(encode(pixels, recipe), width, height, provenance, pillow.histogram(pixels))


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


# ---- from bytes to a decoded picture


def read_picture(data: bytes, recipe: Recipe) -> Picture:
    """Decode a file of any format, a JPEG as small as the recipe allows.

    Raises:
        CorruptImageError: as `shrink_image` does.
    """
    if not data:
        raise CorruptImageError("empty", "The file is empty.")
    if data.startswith(b"\xff\xd8"):
        return _read_jpeg(data, recipe)
    kind = sniff.recognise(data)
    _require_picture(kind)
    if kind.format == "PNG":
        return _read_png(data, recipe)
    if kind.format in _RASTER_READERS:
        return _wrap(_RASTER_READERS[kind.format](data, recipe.max_pixels), kind.format)
    return pillow.read(data, kind.format, recipe.max_pixels)


def _require_picture(kind: sniff.Kind) -> None:
    if kind.family == "other":
        raise CorruptImageError("not_an_image", f"This is {kind.format}.")
    if kind.family == "camera_raw":
        remedy = "develop it to JPEG or TIFF, or take the JPEG that the camera wrote beside it"
        raise CorruptImageError("camera_raw", f"This is a camera raw file, {kind.format}: {remedy}.")
    if kind.family == "unsupported":
        raise CorruptImageError("unsupported", f"{kind.format} is not read: convert it to PNG or JPEG.")


def _wrap(raster: codecs.Raster, name: str) -> Picture:
    height, width = raster.pixels.shape[:2]
    return Picture(
        image=pillow.wrap(raster.pixels, raster.mode),
        width=width,
        height=height,
        source_format=name,
        source_mode=raster.source_mode,
        source_bits=raster.source_bits,
        orientation=raster.orientation,
        icc=raster.icc,
        frames=raster.frames,
        notes=raster.notes,
    )


def _rows_there(rows: int, height: int) -> str:
    return f"{rows * 100 // height}% of its rows are there"


def _cropped(there: str) -> str:
    return f"Cut off: {there}; what is missing was cropped away."


def _read_png(data: bytes, recipe: Recipe) -> Picture:
    """Decode a PNG; of one that was cut off the rows that are there, if that is wanted."""
    try:
        return _wrap(codecs.read_png(data, recipe.max_pixels), "PNG")
    except png.CutOffError as error:
        rows, width, height = error.rows
    check_shape(width, height, recipe)
    there = _rows_there(rows, height)
    if recipe.on_truncated == "reject" or not rows:
        raise CorruptImageError("truncated", f"The file ends before its picture does: {there}.")
    picture = _wrap(codecs.read_png(png.first_rows(data, rows), recipe.max_pixels), "PNG")
    notes = (*picture.notes, _cropped(there))
    return dataclasses.replace(picture, rows_present=rows / height, rows_missing=height - rows, notes=notes)


def _read_jpeg(data: bytes, recipe: Recipe) -> Picture:
    header = read_jpeg_header(data)
    check_size(header.width, header.height, recipe.max_pixels)
    if turbo.can_decode(header):
        return _read_turbo(data, header, recipe)
    return _wrap(codecs.read_deep_jpeg(data, header), "JPEG")


def _scale_for(header: JpegHeader, recipe: Recipe) -> int:
    upright = upright_size(header.width, header.height, header.orientation)
    check_shape(*upright, recipe)
    return plan_geometry(*upright, recipe).scale_denominator


def _read_turbo(data: bytes, header: JpegHeader, recipe: Recipe) -> Picture:
    """Decode a JPEG as small as the recipe allows."""
    scale = _scale_for(header, recipe)
    colorspace = "CMYK" if header.kind[-1] == turbo.CMYK else "RGBX"
    rows, whole = header.height, header
    try:
        decoded = turbo.decode(data, header, scale, colorspace)
    except turbo.OddSamplingError:
        picture = pillow.read(data, "JPEG", recipe.max_pixels)
        return _described(picture, data, header)
    except turbo.CutOffError as error:
        header, rows, scale, decoded = _keep_rows(error.data, recipe, colorspace)
    pixels, notes = decoded
    if colorspace == "CMYK" and adobe_transform(data, whole) is not None:
        pixels = np.subtract(255, pixels)
    picture = Picture(
        image=pillow.wrap(pixels, colorspace),
        width=header.width,
        height=header.height,
        source_format="JPEG",
        source_mode=_MODES[header.kind[-1]],
        scale_denominator=scale,
        rows_present=rows / whole.height,
        rows_missing=whole.height - header.height,
        notes=notes,
    )
    return _described(picture, data, whole)


def _keep_rows(data: bytes, recipe: Recipe, colorspace: str) -> tuple[JpegHeader, int, int, turbo.Decoded]:
    """Decode what is there of a cut-off JPEG, if that is wanted.

    Returns:
        Header of what is kept, rows that are there in full, scale, and the pixels.

    Raises:
        CorruptImageError: ``truncated``, with the share of rows that are there.
    """
    header = read_jpeg_header(data)
    rows = turbo.count_rows(data, header)
    there = _rows_there(rows, header.height)
    coarse = before_last_scan(data, header)
    if recipe.on_truncated == "keep" and coarse is not None:
        scale = _scale_for(header, recipe)
        pixels = turbo.decode(coarse, header, scale, colorspace).pixels
        note = "Cut off: its last scans are missing, so it is coarser than it was."
        return header, rows, scale, turbo.Decoded(pixels, (note,))
    if recipe.on_truncated == "keep" and rows:
        kept = turbo.with_rows(header, rows)
        scale = _scale_for(kept, recipe)
        pixels = turbo.decode_rows(data, kept, scale, colorspace)
        return kept, rows, scale, turbo.Decoded(pixels, (_cropped(there),))
    raise CorruptImageError("truncated", f"The file ends before its picture does: {there}.")


def _described(picture: Picture, data: bytes, header: JpegHeader) -> Picture:
    """Add what the markers of a JPEG say."""
    profile = containers.jpeg_icc(data, header.segments)
    return dataclasses.replace(
        picture,
        source_format="JPEG",
        orientation=header.orientation,
        icc=b"" if profile.broken else profile.data,
        frames=count_pictures(data, header),
        notes=(*picture.notes, *header.notes),
    )


# ---- the engines


def engine_versions() -> dict[str, str]:
    """Return what decides the bytes of a sample besides the recipe: name of each engine to its version."""
    return {
        **pillow.engine_versions(),
        **codecs.engine_versions(),
        "simplejpeg": turbo.engine_version(),
        "numpy": np.__version__,
    }


def readable_formats() -> dict[str, str | None]:
    """Return for each format None if it can be read here, else the distribution that is missing."""
    versions = pillow.engine_versions()
    plain = ["JPEG", "12-bit and lossless JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF", "JPEG 2000"]
    missing = {
        name: distribution if versions[distribution.replace("-", "_")] == "none" else None
        for name, (_, distribution) in pillow.PLUGINS.items()
    }
    return {**dict.fromkeys(plain), **missing}
