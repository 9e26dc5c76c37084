"""A damaged shard is found by `ingest verify`, and the next plain run of the workflow makes it whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow

_REBUILT = ": run snakemake again: it rebuilds this shard"


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def _files(dataset: Path) -> dict[str, bytes]:
    """Return what a reader sees, by path."""
    endings = (".tar", ".idx", ".json", ".parquet")
    files = (path for path in dataset.rglob("*") if path.suffix in endings)
    return {str(path.relative_to(dataset)): path.read_bytes() for path in files}


def test_every_kind_of_damage_is_mended(project: Project) -> None:
    """A flipped bit, stale offsets and a broken receipt: three shards are marked, and built as before."""
    project.snakemake("samples_per_shard=4")
    whole = _files(project.dataset)
    bit, offsets, receipt, *rest = sorted(project.dataset.rglob("*.tar"))
    first = pq.read_table(bit.with_suffix(".parquet")).to_pylist()[0]
    _flip(bit, first["image_offset"] + first["image_bytes"] // 2)
    offsets.with_suffix(".idx").write_bytes(b"v1.2 0\n")
    receipt.with_suffix(".parquet").write_bytes(b"hello")

    found = project.ingest("verify", str(project.dataset))

    assert found.status == 1
    faults = [line for line in found.text.splitlines() if line.endswith(_REBUILT)]
    assert any(f"{bit}: sample {first['key']} ({first['source']}) does not hold" in line for line in faults)
    assert any(f"{offsets.with_suffix('.idx')}: does not agree" in line for line in faults)
    assert any(f"{receipt.with_suffix('.parquet')}: not a receipt" in line for line in faults)
    markers = {path.stem for path in project.dataset.rglob("*.damaged")}
    assert markers == {path.stem for path in (bit, offsets, receipt)}
    stamps = {path: path.stat().st_mtime_ns for path in rest}

    again = project.snakemake("samples_per_shard=4")

    assert again.status == 0, again.text
    assert "shrink: 3 of 5 shards to build" in again.text
    assert list(project.dataset.rglob("*.damaged")) == []
    assert {path: path.stat().st_mtime_ns for path in rest} == stamps
    assert _files(project.dataset) == whole
    assert project.ingest("verify", str(project.dataset)).status == 0
