"""inspect: rejects that read well, every touched picture found, one sample told in full."""

from __future__ import annotations

import dataclasses
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest import shard
from ingest.__main__ import main
from ingest.build.sample import Provenance
from ingest.errors import ConfigError, CorruptShardError, NotSealedError
from ingest.index import read_index
from ingest.inspect import count_touched, describe_source, list_rejects, list_touched
from tests.datasets import make_dataset

_UNTOUCHED = dataclasses.asdict(
    Provenance(
        source_format="JPEG",
        source_mode="RGB",
        source_bits=8,
        source_width=400,
        source_height=300,
        orientation=1,
        scale_denominator=1,
        crop_left=50.0,
        crop_top=0.0,
        crop_right=350.0,
        crop_bottom=300.0,
        scale_x=0.75,
        scale_y=0.5,
        offset_x=2,
        offset_y=-1,
        profile=None,
        profile_use="none",
        frames_dropped=0,
        alpha=False,
        upscaled=False,
        rows_present=1.0,
        notes=(),
    )
)
_TOUCHED = {  # number of the sample: what was done to it
    0: {"orientation": 6},
    1: {"profile": "Display P3", "profile_use": "converted"},
    2: {"profile": None, "profile_use": "ignored"},
    3: {"frames_dropped": 3, "alpha": True},
    9: {"upscaled": True, "source_width": 32, "source_height": 24},
    10: {"rows_present": 0.615},
    11: {"notes": ("Its EXIF block is broken.", "It ends with\nother bytes.")},
    12: {"profile": "sRGB IEC61966-2.1", "profile_use": "is_srgb"},
    19: {"orientation": 3, "frames_dropped": 1},
}
_LINES = {
    "orientation": {
        "/photos/photo 0.jpg: turned: EXIF orientation 6, by 90 degrees clockwise",
        "/photos/photo 19.jpg: turned: EXIF orientation 3, by 180 degrees",
    },
    "profile": {"/photos/photo 1.jpg: Display P3 converted to sRGB"},
    "profile_ignored": {"/photos/photo 2.jpg: profile ignored, taken as sRGB: without a name"},
    "frames": {"/photos/photo 3.jpg: 3 more frames dropped", "/photos/photo 19.jpg: 1 more frame dropped"},
    "alpha": {"/photos/photo 3.jpg: transparent pixels laid on the background"},
    "upscaled": {"/photos/photo 9.jpg: enlarged from 32 x 24 to 224 x 224"},
    "truncated": {"/photos/photo 10.jpg: cut off: 61.5 % of its rows are there"},
    "notes": {"/photos/photo 11.jpg: Its EXIF block is broken. It ends with\\nother bytes."},
}


@pytest.fixture(scope="module")
def touched(tmp_path_factory):
    """Return a sealed dataset of 20 samples, 8 of which were touched and one has a profile that is sRGB."""
    dataset = make_dataset(tmp_path_factory.mktemp("touched") / "dataset")
    number = 0
    for entry in read_index(str(dataset)).splits["train"]:
        summary, table = shard.read_receipt(str(dataset), entry.name)
        rows = table.to_pylist()
        for row in rows:
            if row["status"] == "sample":
                made = {**_UNTOUCHED, **_TOUCHED.get(number, {})}
                row |= {**made, "scale": f"1/{made.pop('scale_denominator')}"}
                number += 1
        shard.write_receipt(str(dataset), summary, rows)
    _write_rejects(dataset, [_reject("/photos/broken after 19.jpg", "truncated")])
    return dataset


def _reject(source, code, size=1_234_567, reason="The file ends early."):
    key = shard.make_key(source.encode())
    values = (source, code, reason, size, "train", "a class", key)
    return dict(zip(shard.REJECT_COLUMNS, values, strict=True))


def _write_rejects(dataset, rows):
    schema = pa.schema([shard.RECEIPT_SCHEMA.field(name) for name in shard.REJECT_COLUMNS])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), dataset / shard.REJECTS_NAME)


