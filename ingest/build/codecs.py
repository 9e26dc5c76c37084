"""Pictures that Pillow here does not decode, and colour profiles, through imagecodecs.

This is the only module that imports imagecodecs: libwebp, libtiff, OpenJPEG, libpng, libjpeg-turbo and
Little CMS. Each decoder is handed bytes of which `streams`, `png` or `tiff_page` knows that no pixel is
missing, for most of them say nothing when one is.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Literal

import imagecodecs
import numpy as np

from ingest.build import containers, jpeg2000, jxl, png, streams, tiff, tiff_page
from ingest.build.geometry import check_size
from ingest.build.jpeg import adobe_transform, read_jpeg_header
from ingest.build.pixels import on_canvas, to_eight_bits, unit_to_eight_bits, unpremultiply, ycc_to_rgb
from ingest.build.raster import MODE_NAMES, Raster, mode_of
from ingest.build.tiff_pixels import check_fax, check_jpeg_segment, new_canvas, place_segment, to_pixels
from ingest.errors import CorruptImageError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ingest.build.jpeg import JpegHeader
    from ingest.build.pixels import Samples
    from ingest.build.tiff_page import TiffPage

# It logs what libraries warn of, as of every interlaced PNG; what is wrong with a file it raises.
logging.getLogger("imagecodecs").disabled = True

_GRAY, _COLOUR, _CMYK = 1, 3, 4  # channels
_LOSSLESS = 3  # SOF3
_DEEP_BITS = 12
_YCC = 1  # one of Adobe's transforms


def _call(kind: str, decoder: Callable[..., Any], data: bytes | bytearray, **options: object) -> Samples:
    """Decode, and say in our words that it failed; each codec's own error is a RuntimeError.

    Returns:
        An array of at least three dimensions, (H, W, C).
    """
    try:
        array = np.asarray(decoder(data, **options))
    except NotImplementedError as error:
        raise CorruptImageError("unsupported", f"The {kind} is of a kind not decoded: {error}.") from error
    except (RuntimeError, ValueError, IndexError) as error:
        raise CorruptImageError("corrupt", f"The {kind} does not decode: {error}.") from error
    return array if array.ndim > 2 else array[..., np.newaxis]  # noqa: PLR2004 - gray has no axis of channels


def _with_notes(profile: containers.Profile, *notes: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the bytes of a profile, none of them if it is broken; and notes, with one more in that case."""
    if profile.broken:
        return b"", (*notes, "The colour profile cannot be taken out of the file.")
    return profile.data, notes


# ---- WebP


def read_webp(data: bytes, max_pixels: int) -> Raster:
    """Decode a WebP: of an animation the first frame, on a canvas that is transparent around it.

    Args:
        data: a whole file.
        max_pixels: the most that the picture may have.

    Raises:
        CorruptImageError: ``too_large``, ``truncated`` or ``corrupt``.
    """
    still = streams.still_webp(data)
    for size in (still.canvas, (still.width, still.height)):
        check_size(*size, max_pixels)
    pixels = np.ascontiguousarray(_call("WebP", imagecodecs.webp_decode, still.data), np.uint8)
    if still.canvas != (still.width, still.height):
        pixels = on_canvas(pixels, still.canvas, still.left, still.top)
    turn = containers.webp_orientation(data)
    icc, notes = _with_notes(containers.webp_profile(data), *still.notes, *turn.notes)
    mode, frames = mode_of(pixels), containers.webp_frames(data)
    return Raster(pixels, mode, MODE_NAMES[mode], 8, turn.value, icc, frames, notes)


# ---- JPEG XL

_NEEDS_MORE = "NEED_MORE_INPUT"  # what libjxl says where a file ends too early
_FRAMES_BEHIND = "An animation: its first picture was taken, and those behind it were not counted."


def read_jpeg_xl(data: bytes, header: jxl.Header) -> Raster:
    """Decode a JPEG XL, of an animation the first picture; samples of any depth become 8 bits.

    Args:
        data: a whole file.
        header: what it says of itself.

    Raises:
        CorruptImageError: ``truncated``, ``corrupt`` or ``unsupported``.
    """
    if header.has_black:
        raise CorruptImageError("unsupported", "JPEG XL with a channel of black ink is not read.")
    try:
        samples = _call(
            "JPEG XL", imagecodecs.jpegxl_decode, data, index=0, keeporientation=True, numthreads=1
        )
    except CorruptImageError as error:
        if _NEEDS_MORE in error.reason:
            message = "The file ends before its picture does: how much of it is there cannot be told."
            raise CorruptImageError("truncated", message) from error
        raise
    samples = _without_others(samples, header)
    levels = unit_to_eight_bits(samples) if header.is_float else to_eight_bits(samples, header.bits)
    levels = unpremultiply(levels) if header.is_premultiplied else levels
    mode = mode_of(levels)
    notes = (_FRAMES_BEHIND,) * header.is_animated
    frames = 1 + header.is_animated
    return Raster(levels, mode, MODE_NAMES[mode], header.bits, header.orientation, None, frames, notes)


