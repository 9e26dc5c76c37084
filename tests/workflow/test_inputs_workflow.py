"""inputs, through the real Snakefile: a tree of odd names and a table become one dataset, split by shares."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ingest.index import read_index
from ingest.shard import read_receipt
from tests.workflow.conftest import Project, picture

pytestmark = pytest.mark.workflow


def _unpack(shared_data: Path, folder: Path) -> Path:
    # Python 3.11 knows filters from 3.11.4 on; Debian 12 has 3.11.2.
    trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    with tarfile.open(shared_data / "tricky/trees/odd-names-A.tar.gz") as tar:
        tar.extractall(folder, **trusted)
    return folder / "tree"


def _expected(shared_data: Path) -> set[bytes]:
    """Return the paths of all files of the tree that are pictures of some class."""
    lines = (shared_data / "tricky/trees/odd-names-A.expected.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    good = [
        json.loads(path)
        for path, kind, _, expected in rows
        if kind in ("file", "hardlink") and expected.startswith("accepted")
    ]
    return {os.fsencode(path.removeprefix("tree/")) for path in good}


def _samples(dataset: Path) -> dict[tuple[str, bytes], tuple[dict[str, Any], dict[str, bytes]]]:
    """Return receipt and fields of each sample by name of its root and path."""
    found = {}
    for shards in read_index(str(dataset)).splits.values():
        for shard in shards:
            rows = {row["key"]: row for row in read_receipt(str(dataset), shard.name)[1].to_pylist()}
            with tarfile.open(fileobj=io.BytesIO((dataset / f"{shard.name}.tar").read_bytes())) as tar:
                for member in tar:
                    key, field = member.name.split(".")
                    row = rows[key]
                    _, fields = found.setdefault((Path(row["root"]).name, row["path"]), (row, {}))
                    fields[field] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return found


def test_odd_names_and_a_table_are_built(tmp_path: Path, shared_data: Path) -> None:
    """Every name arrives with its own picture; equal contents share a split; a second run does nothing."""
    project = Project(tmp_path)
    tree = _unpack(shared_data, tmp_path)
    odd = os.fsencode(tree)
    for name in (b"caf\xe9", b"caf\\xe9"):
        os.makedirs(odd + b"/" + name)
        Path(os.fsdecode(odd + b"/" + name + b"/1.jpg")).write_bytes(picture(len(name)))
    lines = ["path,class,caption,age"]
    for number in range(6):
        project.add(f"p/{number}.jpg", picture(100 + number))
        lines.append(f'p/{number}.jpg,dogs,"dog, {number}",{number}')
    project.add("rows.csv", "\n".join(lines).encode())
    config = (
        f"raw={{odd: '{tree}', rows: '{project.raw}/rows.csv'}}",
        "split={train: 0.8, val: 0.2}", "samples_per_shard=64", "max_rejects=null",
    )  # fmt: skip

    outcome = project.snakemake(*config)

    assert outcome.status == 0, outcome.text
    samples = _samples(project.dataset)
    assert _expected(shared_data) <= {path for root, path in samples if root == "tree"}
    labels = {path: row["label"] for (_, path), (row, _) in samples.items()}
    assert (labels[b"caf\xe9/1.jpg"], labels[b"caf\\xe9/1.jpg"]) == ("caf\\xe9", "caf\\\\xe9")
    pictures: dict[str, set[tuple[str, str]]] = {}
    for row, fields in samples.values():
        digest = hashlib.sha256(fields["jpg"]).hexdigest()
        pictures.setdefault(row["source_sha256"], set()).add((digest, row["split"]))
    assert all(len(found) == 1 for found in pictures.values())
    roots = {"tree": odd, "raw": os.fsencode(project.raw)}
    for (root, path), (row, _) in samples.items():
        content = Path(os.fsdecode(roots[root] + b"/" + path)).read_bytes()
        assert row["source_sha256"] == hashlib.sha256(content).hexdigest()
    row, fields = samples["raw", b"p/3.jpg"]
    assert (row["label"], fields["txt"], json.loads(fields["json"])) == ("dogs", b"dog, 3", {"age": "3"})
    assert "no fault" in project.ingest("verify", str(project.dataset)).text

    before = project.shards()
    again = project.snakemake(*config)
    assert again.status == 0, again.text
    assert (project.shards(), "shrink: 0 of" in again.text) == (before, True)
