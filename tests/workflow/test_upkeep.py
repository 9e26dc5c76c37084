"""Forgetting a photo for good, through the real Snakefile."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ingest.build.drive import missing_shards
from ingest.build.planned import read_plan_head
from ingest.index import read_index
from ingest.shard import make_key, read_receipt
from tests.workflow.conftest import Project, picture

pytestmark = pytest.mark.workflow


def _files_with(dataset: Path, text: bytes) -> set[str]:
    """Return the files that hold these bytes, as they are or in a column of a Parquet file."""
    found = {path.name for path in dataset.rglob("*") if path.is_file() and text in path.read_bytes()}
    for path in dataset.rglob("*.parquet"):
        values = (value for row in pq.read_table(path).to_pylist() for value in row.values())
        if any(text in (value.encode() if isinstance(value, str) else value)
               for value in values if isinstance(value, str | bytes)):  # fmt: skip
            found.add(path.name)
    return found


def test_forgotten_photo_is_in_no_file(project: Project) -> None:
    """After forget, build and `gc --grace 0` its bytes, its name and its hash are in no file."""
    copy = project.add("dogs/copy of 4.jpg", picture(4))
    project.snakemake()
    dataset, key = str(project.dataset), make_key(b"dogs/4.jpg")
    names = [shard.name for shard in read_index(dataset).splits["train"]]
    rows = {r["key"]: (n, r) for n in names for r in read_receipt(dataset, n)[1].to_pylist()}
    name, row = rows[key]
    begin = row["image_offset"]
    data = (project.dataset / f"{name}.tar").read_bytes()[begin : begin + row["image_bytes"]]
    assert _files_with(project.dataset, data)
    assert _files_with(project.dataset, b"dogs/4.jpg")
    status = project.ingest("status", dataset).text
    assert "3 of 3 shards built" in status
    assert "nobody is building" in status

    forgotten = project.ingest("forget", dataset, row["source"], "--duplicates")
    build = project.snakemake()
    cleared = project.ingest("gc", dataset, "--grace", "0")

    assert (forgotten.status, build.status, cleared.status) == (0, 0, 0), forgotten.text + build.text
    assert "19 samples" in build.text
    for secret in (data, b"dogs/4.jpg", b"copy of 4", row["source_sha256"].encode()):
        assert _files_with(project.dataset, secret) == set()
    assert _files_with(project.dataset, key.encode()) == {"forgotten.json"}
    assert copy.exists()  # raw files are nobody's to remove
    head = read_plan_head(next(project.folder.glob(".ingest/*/plan.parquet")))
    assert missing_shards(head) == []  # nothing went that the next build would have to make again
