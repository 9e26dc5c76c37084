"""The image kernel: the bytes of one raw picture in, the bytes of one small JPEG out.

This is the only module that imports PIL and simplejpeg. It reads no file and keeps no state: a function
of bytes and a `Recipe`. What it cannot turn into a sample it refuses with `CorruptImageError`.

How a JPEG is shrunk, and why (23 photos of 8 to 17 megapixels; `benchmarks/kernel.py` measures it again):
eight tenths of the time is entropy decoding, which nobody can skip. So the picture is decoded at the
smallest DCT scale that leaves `_OVERSAMPLING` times the target, straight to four bytes a pixel, which
Pillow wraps without a copy and resamples once; it is turned upright afterwards, when it is small.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import io
import re
import warnings
from typing import TYPE_CHECKING

import numpy as np
import PIL
import simplejpeg
from PIL import Image, features

from ingest.build.geometry import (
    FIRST_SIDEWAYS,
    MAX_PIXELS,
    Geometry,
    check_size,
    plan_geometry,
    upright_size,
)
from ingest.build.jpeg import (
    EXIF_ORIENTATION,
    JpegHeader,
    read_jpeg_header,
    valid_orientation,
    without_junk,
    without_padding,
)
from ingest.build.sample import Provenance, Shrunk
from ingest.errors import CorruptImageError, DeviceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingest.recipe import Recipe

# PIL warns above its limit and raises above twice that; ours is checked as soon as the size is known.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS

# simplejpeg applies a scale only where it divides by at least `min_factor`; none divides by more than 8.
_UNSCALED = 9

_TIFF_SUBFILE_TYPE = 254
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Never SOF3: asked to scale a lossless JPEG, simplejpeg 1.9 writes past the end of its buffer.
_GRAY, _COLOUR, _CMYK = 1, 3, 4  # components
_TURBO_KINDS = {(sof, 8, components) for sof in (0, 1, 2, 9, 10) for components in (_GRAY, _COLOUR, _CMYK)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """A decoded picture, not yet upright; `image` is 1/`scale_denominator` of `width` x `height`."""

    image: Image.Image
    width: int
    height: int
    format: str
    orientation: int
    scale_denominator: int


def shrink_image(data: bytes, recipe: Recipe) -> Shrunk:
    """Turn the bytes of one raw picture into a sample.

    Args:
        data: a whole file: JPEG, or anything else that the installed Pillow decodes.
        recipe: size, fit, fidelity, quality and background.

    Returns:
        The sample. The same bytes, recipe and engine versions give the same sample.

    Raises:
        CorruptImageError: with code ``empty``, ``not_an_image``, ``truncated``, ``corrupt``,
            ``too_large`` or ``unsupported``.
    """
    source = _read(data, recipe)
    image = _render(source, recipe)
    return Shrunk(
        simplejpeg.encode_jpeg(
            np.asarray(image), recipe.quality, colorspace=image.mode, colorsubsampling="420"
        ),
        *image.size,
        _provenance(source, recipe),
        tuple(image.histogram()[:768]),  # 0.1 ms of 37; the fourth byte of RGBX is not counted
    )


def _provenance(source: _Source, recipe: Recipe) -> Provenance:
    width, height = upright_size(source.width, source.height, source.orientation)
    plan = plan_geometry(width, height, recipe)
    left, top, right, bottom = plan.box
    return Provenance(
        source_format=source.format,
        source_mode="RGB",
        source_bits=8,
        source_width=width,
        source_height=height,
        orientation=source.orientation,
        scale_denominator=source.scale_denominator,
        crop_left=left,
        crop_top=top,
        crop_right=right,
        crop_bottom=bottom,
        scale_x=plan.width / (right - left),
        scale_y=plan.height / (bottom - top),
        offset_x=(recipe.size - plan.width) // 2 if recipe.fit == "contain" else 0,
        offset_y=(recipe.size - plan.height) // 2 if recipe.fit == "contain" else 0,
        profile=None,
        profile_use="none",
        frames_dropped=0,
        alpha=False,
        upscaled=plan.width > right - left or plan.height > bottom - top,
        rows_present=1.0,
        notes=(),
    )


def shrink_pixels(data: bytes, recipe: Recipe) -> NDArray[np.uint8]:
    """Return the pixels that `shrink_image` encodes: uint8 (H, W, 3), RGB, 0 to 255, upright.

    Raises:
        CorruptImageError: as `shrink_image` does.
    """
    return np.asarray(_render(_read(data, recipe), recipe).convert("RGB"))


def decode_jpeg(data: bytes) -> NDArray[np.uint8]:
    """Decode every pixel of a sample.

    Args:
        data: a JPEG of one or three components.

    Returns:
        uint8 (H, W, 3), RGB, 0 to 255.

    Raises:
        CorruptImageError: if it is not a JPEG, or any part of it is missing or does not decode.
    """
    header = read_jpeg_header(data)
    if header.kind not in _TURBO_KINDS or header.kind[-1] == _CMYK:
        raise CorruptImageError("unsupported", "The JPEG is not 8 bits, gray or RGB, as samples are.")
    return _decode_strict(data, header, 1, "RGB")


def encode_jpeg(image_HWC: NDArray[np.uint8], quality: int, exif: bytes | None = None) -> bytes:
    """Encode pixels as a baseline 4:2:0 JPEG.

    Args:
        image_HWC: uint8 (H, W, 3), RGB, 0 to 255, C-contiguous.
        quality: 1 to 100.
        exif: a TIFF-structured block, with or without the leading ``Exif`` and two zero bytes; at most
            65,527 bytes. None writes no EXIF.

    Returns:
        A JPEG file.
    """
    jpeg: bytes = simplejpeg.encode_jpeg(image_HWC, quality, colorspace="RGB", colorsubsampling="420")
    if exif is None:
        return jpeg
    payload = b"Exif\0\0" + exif.removeprefix(b"Exif\0\0")
    return jpeg[:2] + b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload + jpeg[2:]


# ---- pixels: from a decoded picture to a sample


def _read(data: bytes, recipe: Recipe) -> _Source:
    """Decode a file of any format."""
    if not data:
        raise CorruptImageError("empty", "The file is empty.")
    if data.startswith(b"\xff\xd8"):
        return _read_jpeg(data, recipe)
    return _read_with_pillow(data, recipe.background)


def _render(source: _Source, recipe: Recipe) -> Image.Image:
    """Crop, resample, turn and pad, to RGB or RGBX."""
    upright = upright_size(source.width, source.height, source.orientation)
    image = _resample(source, plan_geometry(*upright, recipe))
    # An ICC profile, once it counts, is applied here: to 50,000 pixels rather than to 12 million.
    return _pad(image, recipe) if recipe.fit == "contain" else image


def _resample(source: _Source, geometry: Geometry) -> Image.Image:
    """Cut the box out and resample it as stored, then turn the small result upright."""
    left, top, right, bottom = (edge / source.scale_denominator for edge in geometry.box)
    size = upright_size(geometry.width, geometry.height, source.orientation)
    if source.orientation >= FIRST_SIDEWAYS:
        left, top, right, bottom = top, left, bottom, right
    small = source.image.resize(size, Image.Resampling.LANCZOS, box=(left, top, right, bottom))
    turn = _UPRIGHT.get(source.orientation)
    return small if turn is None else small.transpose(turn)


def _pad(image: Image.Image, recipe: Recipe) -> Image.Image:
    """Centre a picture on a square of the background."""
    canvas = Image.new("RGB", (recipe.size, recipe.size), recipe.background)
    canvas.paste(image.convert("RGB"), ((recipe.size - image.width) // 2, (recipe.size - image.height) // 2))
    return canvas


# ---- JPEG in


def _read_jpeg(data: bytes, recipe: Recipe) -> _Source:
    """Decode a JPEG as small as the recipe allows."""
    header = read_jpeg_header(data)
    if header.kind not in _TURBO_KINDS:
        return _read_odd_jpeg(data, header)
    upright = upright_size(header.width, header.height, header.orientation)
    scale = plan_geometry(*upright, recipe).scale_denominator
    is_cmyk = header.kind[-1] == _CMYK
    try:
        pixels = _decode_strict(data, header, scale, "CMYK" if is_cmyk else "RGBX")
    except _OddSamplingError:
        return _read_odd_jpeg(data, header)
    if is_cmyk:  # nothing is missing; Pillow knows whether the inks are inverted
        return _read_odd_jpeg(data, header)
    image = Image.frombuffer("RGBX", pixels.shape[1::-1], pixels, "raw", "RGBX", 0, 1)
    return _Source(image, header.width, header.height, "JPEG", header.orientation, scale)


def _read_odd_jpeg(data: bytes, header: JpegHeader) -> _Source:
    """Let Pillow decode what simplejpeg cannot: CMYK, odd sampling factors, other kinds if it can."""
    try:
        source = _read_with_pillow(data, (0, 0, 0))
    except CorruptImageError as error:
        if header.kind in _TURBO_KINDS or error.code == "truncated":
            raise
        kind = "SOF{}, {} bits, {} components".format(*header.kind)
        raise CorruptImageError("unsupported", f"JPEGs of kind {kind} are not decoded.") from error
    return dataclasses.replace(source, format="JPEG", orientation=header.orientation)


class _OddSamplingError(CorruptImageError):
    """TurboJPEG refuses sampling factors that libjpeg, and so Pillow, decodes."""


def _decode_strict(data: bytes, header: JpegHeader, scale: int, colorspace: str) -> NDArray[np.uint8]:
    """Decode at 1/`scale` to uint8 (H, W, bytes a pixel); any warning but a harmless one raises."""
    size = -(-header.height // scale), -(-header.width // scale)
    for _ in range(3):  # as it is, without junk in its header, without padding at its end
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                data,
                colorspace,
                fastupsample=scale > 1,  # chroma need not be smooth before it is averaged: 0 to 1.6 dB better
                min_height=size[0],
                min_width=size[1],
                min_factor=scale if scale > 1 else _UNSCALED,
            )
        except ValueError as error:
            data = _mend(data, str(error))
        else:
            if pixels.shape[:2] == size:
                return pixels
    raise CorruptImageError("corrupt", "The JPEG decodes only with bytes left over among its pixels.")


def _mend(data: bytes, warning: str) -> bytes:
    """Take out what a harmless warning was about, so that decoding again shows whether there are others.

    libjpeg reports only its last warning: to overlook a harmless one would be to overlook all before it.

    Raises:
        CorruptImageError: if the warning is not harmless.
    """
    if "subsampling" in warning:
        raise _OddSamplingError("unsupported", "The sampling factors of the JPEG are not supported.")
    padding = re.search(r"(\d+) extraneous bytes before marker 0xd9", warning)
    if padding:
        return without_padding(data, int(padding[1]))
    if "bad ICC marker" in warning or "extraneous bytes before marker" in warning:
        return without_junk(data)
    code = "truncated" if "Premature end of JPEG" in warning else "corrupt"
    raise CorruptImageError(code, f"The JPEG does not decode: {warning}.")


# ---- everything else in, through Pillow


def _read_with_pillow(data: bytes, background: tuple[int, int, int]) -> _Source:
    """Let Pillow decode every pixel, and say in our words what went wrong."""
    with warnings.catch_warnings():  # of odd metadata and large pictures, neither of them news here
        warnings.simplefilter("ignore")
        try:
            return _open_with_pillow(data, background)
        except (CorruptImageError, MemoryError):
            raise
        except Exception as error:  # its plugins raise anything from struct.error to ZeroDivisionError
            raise _explain(data, error) from error


def _open_with_pillow(data: bytes, background: tuple[int, int, int]) -> _Source:
    with Image.open(io.BytesIO(data)) as image:
        check_size(*image.size)
        image.load()  # before EXIF is asked for: what that swallows would be missing from the pixels
        if image.format == "TIFF" and image.getexif().get(_TIFF_SUBFILE_TYPE) == 1:
            raise CorruptImageError("unsupported", "This is a camera raw file; what shows is its thumbnail.")
        rgb, orientation = _to_rgb(image, background), _pillow_orientation(image)
        return _Source(rgb, *rgb.size, str(image.format), orientation, 1)


def _pillow_orientation(image: Image.Image) -> int:
    """Return what is left to turn: nothing for a TIFF, which Pillow turns itself."""
    try:
        return valid_orientation(image.getexif().get(EXIF_ORIENTATION))
    except Exception:  # noqa: BLE001 - a broken EXIF block raises anything, and is no reason to lose a picture
        return 1


def _to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Bring any mode to RGB, transparent pixels on the background.

    Laying a picture on a plain background before resampling is resampling with premultiplied alpha.
    """
    if image.mode.startswith("I;16"):
        gray = (np.asarray(image).astype(np.uint32) + 128) // 257  # 0..65535 to 0..255, rounded
        return Image.fromarray(gray.astype(np.uint8)).convert("RGB")
    if image.mode in {"I", "F"}:
        raise CorruptImageError("unsupported", "Samples of 32 bits have no known range.")
    if not image.has_transparency_data:
        return image.convert("RGB")
    canvas = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")


