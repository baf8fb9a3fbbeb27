"""Applications that know nothing of checkpoints, under the plugin: killed, bereft, submitted again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from pyspark_checkpoint import CheckpointStore, open_object_store
from pyspark_checkpoint.capture.roots import QueryRoot, register, root_url
from tests.capture.made import MadeLocation, capture
from tests.plugin.lab import (
    Application,
    Submitter,
    epoch,
    expected_batches,
    found_batches,
    newest,
    wait_until,
    write_input,
)
from tests.servers.process import PortLease

FILES = 10
RESTORE = {"spark.ckpt.restore": "missing"}
SECRET = "do-not-show-me"
SERVLET = "spark.metrics.conf.*.sink.prometheusServlet"


def assert_nothing_left(application: Application) -> None:
    """No process of an application outlives its driver."""
    wait_until(lambda: not application.children(), f"still alive: {application.children()}", 20)


def final_counts(batches: dict[str, list[str]]) -> list[str]:
    """The last line of each word, in all batches."""
    counts = {line.split()[0]: line for lines in batches.values() for line in lines}
    return list(counts.values())


def start_over_after_a_kill(submitter: Submitter, home: Path, arguments: list[str], **how: object) -> None:
    """Kill the driver in the middle, delete what it kept on disk, and submit the same line again."""
    with submitter.submit(home, arguments, conf=RESTORE, **how) as application:  # type: ignore[arg-type]
        wait_until(lambda: epoch(home) >= 3, "four checkpoints")
        wait_until(lambda: table_epoch(home, arguments) >= 1, "two of the table's query")
        application.kill()
        assert_nothing_left(application)
    assert not (home / "done").exists()
    shutil.rmtree(home / "location")
    with submitter.submit(home, arguments, conf=RESTORE, **how) as application:  # type: ignore[arg-type]
        assert application.wait() == 0
        assert "is restored from checkpoint" in application.log
        assert_nothing_left(application)


def table_epoch(home: Path, arguments: list[str]) -> int:
    """How far the checkpoints of the query with a table are, wherever they are kept."""
    if arguments[-1] == "off":
        return epoch(home, "table")
    if arguments[-1] != "auto":
        return FILES
    found = CheckpointStore.open(str(home / "table")).load_latest()
    return -1 if found is None else found.epoch


@pytest.mark.timeout(600)
def test_a_python_application_goes_on_where_the_lost_one_stopped(submitter: Submitter, home: Path) -> None:
    """Both of its queries, in sessions of their own, one with a table that keeps Spark's state with it."""
    calm = home / "calm"
    write_input(calm, FILES)
    with submitter.submit(calm, submitter.python_app(calm)) as application:
        assert application.wait() == 0
        assert_nothing_left(application)
    assert found_batches(calm) == expected_batches(calm)
    assert epoch(calm) == FILES - 1, "a clean stop takes a last checkpoint"

    shutil.copytree(calm / "input", home / "input")
    start_over_after_a_kill(submitter, home, submitter.python_app(home, 0.3, state="auto"))
    assert found_batches(home) == found_batches(calm)
    assert (home / "table.txt").read_text().splitlines() == sorted(final_counts(expected_batches(home)))
    assert newest(home, "table") is None, "what the table keeps is not uploaded twice"


@pytest.mark.timeout(600)
def test_a_table_without_state_goes_back_with_its_query(submitter: Submitter, home: Path) -> None:
    """By a recorded rollback: no row is missing, none is there twice."""
    write_input(home, FILES)
    start_over_after_a_kill(submitter, home, submitter.python_app(home, 0.3, state="off"))
    assert found_batches(home) == expected_batches(home)
    assert (home / "table.txt").read_text().splitlines() == sorted(final_counts(expected_batches(home)))
    query = newest(home, "table")
    assert query is not None and query.table_store_checkpoint_path == str(home / "table")


@pytest.mark.timeout(600)
def test_a_java_application_goes_on_where_the_lost_one_stopped(submitter: Submitter, home: Path) -> None:
    """No Python in it, none installed for it: the package is in the jar."""
    write_input(home, FILES)
    start_over_after_a_kill(submitter, home, submitter.java_app(home, 0.3))
    assert found_batches(home) == expected_batches(home)


@pytest.mark.timeout(600)
def test_metrics_are_shown_and_secrets_are_not(submitter: Submitter, home: Path) -> None:
    """On Spark's own pages: the Prometheus servlet and the environment, and in the log."""
    write_input(home, 5)
    (home / "stay").touch()
    lease = PortLease()
    (port,) = lease.take(1)
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        f"{SERVLET}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{SERVLET}.path": "/metrics/prometheus",
        "spark.ckpt.option.accountKey": SECRET,
        "spark.ckpt.option.connectionString": f"AccountKey={SECRET}",
        "spark.ckpt.secret.secretKey": SECRET,
        "spark.ckpt.secret.accessKey": "someone",
        "spark.ckpt.retian": "7",
    }
    with submitter.submit(home, submitter.java_app(home, 1.0), conf=conf) as application:
        wait_until(lambda: _metric(port, "queries") == 1, "a query that runs")
        wait_until(lambda: _metric(port, "checkpointAgeSeconds") > 0, "its age")
        wait_until((home / "done").exists, "the end of the input")
        wait_until(lambda: epoch(home) == 4, "the last checkpoint")
        wait_until(lambda: _metric(port, "checkpoints") >= 1, "its figures")
        for name in ("checkpointSeconds", "uploadedBytes", "requests"):
            assert _metric(port, name) > 0, name
        assert _metric(port, "failures") == 0
        environment = _environment_page(port)
        assert "spark.ckpt.url" in environment
        assert SECRET not in environment
        assert "did you mean spark.ckpt.retain?" in application.log
        (home / "stay").unlink()
        assert application.wait() == 0
        assert SECRET not in application.log
        assert_nothing_left(application)
    lease.release()


