"""The plugin in Spark's own programs, by the same confs."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import resolve_root
from tests.integration.plugin.lab import COORDINATES, Submitter, write_input
from tests.support.servers.hadoop import ROOT, run_maven
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "word_count.scala"


@pytest.mark.timeout(600)
def test_a_query_typed_into_spark_shell_is_checkpointed(submitter: Submitter, home: Path) -> None:
    """In Scala, line by line; its table has rows and state, and the query is found by its name."""
    write_input(home, 2)
    typed = EXAMPLE.read_text("utf-8").replace('sys.env("DIRECTORY")', f'"{home}"')
    with submitter.submit(
        home, [], program="spark-shell", stdin=f"{typed}\n:quit\n".encode()
    ) as application:
        assert application.wait() == 0
        wait_until(lambda: not application.children(), "the end of all processes", 20)
    history = CheckpointStore.open(resolve_root(str(home / "store"), "totals"))
    newest = history.load_latest()
    assert newest is not None
    assert (newest.epoch, newest.state is not None) == (1, True)


@pytest.fixture
def installed(submitter: Submitter, home: Path) -> Submitter:
    """A submitter for a home whose local Maven repository ``mvn install`` has filled, and nothing else."""
    local = home / "user" / ".m2" / "repository"
    known = Path.home() / ".m2" / "repository"
    # Maven's own plugins, and what the jar is compiled against: they are fetched if they are not there.
    if known.exists():
        shutil.copytree(known, local, copy_function=os.symlink)
        shutil.rmtree(local / "io" / "github" / "pyspark-checkpoint", ignore_errors=True)
    run_maven(["-f", str(ROOT / "jvm-shim" / "pom.xml"), f"-Dmaven.repo.local={local}", "install"])
    return dataclasses.replace(submitter, user_home=home / "user")


@pytest.mark.timeout(600)
def test_spark_sql_runs_under_the_plugin_that_maven_has_installed(installed: Submitter, home: Path) -> None:
    """``--packages`` finds the jar. There are no streaming queries; nothing is disturbed or left behind."""
    arguments = ["-e", "select 40 + 2 as answer; set spark.sql.streaming.streamingQueryListeners"]
    with installed.submit(home, arguments, program="spark-sql") as application:
        assert application.wait() == 0
        assert f"found {'#'.join(COORDINATES.split(':')[:2])};0.1.0 in local-m2-cache" in application.log
        assert "io.github.pysparkcheckpoint.plugin.QueryEvents" in application.log, (
            "the plugin has not begun"
        )
        assert "\n42\n" in application.log
        wait_until(lambda: not application.children(), "the end of all processes", 20)
