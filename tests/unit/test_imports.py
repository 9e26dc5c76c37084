"""What importing ingest costs, and which half needs which engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ingest

_HEAVY = ("torch", "nvidia.dali", "dask", "distributed", "PIL", "snakemake", "pydantic", "pyarrow", "numpy")


def _loaded_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*[name for name in {_HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import ingest", set(_HEAVY)),
        ("import ingest.__main__", set(_HEAVY)),
        ("import ingest.build.scan, ingest.build.plan", {"torch", "nvidia.dali", "dask", "PIL", "pydantic"}),
        ("import ingest.build.drive", {"torch", "nvidia.dali", "dask", "pydantic"}),
        ("import ingest.load.loader", {"dask", "distributed", "PIL", "snakemake", "pydantic"}),
        ("import ingest.build.config", {"torch", "nvidia.dali", "dask", "PIL", "pyarrow"}),
    ],
)
def test_import_stays_light(statement: str, forbidden: set[str]) -> None:
    """Each part of ingest loads only the engines it needs."""
    assert _loaded_by(statement) & forbidden == set()


def test_public_names_are_there() -> None:
    """Everything that the package says it offers can be had."""
    missing = [
        name for name in ingest.__all__ if name not in ("loader", "Loader") and not hasattr(ingest, name)
    ]

    assert missing == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ingest.nonsense  # noqa: B018


def test_errors_survive_pickling() -> None:
    """Every error comes back from a worker with its sentence and its fields."""
    import pickle

    for name in ingest.__all__:
        kind = getattr(ingest, name) if name not in ("loader", "Loader") else None
        if kind is None:
            continue
        arguments = ("truncated", "It ends early.") if name == "CorruptImageError" else ("a sentence",)
        error = pickle.loads(pickle.dumps(kind(*arguments)))
        assert (type(error), str(error)) == (kind, arguments[-1])