@pytest.fixture
def rejecting(sealed, tmp_path):
    """Return a function that lays a list of rejects into a sealed dataset and returns what is printed."""
    dataset = shutil.copytree(sealed, tmp_path / "dataset")

    def print_rejects(rows):
        _write_rejects(dataset, rows)
        return list_rejects(str(dataset)).split("\n")

    return print_rejects


def test_rejects_read_well(rejecting):
    """Counts first, the commonest code first; then a table, sources below the folder that they share."""
    rows = [
        _reject("/photos/cats/b.jpg", "truncated"),
        _reject("/photos/cats/a.jpg", "truncated", 999, "61 % of its rows are there."),
        _reject("/photos/dogs/index.jpg", "not_an_image", 12_000, "This is an HTML page."),
    ]

    _, *lines = head, *_ = rejecting(rows)

    assert head.startswith("3 rejects of ")
    assert head.endswith("; sources below /photos/")
    assert lines == [
        "",
        "        2  truncated",
        "        1  not_an_image",
        "",
        "code               size  source          reason",
        "truncated     999 bytes  cats/a.jpg      61 % of its rows are there.",
        "truncated        1.2 MB  cats/b.jpg      The file ends early.",
        "not_an_image    12.0 kB  dogs/index.jpg  This is an HTML page.",
    ]


@pytest.mark.parametrize(
    ("sources", "printed"),
    [
        (["/photos/" + "x" * 200 + ".jpg"], ["x" * 200 + ".jpg"]),  # never cut
        (["s3://bucket/a/1.jpg", "s3://bucket/a/2.jpg"], ["s3://bucket/a/1.jpg", "s3://bucket/a/2.jpg"]),
        (["/photos/ab/1.jpg", "/photos/ac/1.jpg"], ["ab/1.jpg", "ac/1.jpg"]),
        (["/a.jpg", "/b/c.jpg"], ["/a.jpg", "/b/c.jpg"]),
        (["/photos/a\nb\x1b[2J.jpg"], [r"a\nb\x1b[2J.jpg"]),  # a name cannot write over the terminal
    ],
)
def test_source_of_a_reject(rejecting, sources, printed):
    """A URL is whole, a path is relative to the folder named above, a strange name stays on its line."""
    lines = rejecting([_reject(source, "empty", 0) for source in sources])[5:]

    assert [line.split("  ")[2] for line in lines] == [text.ljust(len("source")) for text in printed]


def test_many_rejects_are_quick(rejecting):
    """100,000 rejects print in a few seconds (0.6 s where this was written)."""
    rows = [_reject(f"/photos/{n % 100:03d}/{n}.jpg", ("empty", "corrupt")[n % 2]) for n in range(100_000)]

    begin = time.perf_counter()
    lines = rejecting(rows)

    assert len(lines) == 100_006
    assert time.perf_counter() - begin < 10


def test_no_rejects(rejecting):
    """A dataset without rejects says so."""
    assert rejecting([]) == ["no rejects"]


def test_rejects_file_reads_well_when_printed(touched):
    """Printed by pandas, the file begins with what a person looks for: source, code, reason."""
    pd = pytest.importorskip("pandas")

    table = pd.read_parquet(touched / shard.REJECTS_NAME)

    head, row = table.to_string().split("\n")
    assert head.split() == ["source", "code", "reason", "source_bytes", "split", "label", "key"]
    assert row.split()[:4] == ["0", "/photos/broken", "after", "19.jpg"]


def test_touched_are_counted(touched):
    """Each kind has its number, also 0; a picture that two things were done to is one touched picture."""
    head, *lines = count_touched(str(touched)).split("\n")

    assert head == f"8 of 20 samples of {touched} touched"
    found = {line.split()[1]: int(line.split()[0]) for line in lines if line[:9].strip().isdigit()}
    assert found == {kind: len(expected) for kind, expected in _LINES.items()}


@pytest.mark.parametrize("kind", _LINES)
def test_touched_are_listed(touched, kind):
    """Every sample that one kind of thing was done to is found, and no other, with what was done."""
    assert set(list_touched(str(touched), kind)) == _LINES[kind]


