"""What every test may ask for: servers that start once a session, and a fresh place in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.store.base import ObjectStore
from tests.support.jvms import set_environment
from tests.support.servers.hadoop import build_jar
from tests.support.servers.launch import (
    AzureServer,
    GcsServer,
    S3Server,
    Server,
    azurite,
    fake_gcs,
    rclone_s3,
    seaweedfs,
)

pytest_plugins = ["tests.support.markers", "tests.support.progress"]
set_environment()
settings.register_profile("untimed", settings.default, deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

CLOUDS = ("s3", "gs", "az")
SCHEMES = ("memory", "file", *CLOUDS)
KEEPS_CONDITIONAL_COPY = ("memory", "file", "s3", "az")
"""The GCS emulator ignores conditions on copies; the real service keeps them. What we send for them is
checked against a strict fake of our own, with the other unit tests of that backend."""
KEEPS_A_BESIDE_A_B = ("gs", "az")
"""SeaweedFS keeps keys in directories and takes a for present once a/b is. The real S3 does not."""


@pytest.fixture(scope="session")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar, made from the sources as they are now."""
    return build_jar(tmp_path_factory.mktemp("jar"))


@dataclass(frozen=True)
class Place:
    """Where a store is, so that it can be opened again, also by another process."""

    scheme: str
    url: str
    options: dict[str, str] = field(default_factory=dict)

    def open(self, **options: str) -> ObjectStore:
        """Open the store, with further options if given."""
        return open_object_store(self.url, {**self.options, **options}, env={})


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that one test captures to."""
    return str(tmp_path / "store")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def gs_server() -> Iterator[GcsServer]:
    with fake_gcs() as server:
        yield server


@pytest.fixture(scope="session")
def az_server() -> Iterator[AzureServer]:
    with azurite() as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[S3Server]:
    with rclone_s3() as server:
        yield server


@pytest.fixture
def cloud_server(request: pytest.FixtureRequest) -> Server:
    """The server of the scheme that the test is run for (indirect parameter)."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(params=SCHEMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A fresh empty place on every backend in turn."""
    return fresh_place(request, request.param, tmp_path)


@pytest.fixture
def store(place: Place) -> Iterator[ObjectStore]:
    """An open store at ``place``."""
    opened = place.open()
    yield opened
    opened.close()


def fresh_place(request: pytest.FixtureRequest, scheme: str, tmp_path: Path) -> Place:
    """A place that no test has used, in the session's server of ``scheme``."""
    if scheme == "file":
        return Place(scheme, str(tmp_path / "store"))
    prefix = SYSTEM_CLOCK.uuid7()
    if scheme == "memory":
        return Place(scheme, f"memory://{prefix}")
    server: Server = request.getfixturevalue(f"{scheme}_server")
    return Place(scheme, server.url(prefix), server.options)
