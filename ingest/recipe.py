"""The recipe: every setting that decides which samples there are and their bytes, and its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Literal

Fit = Literal["cover", "contain", "stretch", "shortest"]
Fidelity = Literal["high", "fast", "exact"]
Upscale = Literal["allow", "reject"]
OnTruncated = Literal["reject", "keep"]

Encoding = Literal["jpeg", "npy", "png", "webp"]
Subsampling = Literal["444", "422", "420"]

FIELDS: dict[Encoding, str] = {"jpeg": "jpg", "npy": "npy", "png": "png", "webp": "webp"}
"""Name of the image's member of a sample, for each encoding."""

DEFAULT_MAX_PIXELS = 200_000_000
"""Largest picture that is decoded, as its header states it; 108-megapixel telephones are real."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a shrunk picture looks like.

    Attributes:
        size: side of the output in pixels (``shortest``: its shorter side).
        fit: ``cover`` crops the centre to fill a square, ``contain`` fits the whole picture into the
            square on `background`, ``stretch`` ignores the aspect ratio, ``shortest`` scales the
            shorter side to `size` and crops nothing.
        fidelity: how small a JPEG may be decoded: ``high`` keeps at least 3x the target in each
            direction, ``fast`` at least 1x, ``exact`` decodes every pixel.
        encoding: of the output: ``jpeg``; or without any loss ``npy`` (the pixels as they are), ``png`` or
            ``webp``.
        quality: JPEG quality of the output, 1 to 100.
        subsampling: of the colours of a JPEG: ``444`` keeps all, ``420`` a quarter.
        background: sRGB colour, 0 to 255 a channel, behind transparent pixels and around ``contain``.
        upscale: whether a picture smaller than the output is enlarged or rejected as ``too_small``.
        on_truncated: whether a picture whose end is missing is rejected, or the rows that are there are
            kept as if they were the picture.
        max_pixels: a picture whose header states more is rejected as ``too_large`` before it is decoded.
        max_aspect: a picture whose longer side is more than this many times the shorter one is rejected
            as ``too_elongated``; None rejects none.
    """

    size: int = 224
    fit: Fit = "cover"
    fidelity: Fidelity = "high"
    encoding: Encoding = "jpeg"
    quality: int = 90
    subsampling: Subsampling = "420"
    background: tuple[int, int, int] = (255, 255, 255)
    upscale: Upscale = "allow"
    on_truncated: OnTruncated = "reject"
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_aspect: float | None = None

    @property
    def image_field(self) -> str:
        """Name of the image's member of a sample."""
        return FIELDS[self.encoding]

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain JSON types."""
        return {**dataclasses.asdict(self), "background": list(self.background)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """Rebuild a recipe from `to_dict`."""
        return cls(**{**values, "background": tuple(values["background"])})

    def hash(self) -> str:
        """Return 64 hex digits that change whenever a sample's bytes may change."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
