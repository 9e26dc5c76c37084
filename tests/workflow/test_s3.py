"""The real Snakefile with raw photos and the dataset in S3, on good days and bad ones."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from ingest import faults, store
from tests import s3
from tests.proxy import Fault
from tests.workflow.conftest import environment, wait_until

pytestmark = pytest.mark.workflow


class Bucket:
    """A project's raw photos, uploaded, and the place of its dataset beside them."""

    def __init__(self, project) -> None:
        root = f"s3://{s3.BUCKET}/{uuid.uuid4()}"
        self.project, self.raw, self.dataset = project, f"{root}/raw", f"{root}/dataset"
        for path in sorted(project.raw.rglob("*")):
            if path.is_file():
                store.write_bytes(store.join(self.raw, str(path.relative_to(project.raw))), path.read_bytes())

    @property
    def config(self) -> tuple[str, str]:
        return f"raw={self.raw}", f"dataset={self.dataset}"

    def build(self, *config: str):
        return self.project.snakemake(*self.config, *config)

    def files(self, suffix: str, behind: str = "") -> dict[str, bytes]:
        place = f"{self.dataset}{behind}"
        names = [name for name in store.list_files(place) if name.endswith(suffix)]
        return {name.rpartition("/")[2]: store.read_bytes(store.join(place, name)) for name in names}


@pytest.fixture
def bucket(proxy, project, monkeypatch):
    """Return a project whose 20 photos are in S3."""
    monkeypatch.setenv(faults.PATIENCE_VARIABLE, "60")
    made = Bucket(project)
    proxy.heal()
    return made


def _by_number(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name.partition("-")[0]: data for name, data in files.items()}


def _require_no_secret(folder: Path, *texts: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert s3.PASSWORD.encode() not in path.read_bytes(), path
    assert all(s3.PASSWORD not in text for text in texts)


def test_build_in_s3_is_the_build_on_disk(bucket, proxy):
    """Photos on disk give the same dataset in S3; photos in S3, on a day of refusals, the same shards."""
    local = bucket.project.snakemake("samples_per_shard=5")
    upload = bucket.project.snakemake(f"dataset={bucket.dataset}-2", "samples_per_shard=5")
    assert (local.status, upload.status) == (0, 0), local.text + upload.text
    for suffix in (".tar", ".idx", "dataset.json"):
        on_disk = {path.name: path.read_bytes() for path in bucket.project.dataset.rglob(f"*{suffix}")}
        assert bucket.files(suffix, "-2") == on_disk
    proxy.heal()
    proxy.add(
        Fault("status", match=r"list-type=2.*raw", times=2),
        *(Fault(kind, match=r"/raw/.*\.jpg", times=2) for kind in ("status", "reset", "truncate", "shorten")),
        Fault("status", "PUT", r"\.tar", times=3, status=500),
        Fault("refuse", "PUT", r"\.parquet", times=1),
        Fault("status", "PUT", r"dataset\.json", times=2),
    )

    remote = bucket.build("samples_per_shard=5")

    assert remote.status == 0, remote.text
    assert proxy.seen["faults"] == 16
    # Names of shards tell of versions of photos, which are times on disk and ETags in S3.
    assert _by_number(bucket.files(".tar")) == _by_number(bucket.project.shards())
    assert len(bucket.files(".tar")) == 4
    on_disk = {path.name: path.read_bytes() for path in bucket.project.dataset.rglob("*.idx")}
    assert _by_number(bucket.files(".idx")) == _by_number(on_disk)
    _require_no_secret(bucket.project.folder, remote.text)
    receipts = bucket.files(".parquet")
    assert receipts
    assert all(s3.PASSWORD.encode() not in data for data in receipts.values())


def test_store_that_stays_away_stops_the_build_and_the_next_goes_on(bucket, proxy, monkeypatch):
    """While photos cannot be read no file is rejected: the build fails, and once they can be it is done."""
    monkeypatch.setenv(faults.PATIENCE_VARIABLE, "1")
    proxy.add(Fault("reset", match=r"/raw/.*\.jpg", times=1e9))

    failed = bucket.build()

    assert failed.status != 0
    assert "cannot read" in failed.text
    assert "see whether the store and the network are up" in failed.text
    assert bucket.files(".tar") == bucket.files(".json") == {}
    proxy.heal()
    done = bucket.build()
    assert done.status == 0, done.text
    index = store.read_bytes(store.join(bucket.dataset, "dataset.json"))
    assert json.loads(index)["rejects"] == {}
    _require_no_secret(bucket.project.folder, failed.text, done.text)


def test_who_waits_for_a_store_is_told(bucket, proxy):
    """The terminal says that photos do not come, though it is a process of a process that reads them."""
    proxy.add(Fault("status", match=r"/raw/.*\.jpg", times=1e9))
    log = bucket.project.folder / "build.log"
    with log.open("wb") as file:
        build = subprocess.Popen(
            bucket.project.command(*bucket.config), cwd=bucket.project.folder, env=environment(),
            stdout=file, stderr=file,
        )  # fmt: skip

    wait_until(lambda: "cannot read yet" in log.read_text(), "a line about the store")
    proxy.heal()

    assert build.wait(120) == 0, log.read_text()