def _without_others(samples: Samples, header: jxl.Header) -> Samples:
    """Return colours and alpha alone, (H, W, C): with other channels a gray picture comes plane by plane."""
    size = (header.height, header.width)
    if header.has_others and not header.has_alpha and samples.shape[1:] == size:
        gray: Samples = samples[0]
        return gray[..., np.newaxis]
    if samples.shape[:2] != size or samples.shape[2] not in range(1, 5):
        raise CorruptImageError("unsupported", "JPEG XL with such channels beside its colours is not read.")
    return samples


# ---- PNG


def read_png(data: bytes, max_pixels: int) -> Raster:
    """Decode a PNG: of an animation the first picture; 16 bits a channel are scaled, which Pillow clips.

    Args:
        data: a whole file.
        max_pixels: the most that the picture may have.

    Raises:
        CutOffError: ``truncated``, of `png`: rows are missing.
        CorruptImageError: ``too_large``, ``truncated`` or ``corrupt``.
    """
    stream = png.png_stream(data)
    check_size(stream.width, stream.height, max_pixels)
    pixels = png.mend(data).data if stream.is_cut else stream.data
    samples = _call("PNG", imagecodecs.png_decode, pixels)
    cut = [streams.ENDS_EARLY] * stream.is_cut
    turn = containers.png_orientation(data)
    profile, told = containers.png_colours(data)
    icc, notes = _with_notes(profile, *told, *cut, *turn.notes)
    levels = to_eight_bits(samples, samples.itemsize * 8)
    mode, frames = mode_of(levels), containers.png_frames(data)
    return Raster(levels, mode, MODE_NAMES[mode], stream.bits, turn.value, icc, frames, notes)


# ---- JPEG of more than 8 bits, and lossless


def read_deep_jpeg(data: bytes, header: JpegHeader) -> Raster:
    """Decode a JPEG of 12 bits a sample (SOF0 to SOF2), or a lossless one (SOF3) of 2 to 16.

    Args:
        data: a whole file.
        header: as `read_jpeg_header` returns it.

    Raises:
        CorruptImageError: ``truncated``, ``corrupt``, or ``unsupported`` for other kinds.
    """
    sof, bits, num_channels = header.kind
    is_known = sof == _LOSSLESS or (sof < _LOSSLESS and bits == _DEEP_BITS)
    if not is_known or num_channels not in {_GRAY, _COLOUR, _CMYK}:
        sentence = f"JPEGs of SOF{sof}, {bits} bits and {num_channels} components are not decoded."
        raise CorruptImageError("unsupported", sentence)
    options, is_ycc = {}, False
    if sof == _LOSSLESS and num_channels == _COLOUR:  # which libjpeg-turbo does not convert
        # To convert would have been a loss: it is RGB even where JFIF's marker says otherwise.
        is_ycc = adobe_transform(data, header) == _YCC
        options = dict.fromkeys(("colorspace", "outcolorspace"), "YCBCR" if is_ycc else "RGB")
    samples, notes = _decode_jpeg(data, header, **options)
    pixels = to_eight_bits(samples, bits)
    if is_ycc:
        pixels = ycc_to_rgb(pixels)
    mode = mode_of(pixels, num_channels)
    if mode == "CMYK" and adobe_transform(data, header) is not None:
        pixels = 255 - pixels  # Adobe writes how much of an ink is missing
    icc, notes = _with_notes(containers.jpeg_icc(data, header.segments), *notes, *header.notes)
    return Raster(pixels, mode, MODE_NAMES[mode], bits, header.orientation, icc, 1, notes)


def _decode_jpeg(data: bytes, header: JpegHeader, **options: object) -> tuple[Samples, tuple[str, ...]]:
    """Decode every sample, and refuse a JPEG some of whose pixels are libjpeg's, not the file's."""
    scans = streams.find_scans(data, header.segments[-1][2])
    samples = _call("JPEG", imagecodecs.jpeg8_decode, scans.data, **options)
    if not np.array_equal(samples, _call("JPEG", imagecodecs.jpeg8_decode, scans.with_junk(), **options)):
        raise CorruptImageError("truncated", "The JPEG lacks part of its pixels.")
    return samples, (() if scans.is_ended else (streams.ENDS_EARLY,))


# ---- TIFF


