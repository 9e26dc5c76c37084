"""BMP: profiles, and files that were cut off."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from ingest.build import code_points
from ingest.build.image import shrink_image
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

EXACT = Recipe(size=24, encoding="png")
PIXELS = np.random.default_rng(1).integers(0, 256, (24, 24, 3), np.uint8)


def _p3() -> bytes:
    icc = code_points.meaning_of(12, 13, is_gray=False).icc
    assert icc
    return icc


def _version_5(icc: bytes, *, stated: int | None = None) -> bytes:
    """Return a BMP of `PIXELS` with an embedded profile."""
    rows = PIXELS[::-1, :, ::-1].tobytes()  # from the last row up, B before G before R
    begin = 14 + 124
    header = struct.pack("<IiiHHIIiiII", 124, 24, 24, 1, 24, 0, len(rows), 0, 0, 0, 0)
    header += bytes(16) + b"DEBM" + bytes(48) + struct.pack("<I", 4)
    header += struct.pack("<III", 124 + len(rows), len(icc) if stated is None else stated, 0)
    size = begin + len(rows) + len(icc)
    return b"BM" + struct.pack("<IHHI", size, 0, 0, begin) + header + rows + icc


def _run_lengths(width: int = 40, height: int = 30) -> bytes:
    """Return an RLE8 BMP of gray rows."""
    palette = b"".join(bytes((level, level, level, 0)) for level in range(256))
    runs = b"".join(bytes((width, row * 8)) + b"\0\0" for row in range(height)) + b"\0\1"
    begin = 14 + 40 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", begin + len(runs), 0, 0, begin) + header + palette + runs


def test_embedded_profile_is_converted() -> None:
    """The sample is that of a PNG of the same pixels and profile."""
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG", icc_profile=_p3())

    found, expected = shrink_image(_version_5(_p3()), EXACT), shrink_image(file.getvalue(), EXACT)

    assert found.provenance.profile_use == expected.provenance.profile_use == "converted"
    assert found.data == expected.data


@pytest.mark.parametrize("stated", [0, 10**6])
def test_profile_outside_the_file_is_broken(stated: int) -> None:
    """A broken profile means sRGB, as in other formats."""
    assert shrink_image(_version_5(_p3(), stated=stated), EXACT).provenance.profile_use == "ignored"


def test_run_lengths_that_end_early_are_truncated() -> None:
    """A cut file is no broken one; without its end mark alone it is whole."""
    whole = _run_lengths()

    assert shrink_image(whole[:-2], EXACT).data == shrink_image(whole, EXACT).data
    with pytest.raises(CorruptImageError) as caught:
        shrink_image(whole[:-30], EXACT)
    assert caught.value.code == "truncated"
