"""What the first page of a TIFF says of its pixels, checked before any of them is decoded.

Pure. Names, defaults and meanings of the tags are those of TIFF 6.0; what a missing
PhotometricInterpretation or ExtraSamples means is what libtiff makes of it.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

from ingest.build import tiff
from ingest.build.geometry import check_size
from ingest.build.tiff_directory import check_values, has_tag, with_first, with_tags
from ingest.errors import CorruptImageError

Alpha = Literal["none", "associated", "unassociated"]

JPEG_TABLES: Final = 347
_STRIP_OFFSETS, _ROWS_PER_STRIP, _STRIP_BYTE_COUNTS = 273, 278, 279
_TILE_WIDTH, _TILE_LENGTH, _TILE_OFFSETS, _TILE_BYTE_COUNTS = 322, 323, 324, 325
_JPEG_INTERCHANGE_FORMAT, _YCBCR_SUBSAMPLING, _IMAGE_DEPTH = 513, 530, 32997

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, SEPARATED, YCBCR = 0, 1, 2, 3, 5, 6
_NUM_COLOURS = {WHITE_IS_ZERO: 1, BLACK_IS_ZERO: 1, RGB: 3, PALETTE: 1, SEPARATED: 4, YCBCR: 3}
_OTHER_PHOTOMETRICS = {
    4: "a transparency mask",
    8: "in CIELAB",
    9: "in ICCLAB",
    10: "in ITULAB",
    32803: "a mosaic as a sensor sees it",
    32844: "in CIE LogL",
    32845: "in CIE LogLuv",
    34892: "in linear raw colours",
}
NO_COMPRESSION, GROUP_3, LZW, OLD_JPEG, JPEG, DEFLATE, PACKBITS, OLD_DEFLATE = 1, 3, 5, 6, 7, 8, 32773, 32946
_COMPRESSIONS = frozenset(
    {NO_COMPRESSION, 2, GROUP_3, 4, LZW, OLD_JPEG, JPEG, DEFLATE, PACKBITS, OLD_DEFLATE, 34925, 50000, 50001}
)  # 2 to 4 are CCITT's, 34925 is LZMA, 50000 Zstandard, 50001 WebP

_UNSIGNED, _SIGNED, _UNDEFINED = 1, 2, 4  # values of SampleFormat
_ALPHAS: dict[int | float | bytes, Alpha] = {1: "associated", 2: "unassociated"}  # values of ExtraSamples
_SEPARATE_PLANES, _CMYK_INKS = 2, 1  # values of PlanarConfiguration and InkSet
_MOST_BITS, _MOST_PALETTE_BITS, _BYTE = 16, 8, 8
_NOT_A_PAGE = 1 | 4  # bits of NewSubfileType: at reduced resolution, a mask
_MOST_SKIPPED = 64  # pages; thumbnails and masks are one to ten

# Where one of these lies outside the file, its default would make another picture of it.
_DECISIVE = frozenset(
    {
        *(tiff.IMAGE_WIDTH, tiff.IMAGE_LENGTH, tiff.BITS_PER_SAMPLE, tiff.SAMPLE_FORMAT, tiff.COLOR_MAP),
        *(tiff.EXTRA_SAMPLES, _STRIP_OFFSETS, _STRIP_BYTE_COUNTS, _TILE_OFFSETS, _TILE_BYTE_COUNTS),
        JPEG_TABLES,
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class SampleLayout:
    """What the numbers of a page mean.

    Attributes:
        photometric: one of the constants of this module.
        bits: bits a sample, 1 to 16.
        is_signed: whether samples are two's complement.
        num_samples: samples a pixel.
        num_colours: of which the first so many are colours: 1, 3 or 4.
        alpha: what the sample of the alpha is; ``none`` where there is no such.
        alpha_at: its number, from 0; -1 without one.
        is_planar: whether each sample has a plane of its own.
        notes: what was wrong and cost no pixel.
    """

    photometric: int
    bits: int
    is_signed: bool
    num_samples: int
    num_colours: int
    alpha: Alpha
    alpha_at: int
    is_planar: bool
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Segments:
    """The strips or tiles of a page.

    Attributes:
        width: of each, in pixels.
        height: of each, in rows; the last ones may stick out of the picture.
        num_across: how many stand side by side.
        num_down: how many stand above each other.
        ranges: begin and end of each in the file, in bytes; row by row, plane by plane.
        num_bytes: of each once decompressed, without rows that stick out of a strip.
    """

    width: int
    height: int
    num_across: int
    num_down: int
    ranges: tuple[tuple[int, int], ...]
    num_bytes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TiffPage:
    """The first page of a TIFF, every strip or tile of which lies inside the file.

    Attributes:
        width: as stored, in pixels.
        height: as stored, in pixels.
        compression: as the file states it.
        layout: what the samples mean.
        segments: where they are.
        color_map: 3 * 2**bits numbers of 0 to 65,535, red first; empty without a palette.
        tags: all tags of the page.
        num_pages: pages of the file.
        notes: what was wrong with the page and cost no pixel.
    """

    width: int
    height: int
    compression: int
    layout: SampleLayout
    segments: Segments
    color_map: tuple[int, ...]
    tags: tiff.Tags = dataclasses.field(repr=False)
    num_pages: int
    notes: tuple[str, ...]

    def bytes_of(self, tag: int) -> bytes | None:
        """Return the value of a tag that is bytes, None if it is missing or anything else."""
        return next((value for value in self.tags.get(tag, ()) if isinstance(value, bytes)), None)


def read_page(data: bytes, max_pixels: int) -> TiffPage:
    """Read the first page of a TIFF.

    Args:
        data: a whole file.
        max_pixels: the most that a picture may have; four samples count as a pixel.

    Raises:
        CorruptImageError: ``too_large``, ``truncated`` or ``corrupt``, or ``unsupported`` naming what is.
    """
    tags = tiff.read_tags(data)
    check_values(data, tags, _DECISIVE)
    width, height = (_one(tags, tag) for tag in (tiff.IMAGE_WIDTH, tiff.IMAGE_LENGTH))
    check_size(width, height, max_pixels)
    if _one(tags, _IMAGE_DEPTH, 1) != 1:
        raise CorruptImageError("unsupported", "The TIFF is a volume, not a picture.")
    compression = _one(tags, tiff.COMPRESSION, NO_COMPRESSION)
    if compression not in _COMPRESSIONS:
        raise CorruptImageError("unsupported", f"TIFFs of compression {compression} are not decoded.")
    layout = _read_layout(tags)
    check_size(width, height * -(-layout.num_samples // 4), max_pixels)
    if compression == OLD_JPEG:
        segments = _find_old_jpeg(data, tags, (width, height))
    else:
        segments = _read_segments(data, tags, layout, (width, height), max_pixels)
    color_map = _read_color_map(tags, layout)
    notes = layout.notes
    if tiff.ICC_PROFILE not in tags and has_tag(data, tiff.ICC_PROFILE):
        notes = (*notes, "The colour profile is not in the file, or broken.")
    num_pages = max(1, tiff.count_directories(data))
    return TiffPage(width, height, compression, layout, segments, color_map, tags, num_pages, notes)


def full_page_first(data: bytes) -> tuple[bytes, int]:
    """Return a TIFF that begins with its first page that is a picture of its own.

    NewSubfileType says of a page that it is another one at reduced resolution (bit 0) or its mask (bit 2).
    libtiff, libvips and Pillow take the first page whatever it says of itself, and so a thumbnail.

    Returns:
        The file, and how many pages before that one were left out: 0 too if no page is a full picture.
    """
    offsets = tiff.directory_offsets(data, most=_MOST_SKIPPED)
    for number, offset in enumerate(offsets):
        (kind, *_) = tiff.read_directory(data, offset).get(tiff.NEW_SUBFILE_TYPE) or (0,)
        if isinstance(kind, int) and not kind & _NOT_A_PAGE:
            return (with_first(data, offset) if number else data), number
    return data, 0


def find_segments(data: bytes, max_pixels: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the compression of the first page that is a full picture, and where its strips or tiles are.

    Raises:
        CorruptImageError: as `read_page`.
    """
    page = read_page(full_page_first(data)[0], max_pixels)
    return page.compression, page.segments.ranges