def read_tiff(data: bytes, max_pixels: int) -> Raster:
    """Decode the first page of a TIFF; its orientation is not applied.

    Args:
        data: a whole file, no camera raw.
        max_pixels: the most that the picture may have.

    Raises:
        CorruptImageError: ``too_large``, ``truncated``, ``corrupt``, or ``unsupported`` naming what is.
    """
    page = tiff_page.read_page(data, max_pixels)
    layout = page.layout
    samples, notes = _decode_tiff(data, page)
    pixels = to_pixels(samples, page)
    icc = page.bytes_of(tiff.ICC_PROFILE)
    mode = mode_of(pixels, layout.num_colours)
    name = MODE_NAMES[mode]
    if layout.photometric == tiff_page.PALETTE:
        name = name.replace("RGB", "palette")
    turn = tiff.read_orientation(data, tags=page.tags)
    notes = (*page.notes, *notes, *turn.notes)
    return Raster(pixels, mode, name, layout.bits, turn.value, icc, page.num_pages, notes)


def _decode_tiff(data: bytes, page: TiffPage) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Decode the samples of a page, (H, W, C); YCbCr as RGB."""
    layout = page.layout
    shape = page.height, page.width, layout.num_samples
    if page.compression in {tiff_page.JPEG, tiff_page.OLD_JPEG}:
        return _decode_jpeg_segments(data, page)
    if layout.photometric == tiff_page.YCBCR:
        _check_unpacked(data, page)
        rgba = _call("TIFF", imagecodecs.tiff_decode, tiff_page.as_stored(data), asrgb=True)
        return rgba[..., :_COLOUR], ()
    if page.compression == tiff_page.GROUP_3:
        check_fax(data, page)
    samples = _call("TIFF", imagecodecs.tiff_decode, tiff_page.as_numbers(data, page))
    if layout.is_planar:
        samples = np.moveaxis(samples, 0, -1)
    if samples.shape != shape:
        raise CorruptImageError("corrupt", f"The TIFF decodes to {samples.shape} instead of {shape}.")
    return samples, ()


def _check_unpacked(data: bytes, page: TiffPage) -> None:
    """Refuse strips or tiles that are too short: asked for RGB, libtiff shows them as far as they go."""
    if page.compression == tiff_page.NO_COMPRESSION:
        return
    unpack = _UNPACKERS.get(page.compression)
    if unpack is None:
        sentence = f"YCbCr in TIFFs of compression {page.compression} is not decoded."
        raise CorruptImageError("unsupported", sentence)
    for (begin, end), size in zip(page.segments.ranges, page.segments.num_bytes, strict=True):
        try:
            num_bytes = len(unpack(data[begin:end], out=size))
        except (RuntimeError, ValueError) as error:
            raise CorruptImageError("corrupt", f"The TIFF does not decode: {error}.") from error
        if num_bytes < size:
            raise CorruptImageError("truncated", "A strip or tile of the TIFF is too short.")


_UNPACKERS: dict[int, Callable[..., bytes | bytearray]] = {
    tiff_page.LZW: imagecodecs.lzw_decode,
    tiff_page.DEFLATE: imagecodecs.zlib_decode,
    tiff_page.OLD_DEFLATE: imagecodecs.zlib_decode,
    tiff_page.PACKBITS: imagecodecs.packbits_decode,
}


def _decode_jpeg_segments(data: bytes, page: TiffPage) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Decode the strips or tiles of a JPEG-compressed page one by one: libtiff overlooks damage in them."""
    canvas = new_canvas(page)
    notes: set[str] = set()
    for n, (begin, end) in enumerate(page.segments.ranges):
        block, block_notes = _decode_jpeg_segment(data[begin:end], page)
        place_segment(canvas, page, n, block)
        notes.update(block_notes)
    return canvas, tuple(notes)


def _decode_jpeg_segment(jpeg: bytes, page: TiffPage) -> tuple[Samples, tuple[str, ...]]:
    if not jpeg.startswith(b"\xff\xd8"):
        raise CorruptImageError("corrupt", "A strip or tile of the TIFF is not a JPEG.")
    header = read_jpeg_header(jpeg)
    check_jpeg_segment(header, page)
    options: dict[str, object] = {}
    if page.compression == tiff_page.JPEG:  # the older one's page is often wrong, JFIF's marker is not
        space = {1: "GRAYSCALE", 3: "RGB", 4: "CMYK"}.get(header.kind[-1])
        is_ycc = page.layout.photometric == tiff_page.YCBCR
        tables = page.bytes_of(tiff_page.JPEG_TABLES)
        options = {"colorspace": "YCBCR" if is_ycc else space, "outcolorspace": space, "tables": tables}
    return _decode_jpeg(jpeg, header, **options)


# ---- JPEG 2000


