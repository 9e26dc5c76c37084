"""Runs the real Snakefile in folders of its own, as a user does."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
_DEADLINE_S = 240


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Exit status and output (both streams) of a command."""

    status: int
    text: str


@dataclasses.dataclass(frozen=True)
class Project:
    """One user's folder: raw photos in `raw`, the dataset in `dataset`."""

    folder: Path

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    @property
    def dataset(self) -> Path:
        return self.folder / "dataset"

    def command(self, *config: str, cores: int = 2) -> list[str]:
        # Small shards, so that few pictures make several.
        usual = [f"raw={self.raw}", f"dataset={self.dataset}", "samples_per_shard=8"]
        given = {text.split("=", 1)[0] for text in config}
        settings = [text for text in usual if text.split("=", 1)[0] not in given] + list(config)
        snakemake = Path(sys.executable).with_name("snakemake")
        return [str(snakemake), "-s", str(ROOT / "Snakefile"), "--cores", str(cores), "--config", *settings]

    def snakemake(self, *config: str, cores: int = 2) -> Outcome:
        return run(self.command(*config, cores=cores), self.folder)

    def start(self, *config: str, cores: int = 2) -> subprocess.Popen[bytes]:
        with (self.folder / "killed.log").open("wb") as log:
            return subprocess.Popen(
                self.command(*config, cores=cores), cwd=self.folder, env=environment(), stdout=log, stderr=log
            )

    def ingest(self, *arguments: str) -> Outcome:
        return run([sys.executable, "-m", "ingest", *arguments], self.folder)

    def add(self, name: str, data: bytes) -> Path:
        path = self.raw / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def shards(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.dataset.rglob("*.tar"))}

    def index(self) -> dict[str, object]:
        values: dict[str, object] = json.loads((self.dataset / "dataset.json").read_text())
        return values

    def rejects(self) -> dict[str, str]:
        rows = pq.read_table(self.dataset / "rejects.parquet").to_pylist()
        return {row["source"].removeprefix(f"{self.raw}/"): row["code"] for row in rows}


def environment() -> dict[str, str]:
    """Return an environment in which `ingest` is the one beside this interpreter."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "200"}


def run(command: list[str], folder: Path) -> Outcome:
    """Run a command in `folder` and return how it ended."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=_DEADLINE_S, check=False,
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout.decode(errors="replace"))


def picture(number: int, width: int = 320, height: int = 240) -> bytes:
    """Return a JPEG with something in it that differs from every other number's."""
    from ingest.build.image import encode_jpeg

    grain = np.random.default_rng(number).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return encode_jpeg(np.ascontiguousarray(np.kron(grain, np.ones((8, 8, 1), np.uint8))), 90)


def png(width: int = 300, height: int = 300) -> bytes:
    """Return a PNG of one colour."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 60)).save(file, "PNG")
    return file.getvalue()


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of all processes that work in `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "cwd").resolve() == folder.resolve():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def wait_until(happens, what: str) -> None:
    """Wait for something that another process does; fail with its name when it does not come."""
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process as the kernel does when memory runs out: with no chance to clean up."""
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a folder with 20 photos in two classes."""
    made = Project(tmp_path)
    for number in range(20):
        made.add(f"{'cats' if number % 2 else 'dogs'}/{number}.jpg", picture(number))
    return made
