"""The recipe: every setting that changes the bytes of a sample, and the hash that names them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Literal

Fit = Literal["cover", "contain", "stretch", "shortest"]
Fidelity = Literal["high", "fast", "exact"]


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
        quality: JPEG quality of the output, 1 to 100.
        background: sRGB colour, 0 to 255 a channel, behind transparent pixels and around ``contain``.
    """

    size: int = 224
    fit: Fit = "cover"
    fidelity: Fidelity = "high"
    quality: int = 90
    background: tuple[int, int, int] = (255, 255, 255)

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
