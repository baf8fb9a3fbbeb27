"""A savepoint keeps the outputs of its query as well, as far as each of them can."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint import savepoint
from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.pins import pin_name
from pyspark_checkpoint.store.open import open_object_store
from tests.cli.conftest import ckpt
from tests.cli.kit import Shell
from tests.outputs.spark_log import SparkLog
from tests.outputs.test_ckpt_sink import save_rows
from tests.support.made_location import QUERY_ID, MadeLocation, capture

__all__ = ["ckpt"]
PINS = "_ckpt/pins/"


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


@pytest.fixture
def log(tmp_path: Path) -> SparkLog:
    """The file sink of the query, at batch 2."""
    log = SparkLog(open_object_store(f"file:{tmp_path / 'out'}"))
    log.run(range(3))
    return log


@pytest.fixture
def files(made: MadeLocation, log: SparkLog, url: str, tmp_path: Path) -> str:
    """Its history."""
    capture(made, url, 0, 1, 2, sink=f"FileSink[file:{tmp_path / 'out'}]")
    assert log.numbers() == [0, 1, 2]
    return url


def pins(log: SparkLog) -> list[str]:
    """What the file sink keeps, by name."""
    return [info.key.removeprefix(PINS) for info in log.store.list(PINS)]


def test_a_savepoint_pins_the_files_of_its_batch(files: str, log: SparkLog, tmp_path: Path) -> None:
    """And says so; repeating it changes nothing."""
    for _ in range(2):
        (line,) = savepoint(files, "good", at="epoch=1").outputs
        assert line.startswith(f"file file:{tmp_path / 'out'}: kept at version 1: ")
        assert pins(log) == [f"good-{QUERY_ID}"]


def test_the_command_pins_and_lets_go(files: str, log: SparkLog, ckpt: Shell) -> None:
    """What it prints says what is kept."""
    assert "; file file:" not in ckpt("savepoint", files, "good", "--dry-run").out
    assert pins(log) == []
    made = ckpt("savepoint", files, "good", "--json")
    assert [(one["kind"], one["version"], one["is_kept"]) for one in made.json["outputs"]] == [
        ("file", "2", True)
    ]
    assert "kept at version 2" in ckpt("savepoint", files, "good").out
    assert pins(log) == [f"good-{QUERY_ID}"]
    assert ckpt("savepoint", files, "good", "--remove", "--dry-run").status == 0
    assert pins(log) == [f"good-{QUERY_ID}"]
    assert "may still keep" not in ckpt("savepoint", files, "good", "--remove").out
    assert pins(log) == []


def test_an_output_that_does_not_answer_keeps_no_savepoint_from_being_made_or_removed(
    files: str, ckpt: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and nothing more."""

    def refuse(*_: object) -> None:
        raise CheckpointError("no answer")

    monkeypatch.setattr(FileSinkOutput, "pin", refuse)
    monkeypatch.setattr(FileSinkOutput, "unpin", refuse)
    assert savepoint(files, "good").outputs[0].endswith(": not kept: no answer")
    removed = ckpt("savepoint", files, "good", "--remove")
    assert (removed.status, "may still keep it: file" in removed.out) == (0, True)
    assert not CheckpointStore.open(files).savepoints()


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("ForeachBatchSink", "foreach-batch: not kept: it does not say what it has, and cannot go back"),
        ("local.db.table", "table local.db.table: not kept: nobody has said where it is"),
        ("FileSink[file:/nowhere/at-all]", "file file:/nowhere/at-all: not kept: it no longer has batch 2"),
        (
            "FileSink[hdfs://name:8020/out]",
            "file hdfs://name:8020/out: not kept: a record names the output",
        ),
        ("FileSink[s3a://elsewhere/out]", "file s3a://elsewhere/out: not kept: a record names"),
    ],
)
def test_what_cannot_be_kept_is_said(made: MadeLocation, url: str, sink: str, told: str) -> None:
    """With the reason; the savepoint is there."""
    capture(made, url, 0, 1, 2, sink=sink)
    point = savepoint(url, "good")
    assert (point.checkpoint_id, point.outputs[0][: len(told)]) == (3, told)


def test_an_output_that_was_moved_is_pinned_where_it_is(
    made: MadeLocation, log: SparkLog, url: str, tmp_path: Path
) -> None:
    """A record says only where it was."""
    capture(made, url, 0, 1, 2, sink="FileSink[file:/nowhere/at-all]")
    (tmp_path / "other").mkdir()
    assert "kept at version 2" in savepoint(url, "good", sink_location=str(tmp_path / "out")).outputs[0]
    assert pins(log) == [f"good-{QUERY_ID}"]


def test_an_output_on_hdfs_needs_a_session(made: MadeLocation, url: str) -> None:
    """Also where a person says that it is theirs."""
    capture(made, url, 0, sink="FileSink[hdfs://name:8020/out]")
    (line,) = savepoint(url, "good", sink_location="hdfs://name:8020/out").outputs
    assert "is reached through Spark alone" in line


def test_the_table_of_a_ckpt_sink_keeps_the_batch_in_its_own_history(
    made: MadeLocation, url: str, tmp_path: Path, ckpt: Shell
) -> None:
    """As a savepoint, which its retention leaves alone."""
    table_url = str(tmp_path / "table")
    capture(made, url, 0, 1, 2, sink=f"ckpt-sink {table_url}")
    table = save_rows(table_url, {epoch: epoch for epoch in range(3)})
    assert savepoint(url, "good", at="epoch=1").outputs == (f"ckpt-sink {table_url}: kept at version 2",)
    assert [(point.name, point.checkpoint_id) for point in table.savepoints()] == [(f"good-{QUERY_ID}", 2)]
    assert ckpt("savepoint", url, "good", "--remove").status == 0
    assert not table.savepoints()


def test_names_of_pins_are_those_of_savepoints() -> None:
    """Of two queries with one output each has its own; a long name is cut by its digest."""
    assert pin_name("good", "a") != pin_name("good", "b")
    assert len(pin_name("x" * 120, QUERY_ID)) == 64
