"""A table that a query took over: its epochs are not Spark's batches. Needs no Spark."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.location_status import LocationStatus
from pyspark_checkpoint.cli.main import main
from pyspark_checkpoint.plugin.auto_restore import auto_restore
from pyspark_checkpoint.plugin.plugin_settings import PluginSettings
from pyspark_checkpoint.registry.queries import QueryRoot, register
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.store.open import open_object_store
from tests.support.made_stream import QUERY_ID, MadeStream
from tests.support.sink_kit import Query


@pytest.fixture
def stream(tmp_path: Path) -> MadeStream:
    """Batches 0 to 2 of a query, in a table that has five epochs of another: epochs 5 to 7."""
    first = Query(str(tmp_path / "table"), query_id="another", options={"state": "off"})
    for epoch in range(5):
        first.epoch(epoch, [(99, epoch)])
    made = MadeStream(tmp_path, options={"takeOver": "true"})
    made.run(3)
    return made


@pytest.mark.parametrize(
    ("epoch", "said"),
    [(6, "after batch 1: Spark goes on with batch 2"), (7, "before batch 2: Spark runs it again")],
)
def test_a_restore_says_which_batch_spark_runs(
    stream: MadeStream, tmp_path: Path, capsys: pytest.CaptureFixture[str], epoch: int, said: str
) -> None:
    """On the console, in a dry run and in the report; the epoch is still the table's."""
    typed = ["restore", str(stream.table), "--to", str(tmp_path / "fresh"), "--epoch", str(epoch)]
    for more in (["--dry-run"], []):
        assert main([*typed, *more]) == 0
        out = capsys.readouterr().out
        assert f"(epoch {epoch})" in out and said in out
    report = stream.restore(epoch=epoch)
    assert (report.epoch, report.batch_id) == (epoch, epoch - 5)
    assert stream.next_batch() == (2 if report.point is RestorePoint.BEFORE else report.batch_id + 1)


def test_an_automatic_restore_says_which_batch_spark_runs(
    stream: MadeStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the driver's log."""
    url = str(tmp_path / "store")
    root = QueryRoot("q", QUERY_ID, "app", 1, str(stream.table), str(stream.location))
    register(open_object_store(url), root)
    stream.lose_location()
    with caplog.at_level(logging.INFO):
        (report,) = auto_restore(PluginSettings(url, "app", restore="missing"))
    assert (report.epoch, report.batch_id) == (7, 2)
    assert "before batch 2:" in caplog.text


def test_a_location_is_compared_with_the_batch_of_its_table(stream: MadeStream) -> None:
    """One that is as far as the table is not behind it; one that is behind is told by its batches."""
    head = stream.history().load_latest()
    assert head is not None
    location = LocationSpec(str(stream.location)).open()
    now = LocationStatus.of(location)
    assert now.newest == 2
    assert now.find_problem(head, "another run") is None
    behind = replace(now, newest=1).find_problem(head, "another run")
    assert behind is not None and "at batch 1, its history at 2" in behind
