"""Decides what is cut out of a picture, to what it is resampled, and how small a JPEG may be decoded.

Pure: sizes in, sizes out. No pixel is touched here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ingest.errors import CorruptImageError

if TYPE_CHECKING:
    from ingest.recipe import Fidelity, Recipe

FIRST_SIDEWAYS = 5
"""Orientations from this on, to 8, swap width and height."""

# 1/4 rather than 1/8 at 4000x3000: with 3x the worst of 23 photos has 52.9 dB, with 2x 41, with 1x 32.
_OVERSAMPLING: dict[Fidelity, float] = {"high": 3.0, "fast": 1.0, "exact": float("inf")}
# libjpeg-turbo offers every eighth, but only these have SIMD code: 3/8 takes 1.1 times as long as 1/2.
_DCT_DENOMINATORS = (8, 4, 2)
_MAX_JPEG_SIDE = 65_500


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """What becomes of an upright picture; see `plan_geometry`.

    Attributes:
        box: left, top, right, bottom of the part that is kept, in pixels of the upright picture.
        width: to which the box is resampled, in pixels.
        height: to which the box is resampled, in pixels.
        scale_denominator: 1, 2, 4 or 8: how much smaller a JPEG may be decoded.
    """

    box: tuple[float, float, float, float]
    width: int
    height: int
    scale_denominator: int


def plan_geometry(width: int, height: int, recipe: Recipe) -> Geometry:
    """Decide what is cut out, to what it is resampled, and how small a JPEG may be decoded.

    Args:
        width: of the upright picture, in pixels, at least 1.
        height: of the upright picture, in pixels, at least 1.
        recipe: size, fit and fidelity count.

    Returns:
        The plan. For ``contain`` it is the picture alone, without the padding.

    Raises:
        CorruptImageError: ``too_large`` if the sample would not fit into a JPEG.
    """
    box = _crop_box(width, height, recipe)
    out_width, out_height = _resampled_size(width, height, recipe)
    if max(out_width, out_height) > _MAX_JPEG_SIDE or out_width * out_height > recipe.max_pixels:
        raise CorruptImageError("too_large", f"The sample would have {out_width}x{out_height} pixels.")
    spare = min((box[2] - box[0]) / out_width, (box[3] - box[1]) / out_height)
    needed = _OVERSAMPLING[recipe.fidelity]
    denominator = next((n for n in _DCT_DENOMINATORS if spare / n >= needed), 1)
    return Geometry(box, out_width, out_height, denominator)


def _crop_box(width: int, height: int, recipe: Recipe) -> tuple[float, float, float, float]:
    """Return the centre square for ``cover``, else the whole picture.

    Always centred, so that mirroring the picture leaves the box where it is.
    """
    if recipe.fit != "cover":
        return 0.0, 0.0, float(width), float(height)
    side = min(width, height)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def _resampled_size(width: int, height: int, recipe: Recipe) -> tuple[int, int]:
    """Return width and height of what the box becomes, each at least 1."""
    if recipe.fit in {"cover", "stretch"}:
        return recipe.size, recipe.size
    side = max(width, height) if recipe.fit == "contain" else min(width, height)
    return max(1, round(width * recipe.size / side)), max(1, round(height * recipe.size / side))


def upright_size(width: int, height: int, orientation: int) -> tuple[int, int]:
    """Swap the sides of a picture that is stored lying on one of them."""
    return (height, width) if orientation >= FIRST_SIDEWAYS else (width, height)


def missing_edge(rows: int, orientation: int) -> tuple[int, int]:
    """Return by how much a picture that lacks its last rows, as stored, lies inside the whole once upright.

    Returns:
        Pixels of the whole left of it, and above it.
    """
    return rows * (orientation in {6, 7}), rows * (orientation in {3, 4})


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Refuse, before a pixel is allocated, what has none or too many.

    Raises:
        CorruptImageError: ``corrupt`` or ``too_large``.
    """
    if width < 1 or height < 1:
        raise CorruptImageError("corrupt", f"The header states {width}x{height} pixels.")
    if width * height > max_pixels:
        limit = f"the limit max_pixels is {max_pixels:,}"
        raise CorruptImageError("too_large", f"The header states {width:,}x{height:,} pixels; {limit}.")


def check_shape(width: int, height: int, recipe: Recipe) -> None:
    """Refuse what is smaller or longer than the recipe takes.

    Args:
        width: of the picture, upright or not, in pixels, at least 1.
        height: of the picture, in pixels, at least 1.
        recipe: size, fit, upscale and max_aspect count.

    Raises:
        CorruptImageError: ``too_small`` or ``too_elongated``.
    """
    aspect = max(width, height) / min(width, height)
    if recipe.max_aspect is not None and aspect > recipe.max_aspect:
        limit = f"the limit max_aspect is {recipe.max_aspect:g}"
        raise CorruptImageError(
            "too_elongated",
            f"The picture has {width}x{height} pixels, one side {aspect:.4g} times the other; {limit}.",
        )
    if recipe.upscale == "reject" and is_enlarged(plan_geometry(width, height, recipe)):
        wanted = f"{recipe.size} px with fit {recipe.fit}"
        raise CorruptImageError(
            "too_small", f"The picture has {width}x{height} pixels, too few for {wanted} without enlarging."
        )


def is_enlarged(plan: Geometry) -> bool:
    """Return whether the picture has fewer pixels than the sample in either direction."""
    left, top, right, bottom = plan.box
    return plan.width > right - left or plan.height > bottom - top
