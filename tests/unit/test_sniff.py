"""sniff: what bytes are is told by the bytes, for every file of the corpus and for short made-up ones."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from ingest.build import tiff
from ingest.build.sniff import Kind, group_of, recognise

_DATA = Path(__file__).resolve().parents[3] / "shared/data"
_needs_corpus = pytest.mark.skipif(not _DATA.exists(), reason="the shared pictures are not here")

_NAMES = {  # what the corpus calls a format: what we do
    "MPO": "JPEG",
    "HEIF": "HEIC",
    "WEBP": "WebP",
    "JPEG2000": "JPEG 2000",
    "JXL": "JPEG XL",
    "PPM": "PNM",
    "TAR": "a tar archive",
    "TAR.GZ": "a gzip archive",
    "EMPTY": "empty",
    "CR2 (PIL says TIFF)": "Canon CR2",
    "UNKNOWN:00051607": "a side file of macOS, not the picture",
    "UNKNOWN:76657273": "a Git LFS pointer, not the file it points to",
}
_SPECIAL = {
    "tricky/raw/Nikon_uncompressed.nef": "Nikon NEF",
    "tricky/not-an-image/drawing.jpg": "an SVG drawing",
    "tricky/not-an-image/html-403.jpg": "an HTML page",
}


def _corpus() -> list[dict[str, str]]:
    header, *lines = (_DATA / "INDEX.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def _tiff(
    *tags: tuple[int, int], make: bytes = b"", pages: tuple[tuple[tuple[int, int], ...], ...] = ()
) -> bytes:
    """Write a little-endian TIFF of directories of LONG tags; `make` goes into the first."""
    data, offset = b"II*\0" + struct.pack("<I", 8), 8
    for number, page in enumerate((tags, *pages)):
        entries = [(tag, 4, 1, value) for tag, value in page]
        size = 2 + 12 * (len(entries) + (number == 0 and bool(make))) + 4
        tail = make if number == 0 else b""
        if tail:
            entries.append((tiff.MAKE, 2, len(make), offset + size))
        offset += size + len(tail)
        data += struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
        data += struct.pack("<I", 0 if number == len(pages) else offset) + tail
    return data


@_needs_corpus
def test_every_file_of_the_corpus_is_what_it_is() -> None:
    """Whatever a file is called, its format is what the corpus says it is by content."""
    for row in _corpus():
        expected = _SPECIAL.get(row["file"]) or _NAMES.get(row["format"], row["format"])
        assert recognise((_DATA / row["file"]).read_bytes()).format == expected, row["file"]


@_needs_corpus
def test_family_agrees_with_what_becomes_of_the_file() -> None:
    """What must be accepted is a picture; what must be refused as raw or as no picture is of that family."""
    for row in _corpus():
        if row["file"].startswith("tricky/wds"):
            continue
        family = recognise((_DATA / row["file"]).read_bytes()).family
        if row["expected"].startswith("accepted"):
            assert family == "picture", row["file"]
        if "camera RAW" in row["expected"]:
            assert family == "camera_raw", row["file"]
        if "not an image" in row["expected"] or "empty" in row["expected"]:
            assert family == "other", row["file"]


@_needs_corpus
def test_first_bytes_tell_a_candidate_as_the_whole_file_does() -> None:
    """64 bytes tell a picture from what is none; 512 tell everything but which raw a TIFF is."""
    for row in _corpus():
        data = (_DATA / row["file"]).read_bytes()
        whole, head = recognise(data), recognise(data[:512])
        assert (recognise(data[:64]).family == "other") == (whole.family == "other"), row["file"]
        assert head == whole or head.format == "TIFF", row["file"]


@pytest.mark.parametrize(
    ("data", "format_", "family"),
    [
        (b"\xff\xd8\xff\xe0", "JPEG", "picture"),
        (b"\xff\xd8\xff\xf7\0", "JPEG-LS", "unsupported"),
        (b"\x89PNG\n\x1a\n", "PNG", "picture"),
        (b"GIF89a", "GIF", "picture"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP", "picture"),
        (b"II+\0\x08\0\0\0", "TIFF", "picture"),
        (b"MM\0*\0\0\0\x08", "TIFF", "picture"),
        (b"\xff\x4f\xff\x51\0\x2f", "JPEG 2000", "picture"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL", "picture"),
        (b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypmjp2", "a Motion JPEG 2000 video", "other"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIC", "picture"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "AVIF", "picture"),
        (b"\0\0\0\x18ftypmsf1\0\0\0\0msf1avis", "AVIF", "picture"),
        (b"\0\0\0\x10ftypmif1\0\0\0\0avif", "HEIC", "picture"),  # past the box is another box
        (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", "Canon CR3", "camera_raw"),
        (b"\0\0\0\x18ftypisom\0\0\2\0isomiso2", "a video (MP4 or QuickTime)", "other"),
        (b"\0\0\0\x14ftypqt  \0\0\0\0qt  ", "a video (MP4 or QuickTime)", "other"),
        (b"\0\0\0\x14ftypM4A \0\0\0\0isom", "sound (MPEG-4)", "other"),
        (b"\0\0\0\x18ftypavci\0\0\0\0mif1avci", "HEIF with AVC", "unsupported"),
        (b"II\x1a\0\0\0HEAPCCDR\2\0\1\0", "Canon CRW", "camera_raw"),
        (b"MM\0\0\0\x1aHEAPCCDR\0\1\0\2", "Canon CRW", "camera_raw"),
        (b"IIII\1\0\0\0" + bytes(40), "Phase One IIQ", "camera_raw"),
        (b"II*\0\x08\0\0\0IIII\x4ewaR", "Phase One IIQ", "camera_raw"),
        (b"IIRO\x08\0\0\0", "Olympus ORF", "camera_raw"),
        (b"IIU\0\x18\0\0\0", "Panasonic RW2", "camera_raw"),
        (b"FUJIFILMCCD-RAW 0201", "Fujifilm RAF", "camera_raw"),
        (b"8BPS\0\1", "PSD", "unsupported"),
        (b"\x76\x2f\x31\x01\2\0\0\0", "OpenEXR", "unsupported"),
        (b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0", "ICO", "unsupported"),
        (b"P6\n# made by hand\n3 2\n255\n", "PNM", "unsupported"),
        (b"P5 3 2 255 ", "PNM", "unsupported"),
        (b"P7\nWIDTH 3\n", "PNM", "unsupported"),
        (b"#?RADIANCE\n", "Radiance HDR", "unsupported"),
        (bytes(128) + b"DICM", "DICOM", "unsupported"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "EPS", "unsupported"),
        (b"AT&TFORM\0\0\0\1DJVU", "DjVu", "unsupported"),
        (b"\0\0\2" + bytes(40) + b"TRUEVISION-XFILE.\0", "TGA", "unsupported"),
        (b"%PDF-1.7\n", "a PDF", "other"),
        (b"PK\3\4\x14\0", "a ZIP archive", "other"),
        (b"\x1aE\xdf\xa3", "a Matroska or WebM video", "other"),
        (b"RIFF\0\0\0\0AVI LIST", "an AVI video", "other"),
        (b"PAR1\x15", "a Parquet file", "other"),
        (b"\x7fELF\2", "an ELF program", "other"),
        (b"/annex/objects/MD5E-s3--0.jpg\n", "a git-annex pointer, not the file it points to", "other"),
        (b"", "empty", "other"),
        (bytes(5000), "nothing but zero bytes", "other"),
        (b"\xff" * 1000, "nothing but bytes FF, as of an erased disk", "other"),
        (b"a label\n" * 20 + b"\xff" * 1000, "no picture in any known format", "other"),
        ("Über Bären, größer als Vögel.\n".encode("latin-1") * 5, "a text", "other"),
        (b"\x17\x03\x01\x00\x99", "no picture in any known format", "other"),
        (bytes(5000) + b"\1", "no picture in any known format", "other"),
    ],
)
def test_signatures(data: bytes, format_: str, family: str) -> None:
    """A few bytes are enough to name each of these."""
    assert recognise(data) == (format_, family)


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("a line\nand another\n", "a text"),
        ("The wide world, BMW and GIF8 too", "a text"),
        ("naïve café 日本", "a text"),
        ("", "a text"),
        ("<!-- saved -->\n<!DOCTYPE HTML PUBLIC>", "an HTML page"),
        ("\n  <html lang=en>", "an HTML page"),
        ("<script>location='/login'</script>", "an HTML page"),
        ('<?xml version="1.0"?>\n<!-- Inkscape -->\n<svg xmlns="x">', "an SVG drawing"),
        ("<svg:svg>", "an SVG drawing"),
        ('<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "an XML text"),
        ('{"label": 3}', "a JSON text"),
        ("[1, 2]", "a JSON text"),
    ],
)
def test_texts_with_and_without_marks(text: str, format_: str) -> None:
    """Markup is named; the encoding may be any of those with a byte order mark, or UTF-8 without."""
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        data = text.encode(encoding)
        if data:
            assert recognise(data) == (format_, "other"), encoding
            assert group_of(recognise(data)) == "text"


def test_text_of_an_older_encoding_and_a_cut_character() -> None:
    """A text need not be UTF-8, nor end with a whole character; a control character makes it none."""
    assert recognise("Größe und Höhe, ".encode("latin-1") * 8) == ("a text", "other")
    assert recognise("日本".encode()[:-1]) == ("a text", "other")
    assert recognise(b"plain\x01") == ("no picture in any known format", "other")


def test_tiff_is_a_raw_by_its_tags_alone() -> None:
    """A DNG, a mosaic, a maker's own compression, and a thumbnail before the full picture are raws."""
    size = (tiff.IMAGE_WIDTH, 100), (tiff.IMAGE_LENGTH, 100)
    large = (tiff.IMAGE_WIDTH, 400), (tiff.IMAGE_LENGTH, 400)
    reduced = (tiff.NEW_SUBFILE_TYPE, 1)

    def kind(data: bytes) -> str:
        return recognise(data).format

    assert recognise(_tiff(*size, (tiff.DNG_VERSION, 0x401))) == ("Adobe DNG", "camera_raw")
    assert kind(_tiff(*size, (tiff.PHOTOMETRIC, 32803), make=b"PENTAX Corporation ")) == "Pentax PEF"
    assert kind(_tiff(*size, (tiff.COMPRESSION, 34713), make=b"NIKON CORPORATION\0")) == "Nikon NEF"
    assert kind(_tiff(*size, (tiff.PHOTOMETRIC, 34892))) == "TIFF/EP"
    assert kind(_tiff(reduced, *size, (tiff.SUB_IFDS, 9999), make=b"SONY ")) == "Sony ARW"
    assert kind(_tiff(reduced, *size, make=b"EASTMAN KODAK ", pages=(large,))) == "Kodak DCR"
    assert kind(_tiff(*size, pages=((*large, (tiff.PHOTOMETRIC, 32803)),))) == "TIFF/EP"


