"""tiff: tags of both orders and sizes are read; a hostile block costs nothing and raises nothing."""

from __future__ import annotations

import math
import random
import struct
import tracemalloc
from pathlib import Path

import pytest

from ingest.build import tiff

_SHARED = Path(__file__).resolve().parents[3] / "shared"
_BYTE, _ASCII, _SHORT, _LONG, _RATIONAL, _UNDEFINED, _SLONG, _DOUBLE = 1, 2, 3, 4, 5, 7, 9, 12

Entry = tuple[int, int, int, bytes]


def _directory(order: str, entries: list[Entry], after: int = 0, *, big: bool = False) -> bytes:
    """Write a directory whose entries hold their values, or the offset of them, as given."""
    count, entry, offset = ("Q", "HHQ8s", "Q") if big else ("H", "HHI4s", "I")
    body = b"".join(struct.pack(order + entry, *each) for each in entries)
    return struct.pack(order + count, len(entries)) + body + struct.pack(order + offset, after)


def _header(order: str, first: int = 8, *, big: bool = False) -> bytes:
    mark = b"II" if order == "<" else b"MM"
    return mark + (
        struct.pack(order + "HHHQ", 43, 8, 0, first) if big else struct.pack(order + "HI", 42, first)
    )


def _tiff(entries: list[Entry], order: str = "<", tail: bytes = b"") -> bytes:
    return _header(order) + _directory(order, entries) + tail


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_values_are_read_in_the_entry_and_elsewhere(order: str, big: bool) -> None:  # noqa: FBT001
    """Short values stand in the entry, long ones where its offset says, in either order and size."""
    head = _header(order, 16 if big else 8, big=big)
    offset = "Q" if big else "I"
    at = len(head) + len(_directory(order, [(0, 1, 1, b"")] * 3, big=big))
    entries = [
        (tiff.ORIENTATION, _SHORT, 1, struct.pack(order + "H", 6)),
        (tiff.MAKE, _ASCII, 20, struct.pack(order + offset, at)),
        (tiff.COLOR_MAP, _SHORT, 6, struct.pack(order + offset, at + 20)),
    ]
    tail = b"A camera of our own\0" + struct.pack(order + "6H", 1, 2, 3, 4, 5, 65535)

    tags = tiff.read_tags(head + _directory(order, entries, big=big) + tail)

    assert tags == {
        tiff.ORIENTATION: (6,),
        tiff.MAKE: (b"A camera of our own",),
        tiff.COLOR_MAP: (1, 2, 3, 4, 5, 65535),
    }


def test_block_inside_other_bytes_counts_from_its_start() -> None:
    """An EXIF block is read where it lies: its offsets count from its own first byte."""
    block = _tiff([(tiff.MAKE, _ASCII, 6, struct.pack("<I", 26))], tail=b"maker\0")

    assert tiff.read_tags(b"Exif\0\0" + block, 6) == {tiff.MAKE: (b"maker",)}
    assert tiff.read_tags(b"Exif\0\0" + block) == {}


def test_types_give_integers_floats_and_bytes() -> None:
    """Rationals and doubles are floats, 1/0 is no number; bytes of unknown meaning stay bytes."""
    entries = [
        (1, _RATIONAL, 2, struct.pack("<I", 86)),
        (2, _DOUBLE, 1, struct.pack("<I", 102)),
        (3, _UNDEFINED, 4, b"\0\1\2\0"),
        (4, _SLONG, 1, struct.pack("<i", -5)),
        (5, _BYTE, 2, b"\xff\1"),
        (6, 99, 1, b"no type"[:4]),
    ]
    data = _tiff(entries, tail=struct.pack("<4Id", 1, 2, 7, 0, 2.5))

    tags = tiff.read_tags(data)

    half, nothing = tags.pop(1)
    assert half == 0.5
    assert isinstance(nothing, float)
    assert math.isnan(nothing)
    assert tags == {2: (2.5,), 3: (b"\0\1\2\0",), 4: (-5,), 5: (255, 1)}


def test_profile_is_bytes_however_it_is_typed() -> None:
    """A profile of type BYTE is bytes as well; one of 2 MB is whole."""
    profile = random.Random(1).randbytes(1 << 21)
    for kind in (_BYTE, _UNDEFINED):
        data = _tiff([(tiff.ICC_PROFILE, kind, len(profile), struct.pack("<I", 26))], tail=profile)
        assert tiff.read_tags(data) == {tiff.ICC_PROFILE: (profile,)}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (_SHORT, struct.pack("<H", 8), 8),
        (_LONG, struct.pack("<I", 3), 3),
        (_SLONG, struct.pack("<i", 5), 5),
        (_SHORT, struct.pack("<H", 0), 1),
        (_SHORT, struct.pack("<H", 9), 1),
        (_SLONG, struct.pack("<i", -6), 1),
        (_UNDEFINED, b"\6", 1),
        (99, b"\6", 1),
    ],
)
def test_orientation_is_one_to_eight(kind: int, value: bytes, expected: int) -> None:
    """An orientation counts as SHORT, LONG or SLONG; anything but 1 to 8 means upright."""
    assert tiff.orientation_of(tiff.read_tags(_tiff([(tiff.ORIENTATION, kind, 1, value)]))) == expected


