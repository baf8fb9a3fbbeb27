"""Every server that a test can start, by name. Each is a context manager that yields a running one.

What they yield has ``name``, ``endpoint``, ``port``, ``pid``, ``options`` (for ``open_object_store``),
``options_at(endpoint)`` (the same through a proxy) and ``url(prefix)`` in a bucket that exists.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from tests.support.servers.azurite import AzureServer, azurite
from tests.support.servers.gcs import GcsServer, fake_gcs
from tests.support.servers.s3 import S3Server, rclone_s3, seaweedfs


class Server(Protocol):
    """A server that runs."""

    @property
    def name(self) -> str:
        """What it is."""

    @property
    def endpoint(self) -> str:
        """Its address."""

    @property
    def options(self) -> dict[str, str]:
        """Store options to reach it."""

    def options_at(self, endpoint: str) -> dict[str, str]:
        """Store options for this server behind another endpoint, such as a proxy's."""

    def url(self, prefix: str = "") -> str:
        """The URL of ``prefix`` in a bucket that exists."""


def launch(scheme: str) -> AbstractContextManager[Server]:
    """Start the server for ``s3``, ``gs`` or ``az``."""
    starters: dict[str, Callable[[], AbstractContextManager[Server]]]
    starters = {"s3": seaweedfs, "gs": fake_gcs, "az": azurite}
    return starters[scheme]()


__all__ = [
    "AzureServer",
    "GcsServer",
    "S3Server",
    "Server",
    "azurite",
    "fake_gcs",
    "launch",
    "rclone_s3",
    "seaweedfs",
]
