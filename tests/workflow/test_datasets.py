"""Several datasets of one configuration: built in one run, of photos that are each read and decoded once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingest.index import read_index
from tests.workflow.conftest import Project, picture, run

pytestmark = pytest.mark.workflow


def _command(project: Project, settings: Path) -> list[str]:
    command = project.command()
    return [*command[: command.index("--config")], "--configfile", str(settings)]


def _tars(dataset: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in dataset.rglob("*.tar")}


def test_datasets_of_one_run_are_those_of_runs_of_their_own(project: Project, tmp_path: Path) -> None:
    """Each has its recipe and splits, the bytes that it would have alone, and increments of its own."""
    for number in range(20):
        for split in ("train", "val"):
            project.add(f"{split}/{'cats' if number % 2 else 'dogs'}/{number}.jpg", picture(number, 400, 300))
    for folder in ("cats", "dogs"):
        for path in (project.raw / folder).iterdir():
            path.unlink()
    small, large, exact = tmp_path / "small", tmp_path / "large", tmp_path / "exact"
    settings = tmp_path / "settings.yaml"
    values = {
        "raw": str(project.raw),
        "samples_per_shard": 5,
        "datasets": [
            {"dataset": str(small), "size": 64},
            {"dataset": str(large), "size": 72, "encoding": "png"},
            {"dataset": str(exact), "size": 64, "fidelity": "exact", "splits": ["val"]},
        ],
    }
    settings.write_text(json.dumps(values))

    built = run(_command(project, settings), project.folder)

    assert built.status == 0, built.text
    assert "20 of 20 shards to build: 40 samples" in built.text
    assert {name: set(read_index(str(tmp_path / name)).splits) for name in ("small", "large", "exact")} == {
        "small": {"train", "val"},
        "large": {"train", "val"},
        "exact": {"val"},
    }
    assert read_index(str(large)).fields == ("png", "cls")
    alone = project.snakemake("samples_per_shard=5", "size=72", "encoding=png")
    assert alone.status == 0, alone.text
    assert _tars(project.dataset) == _tars(large)

    project.add("train/cats/new.jpg", picture(99))
    grown = run(_command(project, settings), project.folder)
    assert grown.status == 0, grown.text
    assert "2 of 22 shards to build" in grown.text
    assert project.ingest("verify", str(large)).status == 0

    again = run(_command(project, settings), project.folder)
    assert "0 of 22 shards to build" in again.text


@pytest.mark.parametrize(
    ("datasets", "sentence"),
    [
        ([{"size": 64}], "has no key 'dataset'"),
        ([{"dataset": "a", "raw": "b"}], "has the key 'raw'"),
        ([{"dataset": "a"}, {"dataset": "a", "size": 64}], "is there twice"),
        ([{"dataset": "a", "size": "big"}], "config key 'size' is 'big'"),
        ([], "config key 'datasets' is []"),
    ],
)
def test_wrong_datasets_are_a_sentence(project: Project, datasets: list[object], sentence: str) -> None:
    """What is wrong with one of several datasets is said before any job starts."""
    settings = project.folder / "settings.yaml"
    settings.write_text(json.dumps({"raw": str(project.raw), "datasets": datasets}))

    refused = project.ingest("scan", "--settings", str(settings))

    assert refused.status == 1
    assert sentence in refused.text
    assert "Traceback" not in refused.text
