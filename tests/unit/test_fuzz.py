"""A few hundred mutated pictures; benchmarks/fuzz.py tries 20,000."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ingest.errors import REJECT_CODES

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "tricky"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the corpus ../shared/data is not here")


@pytest.fixture(scope="module")
def fuzz():
    """Return benchmarks/fuzz.py as a module."""
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "benchmarks" / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [1_000_001, 1_000_002, 1_000_003])
def test_every_input_is_a_sample_or_a_known_reject(fuzz, seed):
    """Whatever is done to the bytes of a picture, nothing else comes out of it."""
    outcome = fuzz.run_batch(fuzz.Batch(seed, str(DATA)))

    assert sum(outcome.codes.values()) == fuzz.BATCH
    assert set(outcome.codes) <= {"sample", *REJECT_CODES}
    assert len(outcome.codes) > 3


def test_a_child_makes_the_same_of_every_input(fuzz):
    """The process that decodes for a shard survives them all, and gives the same samples and codes."""
    batch = fuzz.Batch(1_000_004, str(DATA))

    isolated = fuzz.run_isolated(batch)

    assert isolated.given_up == []
    assert isolated.sha256 == fuzz.run_batch(batch).sha256
    assert isolated.started <= 1
