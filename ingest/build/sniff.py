"""What bytes are, whatever the file is called. Pure functions; nothing is decoded.

Signatures are those of the formats' own specifications and of file(1)'s magic; a camera raw that is built
as a TIFF is told from a picture by the tags that only raws have.
"""

from __future__ import annotations

import codecs
import re
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ingest.build import tiff

if TYPE_CHECKING:
    from collections.abc import Iterator

Family = Literal["picture", "camera_raw", "unsupported", "other"]


class Kind(NamedTuple):
    """What bytes are.

    Attributes:
        format: name of the format. Of the family ``other`` with its article: "This is {format}." reads well.
        family: ``picture``: a format that may be decoded; ``camera_raw``: what a sensor saw, not a picture
            yet; ``unsupported``: a picture of a format that is not read; ``other``: no picture.
    """

    format: str
    family: Family


_EMPTY: Final = Kind("empty", "other")
_ZEROS: Final = Kind("nothing but zero bytes", "other")
_ONES: Final = Kind("nothing but bytes FF, as of an erased disk", "other")
_UNKNOWN: Final = Kind("no picture in any known format", "other")
_TGA: Final = Kind("TGA", "unsupported")
_TEXT: Final = Kind("a text", "other")
_MARKUP = {
    "html": Kind("an HTML page", "other"),
    "svg": Kind("an SVG drawing", "other"),
    "xml": Kind("an XML text", "other"),
    "json": Kind("a JSON text", "other"),
}

