"""What a manifest says of a query's sink, from Spark's description of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.capture.sink_description import (
    describe_sink,
    sink_identity,
    sink_name,
    sink_store_url,
    without_credentials,
)
from pyspark_checkpoint.format.manifest_parts import SinkRecord

KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable@"
CONSOLE = "org.apache.spark.sql.execution.streaming.ConsoleTable$@"
DESCRIBED = {
    "FileSink[file:/p/a b]": ("file", "file:/p/a b"),
    "FileSink[s3a://bucket/p]": ("file", "s3a://bucket/p"),
    "DeltaSink[/p]": ("delta", "/p"),
    "DeltaSink[file:/p]": ("delta", "file:/p"),
    "ckpt-sink /p": ("ckpt-sink", "/p"),
    "ckpt-sink s3://bucket/p": ("ckpt-sink", "s3://bucket/p"),
    "ForeachBatchSink": ("foreach-batch", ""),
    f"{KAFKA}519aceac": ("kafka", ""),
    f"{CONSOLE}1a2b3c4d": ("console", ""),
    "MemorySink": ("memory", ""),
    "ForeachWriterTable(org.apache.spark.Writer@77f, Left(struct))": ("foreach", ""),
    "spark_catalog.db.clicks": ("table", "spark_catalog.db.clicks"),
    "org.example.OtherSink": ("other", ""),
    "OtherSink[secret]": ("other", ""),
    "test": ("other", ""),
    "": ("other", ""),
}


@pytest.mark.parametrize("description", DESCRIBED)
def test_kind_and_place_are_read_from_the_description(description: str) -> None:
    kind, target = DESCRIBED[description]
    assert describe_sink(description, "q", 7) == SinkRecord(kind, target, "q", 7)


def test_a_table_of_iceberg_is_recorded_with_its_name_and_its_place() -> None:
    found = describe_sink("lake.db.clicks", "q", 7, "s3://key:secret@bucket/db/clicks?sig=secret")
    assert found == SinkRecord("iceberg", "lake.db.clicks", "q", 7, location="s3://bucket/db/clicks")


@pytest.mark.parametrize("prefix", [KAFKA, CONSOLE, "org.example.OtherSink@"])
def test_an_objects_hash_enters_no_name(prefix: str) -> None:
    """It is another one in every process."""
    for said in (sink_name, sink_identity):
        assert said(f"{prefix}519aceac") == said(f"{prefix}6ffab045")
        assert "519aceac" not in said(f"{prefix}519aceac")


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("s3://key:secret@bucket/p", "s3://bucket/p"),
        ("https://host/p?sig=secret#x", "https://host/p"),
        ("abfss://box@account.dfs.core.windows.net/p", "abfss://box@account.dfs.core.windows.net/p"),
        ("/p?q", "/p?q"),
        ("http://[broken", ""),
    ],
)
def test_credentials_are_not_part_of_a_target(target: str, kept: str) -> None:
    assert without_credentials(target) == kept


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
