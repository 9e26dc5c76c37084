"""doctor: what can run here, which formats can be read, and what mends the rest."""

from __future__ import annotations

import importlib

import pytest

from ingest.__main__ import main
from ingest.build import image
from ingest.doctor import examine


def _formats_found():
    return [(works, sentence) for name, works, sentence in examine() if name == "formats"]


def test_formats(monkeypatch):
    """What can be read is one line, what one package brings is another, with the command for it."""
    found = {
        "JPEG": None,
        "JPEG 2000": "imagecodecs",
        "HEIC": "pillow-heif",
        "JPEG XL": "imagecodecs",
        "PNG": None,
    }
    monkeypatch.setattr(image, "readable_formats", lambda: found)

    assert _formats_found() == [
        (True, "JPEG, PNG"),
        (False, "JPEG 2000, JPEG XL: pip install --no-deps imagecodecs"),
        (False, "HEIC: pip install --no-deps pillow-heif"),
    ]


def test_every_format_after_the_set_up():
    """The set-up leaves nothing that doctor would have to mend: every format of the README can be read."""
    (found,) = _formats_found()

    works, sentence = found
    assert works
    assert sentence.startswith("JPEG")
    assert {"PNG", "GIF", "BMP", "WebP", "TIFF", "JPEG 2000", "HEIC", "AVIF", "JPEG XL"} <= set(
        sentence.split(", ")
    )


def test_without_the_build(monkeypatch):
    """Where the kernel cannot be imported, doctor names the extra that brings it and goes on."""
    load = importlib.import_module

    def refuse(name, package=None):
        if name == "ingest.build.image":
            raise ImportError("No module named 'PIL'")
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)

    assert _formats_found() == [
        (
            False,
            "ingest.build.image cannot be imported (No module named 'PIL'): pip install \"ingest[build]\"",
        )
    ]


def test_command(capsys):
    """Each part is a line: its name, yes or no, a sentence."""
    pytest.importorskip("snakemake")

    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["build", "formats", "workflow", "load", "gpu"]
    assert {line[10:13].strip() for line in lines} <= {"yes", "no"}
