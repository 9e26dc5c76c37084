"""Arithmetic on pixels, against exact arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.build import pixels


class TestDepth:
    @pytest.mark.parametrize("bits", range(1, 17))
    def test_every_number_of_every_depth_is_scaled_exactly(self, bits):
        """Black stays black, white becomes 255, and all between is rounded to the nearest level."""
        most = (1 << bits) - 1
        every = np.arange(most + 1, dtype=np.uint8 if bits <= 8 else np.uint16).reshape(-1, 1, 1)
        exact = [(value * 255 * 2 + most) // (2 * most) for value in range(most + 1)]
        assert pixels.to_eight_bits(every, bits).ravel().tolist() == exact

    def test_numbers_above_their_depth_are_white(self):
        """A 12-bit picture in 16-bit numbers may hold more than 4,095."""
        samples = np.array([4095, 4096, 65_535], np.uint16).reshape(1, 3, 1)
        assert pixels.to_eight_bits(samples, 12).ravel().tolist() == [255, 255, 255]

    def test_bands_and_strides_change_nothing(self, monkeypatch):
        """However few rows a band has and however the samples lie, the result is the same and contiguous."""
        samples = np.random.default_rng(0).integers(0, 65_536, (7, 3, 11), dtype=np.uint16)
        whole = pixels.to_eight_bits(samples, 16)
        monkeypatch.setattr(pixels, "_BAND_SAMPLES", 10)
        turned = pixels.to_eight_bits(np.moveaxis(samples, 0, -1), 16)
        assert np.array_equal(pixels.to_eight_bits(samples, 16), whole)
        assert np.array_equal(turned, np.moveaxis(whole, 0, -1))
        assert turned.flags.c_contiguous


class TestColours:
    def test_an_index_past_the_palette_is_its_last_colour(self):
        """A hostile index reads nothing that is not there."""
        palette = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
        found = pixels.look_up(np.array([[0, 1, 200]], np.uint8), palette)
        assert found.tolist() == [[[1, 2, 3], [4, 5, 6], [4, 5, 6]]]

    def test_ycc_is_converted_as_jfif_says(self):
        """Within half a level of the formula; a fourth channel stays."""
        ycc = np.random.default_rng(1).integers(0, 256, (40, 50, 4), dtype=np.uint8)
        luma, blue, red = ycc[..., 0].astype(float), ycc[..., 1] - 128.0, ycc[..., 2] - 128.0
        green = luma - 0.344136 * blue - 0.714136 * red
        exact = np.stack([luma + 1.402 * red, green, luma + 1.772 * blue], axis=2)
        rgb = pixels.ycc_to_rgb(ycc)
        assert np.abs(rgb[..., :3] - np.clip(exact, 0, 255)).max() <= 0.51
        assert np.array_equal(rgb[..., 3], ycc[..., 3])


class TestAlpha:
    @given(st.integers(0, 255), st.integers(0, 255))
    def test_what_was_multiplied_is_divided(self, colour, alpha):
        """The colour comes back to the nearest level, black where nothing of it is left."""
        multiplied = round(colour * alpha / 255)
        gray, kept = pixels.unpremultiply(np.array([[[multiplied, alpha]]], np.uint8))[0, 0]
        assert kept == alpha
        assert gray == (min(255, int(multiplied * 255 / alpha + 0.5)) if alpha else 0)

    def test_a_canvas_is_transparent_around_its_picture(self):
        """RGB is opaque where it lies; around it everything is zero."""
        canvas = pixels.on_canvas(np.full((2, 3, 3), 7, np.uint8), (6, 5), 2, 1)
        assert canvas.shape == (5, 6, 4)
        assert canvas[1:3, 2:5].reshape(-1, 4).tolist() == [[7, 7, 7, 255]] * 6
        assert canvas.sum() == 6 * (21 + 255)
