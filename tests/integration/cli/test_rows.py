"""``read`` and ``diff --rows``: rows of tables and of operators' state, by a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.requirements import PROVIDER
from tests.cli.kit import Shell
from tests.support.sink_kit import read_pairs

pytestmark = pytest.mark.usefixtures("spark")


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def counted(spark: SparkSession, tmp_path: Path) -> str:
    """The history of a query that counts words: checkpoint 1 after the first file, 2 after the second."""
    return count_words(spark, tmp_path)


@pytest.fixture
def counted_in_rocksdb(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The same with its state in RocksDB."""
    spark.conf.set(PROVIDER, ROCKSDB)
    yield count_words(spark, tmp_path)
    spark.conf.unset(PROVIDER)


def count_words(spark: SparkSession, tmp_path: Path) -> str:
    lines, location, store = tmp_path / "lines", tmp_path / "location", tmp_path / "store"
    lines.mkdir()
    capture: QueryCapture | None = None
    for at, words in enumerate(("a b a", "b c")):
        (lines / f"{at}.txt").write_text(words)
        stream = spark.readStream.text(str(lines)).select(F.explode(F.split("value", " ")).alias("word"))
        query = (
            stream.groupBy("word")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(location))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if capture is None:
            info = QueryInfo(id=str(query.id), name="words", checkpoint_location=str(location))
            history = CheckpointStore.open(str(store), query=info)
            run = history.writer()
            run.claim()
            facts = QueryFacts(info, history.run_id, ("lines",), "noop", "update")
            capture = QueryCapture(LocationSpec(str(location)).open(), run, facts)
        assert capture.capture() is not None
    return str(store)


@pytest.mark.promise
def test_read_shows_the_rows_of_a_table(ckpt: Shell, table: str, tmp_path: Path) -> None:
    """At any checkpoint, whole or in part; for people, for programs, or as files."""
    rows = ckpt("read", table, "--json", "--limit", "0").json
    assert sorted((row["k"], row["v"]) for row in rows) == read_pairs(table)
    then = ckpt("read", table, "2", "--json").json
    assert sorted((row["k"], row["v"]) for row in then) == read_pairs(table, checkpointId="2")
    some = ckpt("read", table, "--where", "k > 2", "--columns", "v", "--json").json
    assert sorted(row["v"] for row in some) == [20, 30, 40]
    assert ckpt("read", table, "--count").out == "6\n"
    out = ckpt("read", table, "--limit", "2").out.splitlines()
    assert out[0].split() == ["k", "v"]
    assert len(out) == 4
    assert ckpt("read", table, "--out", tmp_path / "rows", "--format", "json").status == 0
    files = (tmp_path / "rows").glob("*.json")
    written = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(written) == 6


def test_read_refuses_what_spark_does_not_understand(ckpt: Shell, table: str) -> None:
    """With the columns that there are, and without a traceback of Spark's."""
    done = ckpt("read", table, "--where", "nothing = 1")
    assert done.status == 2
    assert "hint: the columns are: k, v" in done.err
    assert "Traceback" not in done.err
    assert ckpt("read", table, "--operator", "0").status == 3


@pytest.mark.promise
def test_read_shows_the_state_of_an_operator(ckpt: Shell, counted: str) -> None:
    """At an earlier checkpoint and now, from a clone: the history is not touched."""
    before = CheckpointStore.open(counted).list_ids()

    def state(*typed: str) -> dict[str, int]:
        rows = ckpt("read", counted, *typed, "--json").json
        return {row["key"]["word"]: row["value"]["count"] for row in rows}

    assert state("1") == {"a": 2, "b": 1}
    assert state("--operator", "0") == {"a": 2, "b": 2, "c": 1}
    assert CheckpointStore.open(counted).list_ids() == before


def test_diff_compares_the_rows_of_a_table(ckpt: Shell, table: str) -> None:
    """By key: what was added, and what was changed, with both rows."""
    found = ckpt("diff", table, "1", "3", "--rows", "--json").json["rows"]
    assert found["counts"] == {"added": 2, "changed": 1}
    (changed,) = [row for row in found["sample"] if row["change"] == "changed"]
    assert (json.loads(changed["before"]), json.loads(changed["after"])) == (
        {"k": 0, "v": 0},
        {"k": 0, "v": 2},
    )
    back = ckpt("diff", table, "3", "1", "--rows", "--json").json["rows"]
    assert back["counts"] == {"changed": 1, "dropped": 2}
    assert ckpt("diff", table, "3", "3", "--rows").out.rstrip().endswith("no difference")
    out = ckpt("diff", table, "1", "3", "--rows", "--limit", "1").out
    assert "2 added, 1 changed" in out
    assert "and 2 more" in out


def test_diff_compares_the_rows_of_state(ckpt: Shell, counted: str) -> None:
    """The words whose count changed, and the new one."""
    found = ckpt("diff", counted, "1", "2", "--rows", "--json").json["rows"]
    assert found["counts"] == {"added": 1, "changed": 1}


def test_restore_repartitions_the_state(ckpt: Shell, counted_in_rocksdb: str, tmp_path: Path) -> None:
    """By Spark; preflight then finds so many partitions, and notes only that no output was asked."""
    fresh = tmp_path / "fresh"
    typed = ("restore", counted_in_rocksdb, "--to", fresh, "--partitions", "3")
    assert ckpt(*typed, "--dry-run", "--json").json["partitions"] == 3
    assert not fresh.exists()
    done = ckpt(*typed)
    assert done.status == 0, done.err
    assert {path.name for path in (fresh / "state" / "0").glob("[0-9]*")} == {"0", "1", "2"}
    noted = ckpt("preflight", fresh, "--partitions", "3", "--json").json
    assert [(note["severity"], note["what"]) for note in noted] == [("note", "output")]
