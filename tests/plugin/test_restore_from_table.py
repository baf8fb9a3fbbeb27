"""Queries whose table keeps Spark's state: restored from the table. Without Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark_checkpoint.plugin.auto_restore import auto_restore
from pyspark_checkpoint.plugin.plugin_settings import PluginSettings
from pyspark_checkpoint.registry.queries import QueryRoot, register
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.store.open import open_object_store
from tests.support.made_stream import QUERY_ID, MadeStream, totals_after


def test_a_table_whose_newest_checkpoint_is_damaged_gives_the_one_before(tmp_path: Path) -> None:
    """Its history is still the query's."""
    stream, url = MadeStream(tmp_path), str(tmp_path / "store")
    stream.run(4)
    root = QueryRoot("q", QUERY_ID, "app", 1, str(stream.table), str(stream.location))
    register(open_object_store(url), root)
    stream.lose_location()
    max(stream.table.rglob("manifest-*[0-9].json")).write_bytes(b"{}")
    (report,) = auto_restore(PluginSettings(url, "app", restore="missing"))
    assert report.epoch == 2


def test_a_query_is_restored_from_its_table(tmp_path: Path) -> None:
    """Rows and state together; a batch that may not have been finished runs again and replaces its rows."""
    stream, url = MadeStream(tmp_path), str(tmp_path / "store")
    stream.run(4)
    root = QueryRoot("q", QUERY_ID, "app", 1, str(stream.table), str(stream.location))
    register(open_object_store(url), root)
    stream.lose_location()
    (report,) = auto_restore(PluginSettings(url, "app", restore="missing"))
    assert (report.epoch, report.point) == (3, RestorePoint.BEFORE)
    stream.touch_all()
    stream.start()
    stream.run(2)
    assert stream.rows() == totals_after(4)
    assert auto_restore(PluginSettings(url, "app", restore="missing")) == []
