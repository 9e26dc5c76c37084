"""What the image kernel returns: one sample, and how its picture was made of the raw one."""

from __future__ import annotations

import dataclasses
from typing import Literal

ProfileUse = Literal["none", "is_srgb", "converted", "ignored"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a raw picture was and what was done to it; a receipt keeps each of these in a column.

    A point (x, y) of the upright raw picture is at ``((x - crop_left) * scale_x + offset_x,
    (y - crop_top) * scale_y + offset_y)`` in the sample: a box is mapped by mapping its corners.

    Attributes:
        source_format: what the bytes are, whatever the file is called: "JPEG", "PNG", ...
        source_mode: channels as stored: "RGB", "gray", "CMYK" or "palette", then "+alpha" where there is it.
        source_bits: bits a channel as stored: 1 to 32.
        source_width: of the raw picture once upright, in pixels; as its header states, whether rows are there
            or not.
        source_height: see `source_width`.
        orientation: EXIF orientation that was applied, 1 to 8; 1 is none. What the container itself turns
            (HEIC, AVIF, JPEG XL) is counted too.
        scale_denominator: n where a JPEG was decoded at 1/n of its size: 1, 2, 4 or 8; 1 for others.
        crop_left: edges of the part that was kept, in pixels of the upright raw picture.
        crop_top: see `crop_left`.
        crop_right: see `crop_left`.
        crop_bottom: see `crop_left`.
        scale_x: pixels of the sample for one of the raw picture.
        scale_y: see `scale_x`.
        offset_x: pixels of background left of the picture in the sample.
        offset_y: pixels of background above it.
        profile: name of the colour profile in the file, or of what its code points name; None without one.
        profile_use: ``none``: the file has no profile; ``is_srgb``: it has one that changes nothing;
            ``converted`` to sRGB; ``ignored``: broken, or for other channels than the picture has.
        frames_dropped: pictures of the file beside the one that was taken.
        alpha: whether the picture had pixels that were not opaque, laid on the background.
        upscaled: whether the picture was enlarged.
        rows_present: share of the rows that the file held, 0 to 1; below 1 only with ``on_truncated: keep``.
        notes: short sentences on what was wrong with the file and did not cost a pixel.
    """

    source_format: str
    source_mode: str
    source_bits: int
    source_width: int
    source_height: int
    orientation: int
    scale_denominator: int
    crop_left: float
    crop_top: float
    crop_right: float
    crop_bottom: float
    scale_x: float
    scale_y: float
    offset_x: int
    offset_y: int
    profile: str | None
    profile_use: ProfileUse
    frames_dropped: int
    alpha: bool
    upscaled: bool
    rows_present: float
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Shrunk:
    """One sample and where it came from.

    Attributes:
        data: the picture, RGB, in the encoding of the recipe, without EXIF. A JPEG is baseline, and 4:2:0
            unless asked otherwise, because trainers throw more colour detail away than that does, it is 0.8
            of the bytes of 4:4:4, and every hardware decoder takes it.
        width: of the sample, in pixels.
        height: of the sample, in pixels.
        provenance: what the picture was, and what was done to it.
        histogram: 256 counts each for R, G and B of the pixels before encoding, 768 in all.
    """

    data: bytes
    width: int
    height: int
    provenance: Provenance
    histogram: tuple[int, ...] = dataclasses.field(repr=False)
