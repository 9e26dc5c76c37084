"""The one module with PIL: formats that only it and its plugins decode, and resampling for all of them.

Each file is opened with the one decoder that its content asks for, so that no other ever sees hostile bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
from PIL import Image, features

from ingest.build import tiff
from ingest.build.geometry import FIRST_SIDEWAYS, Geometry, check_size, upright_size
from ingest.errors import CorruptImageError, DeviceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
PLUGINS = {
    "HEIC": ("pillow_heif", "pillow-heif"),
    "AVIF": ("pillow_avif", "pillow-avif-plugin"),
    "JPEG XL": ("pillow_jxl", "pillow-jxl-plugin"),
}
"""Module and distribution that decode a format which PIL alone does not."""

_PIL_NAMES = {"HEIC": "HEIF"}
_TURNED_BY_DECODER = {"HEIC"}  # their EXIF orientation is to be ignored
_WHOLE = 1 << 31
# Bytes: a piece that holds all pixels and is no copy. In pieces of 64 KiB, AVIF takes 1.04 of the time.
_SOURCE_MODES = {"1": "gray", "L": "gray", "LA": "gray+alpha", "P": "palette", "PA": "palette+alpha"}
_SOURCE_MODES |= {"RGBA": "RGB+alpha", "RGBX": "RGB"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A decoded picture, as stored: neither upright nor in sRGB.

    Attributes:
        image: mode L, LA, RGB, RGBX, RGBA or CMYK (0 is no ink); 1/`scale_denominator` of the picture.
        width: of the picture at its full scale, in pixels.
        height: of the picture at its full scale, in pixels; rows that the file lacks are not counted.
        source_format: what the bytes are.
        source_mode: channels as stored.
        source_bits: bits a channel as stored.
        orientation: EXIF orientation that is still to be applied.
        scale_denominator: 1, 2, 4 or 8.
        icc: colour profile, None without one, empty if it is broken.
        frames: pictures in the file.
        rows_present: share of the rows that were there, 0 to 1.
        rows_missing: rows below the picture, as stored, that its header states and the file lacks.
        notes: what was wrong and cost no pixel.
    """

    image: Image.Image
    width: int
    height: int
    source_format: str
    source_mode: str
    source_bits: int = 8
    orientation: int = 1
    scale_denominator: int = 1
    icc: bytes | None = None
    frames: int = 1
    rows_present: float = 1.0
    rows_missing: int = 0
    notes: tuple[str, ...] = ()


def wrap(pixels_HWC: NDArray[np.uint8], mode: str) -> Image.Image:
    """Make an image of pixels, without a copy where PIL stores them alike (not RGB and LA)."""
    height, width = pixels_HWC.shape[:2]
    return Image.frombuffer(mode, (width, height), pixels_HWC, "raw", mode, 0, 1)


def read(data: bytes, name: str, max_pixels: int) -> Picture:
    """Decode the first picture of a file, every pixel of it.

    Args:
        data: the file.
        name: its format: "GIF", "BMP", "JPEG", "HEIC" or "AVIF".
        max_pixels: the most that it may have.

    Raises:
        CorruptImageError: ``too_large``, ``truncated``, ``corrupt`` or ``unsupported``.
    """
    _load_plugin(name)
    # The GIF plugin allocates a canvas as it opens a file, before its size can be checked here.
    Image.MAX_IMAGE_PIXELS = max_pixels
    with warnings.catch_warnings():  # of odd metadata and large pictures, neither of them news here
        warnings.simplefilter("ignore")
        try:
            return _open(data, name, max_pixels)
        except (CorruptImageError, MemoryError):
            raise
        except Exception as error:  # its plugins raise anything from struct.error to ZeroDivisionError
            raise _explain(name, error) from error


def jpeg_xl_profile(data: bytes) -> bytes | None:
    """Return the colour profile of the pixels of a JPEG XL. It is decoded for that: nothing else here tells.

    Raises:
        CorruptImageError: ``corrupt`` or ``unsupported``.
    """
    decoder = _load_plugin("JPEG XL").Decoder(num_threads=0)
    try:
        return bytes(decoder(data)[3]) or None
    except MemoryError:
        raise
    except Exception as error:  # whatever its binding to Rust makes of what libjxl says
        raise _explain("JPEG XL", error) from error


@functools.cache
def _load_plugin(name: str) -> Any:  # noqa: ANN401  a module without types
    if name not in PLUGINS:
        return None
    module, distribution = PLUGINS[name]
    try:
        plugin = importlib.import_module(module)
    except ImportError as error:
        message = (
            f"{name} cannot be read here, for lack of {distribution}: pip install --no-deps {distribution}"
        )
        raise CorruptImageError("unsupported", message) from error
    if name == "HEIC":
        plugin.register_heif_opener()
    return plugin


