"""The embedded sample: what a picture is made of, and how a folder of them is filled."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from ingest.build import demo

SMALL = (90, 120)


def scene(label, number):
    """Draw one small scene."""
    return demo.demo_scene(label, np.random.default_rng(number), *SMALL)


def test_a_picture_is_like_a_phone_s():
    """A picture has 4000x3000 stored pixels and 2 to 4 MB, and the same bytes each time it is drawn."""
    photo = demo.demo_photo("pebbles", 0)
    assert Image.open(io.BytesIO(photo)).size == (4000, 3000)
    assert 2e6 <= len(photo) <= 4e6
    assert demo.demo_photo("pebbles", 0) == photo


def test_all_orientations_occur():
    """Among six pictures of each class are all eight EXIF orientations, and several in each class."""
    of_class = {label: {demo.demo_orientation(label, n) for n in range(6)} for label in demo.CLASSES}
    assert set.union(*of_class.values()) == set(range(1, 9))
    assert all(len(orientations) == 6 for orientations in of_class.values())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stored_pixels_are_upright_when_the_orientation_is_honoured(orientation):
    """Pillow turns what is stored under each orientation back into the upright picture."""
    upright_HWC = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    stored = Image.fromarray(np.ascontiguousarray(demo._turned_for_storage(upright_HWC, orientation)))
    stored.getexif().load(demo._exif(orientation))
    assert stored.getexif()[0x0112] == orientation
    assert np.array_equal(np.asarray(ImageOps.exif_transpose(stored)), upright_HWC)


def test_a_file_shows_its_scene_upright():
    """A portrait file, its orientation honoured, shows trunks that stand."""
    number = next(n for n in range(8) if demo.demo_orientation("forest", n) == 6)
    image = Image.open(io.BytesIO(demo.demo_photo("forest", number)))
    assert image.getexif()[0x0112] == 6
    image.draft("L", (500, 375))
    upright_HW = np.asarray(ImageOps.exif_transpose(image).convert("L"), dtype=float)
    assert upright_HW.shape == (500, 375)
    assert np.ptp(upright_HW.mean(axis=0)) > 2 * np.ptp(upright_HW.mean(axis=1))


def test_colours_do_not_tell_the_classes_apart():
    """Scenes of all classes have exactly the same shades, in different places."""
    shades = [np.sort(scene(label, 3), axis=None) for label in demo.CLASSES]
    assert all(np.array_equal(shades[0], other) for other in shades[1:])


def test_structure_tells_the_classes_apart():
    """The nearest other scene by spectrum is of the same class, nearly always."""
    labels = [label for label in demo.CLASSES for _ in range(6)]
    scenes = [scene(label, number) for number, label in enumerate(labels)]
    spectra = np.array([np.abs(np.fft.rfft2(s - s.mean()))[:12, :12].ravel() for s in scenes])
    distance = np.linalg.norm(spectra[:, None] - spectra[None], axis=-1) + np.diag([np.inf] * len(labels))
    right = [labels[nearest] == label for nearest, label in zip(distance.argmin(axis=1), labels, strict=True)]
    assert np.mean(right) > 0.7


def test_a_folder_is_filled_once_and_mended(tmp_path):
    """A second run leaves whole pictures alone; a cut one gets its bytes back; nothing else is left."""
    seen = []
    assert demo.write_demo_photos(tmp_path, per_class=1, on_done=lambda *done: seen.append(done)) == 4
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"{label}/IMG_0000.jpg" for label in sorted(demo.CLASSES)
    ]
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths]
    paths[0].write_bytes(before[0][1][:1_000_000])
    assert demo.write_demo_photos(tmp_path, per_class=1, workers=1) == 4
    after = [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths]
    assert after[1:] == before[1:]
    assert after[0][1] == before[0][1]
    assert all(2e6 <= len(photo) <= 4e6 for _, photo in after)
