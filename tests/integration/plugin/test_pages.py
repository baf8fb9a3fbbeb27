"""What Spark's own pages and logs show of the plugin: its metrics, and none of its secrets."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.plugin.lab import (
    Submitter,
    epoch,
    expected_batches,
    found_batches,
    write_input,
)
from tests.integration.plugin.test_applications import assert_nothing_left
from tests.support.servers.process import PortLease
from tests.support.waiting import wait_until

SECRET = "do-not-show-me"
SERVLET = "spark.metrics.conf.*.sink.prometheusServlet"
SECRETS = (
    "accessKey",
    "secretKey",
    "sessionToken",
    "accountKey",
    "sasToken",
    "connectionString",
    "serverEncryptionKey",
)


@pytest.fixture
def port() -> Iterator[int]:
    """A port for Spark's pages."""
    lease = PortLease()
    (found,) = lease.take(1)
    yield found
    lease.release()


def pages(port: int) -> dict[str, str]:
    """Confs for Spark's pages, metrics among them."""
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        f"{SERVLET}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{SERVLET}.path": "/metrics/prometheus",
    }


@pytest.mark.timeout(600)
def test_metrics_are_shown_and_secrets_are_not(submitter: Submitter, home: Path, port: int) -> None:
    """In the Prometheus servlet; not in the environment, the driver's log with all confs, the event log."""
    write_input(home, 5)
    (home / "stay").touch()
    (home / "events").mkdir()
    conf = {
        **pages(port),
        **{f"spark.ckpt.secret.{name}": f"{SECRET}={name}" for name in SECRETS},
        "spark.hadoop.fs.azure.account.key.mine.blob.core.windows.net": "hidden-once-the-plugin-runs",
        "spark.hadoop.fs.azure.sas.mine.other.blob.core.windows.net": "hidden-once-the-plugin-runs",
        "spark.hadoop.fs.gs.auth.service.account.private.key": "hidden-once-the-plugin-runs",
        "spark.ckpt.retian": "7",
        "spark.logConf": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file:{home}/events",
        "spark.eventLog.compress": "false",
    }
    with submitter.submit(home, submitter.java_app(home, 1.0), conf=conf) as application:
        wait_until(lambda: metric(port, "queries") == 1, "a query that runs")
        wait_until(lambda: metric(port, "checkpointAgeSeconds") > 0, "its age")
        wait_until((home / "done").exists, "the end of the input")
        wait_until(lambda: epoch(home) == 4, "the last checkpoint")
        wait_until(lambda: metric(port, "checkpoints") >= 1, "its figures")
        for name in ("checkpointSeconds", "uploadedBytes", "requests"):
            assert metric(port, name) > 0, name
        assert metric(port, "failures") == 0
        environment = environment_page(port)
        assert "spark.ckpt.url" in environment
        assert SECRET not in environment and "hidden-once-the-plugin-runs" not in environment
        assert "did you mean spark.ckpt.retain?" in application.log
        (home / "stay").unlink()
        assert application.wait() == 0
        assert "spark.ckpt.secret.connectionString=*********(redacted)" in application.log
        assert SECRET not in application.log
        assert_nothing_left(application)
    events = "".join(path.read_text() for path in (home / "events").rglob("*") if path.is_file())
    assert "spark.ckpt.url" in events
    assert SECRET not in events


@pytest.mark.timeout(600)
def test_a_side_process_that_dies_is_started_again(submitter: Submitter, home: Path, port: int) -> None:
    """It takes up the query that is running and goes on with its history; the metrics go on, too."""
    write_input(home, 8)
    (home / "stay").touch()
    with submitter.submit(home, submitter.java_app(home, 1.0), conf=pages(port)) as application:
        wait_until(lambda: metric(port, "checkpoints") >= 4, "four checkpoints")
        (victim,) = (pid for pid, command in application.children().items() if "plugin.process" in command)
        os.kill(victim, signal.SIGINT)  # Ctrl-C in a shell is not meant for it
        time.sleep(1)
        assert victim in application.children()
        os.kill(victim, signal.SIGKILL)
        before = metric(port, "checkpoints"), metric(port, "requests")
        wait_until(lambda: epoch(home) == 7, "the last checkpoint")
        wait_until(lambda: metric(port, "checkpoints") > before[0], "that it is counted")
        assert metric(port, "requests") > before[1]
        (home / "stay").unlink()
        assert application.wait() == 0
        assert "it is started again" in application.log
        assert_nothing_left(application)
    assert found_batches(home) == expected_batches(home)


def page(port: int, path: str) -> str:
    """A page of Spark's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def metric(port: int, name: str) -> float:
    """The value of a gauge of the source ckpt; -1 while it is not there."""
    try:
        text = page(port, "/metrics/prometheus")
    except OSError:
        return -1.0
    for line in text.splitlines():
        if f"_driver_ckpt_{name}_" in line:
            return float(line.split()[-1])
    return -1.0


def environment_page(port: int) -> str:
    """What the environment page shows."""
    (application,) = json.loads(page(port, "/api/v1/applications"))
    return page(port, f"/api/v1/applications/{application['id']}/environment")