# ---- tags


def as_numbers(data: bytes, page: TiffPage) -> bytes | bytearray:
    """Return a TIFF of which imagecodecs decodes the samples as they are.

    It would make RGB of inks without their profile, and refuses samples whose format is undefined.
    """
    values: dict[int, int | None] = {}
    if page.layout.photometric == SEPARATED:
        values[tiff.PHOTOMETRIC] = BLACK_IS_ZERO
    if _UNDEFINED in page.tags.get(tiff.SAMPLE_FORMAT, ()):
        values[tiff.SAMPLE_FORMAT] = None
    return with_tags(data, values)


def as_stored(data: bytes) -> bytes | bytearray:
    """Return a TIFF that libtiff does not turn when it is asked for RGB: it would, by half."""
    return with_tags(data, {tiff.ORIENTATION: 1})


def _one(tags: tiff.Tags, tag: int, default: int | None = None) -> int:
    """Return the first number of a tag."""
    value = next(iter(tags.get(tag, ())), default)
    if not isinstance(value, int):
        raise CorruptImageError("corrupt", f"The TIFF does not have a number as tag {tag}.")
    return value


def _numbers(tags: tiff.Tags, tag: int) -> tuple[int, ...]:
    return tuple(value for value in tags.get(tag, ()) if isinstance(value, int))


