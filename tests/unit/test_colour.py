"""Colour profiles: which count, and what they do to colours."""

import csv
import io
import re
import struct
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ingest.build import codecs, colour
from ingest.build.code_points import meaning_of
from ingest.build.containers import MOST_PROFILE_BYTES
from ingest.errors import DataError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SRGB = imagecodecs.cms_profile("srgb")
P3 = meaning_of(12, 13).icc
ADOBE = imagecodecs.cms_profile("adobergb")
GRAY = imagecodecs.cms_profile("gray", gamma=1.8, whitepoint=(0.3127, 0.329))
RANDOM = np.random.default_rng(0).integers(0, 256, (40, 50, 4), dtype=np.uint8)


def patched(icc, position, patch):
    """Return a profile with other bytes at a position."""
    return icc[:position] + patch + icc[position + len(patch) :]


class TestUse:
    def test_no_profile_is_none(self):
        """A picture without a profile is sRGB, and stays as it is."""
        pixels, name, use = colour.to_srgb(RANDOM[..., :3], "RGB", None)
        assert pixels is not None
        assert np.shares_memory(pixels, RANDOM)
        assert (name, use) == (None, "none")

    def test_a_profile_of_srgb_changes_nothing(self):
        """Not one number is touched by a profile that says what is the case anyway."""
        pixels, name, use = colour.to_srgb(RANDOM[..., :3], "RGB", SRGB)
        assert np.shares_memory(pixels, RANDOM)
        assert use == "is_srgb"
        assert "sRGB" in name

    @pytest.mark.parametrize(
        ("icc", "mode"),
        [(SRGB, "L"), (SRGB, "CMYK"), (GRAY, "RGB"), (GRAY, "CMYK"), (ADOBE, "L")],
    )
    def test_a_profile_for_other_channels_is_ignored(self, icc, mode):
        """A gray profile says nothing about three channels, nor one of three about four."""
        assert colour.use_profile(icc, mode)[1] == "ignored"

    @pytest.mark.parametrize(
        "icc",
        [
            b"",
            b"ile",
            ADOBE[:128],
            ADOBE[: len(ADOBE) // 2],
            patched(ADOBE, 36, b"nope"),
            patched(ADOBE, 12, b"link"),
            patched(ADOBE, 16, b"Lab "),
            patched(ADOBE, 128, b"\xff\xff\xff\xff"),
            ADOBE + bytes(MOST_PROFILE_BYTES),
            bytes(500),
        ],
        ids=["empty", "tiny", "header", "half", "mark", "class", "space", "tags", "huge", "zeros"],
    )
    def test_a_broken_profile_means_srgb(self, icc):
        """What is no profile, or not of a device, changes nothing."""
        pixels, _, use = colour.to_srgb(RANDOM[..., :3], "RGB", icc)
        assert use == "ignored"
        assert np.shares_memory(pixels, RANDOM)

    def test_little_cms_refuses_in_our_words(self):
        """Whoever asks it directly is told what is wrong."""
        with pytest.raises(DataError, match="profile"):
            codecs.convert_to_srgb(RANDOM[..., :3], "RGB", b"nothing")


class TestConversion:
    @pytest.mark.parametrize("icc", [P3, ADOBE, imagecodecs.cms_profile("linearrgb")])
    def test_tables_are_true_to_little_cms(self, icc):
        """Random colours, dark ones too, come within a level of what Little CMS makes of them."""
        for pixels in (RANDOM[..., :3], RANDOM[..., :3] // 16):
            converted, _, use = colour.to_srgb(pixels, "RGB", icc)
            exact = codecs.convert_to_srgb(pixels, "RGB", icc)
            assert use == "converted"
            assert np.abs(converted.astype(int) - exact).max() <= 1
            assert np.abs(converted.astype(int) - pixels).max() > 2

    def test_display_p3_is_converted_as_css_says(self):
        """Within a level of the matrix and curve of CSS Color 4, clipped where sRGB ends; grays stay."""
        rows = ((1.2249401, -0.2249402, 0), (-0.0420569, 1.0420571, 0), (-0.0196376, -0.0786361, 1.0982735))
        stored = RANDOM[..., :3] / 255
        light = (
            np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4) @ np.array(rows).T
        )
        level = np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 0) ** (1 / 2.4) - 0.055)
        converted, name, _ = colour.to_srgb(RANDOM[..., :3], "RGB", P3)
        assert np.abs(converted - np.clip(level * 255, 0, 255)).max() < 1
        assert name == "Display P3"
        grays = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(16, 16, 3)
        assert np.abs(colour.to_srgb(grays, "RGB", P3)[0].astype(int) - grays).max() <= 1

    def test_gray_becomes_gray_of_srgb(self):
        """Each level is what its gamma makes of it, equal in three channels."""
        every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
        converted, _, use = colour.to_srgb(every, "L", GRAY)
        light = (every[..., 0] / 255) ** 1.8
        level = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055) * 255
        assert use == "converted"
        assert converted.shape == (16, 16, 3)
        assert np.ptp(converted.astype(int), axis=2).max() <= 1
        assert np.abs(converted[..., 1] - level).max() <= 1.5

    def test_a_plan_is_made_once(self):
        """A dataset of one camera sets up one conversion."""
        colour.use_profile(ADOBE, "RGB")
        before = colour._plan.cache_info().misses
        colour.to_srgb(RANDOM[..., :3], "RGB", bytes(bytearray(ADOBE)))
        assert colour._plan.cache_info().misses == before


