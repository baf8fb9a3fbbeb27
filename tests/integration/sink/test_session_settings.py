"""Settings of Hadoop that a program makes on its session or its context, once Spark runs. Real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.spark.jvm import hadoop_settings
from tests.integration.sink.lab import Lab
from tests.support.servers.hadoop import s3a_conf
from tests.support.servers.launch import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.server]

Setter = Callable[[SparkSession, str, str], None]


def on_session(spark: SparkSession, name: str, value: str) -> None:
    """As Spark's own documentation does it."""
    spark.conf.set(name, value)


def on_context(spark: SparkSession, name: str, value: str) -> None:
    """The usual idiom of PySpark."""
    _context(spark).set(name, value)


def _context(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def run(lab: Lab, path: str, *, location: str = "", **options: str) -> None:
    """A query from the input to the table at ``path``."""
    writer = lab.input().writeStream.format("ckpt-sink").trigger(availableNow=True).options(**options)
    writer = writer.option("checkpointLocation", location or lab.path("location"))
    writer.start(path).awaitTermination()


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of this test, and the context's Hadoop configuration as it was."""
    own = spark.newSession()
    yield own
    for name in (*s3a_conf(""), "fs.viewfs.mounttable.lab.link./a"):
        _context(own).unset(name)


@pytest.mark.parametrize("set_conf", [on_session, on_context])
def test_a_table_is_written_and_read_with_what_the_program_has_set(
    session: SparkSession, s3_server: S3Server, tmp_path: Path, set_conf: Setter
) -> None:
    """Endpoint and credentials of S3: driver and tasks use what Spark's own sinks would use."""
    for name, value in s3a_conf(s3_server.endpoint).items():
        set_conf(session, name, value)
    lab, path = Lab(session, tmp_path), s3_server.url(f"set-{set_conf.__name__}")
    lab.put([{"k": 1}, {"k": 2}])
    run(lab, path)
    found = session.read.format("ckpt-sink").load(path)
    assert sorted(row.k for row in found.collect()) == [1, 2]


def test_an_option_of_the_query_overrides_the_session(
    session: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    """What is typed nearest to the table is meant for it."""
    for name, value in s3a_conf("http://127.0.0.1:9").items():
        session.conf.set(name, value)
    lab, path = Lab(session, tmp_path), s3_server.url("set-by-option")
    lab.put([{"k": 1}])
    run(lab, path, **{"fs.s3a.endpoint": s3_server.endpoint})
    assert open_object_store(path, s3_server.options).get("_latest")


@pytest.mark.parametrize("set_conf", [on_session, on_context])
def test_a_location_may_be_on_a_file_system_that_the_program_has_mounted(
    session: SparkSession, tmp_path: Path, set_conf: Setter
) -> None:
    """The commit reads the offsets that Spark has written there."""
    (tmp_path / "mounted").mkdir()
    set_conf(session, "fs.viewfs.mounttable.lab.link./a", f"file://{tmp_path}/mounted")
    lab = Lab(session, tmp_path)
    lab.put([{"k": 1}])
    run(lab, lab.path("table"), location="viewfs://lab/a/location")
    assert [row.k for row in lab.read().collect()] == [1]
    assert lab.head().source_offsets


def test_the_listener_reads_locations_with_what_the_program_has_set(session: SparkSession) -> None:
    """What is set on a session holds for its queries alone; defaults of Hadoop's are not settings."""
    before = hadoop_settings(session)
    assert not any(name.startswith("spark.hadoop.fs.s3a.") for name in before), before
    on_context(session, "fs.s3a.endpoint", "http://of-all.example")
    session.conf.set("fs.s3a.access.key", "mine")
    session.conf.set("fs.s3a.secret.key", "not-crossed-out")
    chosen = {
        "spark.hadoop.fs.s3a.endpoint": "http://of-all.example",
        "spark.hadoop.fs.s3a.access.key": "mine",
        "spark.hadoop.fs.s3a.secret.key": "not-crossed-out",
    }
    assert hadoop_settings(session) == {**before, **chosen}
    assert "spark.hadoop.fs.s3a.access.key" not in hadoop_settings(session.newSession())
