"""Without any configuration: sample photos are written, built, and found unchanged the second time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ingest.index import read_index
from tests.workflow.conftest import ROOT, Project, environment, run

pytestmark = pytest.mark.workflow


def test_demo_builds_trains_and_is_a_no_op_afterwards(tmp_path: Path) -> None:
    """`snakemake` alone makes the demo dataset, the example trains on it, a second run builds nothing."""
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    command = [snakemake, "-s", str(ROOT / "Snakefile"), "--cores", "2"]

    first = run(command, tmp_path)

    assert first.status == 0, first.text
    photos = sorted((tmp_path / "data/demo").rglob("*.jpg"))
    index = read_index(str(tmp_path / "data/demo-224"))
    assert index.num_samples("train") == len(photos) >= 16
    assert index.rejects == {}
    assert all(2e6 <= photo.stat().st_size <= 4e6 for photo in photos)
    assert "no fault" in Project(tmp_path).ingest("verify", "data/demo-224").text

    second = run(command, tmp_path)

    assert second.status == 0, second.text
    assert "localrule demo:" not in second.text
    assert "shrink: 0 of " in second.text

    pytest.importorskip("torch")
    assert environment()["PATH"].startswith(str(Path(sys.executable).parent))
    trained = run(
        [sys.executable, str(ROOT / "examples/train.py"), "--epochs", "1", "--device", "cpu"], tmp_path
    )
    assert trained.status == 0, trained.text
    assert "epoch 0: loss" in trained.text