def test_orientation_without_a_value_is_upright() -> None:
    """No tags, and a tag of no values, mean upright."""
    assert tiff.orientation_of({}) == 1
    assert tiff.orientation_of({tiff.ORIENTATION: ()}) == 1


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ((tiff.ORIENTATION, _SHORT, 1, struct.pack("<H", 0)), "is 0"),
        ((tiff.ORIENTATION, _SHORT, 1, struct.pack("<H", 9)), "is 9"),
        ((tiff.ORIENTATION, _SLONG, 1, struct.pack("<i", -6)), "is -6"),
        ((tiff.ORIENTATION, _UNDEFINED, 1, b"\6"), "not a number"),
        ((tiff.ORIENTATION, _ASCII, 2, b"6\0"), "not a number"),
        ((tiff.ORIENTATION, _RATIONAL, 1, struct.pack("<I", 8)), "not a number"),
        ((tiff.ORIENTATION, _SHORT, 0, b""), "not a number"),
        ((tiff.ORIENTATION, 99, 1, b"\6"), "cannot be read"),
        ((tiff.ORIENTATION, _SHORT, 3, struct.pack("<I", 10**6)), "cannot be read"),
    ],
)
def test_a_broken_orientation_has_one_note(entry: Entry, word: str) -> None:
    """A value that is none of the eight, of a wrong type, or not in the data means upright and is told."""
    turn = tiff.read_orientation(_tiff([entry]))
    assert turn.value == 1
    (note,) = turn.notes
    assert word in note


def test_an_orientation_that_is_there_or_missing_has_no_note() -> None:
    """One of the eight, a directory without it and one without any entry are as they should be."""
    for value in range(1, 9):
        data = _tiff([(tiff.ORIENTATION, _SHORT, 1, struct.pack("<H", value))])
        assert tiff.read_orientation(data) == (value, ())
        assert tiff.read_orientation(data, tags=tiff.read_tags(data)) == (value, ())
        assert tiff.read_orientation(b"before" + data, 6) == (value, ())
    assert tiff.read_orientation(_tiff([(tiff.MAKE, _ASCII, 4, b"us\0\0")])) == (1, ())
    assert tiff.read_orientation(_tiff([])) == (1, ())


def test_a_block_that_cannot_be_read_has_one_note() -> None:
    """No block, no directory, and a directory that is cut before the orientation was found."""
    whole = _tiff([(tiff.MAKE, _ASCII, 4, b"us\0\0")] * 2)
    for block in (b"", b"II", b"XX" + whole[2:], whole[:6], whole[:9], whole[:30]):
        value, (note,) = tiff.read_orientation(block)
        assert value == 1
        assert "EXIF block" in note


def test_first_of_two_equal_tags_counts() -> None:
    """A tag that comes twice has its first value, as in libtiff."""
    entries = [(tiff.ORIENTATION, _SHORT, 1, b"\6\0"), (tiff.ORIENTATION, _SHORT, 1, b"\3\0")]
    assert tiff.read_tags(_tiff(entries)) == {tiff.ORIENTATION: (6,)}


def test_broken_entries_cost_only_themselves() -> None:
    """Values outside the data and counts past any reason are left out; what is whole is read."""
    entries = [
        (tiff.MAKE, _ASCII, 50, struct.pack("<I", 0xFFFFFFF0)),
        (tiff.COLOR_MAP, _SHORT, 0xFFFFFFFF, struct.pack("<I", 8)),
        (tiff.ORIENTATION, _SHORT, 1, b"\6\0"),
    ]
    whole = _tiff(entries)

    assert tiff.read_tags(whole) == {tiff.ORIENTATION: (6,)}
    assert tiff.read_tags(whole[:8] + b"\xff\xff" + whole[10:]) == {tiff.ORIENTATION: (6,)}
    assert tiff.read_tags(whole[:-4]) == {tiff.ORIENTATION: (6,)}


