"""Colours against libvips: another decoder, another resampler, and Little CMS called by somebody else."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
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

# `by_vips` with the system's libvips, as of Debian's package libvips42: that of the wheel has no HEVC.
BY_SYSTEM = """
import sys
sys.modules["_libvips"] = None
sys.path.insert(0, sys.argv[1])
import test_against_vips
sys.stdout.buffer.write(test_against_vips.by_vips(sys.stdin.buffer.read()).write_to_memory())
"""

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the corpus ../shared/data is not here")


def with_profiles(*, heic):
    """Return the files of the corpus with a profile that is converted, HEIC or others."""
    with (DATA / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    names = [row["file"] for row in rows if (row["format"] == "HEIF") == heic]
    return [name for name in names if is_converted(name)]


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


def heic_by_vips(data):
    """Do the same with whichever libvips decodes HEVC; skip where none does."""
    try:
        return by_vips(data).copy_memory()
    except pyvips.Error as error:
        lack = " ".join(str(error).split())
    command = [sys.executable, "-c", BY_SYSTEM, str(Path(__file__).parent)]
    # Without the VIPSHOME that the wheel's library has set behind Python's back.
    made = subprocess.run(command, input=data, capture_output=True, check=False, env=dict(os.environ))
    if made.returncode:
        last_line = made.stderr.decode().strip().rpartition("\n")[2]
        pytest.skip(f"no libvips here decodes HEIC: {lack}; that of the system: {last_line}")
    return pyvips.Image.new_from_memory(made.stdout, 224, 224, 3, "uchar").copy(interpretation="srgb")


def distance(data, theirs):
    """Return the mean CIEDE2000 between our sample and theirs."""
    ours = pyvips.Image.new_from_array(np.ascontiguousarray(shrink_pixels(data, RECIPE)))
    return ours.copy(interpretation="srgb").dE00(theirs).avg()


def test_colours_are_those_of_libvips():
    """Every sample whose profile was converted looks as libvips makes it."""
    found = {}
    for name in with_profiles(heic=False):
        data = (DATA / name).read_bytes()
        found[name] = distance(data, by_vips(data))

    assert len(found) >= 8
    assert {name: far for name, far in found.items() if far > MOST_CIEDE2000} == {}


def test_colours_of_heic_are_those_of_libvips():
    """So does every HEIC, where a libvips with HEVC is installed."""
    found = {}
    for name in with_profiles(heic=True):
        data = (DATA / name).read_bytes()
        found[name] = distance(data, heic_by_vips(data))

    assert len(found) >= 2
    assert {name: far for name, far in found.items() if far > MOST_CIEDE2000} == {}
