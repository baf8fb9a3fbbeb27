"""The plugin in Spark's own programs, by the same confs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.capture.roots import resolve_root
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sparkstate.coordinated import find_state_record
from tests.plugin.lab import Submitter, wait_until, write_input

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "word_count.scala"


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
    assert (newest.epoch, find_state_record(newest) is not None) == (1, True)


@pytest.mark.timeout(600)
def test_spark_sql_runs_under_the_plugin(submitter: Submitter, home: Path) -> None:
    """It starts no streaming queries; it must not be disturbed, and leave nothing behind."""
    arguments = ["-e", "select 40 + 2 as answer"]
    with submitter.submit(home, arguments, program="spark-sql") as application:
        assert application.wait() == 0
        assert "\n42\n" in application.log
        wait_until(lambda: not application.children(), "the end of all processes", 20)