def test_hostile_directory_stays_small() -> None:
    """60,000 entries that all show the same megabyte are read up to the limits, not to 60 GB."""
    entries = [
        (tag, _UNDEFINED if tag % 2 else _SHORT, 60_000, struct.pack("<I", 8)) for tag in range(60_000)
    ]
    data = _tiff(entries)

    tracemalloc.start()
    tags = tiff.read_tags(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert 0 in tags
    assert 1 in tags
    assert len(tags) < 500
    assert peak < 40e6


def test_any_cut_and_any_noise_is_read_without_a_word() -> None:
    """Every prefix of a TIFF, and 3,000 with random bytes in them, give tags or none."""
    for order, big in (("<", False), (">", False), ("<", True)):
        entries = [
            (274, _SHORT, 1, b"\0\6"),
            (34675, _UNDEFINED, 30, b"\0\0\0\x10"),
            (330, _LONG, 2, b"\0" * 4),
        ]
        whole = _header(order, 16 if big else 8, big=big) + _directory(order, entries, 8, big=big) + bytes(40)
        noise = random.Random(7)
        for end in range(len(whole)):
            tiff.read_tags(whole[:end])
            tiff.count_directories(whole[:end])
        for _ in range(1000):
            broken = bytearray(whole)
            for _ in range(4):
                broken[noise.randrange(len(broken))] = noise.randrange(256)
            assert len(tiff.read_tags(bytes(broken))) <= 4096
            assert tiff.count_directories(bytes(broken)) <= len(broken)


def test_pages_are_counted_once_however_they_are_chained() -> None:
    """A chain that ends, one that leads back, one that leads outside, and one longer than asked for."""
    empty = _directory("<", [])  # 6 bytes: no entries, then the next offset
    one_after_another = [struct.pack("<HI", 0, 8 + 6 * (page + 1)) for page in range(4)]

    assert tiff.count_directories(_header("<") + empty) == 1
    assert tiff.count_directories(_header("<") + b"".join(one_after_another) + empty) == 5
    assert tiff.count_directories(_header("<") + b"".join(one_after_another) + empty, most=3) == 3
    assert tiff.count_directories(_header("<") + struct.pack("<HI", 0, 8)) == 1
    assert tiff.count_directories(_header("<") + struct.pack("<HI", 0, 10**6)) == 1
    assert tiff.count_directories(b"no TIFF") == 0
    assert tiff.directory_offsets(_header("<") + b"".join(one_after_another) + empty) == (8, 14, 20, 26, 32)


def test_negative_and_far_offsets_give_nothing() -> None:
    """Where there is nothing to read, nothing is read."""
    data = _tiff([(tiff.ORIENTATION, _SHORT, 1, b"\6\0")])
    assert tiff.read_tags(data, -5) == {}
    assert tiff.read_tags(data, 10**9) == {}
    assert tiff.read_directory(data, -8) == {}
    assert tiff.read_directory(data, 10**9) == {}
    assert tiff.read_tags(b"") == {}


@pytest.mark.skipif(not _SHARED.exists(), reason="the shared pictures are not here")
@pytest.mark.parametrize(
    ("name", "orientation", "pages", "size"),
    [
        ("tiff/multi-channel-z-series.ome.tif", 1, 15, (439, 167)),
        ("tiff/rgb_16bit.tiff", 1, 1, (321, 123)),
        ("orientation/cat-1046544_640_rotate_90.tiff", 6, 1, (640, 475)),
        ("raw/CanonRaw.cr2", 1, 4, (1536, 1024)),
    ],
)
def test_real_files(name: str, orientation: int, pages: int, size: tuple[int, int]) -> None:
    """Tags of real TIFFs are those that other readers find."""
    data = (_SHARED / "data/tricky" / name).read_bytes()
    tags = tiff.read_tags(data)
    assert (tiff.orientation_of(tags), tiff.count_directories(data)) == (orientation, pages)
    assert (*tags[tiff.IMAGE_WIDTH], *tags[tiff.IMAGE_LENGTH]) == size


@pytest.mark.skipif(not _SHARED.exists(), reason="the shared pictures are not here")
def test_sub_directory_of_a_real_raw() -> None:
    """The full picture of a raw lies in a sub-IFD, beside the thumbnail of the first directory."""
    data = (_SHARED / "data/tricky/raw/Nikon_uncompressed.nef").read_bytes()
    tags = tiff.read_tags(data)
    (offset,) = tags[tiff.SUB_IFDS]
    assert isinstance(offset, int)
    full = tiff.read_directory(data, offset)
    assert (tags[tiff.IMAGE_WIDTH], full[tiff.IMAGE_WIDTH]) == ((320,), (869,))
    (profile,) = tags[tiff.ICC_PROFILE]
    assert isinstance(profile, bytes)
    assert profile[36:40] == b"acsp"
