"""The whole chain over real photos in class folders, read back by readers that know nothing of ingest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ingest.index import read_index
from tests.unit.test_readers import read_dali, read_hugging_face, read_tarfile, read_webdataset
from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def built(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Build a dataset of the real photos, once."""
    project = Project(tmp_path_factory.mktemp("photos"))
    outcome = project.snakemake(f"raw={shared_data / 'photos'}", "samples_per_shard=32")
    assert outcome.status == 0, outcome.text
    return project


def test_every_photo_becomes_a_sample(built: Project, shared_data: Path) -> None:
    """No photo is lost or rejected, each has the class of its folder, and verify finds no fault."""
    photos = [path for path in (shared_data / "photos").rglob("*") if path.is_file()]
    index = read_index(str(built.dataset))

    assert index.num_samples("train") == len(photos)
    assert index.classes == tuple(sorted(path.name for path in (shared_data / "photos").iterdir()))
    assert index.rejects == {}
    assert "no fault" in built.ingest("verify", str(built.dataset)).text


def test_three_independent_readers_agree(built: Project, tmp_path: Path) -> None:
    """webdataset, Hugging Face datasets and DALI's own reader give the same keys, pictures and classes."""
    expected = read_tarfile(built.dataset)

    assert len(expected) == read_index(str(built.dataset)).num_samples("train")
    assert read_webdataset(built.dataset) == expected
    assert read_hugging_face(built.dataset, tmp_path) == expected
    assert read_dali(built.dataset) == expected


def test_loader_reads_every_photo_once(built: Project) -> None:
    """An epoch of the loader holds each class as often as the folder does, in float tensors."""
    torch = pytest.importorskip("torch")
    import ingest

    with ingest.loader(str(built.dataset), batch_size=16, device="cpu", drop_last=False) as loader:
        batches = [(images.shape[1:], labels.clone()) for images, labels in loader]

    labels = torch.cat([label for _, label in batches])
    expected = torch.tensor([label for _, _, label in read_tarfile(built.dataset)])
    assert {shape for shape, _ in batches} == {torch.Size((3, 224, 224))}
    assert torch.equal(labels.bincount(), expected.bincount())


def test_limit_builds_a_preview(built: Project, shared_data: Path) -> None:
    """limit=10 builds a dataset of 10 samples."""
    preview = Project(built.folder / "preview")
    preview.folder.mkdir()

    outcome = preview.snakemake(f"raw={shared_data / 'photos'}", "limit=10")

    assert outcome.status == 0, outcome.text
    assert read_index(str(preview.dataset)).num_samples("train") == 10
    shutil.rmtree(preview.folder)