def test_odd_tiff_stays_a_picture() -> None:
    """A lone reduced picture, a pyramid, a scan with its thumbnail behind it, and a broken TIFF are TIFFs."""
    size = (tiff.IMAGE_WIDTH, 100), (tiff.IMAGE_LENGTH, 100)
    large = (tiff.IMAGE_WIDTH, 400), (tiff.IMAGE_LENGTH, 400)
    reduced = (tiff.NEW_SUBFILE_TYPE, 1)
    for data in (
        _tiff(reduced, *size),
        _tiff(reduced, *size, make=b"Canon "),
        _tiff(reduced, *size, pages=(large,)),
        _tiff(*large, (tiff.SUB_IFDS, 9999)),
        _tiff(*large, make=b"NIKON ", pages=((reduced, *size),)),
        b"II*\0\xff\xff\xff\xff",
        b"II*\0",
    ):
        assert recognise(data) == ("TIFF", "picture")


def test_groups_are_few() -> None:
    """What is no picture is counted under a short name."""
    groups = {
        b"\0\5\x16\7": "litter",
        b"version https://git-lfs.github.com/spec/v1": "pointer",
        b"%PDF-1": "document",
        b"OggS": "sound",
        b"\x1f\x8b": "archive",
        b"\x93NUMPY": "data",
        b"MZ" + bytes(70): "program",
        b"\0\0\0\x14ftypqt  \0\0\0\0qt  ": "video",
        b"": "empty",
        b"\0": "other",
        b"\x17\x03\x01\x00\x99": "other",
    }
    assert {data: group_of(recognise(data)) for data in groups} == groups


def test_any_bytes_are_something() -> None:
    """Noise, and every signature's first bytes cut anywhere, are recognised as something without a word."""
    noise = random.Random(3)
    starts = [b"II*\0", b"\0\0\0\x18ftyp", b"<svg", b"P6 ", b"\xff\xfe", b"{", b"RIFF", b""]
    for number in range(4000):
        data = starts[number % len(starts)] + noise.randbytes(noise.randrange(200))
        assert isinstance(recognise(data), Kind)
