"""Where a sink finds the checkpoint location of its query, and what it does when it cannot. No Spark."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Denied, SettingsError
from pyspark_checkpoint.sink.query import local_directory
from pyspark_checkpoint.sink.state_driver import find_location
from pyspark_checkpoint.sink.table_options import parse_write_options
from pyspark_checkpoint.sink.worker_cache import CACHE
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.support.made_stream import QUERY_ID, MadeStream, totals_after
from tests.support.sink_kit import Query

ODD = "a b%20c#d?e:f ä"
"""Spark takes every letter of a path as it is, and so must the sink."""


@dataclass
class Spelled(MadeStream):
    """A query whose location reaches the sink as Spark spells it."""

    spelling: str = "{}"

    def start(self) -> None:
        """A new run that is told where the location is."""
        self.options["checkpointLocation"] = self.spelling.format(self.location)
        super().start()


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"], ids=["path", "file:", "file://"])
def test_a_location_may_have_any_letters(tmp_path: Path, spelling: str) -> None:
    """With the jar it is told as ``file:/...``, and nothing in it is escaped."""
    root = tmp_path / ODD
    root.mkdir()
    stream = Spelled(root, spelling=spelling)
    stream.table = tmp_path / "table"
    stream.start()
    stream.run(2)
    manifest = stream.history().load_latest()
    assert manifest is not None
    assert manifest.state is not None
    assert stream.stored_state(manifest, "before") == totals_after(0)
    assert local_directory(spelling.format(root)) == root


def test_a_location_behind_a_link_is_the_location(tmp_path: Path) -> None:
    """The state is read through the link, and so it is restored."""
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real, target_is_directory=True)
    stream = MadeStream(link)
    stream.table = tmp_path / "table"
    stream.start()
    stream.run(2)
    stream.restore(epoch=0)
    stream.run(1)
    assert stream.rows() == stream.whole_state(2) == totals_after(1)


def test_a_relative_location_is_where_the_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the jar it is as the user typed it; Spark knows no home directory."""
    monkeypatch.chdir(tmp_path)

    def found(typed: str) -> str:
        options = parse_write_options({"path": "/table", "checkpointLocation": typed})
        spec = find_location(options)
        assert spec is not None
        return LocationSpec(spec.url).spark_url

    assert found("at/x") == f"file:{tmp_path}/at/x"
    assert found("~/x") == f"file:{tmp_path}/~/x"
    assert found("s3a://bucket/x") == "s3a://bucket/x"


class _Forbidden(LocalStore):
    """A location that may not be read any more."""

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        raise Denied(f"{key} may not be read from {start} to {end}")


def forbid(stream: MadeStream) -> None:
    """From now on, a process that remembers nothing of the location may not read it."""
    CACHE.readable.clear()
    stream.watch(_Forbidden(stream.location), run_id="")


def test_auto_does_not_drop_the_state_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """A batch without its state could not be restored, and nobody would notice: it fails instead."""
    stream = MadeStream(tmp_path)
    stream.run(2)
    forbid(stream)
    with pytest.raises(SettingsError, match=r"has committed its state so far.*state to off"):
        stream.batch()
    newest = stream.history().load_latest()
    assert newest is not None
    assert newest.epoch == 1


def test_auto_says_once_that_rows_are_all_it_commits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new run may do without; the reason is in the driver's log."""
    CACHE.forget()
    query = Query(str(tmp_path / "table"), query_id=QUERY_ID, options={"checkpointLocation": "hdfs://h/x"})
    with caplog.at_level(logging.WARNING):
        manifests = [query.epoch(number, [(1, 1)]) for number in range(2)]
    assert all(manifest.state is None for manifest in manifests)
    told = [record.getMessage() for record in caplog.records if "rows only" in record.getMessage()]
    assert len(told) == 1
    assert "hdfs: are not read from Python" in told[0]