def _open(data: bytes, name: str, max_pixels: int) -> Picture:
    with Image.open(
        io.BytesIO(data), formats=("JPEG", "MPO") if name == "JPEG" else (_PIL_NAMES.get(name, name),)
    ) as image:
        check_size(*image.size, max_pixels)
        frames = 1 if name == "JPEG" else getattr(image, "n_frames", 1)
        if name == "AVIF":  # whose plugin has all pixels before Pillow takes them over, piece by piece
            image.decodermaxblock = _WHOLE
        image.load()  # before EXIF is asked for: what that swallows would be missing from the pixels
        orientation = 1 if name in _TURNED_BY_DECODER else _orientation(image)
        icc = image.info.get("icc_profile") or None
        bits = image.info.get("bit_depth", 1 if image.mode == "1" else 8)
        pixels = _plain(image)
        source_mode = _SOURCE_MODES.get(image.mode, image.mode)
        return Picture(
            image=pixels,
            width=pixels.width,
            height=pixels.height,
            source_format=name,
            source_mode=source_mode,
            source_bits=bits,
            orientation=orientation,
            icc=icc,
            frames=frames,
        )


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(tiff.ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - a broken EXIF block raises anything, and is no reason to lose a picture
        return 1
    return tiff.orientation_of({tiff.ORIENTATION: (value,)})


def _plain(image: Image.Image) -> Image.Image:
    """Bring any mode to one that can be resampled."""
    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        raise CorruptImageError("unsupported", f"Samples of kind {image.mode} have no known range.")
    if image.has_transparency_data:
        return image if image.mode in {"RGBA", "LA"} else image.convert("RGBA")
    if image.mode in {"L", "RGB", "CMYK"}:
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _explain(name: str, error: Exception) -> CorruptImageError:
    """Find the code and the sentence for what Pillow raised."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Image.DecompressionBombError):
        return CorruptImageError("too_large", f"The header of the {name} states more pixels than max_pixels.")
    if "truncated" in text or "not enough image data" in text or isinstance(error, EOFError):
        return CorruptImageError("truncated", f"The {name} ends before its picture does.")
    if re.search(r"not available|unsupported|cannot handle|conversion from", text, re.IGNORECASE):
        return CorruptImageError("unsupported", f"The {name} is of a kind not decoded: {text}.")
    return CorruptImageError("corrupt", f"The {name} does not decode: {text}.")


def has_alpha(image: Image.Image) -> bool:
    """Return whether any pixel is not opaque."""
    return image.mode in {"LA", "RGBA"} and image.getchannel("A").getextrema() != (255, 255)


def resample(picture: Picture, geometry: Geometry) -> NDArray[np.uint8]:
    """Cut the box out and resample it as stored, then turn the small result upright.

    Colours are weighted by their alpha, so that those of transparent pixels do not bleed.

    Returns:
        uint8 (H, W, C), C that of the image's mode.
    """
    left, top, right, bottom = (edge / picture.scale_denominator for edge in geometry.box)
    size = upright_size(geometry.width, geometry.height, picture.orientation)
    if picture.orientation >= FIRST_SIDEWAYS:
        left, top, right, bottom = top, left, bottom, right
    small = picture.image.resize(size, Image.Resampling.LANCZOS, box=(left, top, right, bottom))
    turn = _UPRIGHT.get(picture.orientation)
    pixels = np.asarray(small if turn is None else small.transpose(turn))
    return pixels if pixels.ndim > 2 else pixels[..., np.newaxis]  # noqa: PLR2004 - gray has no axis of channels


def histogram(pixels_HWC: NDArray[np.uint8]) -> tuple[int, ...]:
    """Return 256 counts each for R, G and B of RGB or RGBX pixels; 0.1 ms for 224x224."""
    mode = "RGB" if pixels_HWC.shape[2] == 3 else "RGBX"  # noqa: PLR2004 - channels
    return tuple(wrap(np.ascontiguousarray(pixels_HWC), mode).histogram()[:768])


def engine_versions() -> dict[str, str]:
    """Return name and version of PIL and of what decodes for it; "none" for what is not there."""
    return {
        "pillow": PIL.__version__,
        "pillow_distribution": next(iter(_pil_owners()), "unknown"),
        "pillow_libjpeg_turbo": features.version_feature("libjpeg_turbo") or "none",
        **{distribution.replace("-", "_"): _version(distribution) for _, distribution in PLUGINS.values()},
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def check_single_pil() -> None:
    """Make sure that the package PIL is one distribution, whole.

    Raises:
        DeviceError: if pillow and pillow-simd have both written it, or its version is not its owner's.
    """
    owners = _pil_owners()
    remedy = "run `pip uninstall -y pillow pillow-simd` and install the one you want again"
    if len(owners) > 1:
        named = " and ".join(f"{name} {version}" for name, version in owners.items())
        raise DeviceError(f"{named} have overwritten each other's package PIL: {remedy}.")
    for name, version in owners.items():
        if version != PIL.__version__:
            raise DeviceError(f"{name} {version} is installed, but PIL is {PIL.__version__}: {remedy}.")


def _pil_owners() -> dict[str, str]:
    """Return name and version of each distribution that has files of PIL; a shim without files has none."""
    owners = {}
    for name in ("pillow", "pillow-simd"):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if any(file.parts[0] == "PIL" for file in distribution.files or ()):
            owners[name] = distribution.version
    return owners
