"""Fixtures that more than one test file uses."""

import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # `pytest` leaves the working directory out, `python -m pytest` has it
    sys.path.insert(0, str(ROOT))

from tests.s3_fixtures import proxy, s3_proxy, s3_server  # noqa: E402, F401  once for all, or each has a server

# What a shell starts in the background ignores Ctrl-C, and so would every process that is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Declare the marker here too, for machines whose pytest does not read pyproject.toml."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device and DALI")


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of real and tricky pictures that lies beside the checkout."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no pictures at {folder}")
    return folder


@pytest.fixture(scope="session")
def sealed(tmp_path_factory):
    """Return a sealed dataset: 20 samples of 4 classes in 3 shards, each with a reject; do not change it."""
    from tests.datasets import make_dataset

    return make_dataset(tmp_path_factory.mktemp("sealed") / "dataset")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Return each device in turn; one that is not there is skipped."""
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param
