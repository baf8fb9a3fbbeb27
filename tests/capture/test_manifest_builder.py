"""What a manifest says of a query's sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.capture.sink_description import sink_store_url


def test_a_table_with_a_relative_path_is_registered_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sink itself takes it: whoever restores may stand in another directory."""
    monkeypatch.chdir(tmp_path)
    assert sink_store_url("ckpt-sink tables/wc") == str(tmp_path / "tables" / "wc")
    assert sink_store_url("ckpt-sink ~/wc") == str(Path.home() / "wc")


@pytest.mark.parametrize("path", ["/tables/w c", "s3://bucket/wc", "file:/tables/wc"])
def test_a_table_that_says_where_it_is_stays_as_typed(path: str) -> None:
    assert sink_store_url(f"ckpt-sink {path}") == path


def test_another_sink_has_no_table() -> None:
    assert sink_store_url("ForeachBatchSink") is None
