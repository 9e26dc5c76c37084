"""A few hundred mutated pictures; benchmarks/fuzz.py tries 20,000."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ingest.errors import REJECT_CODES

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "tricky"


@pytest.mark.skipif(not DATA.is_dir(), reason="the corpus ../shared/data is not here")
@pytest.mark.parametrize("seed", [1_000_001, 1_000_002, 1_000_003])
def test_every_input_is_a_sample_or_a_known_reject(seed):
    """Whatever is done to the bytes of a picture, nothing else comes out of it."""
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "benchmarks" / "fuzz.py")
    fuzz = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = fuzz
    spec.loader.exec_module(fuzz)

    outcome = fuzz.run_batch(fuzz.Batch(seed, str(DATA)))

    assert sum(outcome.codes.values()) == fuzz.BATCH
    assert set(outcome.codes) <= {"sample", *REJECT_CODES}
    assert len(outcome.codes) > 3
