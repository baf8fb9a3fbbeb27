"""Applications that know nothing of checkpoints, under the plugin: killed, bereft, submitted again."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from pyspark_checkpoint import CheckpointStore, open_object_store
from pyspark_checkpoint.registry.queries import QueryRoot, register, root_url
from tests.integration.plugin.lab import (
    Application,
    Submitter,
    bare_python,
    epoch,
    expected_batches,
    found_batches,
    newest,
    python_without,
    write_input,
)
from tests.support.made_location import MadeLocation, capture, contents
from tests.support.waiting import wait_until

FILES = 10
RESTORE = {"spark.ckpt.restore": "missing"}
ENDS = ("clean", "killed", "terminated")


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


@pytest.mark.promise
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
    """No Python in it, none installed for it: the package is in the jar. What lies beside it is not run."""
    write_input(home, FILES)
    (home / "queue.py").write_text("raise SystemExit('this is the application's own')\n")
    start_over_after_a_kill(submitter, home, submitter.java_app(home, 0.3))
    assert found_batches(home) == expected_batches(home)


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
def test_a_library_that_python_lacks_is_named_and_so_is_a_python_that_is_too_old(
    submitter: Submitter, home: Path
) -> None:
    """With the line that installs it, and the way to ship it."""
    write_input(home, 1)
    lacking = python_without(home / "lacking", "orjson", "cryptography")
    old = bare_python(home / "old")
    (site,) = (home / "old" / "lib").glob("python3*/site-packages")
    (site / "sitecustomize.py").write_text("import sys; sys.version_info = (3, 9, 0, 'final', 0)")
    for python, said in (
        (lacking, f"{lacking} -m pip install orjson cryptography"),
        (old, f"{old}, is 3.9, and 3.11 or newer is needed"),
    ):
        conf = {"spark.pyspark.driver.python": str(python), **RESTORE}
        with submitter.submit(home, submitter.java_app(home), conf=conf) as application:
            assert application.wait() != 0
            assert said in application.log
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


SLOW_RESTORE = """
import pathlib, sys, time
home = pathlib.Path({home!r})
def wait(event, arguments):
    if event == "os.mkdir" and ".restored-" in str(arguments[0]) and not (home / "go").exists():
        (home / "restoring").touch()
        while not (home / "go").exists():
            time.sleep(0.05)
sys.addaudithook(wait)
"""

DYING_RESTORE = """
import os, signal, sys
def die(event, arguments):
    if event == "os.rename" and str(arguments[1]) == {location!r}:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