_PICTURES = {
    "JPEG": rb"\xff\xd8",
    "PNG": rb"\x89PNG",  # the rest of the signature is there to be broken by whoever takes it for a text
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0",  # the sizes that its second header has
    "WebP": rb"RIFF.{4}WEBP",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "JPEG 2000": rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n",
    "JPEG XL": rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n",
}
_RAWS = {
    "Canon CR2": rb"(II\*\0|MM\0\*).{4}CR\x02",
    "Canon CRW": rb"(II\x1a\0\0\0|MM\0\0\0\x1a)HEAPCCDR",  # the length of this header, then what it is
    "Olympus ORF": rb"IIR[OS]\x08\0|MMOR\0\0",
    "Panasonic RW2": rb"IIU\0",
    "Fujifilm RAF": rb"FUJIFILMCCD-RAW",
    "Sigma X3F": rb"FOVb",
    "Minolta MRW": rb"\0MRM",
    "Phase One IIQ": rb"(.{8}|.{16})?(IIII.waR|MMMMRaw)|(IIII|MMMM)[\x01-\x06]\0\0\0",
    "Contax RAW": rb".{25}ARECOYK",
    "Rollei RDC": rb"DSC-Image",
    "ARRIRAW": rb"ARRI(\x12\x34|\x78\x56)",
}
_UNSUPPORTED = {
    "JPEG-LS": rb"\xff\xd8\xff\xf7",
    "a PNG for iOS (CgBI)": rb"\x89PNG\r\n\x1a\n.{4}CgBI",
    "MNG": rb"\x8aMNG",
    "JNG": rb"\x8bJNG",
    "JPM": rb"\0\0\0\x0cjP  \r\n\x87\n.{4}ftypjpm ",
    "PSD": rb"8BPS\0[\x01\x02]",
    "XCF": rb"gimp xcf ",
    "OpenEXR": rb"\x76\x2f\x31\x01",
    "Radiance HDR": rb"#\?(RADIANCE|RGBE)",
    "ICO": rb"\0\0\x01\0[^\0]\0...\0[\0\x01]\0",
    "CUR": rb"\0\0\x02\0[^\0]\0...\0",
    "ANI": rb"RIFF.{4}ACON",
    "ICNS": rb"icns\0",
    "PNM": rb"P[1-6](\s|#[^\n]*\n)+\d+(\s|#[^\n]*\n)+\d+\s|P7\n(#|[A-Z]+ )|P7 332",
    "PFM": rb"P[Ff]\r?\n\d+\s+\d+\s+-?[\d.]+",
    "DDS": rb"DDS \x7c\0\0\0",
    "KTX": rb"\xabKTX ",
    "QOI": rb"qoif\0",
    "farbfeld": rb"farbfeld\0",
    "PCX": rb"\x0a[\0\x02-\x05][\0\x01][\x01\x02\x04\x08]",
    "FITS": rb"SIMPLE  =",
    "DICOM": rb".{128}DICM",
    "NIfTI": rb"(\x5c\x01\0\0|\0\0\x01\x5c).{340}n[i+]1\0",
    "NRRD": rb"NRRD000\d",
    "EPS": rb"%!PS-Adobe-[\d.]+ EPSF|\xc5\xd0\xd3\xc6",
    "PostScript": rb"\x04?%!PS",
    "JPEG XR": rb"II\xbc",
    "WMF": rb"\xd7\xcd\xc6\x9a|\x01\0\x09\0\0[\x01\x03]",
    "EMF": rb"\x01\0\0\0.{36} EMF",
    "BPG": rb"BPG\xfb",
    "FLIF": rb"FLIF[1-7A-D]",
    "SGI": rb"\x01\xda[\0\x01][\x01\x02]\0[\x01-\x03]",
    "Sun raster": rb"\x59\xa6\x6a\x95",
    "Cineon": rb"\x80\x2a\x5f\xd7",
    "DPX": rb"SDPX|XPDS",
    "DjVu": rb"AT&TFORM.{4}DJV",
    "ILBM": rb"FORM.{4}(ILBM|PBM |ACBM)",
    "XBM": rb"#define \w+_width \d",
    "XPM": rb"/\* XPM \*/",
    "PSP": rb"Paint Shop Pro Image File",
    "PICT": rb".{522}\0\x11\x02\xff\x0c\0",
}
_OTHERS = {
    "litter": {"a side file of macOS, not the picture": rb"\0\x05\x16[\0\x07]"},
    "pointer": {
        "a Git LFS pointer, not the file it points to": rb"version https://git-lfs",
        "a git-annex pointer, not the file it points to": rb"(/annex/objects/|(\.\./)*\.git/annex/objects/)",
    },
    "document": {
        "a PDF": rb"(\xef\xbb\xbf)?\s*%PDF-",
        "a rich text": rb"\{\\rtf",
        "a Microsoft Office file or another compound document": rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    },
    "video": {
        "a Matroska or WebM video": rb"\x1a\x45\xdf\xa3",
        "an AVI video": rb"RIFF.{4}AVI ",
        "an MPEG video": rb"\0\0\x01[\xba\xb3]|\0\0\0\x01[\x67\x27\x40]|(.{4})?G.{187}(.{4})?G.{187}(.{4})?G",
        "a Windows Media file": rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11",
        "a Flash video": rb"FLV\x01",
        "a Motion JPEG 2000 video": rb"\0\0\0\x0cjP  \r\n\x87\n.{4}ftypmjp2",
        "a QuickTime video": rb"[^ -~].{3}(moov|mdat|wide|pnot)",
    },
    "sound": {
        "sound (MP3)": rb"ID3[\x02-\x04]|\xff[\xfb\xf3\xf2\xfa]",
        "sound (WAVE)": rb"(RIFF|RF64).{4}WAVE",
        "sound (AIFF)": rb"FORM.{4}AIF[FC]",
        "sound (FLAC)": rb"fLaC[\0\x80]",
        "sound (AAC)": rb"\xff[\xf1\xf9]",
        "an Ogg file (sound or video)": rb"OggS",
        "sound (AU)": rb"\.snd",
        "sound (MIDI)": rb"MThd",
        "sound (AMR)": rb"#!AMR",
    },
    "archive": {
        "a ZIP archive": rb"PK(\x03\x04|\x05\x06|\x07\x08)",
        "a gzip archive": rb"\x1f\x8b",
        "a bzip2 archive": rb"BZh[1-9]1AY",
        "an xz archive": rb"\xfd7zXZ\0",
        "a Zstandard archive": rb"\x28\xb5\x2f\xfd",
        "an LZ4 archive": rb"\x04\x22\x4d\x18",
        "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
        "a RAR archive": rb"Rar!\x1a\x07",
        "a tar archive": rb".{257}ustar",
        "a cabinet archive": rb"MSCF\0",
    },
    "data": {
        "a Parquet file": rb"PAR1",
        "a NumPy array": rb"\x93NUMPY",
        "an HDF5 file": rb"\x89HDF\r\n\x1a\n",
        "a NetCDF file": rb"CDF[\x01\x02\x05]",
        "an SQLite database": rb"SQLite format 3\0",
        "an Arrow file": rb"ARROW1\0\0|FEA1",
        "an Avro file": rb"Obj\x01",
        "a MATLAB file": rb"MATLAB 5\.0 MAT-file",
        "a Python pickle": rb"\x80[\x02-\x05][\x28\x4b\x5d\x63\x7d\x8a\x8c\x95X]",
        "a property list": rb"bplist0",
        "a LAS point cloud": rb"LASF\0",
        "an LMDB database": rb".{16}\xde\xc0\xef\xbe",
    },
    "program": {
        "an ELF program": rb"\x7fELF",
        "a Windows program": rb"MZ.{60}\0\0",
        "a macOS program or a Java class": rb"\xca\xfe\xba\xbe|[\xce\xcf]\xfa\xed\xfe",
        "a font": rb"OTTO\0|\0\x01\0\0\0[\x04-\x40]|wOF[F2]|ttcf\0",
        "a Windows shortcut": rb"L\0\0\0\x01\x14\x02\0",
    },
}


