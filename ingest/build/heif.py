"""HEIC and AVIF: their container is read here, their pixels by `pillow`, and what it names is done once.

Libraries differ in what they do of it: libheif crops, rotates and mirrors in the order of the file, libavif
leaves all of that to its caller, and pillow-avif-plugin passes on how to turn, not what to crop. So neither
is let do it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ingest.build import code_points, heif_picture, heif_turn, pillow
from ingest.build.geometry import check_shape, check_size, upright_size
from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from ingest.build.heif_picture import Grid, Stated
    from ingest.build.pillow import Picture
    from ingest.recipe import Recipe

_LONGEST_AVIF = 32_768
# Pixels: avif.h of libavif, AVIF_DEFAULT_IMAGE_DIMENSION_LIMIT, which no caller here sets.

_CODERS = {b"hvc1": "HEIC", b"av01": "AVIF"}
_OTHER_CODERS = {
    b"avc1": "AVC",
    b"evc1": "EVC",
    b"j2k1": "JPEG 2000",
    b"jpeg": "JPEG",
    b"jxs1": "JPEG XS",
    b"unci": "uncompressed pixels",
    b"vvc1": "VVC",
}
# Main brands by which the plugins of Pillow open a file. Others are as good (ISO/IEC 23008-12, 10): what
# there is to know stands among the compatible brands. libavif wants one of its own.
_OPENED = {
    "HEIC": frozenset(b"heic heix heim heis hevc hevx hevm hevs mif1 msf1".split()),
    "AVIF": frozenset(b"avif avis".split()),
}
_BRANDS = {"HEIC": b"heic", "AVIF": b"avif"}


def read_heif(data: bytes, name: str, recipe: Recipe) -> Picture:
    """Decode a HEIC or AVIF.

    Args:
        data: a whole file.
        name: "HEIC" or "AVIF", by its brands; what its picture is coded as counts.
        recipe: size, shape and number of pixels are looked at before one is allocated.

    Raises:
        CorruptImageError: ``too_large``, ``truncated``, ``corrupt``, ``unsupported``, or what `check_shape`
            raises.
    """
    stated = heif_picture.read_stated(data)
    if stated is None:
        return pillow.read(data, name, recipe.max_pixels)
    name = _name_of(stated.coder, name)
    _check_stated(stated, name, recipe)
    if data[8:12] not in _OPENED[name]:
        data = heif_picture.with_brand(data, _BRANDS[name])
    if name == "HEIC":  # whose library would turn the picture
        data = heif_picture.without_transforms(data, stated)
    picture = pillow.read(data, name, recipe.max_pixels)
    if name == "AVIF" and stated.size not in {None, (picture.width, picture.height)}:
        return picture  # the first of a track: libavif takes that where the main brand is of sequences
    if name == "HEIC" and stated.grid is not None and stated.tile_size is not None:
        _check_tiles(data, picture, stated, recipe)
    return _with_colours(_placed(picture, stated), stated)


def _name_of(coder: bytes, name: str) -> str:
    """Return the format by the coder; where neither is known, as the brands have it.

    Raises:
        CorruptImageError: ``unsupported``.
    """
    if coder in _OTHER_CODERS:
        raise CorruptImageError("unsupported", f"HEIF with {_OTHER_CODERS[coder]} is not read.")
    return _CODERS.get(coder, name)


def _check_stated(stated: Stated, name: str, recipe: Recipe) -> None:
    """Refuse by what the file says of itself."""
    for size in (stated.size, stated.tile_size):
        if size is not None:
            check_size(*size, recipe.max_pixels)
    if stated.size is None:
        return
    place = heif_turn.place(stated.transforms, *stated.size)
    left, top, right, bottom = place.box
    check_shape(*upright_size(right - left, bottom - top, place.orientation), recipe)
    if name == "AVIF" and max(stated.size) > _LONGEST_AVIF:
        width, height = stated.size
        limit = f"libavif decodes up to {_LONGEST_AVIF:,} a side"
        raise CorruptImageError("unsupported", f"The AVIF has {width:,}x{height:,} pixels; {limit}.")


def _placed(picture: Picture, stated: Stated) -> Picture:
    """Cut out what the file shows, and say how it is to be turned."""
    box, orientation, notes = heif_turn.place(stated.transforms, picture.width, picture.height)
    left, top, right, bottom = box
    is_whole = (right - left, bottom - top) == (picture.width, picture.height)
    return dataclasses.replace(
        picture,
        image=picture.image if is_whole else picture.image.crop(box),
        width=right - left,
        height=bottom - top,
        orientation=orientation,
        notes=(*picture.notes, *notes),
    )


def _with_colours(picture: Picture, stated: Stated) -> Picture:
    """Add depth, and the profile that code points name; one that is embedded counts first (MIAF)."""
    picture = dataclasses.replace(picture, source_bits=stated.bits)
    if picture.icc is not None or stated.points is None:
        return picture
    is_gray = picture.image.mode in {"L", "LA"}
    meaning = code_points.meaning_of(*stated.points, is_gray=is_gray)
    return dataclasses.replace(picture, icc=meaning.icc, notes=(*picture.notes, *meaning.notes))


# ---- tiles that libheif could not decode


def _check_tiles(data: bytes, picture: Picture, stated: Stated, recipe: Recipe) -> None:
    """Refuse a picture a tile of which does not decode: libheif leaves its place empty and says nothing.

    Empty is zero in every channel, which as YCbCr is a green without red and blue. A tile that is all of one
    such colour may also be one that was saved so, and is decoded once more, alone.

    Raises:
        CorruptImageError: ``corrupt``.
    """
    assert stated.grid is not None
    for number, box in _tile_boxes(stated.grid, stated.tile_size or (1, 1), picture.width, picture.height):
        if _is_empty(picture, box):
            try:
                pillow.read(heif_picture.with_primary(data, stated, number), "HEIC", recipe.max_pixels)
            except CorruptImageError as error:
                raise CorruptImageError("corrupt", "A tile of the HEIC does not decode.") from error


def _tile_boxes(
    grid: Grid, tile_size: tuple[int, int], width: int, height: int
) -> list[tuple[int, tuple[int, int, int, int]]]:
    """Return the item of each tile and its place in the picture; none for tiles outside."""
    across, down = tile_size
    boxes = []
    for n, number in enumerate(grid.tiles):
        left, top = n % grid.columns * across, n // grid.columns * down
        if left < width and top < height:
            boxes.append((number, (left, top, min(left + across, width), min(top + down, height))))
    return boxes


def _is_empty(picture: Picture, box: tuple[int, int, int, int]) -> bool:
    """Return whether a part of the picture is all of one colour without red and blue."""
    left, top, right, bottom = box
    first = picture.image.getpixel((left, top))
    if first != picture.image.getpixel((right - 1, bottom - 1)):
        return False
    if isinstance(first, tuple) and (first[0], first[2 % len(first)]) != (0, 0):
        return False
    extrema = picture.image.crop(box).getextrema()
    channels = extrema if isinstance(extrema[0], tuple) else (extrema,)
    return all(lowest == highest for lowest, highest in channels)
