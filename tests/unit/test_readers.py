"""The shards are plain WebDataset: three readers that know nothing of ingest give the same samples.

Each `read_*` takes the folder of any sealed dataset and returns (key, jpg, class id or None) of each sample.
"""

import io
import tarfile
import warnings

import numpy as np
import pytest

from ingest import index
from tests.datasets import make_dataset


def tars_of(dataset):
    """Return the shards of all splits, in order."""
    splits = index.read_index(str(dataset)).splits
    return [str(dataset / f"{entry.name}.tar") for name in sorted(splits) for entry in splits[name]]


def read_tarfile(dataset):
    """Read the shards with Python's tarfile: what the others are compared to."""
    found = {}
    for tar in tars_of(dataset):
        with tarfile.open(tar) as file:
            for member in file:
                key, field = member.name.split(".")
                found.setdefault(key, {})[field] = file.extractfile(member).read()
    return [
        (key, fields["jpg"], int(fields["cls"]) if "cls" in fields else None) for key, fields in found.items()
    ]


def read_webdataset(dataset):
    """Read the shards with webdataset."""
    webdataset = pytest.importorskip("webdataset")
    reader = webdataset.WebDataset(tars_of(dataset), shardshuffle=False, empty_check=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the closing of files to their destructor
        samples = list(reader)
    return [
        (sample["__key__"], sample["jpg"], int(sample["cls"]) if "cls" in sample else None)
        for sample in samples
    ]


def read_hugging_face(dataset, cache):
    """Read the shards with Hugging Face `datasets`, which finds out for itself what the fields are."""
    hugging_face = pytest.importorskip("datasets")
    stream = hugging_face.load_dataset(
        "webdataset", data_files={"all": tars_of(dataset)}, split="all", streaming=True, cache_dir=str(cache)
    )
    if "jpg" in stream.features:
        stream = stream.cast_column("jpg", hugging_face.Image(decode=False))
    return [(sample["__key__"], sample["jpg"]["bytes"], sample.get("cls")) for sample in stream]


def read_dali(dataset):
    """Read the shards with DALI's own reader and our offsets; it gives no keys of its own."""
    dali = pytest.importorskip("nvidia.dali")
    tars = tars_of(dataset)
    fields = [field for field in ("jpg", "cls") if field in index.read_index(str(dataset)).fields]
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        read = dali.fn.readers.webdataset(
            paths=tars,
            index_paths=[tar.replace(".tar", ".idx") for tar in tars],
            ext=fields,
            missing_component_behavior="error",
            name="reader",
        )
        members = read if isinstance(read, list) else [read]
        names = dali.fn.get_property(members[0], key="source_info")
        pipeline.set_outputs(names, *members)
    pipeline.build()
    return [_sample_of_dali(pipeline.run()) for _ in range(pipeline.reader_meta("reader")["epoch_size"])]


def _sample_of_dali(outputs):
    name, *members = (np.asarray(output.at(0)).tobytes() for output in outputs)
    key = name.rstrip(b"\0").decode().rsplit(":", 1)[1].removesuffix(".jpg")  # tar:offset:member
    return key, members[0], int(members[1]) if len(members) > 1 else None


def check(found, dataset):
    """Compare what a reader found with the tars themselves and with the index."""
    splits = index.read_index(str(dataset)).splits

    assert found == read_tarfile(dataset)
    assert len(found) == sum(entry.samples for entries in splits.values() for entry in entries)


@pytest.fixture(params=[True, False], ids=["labels", "no labels"])
def dataset(request, tmp_path):
    """Return a dataset with and one without labels."""
    return make_dataset(tmp_path / "dataset", labels=request.param)


def test_webdataset(dataset):
    """Plain webdataset gives keys, pictures and labels."""
    check(read_webdataset(dataset), dataset)


def test_hugging_face(dataset, tmp_path, monkeypatch):
    """Hugging Face `datasets` gives keys, pictures and labels, without asking its hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    check(read_hugging_face(dataset, tmp_path / "cache"), dataset)


def test_dali(dataset):
    """DALI's reader gives keys, pictures and labels by our offsets."""
    check(read_dali(dataset), dataset)


def test_pictures_are_jpeg(dataset):
    """The members called jpg hold what their name says."""
    image = pytest.importorskip("PIL.Image")
    for _, data, _ in read_tarfile(dataset):
        with image.open(io.BytesIO(data)) as picture:
            assert (picture.format, picture.size) == ("JPEG", (224, 224))