# ---- what samples mean


def _read_layout(tags: tiff.Tags) -> SampleLayout:
    num_samples = _one(tags, tiff.SAMPLES_PER_PIXEL, max(1, len(tags.get(tiff.BITS_PER_SAMPLE, ()))))
    photometric = _read_photometric(tags, num_samples)
    num_colours = _NUM_COLOURS[photometric]
    if num_samples < num_colours:
        raise CorruptImageError("corrupt", f"A TIFF of {num_samples} samples a pixel lacks a colour.")
    bits, is_signed = _read_depth(tags, num_samples)
    if photometric == PALETTE and bits > _MOST_PALETTE_BITS:
        raise CorruptImageError("unsupported", f"Palettes of {bits} bits are not decoded.")
    if is_signed and photometric not in {BLACK_IS_ZERO, RGB}:
        raise CorruptImageError("unsupported", "Signed samples are read as gray or RGB alone.")
    alpha, alpha_at = _read_alpha(tags, num_colours, num_samples - num_colours)
    if photometric == SEPARATED:
        alpha, alpha_at = "none", -1
    is_planar = num_samples > 1 and _one(tags, tiff.PLANAR_CONFIG, 1) == _SEPARATE_PLANES
    if is_planar and photometric == YCBCR:
        raise CorruptImageError("unsupported", "YCbCr in planes is not converted.")
    num_ignored = num_samples - num_colours - (alpha != "none")
    notes = (
        *(["Negative samples are shown as black."] if is_signed else []),
        *([f"Channels that are neither colour nor alpha were left out: {num_ignored}."] * (num_ignored > 0)),
    )
    return SampleLayout(
        photometric, bits, is_signed, num_samples, num_colours, alpha, alpha_at, is_planar, notes
    )


def _read_photometric(tags: tiff.Tags, num_samples: int) -> int:
    """Return what the samples are; a missing tag means what it does to libtiff."""
    is_ccitt = _one(tags, tiff.COMPRESSION, NO_COMPRESSION) in {2, 3, 4}
    guess = RGB if num_samples >= _NUM_COLOURS[RGB] else WHITE_IS_ZERO if is_ccitt else BLACK_IS_ZERO
    photometric = _one(tags, tiff.PHOTOMETRIC, guess)
    if photometric not in _NUM_COLOURS:
        what = _OTHER_PHOTOMETRICS.get(photometric, f"of photometric interpretation {photometric}")
        raise CorruptImageError("unsupported", f"The TIFF is {what}, which is not converted.")
    if photometric == SEPARATED and _one(tags, tiff.INK_SET, _CMYK_INKS) != _CMYK_INKS:
        raise CorruptImageError(
            "unsupported", "The inks of the TIFF are not cyan, magenta, yellow and black."
        )
    return photometric


def _read_depth(tags: tiff.Tags, num_samples: int) -> tuple[int, bool]:
    """Return bits a sample, and whether samples are signed."""
    depths = set(_numbers(tags, tiff.BITS_PER_SAMPLE)[:num_samples]) or {1}
    formats = set(_numbers(tags, tiff.SAMPLE_FORMAT)[:num_samples]) or {_UNSIGNED}
    if len(depths) > 1 or len(formats) > 1:
        raise CorruptImageError("unsupported", "The channels of the TIFF are not all of the same depth.")
    (bits,), (sample_format,) = depths, formats
    if sample_format not in {_UNSIGNED, _SIGNED, _UNDEFINED}:
        raise CorruptImageError("unsupported", "Floating-point or complex samples have no known range.")
    if not 1 <= bits <= _MOST_BITS:
        raise CorruptImageError("unsupported", f"Samples of {bits} bits have no known range.")
    return bits, sample_format == _SIGNED


def _read_alpha(tags: tiff.Tags, num_colours: int, num_extra: int) -> tuple[Alpha, int]:
    """Return what the first sample after the colours that is alpha is, and its number, -1 without one.

    A single one that the file does not explain is alpha, as libtiff, libvips and Pillow have it.
    """
    default = (2,) if num_extra == 1 else ()
    kinds = (tags.get(tiff.EXTRA_SAMPLES) or default)[: max(0, num_extra)]
    found = ((_ALPHAS[kind], num_colours + n) for n, kind in enumerate(kinds) if kind in _ALPHAS)
    return next(found, ("none", -1))