def _tabulate() -> Iterator[tuple[re.Pattern[bytes], Kind]]:
    """Yield every signature, the more special before the more general."""
    tables: tuple[tuple[Family, dict[str, bytes]], ...] = (
        ("unsupported", _UNSUPPORTED),
        ("camera_raw", _RAWS),
        *(("other", names) for names in _OTHERS.values()),
        ("picture", _PICTURES),
    )
    for family, table in tables:
        for name, pattern in table.items():
            yield re.compile(pattern, re.DOTALL), Kind(name, family)


_SIGNATURES = tuple(_tabulate())
_ANY_SIGNATURE = re.compile(b"|".join(b"(?:%b)" % pattern.pattern for pattern, _ in _SIGNATURES), re.DOTALL)
"""One search for all: most of what is no picture is a text, and has none of them."""

# ISO/IEC 23008-12 annex B and the AV1 Image File Format; mif1 and its like leave the codec open.
_HEIC_BRANDS = frozenset(b"heic heix heim heis hevc hevx hevm hevs".split())
_AVIF_BRANDS = frozenset(b"avif avis".split())
_OPEN_BRANDS = frozenset(b"mif1 msf1 mif2 miaf".split())
_CODED_BRANDS = {b"avci": "HEIF with AVC", b"avcs": "HEIF with AVC", b"vvic": "HEIF with VVC"}
_CODED_BRANDS |= {b"jpeg": "HEIF with JPEG", b"jpgs": "HEIF with JPEG", b"j2ki": "HEIF with JPEG 2000"}
_SOUND_BRANDS = frozenset({b"M4A ", b"M4B ", b"F4A "})
_SOUND: Final = Kind("sound (MPEG-4)", "other")
_MP4: Final = Kind("a video (MP4 or QuickTime)", "other")

_GROUPS = {name: group for group, names in _OTHERS.items() for name in names}
_GROUPS |= dict.fromkeys([_TEXT.format, *(kind.format for kind in _MARKUP.values())], "text")
_GROUPS |= {_MP4.format: "video", _SOUND.format: "sound", _EMPTY.format: "empty"}