def read_jpeg2000(data: bytes, max_pixels: int) -> Raster:
    """Decode a JP2 file or a bare codestream.

    Args:
        data: a whole file.
        max_pixels: the most that the picture may have; four components count as a pixel.

    Raises:
        CorruptImageError: ``too_large``, ``truncated``, ``corrupt``, or ``unsupported`` naming what is.
    """
    box = jpeg2000.read_jp2(data)
    stream = jpeg2000.check_codestream(data, box.begin, box.end)
    check_size(stream.width, stream.height * -(-len(stream.components) // 4), max_pixels)
    bits, is_signed, *_ = stream.components[0]
    if bits > jpeg2000.MOST_BITS:
        raise CorruptImageError("unsupported", f"Samples of {bits} bits have no known range.")
    codestream = data[box.begin : stream.end] + jpeg2000.EOC
    samples = _call("JPEG 2000", imagecodecs.jpeg2k_decode, codestream, numthreads=1)
    if is_signed:  # its numbers are around zero, I.5.3.1's around the middle
        samples = samples.view(f"u{samples.itemsize}")
        samples += samples.dtype.type(1 << (bits - 1))
    channels = jpeg2000.to_channels(samples, stream, box)
    mode = mode_of(channels.pixels, channels.num_colours)
    icc, notes = _with_notes(box.profile, *stream.notes)
    return Raster(channels.pixels, mode, MODE_NAMES[mode], bits, 1, icc, 1, notes)


# ---- colour


@functools.cache
def _named_profile(name: str) -> bytes:
    return bytes(imagecodecs.cms_profile(name))


def convert_to_srgb(
    pixels_HWC: NDArray[np.uint8], mode: Literal["L", "RGB", "CMYK"], icc: bytes
) -> NDArray[np.uint8]:
    """Convert pixels by their colour profile.

    Args:
        pixels_HWC: uint8 (H, W, C), 0 to 255; C is 1, 3 or 4. CMYK: 0 is no ink.
        mode: what they are; the profile is for it.
        icc: the profile.

    Returns:
        uint8 (H, W, 3), sRGB.

    Raises:
        DataError: if the profile is not one, or not of a kind that Little CMS converts with.
    """
    space = {"L": "gray", "RGB": "rgb", "CMYK": "cmyk"}[mode]
    pixels = pixels_HWC[..., 0] if mode == "L" else pixels_HWC  # three axes of gray would be a volume
    return _transform(pixels, icc, _named_profile("srgb"), space, np.uint8)


def convert_to_light(pixels_HWC: NDArray[np.uint8], icc: bytes) -> NDArray[np.float32]:
    """Convert RGB by its colour profile to linear light.

    Args:
        pixels_HWC: uint8 (H, W, 3), 0 to 255.
        icc: the profile.

    Returns:
        float32 (H, W, 3), with the primaries of sRGB, not clipped: outside 0 to 1 where sRGB ends.

    Raises:
        DataError: as `convert_to_srgb`.
    """
    return _transform(pixels_HWC, icc, _named_profile("linearrgb"), "rgb", np.float32)


def _transform(
    pixels: NDArray[np.uint8], icc: bytes, target: bytes, space: str, dtype: type[Any]
) -> NDArray[Any]:
    """Convert as libvips does: relative colorimetric, so that what both spaces have stays as it is."""
    try:
        converted: NDArray[Any] = imagecodecs.cms_transform(
            pixels,
            icc,
            target,
            colorspace=space,
            outcolorspace="rgb",
            outdtype=dtype,
            intent=imagecodecs.CMS.INTENT.RELATIVE_COLORIMETRIC,
        )
    except (RuntimeError, ValueError) as error:
        raise DataError(f"The colour profile cannot be used: {error}.") from error
    return converted


def write_png(pixels_HWC: NDArray[np.uint8]) -> bytes:
    """Encode pixels, uint8 (H, W, 3) RGB, as PNG."""
    return bytes(imagecodecs.png_encode(pixels_HWC))


def write_webp(pixels_HWC: NDArray[np.uint8]) -> bytes:
    """Encode pixels, uint8 (H, W, 3) RGB, as lossless WebP."""
    return bytes(imagecodecs.webp_encode(pixels_HWC, lossless=True))


def engine_versions() -> dict[str, str]:
    """Return the versions of imagecodecs and of the libraries in it that decide about pixels."""
    # Not `imagecodecs.version`, which loads every codec there is: 0.2 s.
    found = (
        imagecodecs.webp_version(),
        imagecodecs.tiff_version(),
        imagecodecs.jpeg2k_version(),
        imagecodecs.png_version(),
        imagecodecs.jpeg8_version(),
        imagecodecs.cms_version(),
    )
    return {"imagecodecs": imagecodecs.__version__, **dict(text.split(" ", 1) for text in found)}