def _read_color_map(tags: tiff.Tags, layout: SampleLayout) -> tuple[int, ...]:
    if layout.photometric != PALETTE:
        return ()
    color_map = _numbers(tags, tiff.COLOR_MAP)
    if len(color_map) < 3 << layout.bits:
        raise CorruptImageError("corrupt", "The palette of the TIFF is missing or too short.")
    return color_map[: 3 << layout.bits]


# ---- where they are


def _read_segments(
    data: bytes, tags: tiff.Tags, layout: SampleLayout, size: tuple[int, int], max_pixels: int
) -> Segments:
    """Find every strip or tile, and refuse a file in which one is missing."""
    is_tiled = _TILE_WIDTH in tags or _TILE_LENGTH in tags
    width, height = size
    if is_tiled:
        segment_width, segment_height = _one(tags, _TILE_WIDTH), _one(tags, _TILE_LENGTH)
        check_size(segment_width, segment_height, max_pixels)
    else:
        segment_width, segment_height = width, max(1, min(height, _one(tags, _ROWS_PER_STRIP, height)))
    across, down = -(-width // segment_width), -(-height // segment_height)
    rows = [segment_height] * down
    if not is_tiled:
        rows[-1] = height - (down - 1) * segment_height
    num_planes = layout.num_samples if layout.is_planar else 1
    num_bytes = tuple(
        _num_bytes(tags, layout, segment_width, n)
        for _ in range(num_planes)
        for n in rows
        for _ in range(across)
    )
    ranges = _find_ranges(data, tags, num_bytes)
    return Segments(segment_width, segment_height, across, down, ranges, num_bytes)


def _find_old_jpeg(data: bytes, tags: tiff.Tags, size: tuple[int, int]) -> Segments:
    """Find the whole JPEG that most pages of the older JPEG compression have.

    Of the other ways to store it libtiff knows some; it shows gray where it does not.
    """
    begin = (*_numbers(tags, _JPEG_INTERCHANGE_FORMAT), 0)[0]
    if not data.startswith(b"\xff\xd8", begin):
        raise CorruptImageError("unsupported", "The old-style JPEG in the TIFF is not a whole one.")
    return Segments(*size, 1, 1, ((begin, len(data)),), (0,))


def _num_bytes(tags: tiff.Tags, layout: SampleLayout, width: int, height: int) -> int:
    """Return the bytes of a strip or tile that is not compressed."""
    if layout.photometric == YCBCR and not layout.is_planar:
        across, down = (*_numbers(tags, _YCBCR_SUBSAMPLING), 2, 2)[:2]
        if across in {1, 2, 4} and down in {1, 2, 4}:
            return -(-width // across) * -(-height // down) * (across * down + 2)
        raise CorruptImageError("corrupt", f"The TIFF states a chroma subsampling of {across}x{down}.")
    samples = 1 if layout.is_planar else layout.num_samples
    return -(-width * samples * layout.bits // _BYTE) * height


def _find_ranges(data: bytes, tags: tiff.Tags, num_bytes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return begin and end of each strip or tile.

    The length of one that is not compressed is known; what the file says of it is often wrong.
    """
    offsets = _numbers(tags, _TILE_OFFSETS) or _numbers(tags, _STRIP_OFFSETS)
    lengths = _numbers(tags, _TILE_BYTE_COUNTS) or _numbers(tags, _STRIP_BYTE_COUNTS)
    if _one(tags, tiff.COMPRESSION, NO_COMPRESSION) == NO_COMPRESSION:
        lengths = num_bytes
    elif len(num_bytes) == 1 and lengths in {(), (0,)}:  # as libtiff mends it
        lengths = (len(data) - sum(offsets[:1]),)
    num_listed, num_needed = min(len(offsets), len(lengths)), len(num_bytes)
    if num_listed < num_needed:
        raise CorruptImageError(
            "corrupt", f"The TIFF lists {num_listed} of its {num_needed} strips or tiles."
        )
    ranges = tuple((begin, begin + size) for begin, size in zip(offsets, lengths[:num_needed], strict=False))
    num_whole = sum(0 < begin < end <= len(data) for begin, end in ranges)
    if num_whole < num_needed:
        sentence = (
            f"{num_needed - num_whole} of {num_needed} strips or tiles of the TIFF are not in the file."
        )
        raise CorruptImageError("truncated", sentence)
    return ranges