def test_all_touched_are_listed(touched):
    """All kinds together are a line a sample."""
    lines = list(list_touched(str(touched), "all"))

    assert len(lines) == 8
    assert "/photos/photo 3.jpg: 3 more frames dropped; transparent pixels laid on the background" in lines


def test_unknown_kind(touched):
    """A kind that is not there is answered with those that are."""
    with pytest.raises(ConfigError, match=r"--touched rotated: .* use orientation, profile, .* or all"):
        list(list_touched(str(touched), "rotated"))


def test_untouched(sealed):
    """Where receipts say nothing of a sample, nothing was done to it."""
    assert count_touched(str(sealed)).startswith(f"0 of 20 samples of {sealed} touched")
    assert list(list_touched(str(sealed), "all")) == []


@pytest.mark.parametrize("wanted", ["/photos/photo 19.jpg", "photo 19.jpg", shard.make_key(b"photo 19.jpg")])
def test_one_sample_in_full(touched, wanted):
    """By its source, its path or its key, a sample is told in full, with what was done and the mapping."""
    entry = read_index(str(touched)).splits["train"][-1]
    lines = dict(line.split("  ", 1) for line in describe_source(str(touched), wanted).split("\n"))
    told = {name.strip(): value.strip() for name, value in lines.items()}

    assert set(shard.RECEIPT_SCHEMA.names) <= set(told)
    assert told["shard"] == entry.name
    assert told["source"] == "/photos/photo 19.jpg"
    assert told["profile"] == "-"
    assert told["alpha"] == "no"
    assert told["done"] == "turned: EXIF orientation 3, by 180 degrees; 1 more frame dropped"
    assert told["x in sample"] == "(x - 50) * 0.75 + 2"
    assert told["y in sample"] == "(y - 0) * 0.5 + -1"


def test_one_reject_in_full(touched, tmp_path):
    """A reject is told too, whether its shard is in the index or holds nothing but rejects."""
    dataset = shutil.copytree(touched, tmp_path / "dataset")
    alone = _reject("/photos/alone\\xff.jpg", "empty", 0, "The file has no bytes.")
    _write_rejects(dataset, [alone])

    told = describe_source(str(dataset), "/photos/broken after 19.jpg").split("\n")
    assert "reason          ends early" in told
    assert not [line for line in told if line.endswith(" -")]
    told = describe_source(str(dataset), "/photos/alone\udcff.jpg")  # as Python has it from the terminal
    assert "The file has no bytes." in told
    assert "x in sample" not in told


def test_nothing_of_that_name(touched):
    """A key or source that is not there is one sentence."""
    with pytest.raises(ConfigError, match="--source nobody: neither a sample nor a reject"):
        describe_source(str(touched), "nobody")


@pytest.mark.parametrize("damage", ["remove", "cut", "columns"])
def test_damaged_receipt(touched, tmp_path, damage):
    """A receipt that is gone, cut off or of a time that kept less is named."""
    dataset = shutil.copytree(touched, tmp_path / "dataset")
    receipt = sorted(dataset.glob("train/*.parquet"))[1]
    if damage == "remove":
        receipt.unlink()
    elif damage == "cut":
        receipt.write_bytes(receipt.read_bytes()[:-100])
    else:
        pq.write_table(pq.read_table(receipt).drop_columns(["alpha"]), receipt)

    with pytest.raises(CorruptShardError, match=f"{receipt.name}.*run the build again"):
        count_touched(str(dataset))


@pytest.mark.parametrize("ask", [list_rejects, count_touched, lambda place: list(list_touched(place, "all"))])
def test_not_sealed(tmp_path, ask):
    """Where nothing was sealed, every question ends in the same sentence."""
    with pytest.raises(NotSealedError):
        ask(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "20 samples in 3 shards"),
        (["--rejects"], "1  truncated"),
        (["--touched"], "2  orientation"),
        (["--touched", "orientation"], "photo 19.jpg: turned"),
        (["--source", "photo 19.jpg"], "x in sample"),
    ],
)
def test_command(touched, capsys, arguments, expected):
    """Each question can be asked on the command line."""
    assert main(["inspect", str(touched), *arguments]) == 0
    assert expected in capsys.readouterr().out
