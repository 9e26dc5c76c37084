"""From the bytes of a file of any format to a decoded picture: which decoder, and whether all of it is there.

Each decoder is chosen by content and given what `lost`, `jpeg`, `png`, `streams` or `tiff_page` have looked
at before, for libraries show something in place of what is missing, and say nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ingest.build import codecs, containers, heif, jxl, lost, pillow, png, sniff, streams, tiff_page, turbo
from ingest.build.geometry import check_shape, check_size, plan_geometry, upright_size
from ingest.build.jpeg import (
    JpegHeader,
    adobe_transform,
    before_last_scan,
    count_pictures,
    has_all_colours,
    is_complete,
    read_jpeg_header,
    with_stated_height,
)
from ingest.build.pillow import Picture
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.build.raster import Raster
    from ingest.recipe import Recipe

_RASTER_READERS: dict[str, Callable[[bytes, int], Raster]] = {
    "WebP": codecs.read_webp,
    "JPEG 2000": codecs.read_jpeg2000,
}
_MODES = {turbo.GRAY: "gray", turbo.COLOUR: "RGB", turbo.CMYK: "CMYK"}
# What libjpeg-turbo is asked for. RGB in four bytes a pixel, which Pillow wraps without a copy.
_ASKED = {turbo.GRAY: "GRAY", turbo.COLOUR: "RGBX", turbo.CMYK: "CMYK"}
_PILLOW_MODES = {"GRAY": "L", "RGBX": "RGBX", "CMYK": "CMYK"}

_SCANS_MISSING = "The picture is not all there: some of the scans that make it up are missing."


def read_picture(data: bytes, recipe: Recipe) -> Picture:
    """Decode a file of any format, a JPEG as small as the recipe allows.

    Raises:
        CorruptImageError: with any code of `REJECT_CODES` that a file's content can have.
    """
    if not data:
        raise CorruptImageError("empty", "The file is empty.")
    if data.startswith(b"\xff\xd8"):
        return _read_jpeg(data, recipe)
    kind = sniff.recognise(data)
    _require_picture(kind)
    notes = lost.check(data, kind.format, recipe.max_pixels)
    if kind.format in _READERS:
        picture = _READERS[kind.format](data, recipe)
    elif kind.format in _RASTER_READERS:
        picture = _wrap(_RASTER_READERS[kind.format](data, recipe.max_pixels), kind.format)
    elif kind.format in {"HEIC", "AVIF"}:
        picture = heif.read_heif(data, kind.format, recipe)
    else:
        picture = pillow.read(data, kind.format, recipe.max_pixels)
    return dataclasses.replace(picture, notes=(*picture.notes, *notes)) if notes else picture


def _require_picture(kind: sniff.Kind) -> None:
    if kind.family == "other":
        raise CorruptImageError("not_an_image", f"This is {kind.format}.")
    if kind.family == "camera_raw":
        remedy = "develop it to JPEG or TIFF, or take the JPEG that the camera wrote beside it"
        raise CorruptImageError("camera_raw", f"This is a camera raw file, {kind.format}: {remedy}.")
    if kind.family == "unsupported":
        raise CorruptImageError("unsupported", f"{kind.format} is not read: convert it to PNG or JPEG.")


def _wrap(raster: Raster, name: str) -> Picture:
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
        picture = _wrap(codecs.read_png(data, recipe.max_pixels), "PNG")
    except png.CutOffError as error:
        rows, width, height = error.rows
    else:
        return dataclasses.replace(picture, notes=(*picture.notes, *png.gamma_notes(data)))
    check_shape(width, height, recipe)
    there = _rows_there(rows, height)
    if recipe.on_truncated == "reject" or not rows:
        raise CorruptImageError("truncated", f"The file ends before its picture does: {there}.")
    picture = _wrap(codecs.read_png(png.first_rows(data, rows), recipe.max_pixels), "PNG")
    notes = (*picture.notes, _cropped(there))
    return dataclasses.replace(picture, rows_present=rows / height, rows_missing=height - rows, notes=notes)


def _read_tiff(data: bytes, recipe: Recipe) -> Picture:
    """Decode the first page of a TIFF that is a picture, not a smaller one of another page or a mask."""
    whole, num_skipped = tiff_page.full_page_first(data)
    picture = _wrap(codecs.read_tiff(whole, recipe.max_pixels), "TIFF")
    if not num_skipped:
        return picture
    note = f"Pages before the picture that are smaller ones of it, or masks, were left out: {num_skipped}."
    return dataclasses.replace(picture, frames=picture.frames + num_skipped, notes=(*picture.notes, note))


def _read_bmp(data: bytes, recipe: Recipe) -> Picture:
    """Decode a BMP, with its profile, for which Pillow does not look."""
    profile = containers.bmp_profile(data)
    picture = pillow.read(data, "BMP", recipe.max_pixels)
    return dataclasses.replace(picture, icc=b"" if profile.broken else profile.data)


def _read_jpeg_xl(data: bytes, recipe: Recipe) -> Picture:
    """Decode a JPEG XL, a second time for its profile where it needs one."""
    header = jxl.read_header(data)
    check_size(header.width, header.height, recipe.max_pixels)
    check_shape(*upright_size(header.width, header.height, header.orientation), recipe)
    raster = codecs.read_jpeg_xl(data, header)
    icc = None if header.is_srgb else pillow.jpeg_xl_profile(data)
    return dataclasses.replace(_wrap(raster, "JPEG XL"), icc=icc)


_READERS: dict[str, Callable[[bytes, Recipe], Picture]] = {
    "PNG": _read_png,
    "TIFF": _read_tiff,
    "BMP": _read_bmp,
    "JPEG XL": _read_jpeg_xl,
}


# ---- JPEG


def _read_jpeg(data: bytes, recipe: Recipe) -> Picture:
    header = read_jpeg_header(data)
    if not header.height:
        data = with_stated_height(data, header)
        header = read_jpeg_header(data)
    check_size(header.width, header.height, recipe.max_pixels)
    lost.check_jpeg(data, header)
    if turbo.can_decode(header):
        return _read_turbo(data, header, recipe)
    if not is_complete(data, header):
        raise CorruptImageError("truncated", _SCANS_MISSING)
    picture = _wrap(codecs.read_deep_jpeg(data, header), "JPEG")
    _check_surplus(data, header)
    return picture


def _check_surplus(data: bytes, header: JpegHeader) -> None:
    """Refuse a 12-bit or lossless JPEG that is whole without its last bytes: libjpeg keeps silent of them.

    It has more bytes than its pixels need, so some of those among them are not its own.

    Raises:
        CorruptImageError: ``corrupt``.
    """
    shorter = streams.without_last_bytes(data, header.segments[-1][2])
    try:
        codecs.read_deep_jpeg(shorter, header)
    except CorruptImageError:
        return
    raise CorruptImageError(
        "corrupt", "Bytes are left over behind the last pixel of the JPEG: it is garbled."
    )


def _scale_for(header: JpegHeader, recipe: Recipe) -> int:
    upright = upright_size(header.width, header.height, header.orientation)
    check_shape(*upright, recipe)
    return plan_geometry(*upright, recipe).scale_denominator


def _read_turbo(data: bytes, header: JpegHeader, recipe: Recipe) -> Picture:
    """Decode a JPEG as small as the recipe allows."""
    scale = _scale_for(header, recipe)
    colorspace = _ASKED[header.kind[-1]]
    rows, whole = header.height, header
    try:
        decoded = turbo.decode(data, header, scale, colorspace)
    except turbo.OddSamplingError:
        return _read_odd_jpeg(data, header, recipe)
    except turbo.CutOffError as error:
        header, rows, scale, decoded = _keep(error, recipe, colorspace)
    pixels, notes = decoded
    if colorspace == "CMYK" and adobe_transform(data, whole) is not None:
        pixels = np.subtract(255, pixels)
    picture = Picture(
        image=pillow.wrap(pixels, _PILLOW_MODES[colorspace]),
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


def _read_odd_jpeg(data: bytes, header: JpegHeader, recipe: Recipe) -> Picture:
    if not is_complete(data, header):
        raise CorruptImageError("truncated", _SCANS_MISSING)
    return _described(pillow.read(data, "JPEG", recipe.max_pixels), data, header)


_Kept = tuple[JpegHeader, int, int, turbo.Decoded]
"""Header of what is kept, rows that are there in full, scale, and the pixels."""


def _keep(error: turbo.CutOffError, recipe: Recipe, colorspace: str) -> _Kept:
    """Decode what is there of a JPEG that lacks a part, if that is wanted.

    Raises:
        CorruptImageError: ``truncated``, with the share of rows that are there.
    """
    data = error.data
    header = read_jpeg_header(data)
    if error.between_scans:
        if recipe.on_truncated == "reject" or not has_all_colours(data, header):
            raise CorruptImageError("truncated", _SCANS_MISSING)
        return _keep_coarse(data, header, header.height, recipe, colorspace)
    rows = turbo.count_rows(data, header)
    there = _rows_there(rows, header.height)
    if recipe.on_truncated == "keep" and has_all_colours(data, header):
        coarse = before_last_scan(data, header)
        if coarse is not None:
            return _keep_coarse(coarse, header, rows, recipe, colorspace)
        if rows:
            return _keep_rows(data, turbo.with_rows(header, rows), recipe, colorspace, _cropped(there))
    raise CorruptImageError("truncated", f"The file ends before its picture does: {there}.")


def _keep_coarse(data: bytes, header: JpegHeader, rows: int, recipe: Recipe, colorspace: str) -> _Kept:
    scale = _scale_for(header, recipe)
    pixels = turbo.decode(data, header, scale, colorspace, all_scans=False).pixels
    note = "Cut off: its last scans are missing, so it is coarser than it was."
    return header, rows, scale, turbo.Decoded(pixels, (note,))


def _keep_rows(data: bytes, kept: JpegHeader, recipe: Recipe, colorspace: str, note: str) -> _Kept:
    scale = _scale_for(kept, recipe)
    pixels = turbo.decode_rows(data, kept, scale, colorspace)
    return kept, kept.height, scale, turbo.Decoded(pixels, (note,))


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
