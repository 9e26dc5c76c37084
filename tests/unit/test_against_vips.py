"""Colours against libvips: another decoder, another resampler, and Little CMS called by somebody else."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import pyvips

from ingest.build.image import shrink_image, shrink_pixels
from ingest.errors import CorruptImageError
from ingest.recipe import Recipe

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
RECIPE = Recipe(fit="stretch")
MOST_CIEDE2000 = 2.0  # between the samples, on average; about what an eye begins to see side by side


def with_profiles():
    """Return the files of the corpus with a profile that is converted, but for HEIC, which libvips lacks."""
    if not DATA.is_dir():
        return []
    with (DATA / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["file"] for row in rows if row["format"] != "HEIF" and is_converted(row["file"])]


def is_converted(name):
    """Return whether a file becomes a sample whose colours were converted."""
    if name.endswith((".tar", ".tar.gz")):
        return False
    try:
        made = shrink_image((DATA / name).read_bytes(), RECIPE).provenance
    except CorruptImageError:
        return False
    return made.profile_use == "converted"


def by_vips(data):
    """Decode, turn, convert by the profile, lay on white and squeeze to the sample's size."""
    image = pyvips.Image.new_from_buffer(data, "", fail_on="error").autorot()
    image = image.icc_transform("srgb", embedded=True, intent="relative")
    if image.hasalpha():
        image = image.flatten(background=[255, 255, 255])
    return image.thumbnail_image(224, height=224, size="force")


@pytest.mark.skipif(not DATA.is_dir(), reason="the corpus ../shared/data is not here")
def test_colours_are_those_of_libvips():
    """Every sample whose profile was converted looks as libvips makes it."""
    found = {}
    for name in with_profiles():
        data = (DATA / name).read_bytes()
        ours = pyvips.Image.new_from_array(np.ascontiguousarray(shrink_pixels(data, RECIPE)))
        found[name] = ours.copy(interpretation="srgb").dE00(by_vips(data)).avg()

    assert len(found) >= 8
    assert {name: distance for name, distance in found.items() if distance > MOST_CIEDE2000} == {}