class TestNames:
    def test_version_2_and_4(self):
        """Text of either kind is the name."""
        assert colour.profile_name(P3) == "Display P3"
        text = b"desc\0\0\0\0" + struct.pack(">I", 6) + b"Caf\xe9!\0" + bytes(80)
        icc = bytes(128) + struct.pack(">I4sII", 1, b"desc", 144, len(text)) + text
        assert colour.profile_name(icc) == "Café!"

    def test_control_characters_and_length(self):
        """A name is one short line, whatever the file says."""
        text = b"desc\0\0\0\0" + struct.pack(">I", 4000) + b"a\nb\x1b[31m" + b"c" * 3900
        icc = bytes(128) + struct.pack(">I4sII", 1, b"desc", 144, len(text)) + text
        name = colour.profile_name(icc)
        assert name.startswith("ab[31mccc")
        assert len(name) == 100

    @pytest.mark.parametrize("icc", [b"", bytes(131), bytes(200), b"\xff" * 300])
    def test_nonsense_has_no_name(self, icc):
        """What cannot be read is None."""
        assert colour.profile_name(icc) is None


class TestAgainstIndex:
    """Real files against libvips: the quarters that the index states after its own conversion."""

    FILES = (
        "tricky/icc/Green-Office-Chair-Test.jpg",
        "tricky/icc/prophoto-tagged.jpg",
        "tricky/icc/red-at-12-oclock-with-color-profile.jpg",
        "tricky/icc/single-clip.jpg",
        "tricky/icc/weird_sampling_2.jpeg",
        "tricky/icc/urban-bear.jpg",
        "tricky/corrupt-meta/exif-bad-directory-entry-count.jpg",
        "tricky/cmyk/ycck.jpg",
        "tricky/mpo/apple_gainmap_new.jpg",
    )

    @pytest.mark.parametrize("file", FILES)
    def test_quarters(self, file):
        """Within one level of each mean."""
        index = DATA / "INDEX.tsv"
        if not index.is_file():
            pytest.skip(f"no pictures at {DATA}")
        with index.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            stated = next(row["quad_rgb_vips_icc"] for row in rows if row["file"] == file)
        with Image.open(io.BytesIO((DATA / file).read_bytes())) as image:
            pixels, icc, mode = np.asarray(image), image.info["icc_profile"], image.mode
        converted = colour.to_srgb(pixels, mode, icc)[0].astype(float)
        half = converted.shape[0] // 2, converted.shape[1] // 2
        parts = (converted[: half[0]], converted[half[0] :])
        means = [part.mean((0, 1)) for rows in parts for part in (rows[:, : half[1]], rows[:, half[1] :])]
        expected = np.array(re.findall(r"\d+", stated), int).reshape(4, 3)
        assert np.abs(np.array(means) - expected).max() <= 1


class TestHostileBytes:
    @given(st.sampled_from([ADOBE, GRAY, P3]), st.integers(0, 700), st.binary(max_size=8))
    def test_no_profile_upsets_anyone(self, icc, position, patch):
        """A flipped profile converts or is ignored, and every mode gets an answer."""
        icc = patched(icc, min(position, len(icc) - 1), patch)
        for mode, channels in (("L", 1), ("RGB", 3), ("CMYK", 4)):
            pixels, _, use = colour.to_srgb(RANDOM[:4, :4, :channels], mode, icc)
            assert pixels.shape == (4, 4, 3 if use == "converted" else channels)
            assert pixels.dtype == np.uint8