_UNREAD = "which the installed Pillow does not read"
_KINDS = (  # what unrecognised bytes may be: how they begin, code, name
    (rb"\s*<(!doctype html|html)", "not_an_image", "an HTML page"),
    (rb"\s*<(\?xml|svg)", "not_an_image", "an SVG or XML text"),
    (rb"version https://git-lfs", "not_an_image", "a Git LFS pointer, not the file it points to"),
    (rb"\x00\x05\x16[\x00\x07]", "not_an_image", "a side file of macOS, not the picture"),
    (rb".{4}ftyp(hei|hev|mif|msf|avi)", "unsupported", f"HEIC or AVIF, {_UNREAD}"),
    (rb"RIFF.{4}WEBP", "unsupported", f"WebP, {_UNREAD}"),
    (rb"\xff\x0a|\x00{3}\x0cJXL ", "unsupported", f"JPEG XL, {_UNREAD}"),
    (rb"II[*+]\0|MM\0[*+]", "unsupported", f"a kind of TIFF {_UNREAD}"),
    (rb"\x89PNG|GIF8|BM", "corrupt", "a picture with a broken header"),
    (rb"", "not_an_image", "no picture in any format that the installed Pillow reads"),
)


def _explain(data: bytes, error: Exception) -> CorruptImageError:
    """Find the code and the sentence for what Pillow raised."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Image.DecompressionBombError):
        return CorruptImageError("too_large", f"The header states more than {MAX_PIXELS:,} pixels.")
    if isinstance(error, PIL.UnidentifiedImageError):
        code, name = next(
            (code, name) for begin, code, name in _KINDS if re.match(begin, data, re.DOTALL | re.IGNORECASE)
        )
        return CorruptImageError(code, f"This is {name}.")
    if "truncated" in text:
        return CorruptImageError("truncated", f"The picture is cut off: {text}.")
    if re.search(r"not available|unsupported|cannot handle|conversion from", text, re.IGNORECASE):
        return CorruptImageError("unsupported", f"The installed Pillow cannot decode this: {text}.")
    return CorruptImageError("corrupt", f"The picture does not decode: {text}.")


# ---- the engines


def engine_versions() -> dict[str, str]:
    """Return what decides the bytes of a sample besides the recipe: name of each engine to its version."""
    owners = _pil_owners()
    return {
        "pillow": PIL.__version__,
        "pillow_distribution": next(iter(owners), "unknown"),
        "pillow_libjpeg_turbo": features.version_feature("libjpeg_turbo") or "none",
        "simplejpeg": simplejpeg.__version__,
        "numpy": np.__version__,
    }


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