_HEAD_BYTES = 4096  # of which a text is judged; comments may stand before what tells a page from a drawing
_SIGNATURE_BYTES = 640
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_LONG_ENOUGH = 64  # that many bytes of something compressed have a control character among them
_ERASED = b"\xff" * 16  # what is left of an erased disk, and no text in any encoding
_UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_MARKS = re.compile(
    r"(?P<html><!doctype\s+html|<html\b)|(?P<svg><!doctype\s+svg|<(\w+:)?svg\b)", re.IGNORECASE
)
_STARTS = re.compile(
    r"(?P<html><(head|body|title|meta|script|style|div|table|center|h\d|p|a|b)\b)"
    r"|(?P<xml><[?!a-z])|(?P<json>\{\s*[\"}]|\[\s*([\"{\[\]\d-]|true|false|null))",
    re.IGNORECASE,
)

_TGA_FOOTER = b"TRUEVISION-XFILE.\0"

# TIFF/EP and DNG: a colour filter array, linear raw; then compressions that makers took for themselves, as
# listed by ExifTool: Sony, Epson, Samsung (2), Kodak KDC, Nikon, Kodak DCR, Pentax.
_RAW_PHOTOMETRICS = frozenset({32803, 34892})
_RAW_COMPRESSIONS = frozenset({32767, 32769, 32770, 32772, 32867, 34713, 65000, 65535})
_MAKERS = {
    b"nikon": "Nikon NEF",
    b"sony": "Sony ARW",
    b"canon": "Canon raw",
    b"pentax": "Pentax PEF",
    b"ricoh": "Pentax PEF",
    b"samsung": "Samsung SRW",
    b"kodak": "Kodak DCR",
    b"epson": "Epson ERF",
    b"mamiya": "Mamiya MEF",
    b"hasselblad": "Hasselblad 3FR",
    b"phase one": "Phase One IIQ",
    b"leaf": "Leaf MOS",
}
_MOST_DIRECTORIES = 16  # a raw has two to six


def recognise(data: bytes) -> Kind:
    """Return what bytes are.

    Args:
        data: a whole file, or its first bytes: 64 tell every picture, 512 nearly all else. Most camera raws
            that are built as a TIFF are told from one only by a whole file.
    """
    if not data:
        return _EMPTY
    head = data[:_HEAD_BYTES]
    return (
        _recognise_boxes(head) or _recognise_signature(data) or _recognise_text(head) or _recognise_rest(data)
    )


def group_of(kind: Kind) -> str:
    """Return the group that a file of no picture is counted under.

    ``text``, ``document``, ``video``, ``sound``, ``archive``, ``data``, ``program``, ``litter``,
    ``pointer``, ``empty``, or ``other`` for what is not known.
    """
    return _GROUPS.get(kind.format, "other")


def _recognise_signature(data: bytes) -> Kind | None:
    head = data[:_SIGNATURE_BYTES]
    if _ANY_SIGNATURE.match(head) is None:
        return None
    kind = next((kind for pattern, kind in _SIGNATURES if pattern.match(head)), None)
    raw = _raw_format(data) if kind is not None and kind.format == "TIFF" else None
    return kind if raw is None else Kind(raw, "camera_raw")


def _recognise_rest(data: bytes) -> Kind:
    for byte, kind in ((0, _ZEROS), (0xFF, _ONES)):
        if data.count(byte) == len(data):
            return kind
    return _TGA if data.endswith(_TGA_FOOTER) else _UNKNOWN


# ---- boxes: HEIC, AVIF, CR3, MP4


def _recognise_boxes(head: bytes) -> Kind | None:
    """Tell the files that begin with an ``ftyp`` box apart, by the first of its brands that says which."""
    if head[4:8] != b"ftyp":
        return None
    end = max(int.from_bytes(head[:4], "big"), 12)
    brands = [head[8:12], *(head[at : at + 4] for at in range(16, min(end, len(head)), 4))]
    named = (kind for brand in brands if (kind := _recognise_brand(brand)) is not None)
    return next(named, Kind("HEIC", "picture") if _OPEN_BRANDS.intersection(brands) else _MP4)


