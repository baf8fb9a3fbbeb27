"""What is read equals plain Spark over the same rows, for every output mode and any batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.integration.sink.lab import Lab, rows_of, same

SCHEMA = pa.schema(
    [("b", pa.int64()), ("k", pa.string()), ("s", pa.int64()), ("v", pa.int64()), ("op", pa.string())]
)
row = st.fixed_dictionaries(
    {
        "k": st.sampled_from([None, "", "a", "b", "ç", "long " * 9]),
        "v": st.one_of(st.none(), st.integers(-5, 5)),
        "op": st.sampled_from(["c", "u", "D"]),
    }
)
batches = st.lists(st.lists(row, max_size=7), min_size=1, max_size=5)


def totals(frame: DataFrame) -> DataFrame:
    """One row per key."""
    return frame.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def newest(frame: DataFrame) -> DataFrame:
    """What an upsert by key leaves: each key's row of the last batch, there the greatest sequence."""
    ranked = frame.withColumn("rank", F.expr("row_number() over (partition by k order by b desc, s desc)"))
    return ranked.where("rank = 1 and lower(op) != 'd'").drop("rank", "op")


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(batches)
def test_any_batches_in_any_mode_give_what_spark_gives(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, made: list[list[dict[str, Any]]]
) -> None:
    """Append with and without keys, update and complete, all over the same input at once."""
    lab = Lab(spark, tmp_path_factory.mktemp("modes"))
    for number, rows in enumerate(made):
        lab.put([{**r, "b": number, "s": at} for at, r in enumerate(rows)], SCHEMA)
    queries = [
        lab.start(same, table="append"),
        lab.start(same, table="upsert", keyColumns="K", sequenceColumn="s", opColumn="op", maxDeltas="2"),
        lab.start(totals, table="update", mode="update", keyColumns="k", maxDeltas="3"),
        lab.start(totals, table="complete", mode="complete"),
    ]
    for query in queries:
        query.awaitTermination()
    whole = lab.input(stream=False)
    assert rows_of(lab.read("append")) == rows_of(whole)
    assert rows_of(lab.read("upsert")) == rows_of(newest(whole))
    assert rows_of(lab.read("update")) == rows_of(totals(whole))
    assert rows_of(lab.read("complete")) == rows_of(totals(whole))
    for number in range(len(made)):
        upto = whole.where(F.col("b") <= number)
        assert rows_of(lab.read("upsert", epoch=str(number))) == rows_of(newest(upto))


def test_a_duplicate_key_without_sequence_fails_the_query_and_names_the_key(lab: Lab) -> None:
    """Never an arbitrary winner; nothing of the batch is in the table."""
    lab.put(pa.table({"k": ["x", "y"], "v": [1, 2]}))
    lab.put(pa.table({"k": ["z", "z"], "v": [1, 2]}))
    with pytest.raises(Exception, match="2 rows of one batch have the key k='z'"):
        lab.run(keyColumns="k")
    assert sorted(lab.read().toPandas()["k"]) == ["x", "y"]


def test_the_query_is_named_and_described_everywhere(lab: Lab) -> None:
    """Manifest and progress say which query, run, version and table it is; sources have their offsets."""
    lab.put(pa.table({"k": ["x"], "v": [1]}))
    stream = lab.input().writeStream.format("ckpt-sink").queryName("named").outputMode("update")
    query = (
        stream.option("keyColumns", "k")
        .option("checkpointLocation", lab.path("at"))
        .start(lab.path("table"))
    )
    query.processAllAvailable()
    progress = query.lastProgress
    assert progress is not None
    description = progress["sink"]["description"]
    query.stop()
    manifest = lab.head()
    assert (manifest.query.id, manifest.run_id, manifest.query.name) == (query.id, query.runId, "named")
    assert manifest.query.spark_version == lab.spark.version
    assert Path(manifest.query.checkpoint_location.removeprefix("file:")) == Path(lab.path("at"))
    assert list(manifest.source_offsets) == ["source-0"]
    assert description == f"ckpt-sink {lab.path('table')}"


def test_rows_are_shuffled_only_if_they_are_not_where_they_belong(lab: Lab) -> None:
    """After an aggregation by the keys nothing moves again; a keyed append pays one exchange."""
    lab.put(pa.table({"k": ["x", "y"], "v": [1, 2]}))
    plans = {
        "after": lab.run(totals, table="after", mode="update", keyColumns="k"),
        "keyed": lab.run(same, table="keyed", keyColumns="k"),
        "plain": lab.run(same, table="plain"),
    }
    executed = {name: query._jsq.explainInternal(False) for name, query in plans.items()}
    exchanges = {
        # An adaptive plan is shown twice: as it was executed, then as it was planned.
        name: plan.partition("== Initial Plan ==")[0].count("Exchange ")
        for name, plan in executed.items()
    }
    assert exchanges == {"after": 1, "keyed": 1, "plain": 0}