"""


STOPS_NOTHING = """
import threading
start = threading.Thread.start
threading.Thread.start = lambda thread: None if thread.name == "ckpt-stop" else start(thread)
"""


def python_with(home: Path, code: str) -> Path:
    """A Python that runs ``code`` when it starts."""
    python = bare_python(home)
    (site,) = (home / "lib").glob("python3*/site-packages")
    (site / "sitecustomize.py").write_text(code)
    return python


def give_input(home: Path, files: int) -> None:
    """The first ``files`` files of all there will be."""
    (home / "input").mkdir(exist_ok=True)
    for path in sorted((home / "all" / "input").iterdir())[:files]:
        if not (home / "input" / path.name).exists():
            shutil.copy2(path, home / "input" / path.name)


def made_stale(submitter: Submitter, home: Path) -> dict[str, bytes]:
    """A location set back from batch 5 to batch 2, with three more batches to come; what it has."""
    write_input(home / "all", 9)
    for files in (3, 6):
        give_input(home, files)
        with submitter.submit(home, submitter.java_app(home)) as application:
            assert application.wait() == 0
        (home / "done").unlink()
        if files == 3:
            shutil.copytree(home / "location", home / "old")
    assert epoch(home) == 5
    shutil.rmtree(home / "location")
    shutil.copytree(home / "old", home / "location")
    give_input(home, 9)
    return contents(home / "location" / "totals")


@pytest.mark.timeout(900)
def test_a_stale_location_is_restored_in_time_or_its_query_is_stopped(
    submitter: Submitter, home: Path
) -> None:
    """A restore that takes too long changes nothing, neither before its query is stopped nor afterwards."""
    before, location = made_stale(submitter, home), home / "location" / "totals"
    slow = python_with(home / "slow", SLOW_RESTORE.format(home=str(home)))
    stale = {"spark.ckpt.stale": "restore"}
    conf = {**stale, "spark.ckpt.restoreTimeoutSeconds": "30", "spark.pyspark.driver.python": str(slow)}
    (home / "stay").touch()
    with submitter.submit(home, submitter.java_app(home), conf=conf) as application:
        wait_until((home / "restoring").exists, "the beginning of the restore")
        wait_until((home / "done").exists, "the end of the query")
        assert "is stopped: its checkpoint location is stale, and was not restored" in application.log
        (home / "go").touch()
        wait_until(lambda: "the query has not waited for it" in application.log, "the end of the restore")
        (home / "stay").unlink()
        assert application.wait() == 0
    assert contents(location) == before
    assert list(location.parent.glob("totals.stale-*")) == []
    assert len(found_batches(home)) == 6, "nothing of it has run"

    (home / "done").unlink()
    dying = python_with(home / "dying", DYING_RESTORE.format(location=str(location)))
    conf = {**stale, "spark.pyspark.driver.python": str(dying)}
    with submitter.submit(home, submitter.java_app(home), conf=conf) as application:
        assert application.wait() == 0
        assert "the side process ended while it replaced the stale checkpoint location" in application.log
    (aside,) = location.parent.glob("totals.stale-*")
    assert contents(aside) == before
    assert contents(location) == {}, "a query that ran on would have begun anew"
    assert len(found_batches(home)) == 6

    shutil.rmtree(location, ignore_errors=True)  # empty directories that Spark has made
    aside.rename(location)
    (home / "done").unlink()
    with submitter.submit(home, submitter.java_app(home), conf=stale) as application:
        assert application.wait() == 0
        assert "It was restored at batch 5" in application.log
    assert found_batches(home) == expected_batches(home)
    assert epoch(home) == 8


@pytest.mark.timeout(600)
def test_a_query_that_python_cannot_stop_in_time_is_stopped_by_the_driver(
    submitter: Submitter, home: Path
) -> None:
    """Once its location is known to be stale, no time limit lets it run."""
    before, location = made_stale(submitter, home), home / "location" / "totals"
    weak = python_with(home / "weak", STOPS_NOTHING)
    with submitter.submit(
        home, submitter.java_app(home), conf={"spark.pyspark.driver.python": str(weak)}
    ) as application:
        assert application.wait() == 0
        assert "must not run" in application.log
    assert contents(location) == before
    assert len(found_batches(home)) == 6, "nothing of it has run"


def starts_and_stops(submitter: Submitter, home: Path, times: int) -> Counter[str]:
    """Start an application again and again; it stops by itself, by SIGKILL or by SIGTERM, in turn."""
    ends: Counter[str] = Counter()
    for number in range(times):
        place, end = home / str(number), ENDS[number % len(ENDS)]
        write_input(place, 2)
        (place / "stay").touch()
        with submitter.submit(place, submitter.java_app(place)) as application:
            wait_until((place / "done").exists, "the end of the input")
            assert any("plugin.process" in command for command in application.children().values())
            if end == "killed":
                application.kill()
            elif end == "terminated":
                os.killpg(
                    application.process.pid, signal.SIGTERM
                )  # as a service manager does: to all of them
            else:
                (place / "stay").unlink()
            application.wait(60)
            assert_nothing_left(application)
        if end != "killed":
            assert epoch(place) == 1, f"a last checkpoint: {end}"
        ends[end] += 1
    return ends


@pytest.mark.timeout(600)
def test_no_process_is_left_after_five_starts_and_stops(submitter: Submitter, home: Path) -> None:
    """Stopped, killed and terminated; the last checkpoint is made wherever that can be."""
    assert starts_and_stops(submitter, home, 5) == {"clean": 2, "killed": 2, "terminated": 1}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_process_is_left_after_fifty_starts_and_stops(submitter: Submitter, home: Path) -> None:
    """Stopped, killed and terminated."""
    assert starts_and_stops(submitter, home, 50) == {"clean": 17, "killed": 17, "terminated": 16}