def _page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def _metric(port: int, name: str) -> float:
    """The value of a gauge of the source ckpt; -1 while it is not there."""
    try:
        page = _page(port, "/metrics/prometheus")
    except OSError:
        return -1.0
    for line in page.splitlines():
        if f"_driver_ckpt_{name}_" in line:
            return float(line.split()[-1])
    return -1.0


def _environment_page(port: int) -> str:
    (application,) = json.loads(_page(port, "/api/v1/applications"))
    return _page(port, f"/api/v1/applications/{application['id']}/environment")


@pytest.mark.timeout(600)
def test_without_a_usable_python_the_application_runs_on(submitter: Submitter, home: Path) -> None:
    """It says once what is missing; only who asked for a restore is stopped."""
    write_input(home, 2)
    conf = {"spark.pyspark.driver.python": str(home / "no-such-python")}
    with submitter.submit(home, submitter.java_app(home), conf=conf) as application:
        assert application.wait() == 0
        said = [line for line in application.log.splitlines() if "cannot run the Python" in line]
        assert len(said) == 1 and "its queries are not checkpointed" in said[0]
    assert found_batches(home) == expected_batches(home)
    assert not (home / "store").exists()
    (home / "done").unlink()
    with submitter.submit(home, submitter.java_app(home), conf={**conf, **RESTORE}) as application:
        assert application.wait() != 0
        assert "cannot run the Python" in application.log
    assert not (home / "done").exists()


@pytest.mark.timeout(600)
def test_a_library_that_python_lacks_is_named(submitter: Submitter, home: Path) -> None:
    """With the line that installs it, and the way to ship it."""
    write_input(home, 1)
    bare = home / "bare"
    bare.mkdir()
    shutil.copytree(submitter.python.parents[1], bare / "python", symlinks=True)
    for pth in (bare / "python").glob("lib/python3*/site-packages/needed.pth"):
        pth.unlink()
    python = bare / "python" / "bin" / "python"
    conf = {"spark.pyspark.driver.python": str(python), **RESTORE}
    with submitter.submit(home, submitter.java_app(home), conf=conf) as application:
        assert application.wait() != 0
        assert f"{python} -m pip install orjson cryptography" in application.log
        assert "--archives" in application.log


@pytest.mark.timeout(600)
def test_a_lost_location_that_only_hadoop_reaches_stops_the_start(submitter: Submitter, home: Path) -> None:
    """It cannot be restored before Spark runs, and beginning anew is not what was asked for."""
    write_input(home, 1)
    url, made = str(home / "store"), MadeLocation(home / "made").commit(0)
    capture(made, root_url(url, made.query_id), 0)
    location = "viewfs://mounts/data/location"
    register(
        open_object_store(url),
        QueryRoot("totals", made.query_id, "totals-app", 1, checkpoint_location=location),
    )
    conf = {"spark.hadoop.fs.viewfs.mounttable.mounts.link./data": f"file:{home}", **RESTORE}
    with submitter.submit(home, submitter.java_app(home), conf=conf) as application:
        assert application.wait() != 0
        assert f"the checkpoint location {location} is not there" in application.log
    assert not (home / "done").exists()


@pytest.mark.timeout(600)
def test_a_side_process_that_dies_is_started_again(submitter: Submitter, home: Path) -> None:
    """It takes up the query that is running, and goes on with its history."""
    write_input(home, 8)
    with submitter.submit(home, submitter.java_app(home, 1.0)) as application:
        wait_until(lambda: epoch(home) >= 0, "a checkpoint")
        (victim,) = (pid for pid, command in application.children().items() if "sidecar" in command)
        os.kill(victim, signal.SIGKILL)
        assert application.wait() == 0
        assert "it is started again" in application.log
        assert_nothing_left(application)
    assert epoch(home) == 7
    assert found_batches(home) == expected_batches(home)


def starts_and_stops(submitter: Submitter, home: Path, times: int) -> Counter[str]:
    """Start an application again and again; every other driver is killed."""
    ends: Counter[str] = Counter()
    for number in range(times):
        place = home / str(number)
        write_input(place, 2)
        (place / "stay").touch()
        with submitter.submit(place, submitter.java_app(place)) as application:
            wait_until((place / "done").exists, "the end of the input")
            assert any("sidecar" in command for command in application.children().values())
            if number % 2:
                application.kill()
            else:
                (place / "stay").unlink()
                application.wait(60)
                assert epoch(place) == 1
            assert_nothing_left(application)
        ends["killed" if number % 2 else "clean"] += 1
    return ends


@pytest.mark.timeout(600)
def test_no_process_is_left_after_five_starts_and_stops(submitter: Submitter, home: Path) -> None:
    """Clean and killed."""
    assert starts_and_stops(submitter, home, 5) == {"clean": 3, "killed": 2}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_process_is_left_after_fifty_starts_and_stops(submitter: Submitter, home: Path) -> None:
    """Clean and killed."""
    assert starts_and_stops(submitter, home, 50) == {"clean": 25, "killed": 25}