def _recognise_brand(brand: bytes) -> Kind | None:
    if brand in _HEIC_BRANDS:
        return Kind("HEIC", "picture")
    if brand in _AVIF_BRANDS:
        return Kind("AVIF", "picture")
    if brand == b"crx ":
        return Kind("Canon CR3", "camera_raw")
    if brand in _CODED_BRANDS:
        return Kind(_CODED_BRANDS[brand], "unsupported")
    return _SOUND if brand in _SOUND_BRANDS else None


# ---- TIFFs that are raws


def _raw_format(data: bytes) -> str | None:
    """Return what camera raw a TIFF is, None for a picture.

    A reduced picture in the first directory is a picture nevertheless, unless the full one is beside it:
    in a sub-IFD, as TIFF/EP has it, or, of a camera, in a later directory.
    """
    first = tiff.read_tags(data)
    if tiff.DNG_VERSION in first:
        return "Adobe DNG"
    later = [tiff.read_directory(data, offset) for offset in _later_offsets(data, first)]
    is_thumbnail = _is_reduced(first) and (
        tiff.SUB_IFDS in first
        or (tiff.MAKE in first and any(_num_pixels(tags) > _num_pixels(first) for tags in later))
    )
    if is_thumbnail or any(map(_is_sensor_data, (first, *later))):
        return _name_by_maker(first)
    return None


def _later_offsets(data: bytes, first: tiff.Tags) -> list[int]:
    """Return where the sub-IFDs of the first directory and the pages after it lie."""
    subs = [value for value in first.get(tiff.SUB_IFDS, ()) if isinstance(value, int)]
    pages = tiff.directory_offsets(data, most=_MOST_DIRECTORIES)[1:]
    return list(chain(subs[:_MOST_DIRECTORIES], pages))


def _is_reduced(tags: tiff.Tags) -> bool:
    """Return whether a directory says that it holds a thumbnail: bit 0 of NewSubfileType."""
    (value, *_) = tags.get(tiff.NEW_SUBFILE_TYPE) or (0,)
    return isinstance(value, int) and value & 1 == 1


def _num_pixels(tags: tiff.Tags) -> int:
    (width, *_), (height, *_) = (tags.get(tag) or (0,) for tag in (tiff.IMAGE_WIDTH, tiff.IMAGE_LENGTH))
    return width * height if isinstance(width, int) and isinstance(height, int) else 0


def _is_sensor_data(tags: tiff.Tags) -> bool:
    photometric, compression = tags.get(tiff.PHOTOMETRIC, ()), tags.get(tiff.COMPRESSION, ())
    return not (_RAW_PHOTOMETRICS.isdisjoint(photometric) and _RAW_COMPRESSIONS.isdisjoint(compression))


def _name_by_maker(tags: tiff.Tags) -> str:
    make = b" ".join(value for value in tags.get(tiff.MAKE, ()) if isinstance(value, bytes)).lower()
    return next((name for maker, name in _MAKERS.items() if maker in make), "TIFF/EP")


# ---- texts


def _recognise_text(head: bytes) -> Kind | None:
    """Tell texts apart: markup by its tags even where the rest is broken, any other by having no controls."""
    text = _decode(head)
    shown = (head.decode("latin-1") if text is None else text).lstrip("\ufeff \t\r\n")
    start = _STARTS.match(shown)
    mark = _MARKS.search(shown) if shown.startswith("<") else None
    found = mark or start
    if found is not None and (mark is not None or text is not None):
        return _MARKUP[next(name for name in _MARKUP if found.groupdict().get(name) is not None)]
    return None if text is None else _TEXT


def _decode(head: bytes) -> str | None:
    """Return the text that bytes are, of which the last character may be cut; None if they are none."""
    encoding = _UTF16_MARKS.get(head[:2], "utf-8")
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        if len(head) < _LONG_ENOUGH or _ERASED in head:
            return None
        text = head.decode("latin-1")  # whichever older encoding it is: none has control characters
    return None if _CONTROL.search(text) else text
