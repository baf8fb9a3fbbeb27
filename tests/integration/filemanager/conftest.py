"""One S3 server, one proxy before it and one JVM for all tests of the file manager."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.filemanager.jvm import Jvm, Manager, running_jvm
from tests.support.drivers.driver import Driver
from tests.support.servers.hadoop import s3a_conf, s3a_jars, spark_conf
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import FaultProxy

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: FaultProxy) -> FaultProxy:
    """The proxy that every request of the JVM goes through, with an empty log and without rules."""
    return _as_new(_proxy)


@pytest.fixture(scope="session")
def _workbench_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def workbench_proxy(_workbench_proxy: FaultProxy) -> FaultProxy:
    """The proxy of the workbench: its maintenance goes on while other tests count their requests."""
    return _as_new(_workbench_proxy)


@pytest.fixture(scope="session")
def jvm(jar: Path, _proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """A JVM whose S3A connector goes to the S3 server through the proxy."""
    log = tmp_path_factory.mktemp("jvm") / "stderr.log"
    conf = {
        **s3a_conf(_proxy.endpoint),
        # A lost answer must not cost a test minutes: the connector's own patience is not ours to test.
        "fs.s3a.attempts.maximum": "3",
        "fs.s3a.retry.limit": "2",
        "fs.s3a.retry.interval": "50ms",
        "fs.s3a.retry.throttle.interval": "50ms",
    }
    with running_jvm(jar, s3a_jars(), conf, log) as running:
        yield running


@pytest.fixture(scope="session")
def workbench(
    jar: Path, _workbench_proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """A driver for the queries of all tests that do not kill it; maintenance runs every second."""
    conf = {
        **spark_conf(_workbench_proxy.endpoint),
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    }
    log = tmp_path_factory.mktemp("workbench") / "driver.log"
    with Driver(log, conf=conf, class_path=[jar, *s3a_jars()]) as driver:
        yield driver


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, s3_server: S3Server) -> str:
    """A fresh directory, on local disk and on the S3 server."""
    return f"file://{tmp_path}" if request.param == "local" else _fresh(s3_server)


@pytest.fixture
def s3_root(s3_server: S3Server) -> str:
    """A fresh directory on the S3 server."""
    return _fresh(s3_server)


@pytest.fixture
def manager(jvm: Jvm, root: str) -> Manager:
    """Our manager for a fresh directory of either kind."""
    return jvm.manager(root)


@pytest.fixture
def s3_manager(jvm: Jvm, s3_root: str) -> Manager:
    """Our manager for a fresh directory on the S3 server."""
    return jvm.manager(s3_root)


def _as_new(proxy: FaultProxy) -> FaultProxy:
    proxy.clear()
    proxy.delay_seconds = 0.0
    return proxy


def _fresh(server: S3Server) -> str:
    return f"s3a://{server.bucket}/location-{next(_numbers):04d}"
