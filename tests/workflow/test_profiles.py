"""The profiles for clusters: all rules are planned with what they ask for; nothing is submitted."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT, Project, run

pytestmark = pytest.mark.workflow


def _needs(*plugins: str) -> pytest.MarkDecorator:
    missing = [name for name in plugins if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def _dry_run(project: Project, profile: str, *options: str) -> str:
    command = [
        *project.command("samples_per_shard=4"),
        "--dry-run",
        "--profile",
        str(ROOT / "profiles" / profile),
    ]
    done = run([*command, *options], project.folder)
    assert done.status == 0, done.text
    return done.text


@_needs("snakemake_executor_plugin_slurm")
def test_slurm_plans_a_job_a_rule(project: Project) -> None:
    """Shrink asks for the cores and the memory of a node, the other rules for little."""
    text = _dry_run(project, "slurm", "--default-resources", "slurm_account=a", "mem_mb=8000", "runtime=120")

    shrink, seal = (text.split(f"rule {name}:")[1].split("rule ")[0] for name in ("shrink", "seal"))
    assert "mem_mb=64000" in shrink
    assert "runtime=1440" in shrink
    assert "mem_mb=8000" in seal
    assert "slurm_account=a" in seal


@_needs("snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_fs")
def test_kubernetes_keeps_its_small_files_on_a_volume(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest, plan and markers go by way of the volume that the pods share."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setitem(os.environ, name, "x")
    volume = tmp_path / "volume"
    text = _dry_run(
        project, "kubernetes", "--default-storage-prefix", str(volume),
        "--kubernetes-persistent-volumes", f"ingest-work:{volume}",
    )  # fmt: skip

    shrink = text.split("rule shrink:")[1].split("rule ")[0]
    assert f"{volume}/.ingest" in shrink
    assert "send to storage" in shrink
    assert "mem_mb=32000" in shrink
