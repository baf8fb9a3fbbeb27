"""A table's life in Spark: schemas that change, splits, other queries, batch jobs, points in time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.history.savepoint import add_savepoint
from pyspark_checkpoint.table.murmur3 import spark_hash
from pyspark_checkpoint.table.vnode import owners_of
from tests.integration.sink.lab import Lab, rows_of


def numbers(first: int, last: int, value: int) -> pa.Table:
    """Keys in a row, all with one value."""
    return pa.table({"k": [f"key-{n}" for n in range(first, last)], "v": [value] * (last - first)})


def test_columns_may_be_added_and_nothing_else_may_change(lab: Lab) -> None:
    """Old rows are null in a new column; a changed one is refused with both schemas."""
    lab.put(numbers(0, 3, 1))
    lab.run(keyColumns="k")
    lab.put(numbers(2, 4, 2))
    lab.run(lambda frame: frame.withColumn("w", F.col("v") * 10), keyColumns="k")
    found = sorted(tuple(row) for row in lab.read().collect())
    assert found == [("key-0", 1, None), ("key-1", 1, None), ("key-2", 2, 20), ("key-3", 2, 20)]
    lab.put(numbers(5, 6, 3))
    with pytest.raises(StreamingQueryException) as caught:
        lab.run(lambda frame: frame.selectExpr("k", "cast(v as string) as v"), keyColumns="k")
    assert "column v was long and is string" in str(caught.value)
    assert "The table has (k string, v long, w long), the query gives (k string, v string)" in str(
        caught.value
    )


def test_a_task_with_too_many_rows_for_a_message_goes_on_in_python(lab: Lab) -> None:
    """It begins without it; what it has kept comes first, and every row is there once."""
    ids = [*([0] * 400), *range(1, 9)]
    lab.put(pa.table({"k": pa.array(ids, pa.int64()), "v": pa.array(range(len(ids)), pa.int64())}))
    lab.run(lambda frame: frame.repartition(8, "k"), inlineTaskBytes="4000")
    assert rows_of(lab.read()) == rows_of(lab.input(stream=False))
    assert sorted(lab.read().select("v").toPandas()["v"]) == list(range(len(ids)))
    assert len(lab.head().paths()) == 2, "one of the task with many rows, one of all the others"


def test_four_partitions_sixteen_and_four_again(lab: Lab) -> None:
    """Written and continued with another number, with the same content, by Spark's own distribution."""
    for round_, partitions in enumerate(("4", "16", "4")):
        lab.put(numbers(10 * round_, 10 * round_ + 40, round_))
        lab.run(keyColumns="k", partitions=partitions, vnodes="64")
        assert lab.head().partition_count == int(partitions)
        whole = lab.input(stream=False)
        expected = whole.groupBy("k").agg(F.max("v").alias("v"))
        assert rows_of(lab.read()) == rows_of(expected)
    half = lab.read(vnodes="0-31").count()
    assert half + lab.read(vnodes="32-63").count() == lab.read().count()
    assert 0 < half < lab.read().count()


@pytest.mark.promise
def test_a_table_is_read_at_any_point_in_time(lab: Lab) -> None:
    """By number, epoch, savepoint and time; each shows what was there then."""
    for epoch in range(3):
        lab.put(numbers(epoch, epoch + 2, epoch))
    lab.run(keyColumns="k")
    store = open_object_store(lab.path("table"))
    add_savepoint(store, "first", SYSTEM_CLOCK, number=1)
    assert lab.read(checkpointId="2").count() == 3
    assert lab.read(epoch="2").count() == 4
    assert lab.read(savepoint="first").count() == 2
    assert lab.read(timestampAsOf=str(SYSTEM_CLOCK.now_ms())).count() == 4
    for options, message in (
        ({"epoch": "9"}, "has no epoch 9"),
        ({"savepoint": "x"}, "has no savepoint 'x'"),
        ({"timestampAsOf": "2001-01-01"}, "has no checkpoint of that time or before"),
        ({"epoch": "1", "checkpointId": "1"}, "give one of them"),
    ):
        with pytest.raises(Exception, match=message):
            lab.read(**options)


def test_filters_on_keys_prune_partitions(lab: Lab) -> None:
    """Equality, IN and null: partitions that cannot have such a key are not read, damaged as they are."""
    rows = pa.table({"k": [*map(str, range(50)), None], "w": [1] * 51, "v": list(range(51))})
    lab.put(rows)
    lab.run(keyColumns="k,w", partitions="8")
    table = lab.read()
    for condition, count in (
        ("k = '7' and w = 1", 1),
        ("k in ('7', '8', '9') and w = 1", 3),
        ("k <=> null and w = 1", 1),
        ("k = '7'", 1),
        ("k = '7' and w = 2", 0),
    ):
        assert table.where(condition).count() == count, condition
        assert table.count() == 51, f"what {condition} left out is there for the next query"
    owners = {_owner(lab, key) for key in ("7", "8")}
    _damage_partitions_but(lab, owners)
    assert [row["v"] for row in table.where("k = '7' and w = 1").collect()] == [7]
    assert table.where("k in ('7', '8') and w = 1").count() == 2
    for condition in ("k = '7'", "w = 1"):
        with pytest.raises(Exception, match="integrity"):
            table.where(condition).count()


def _owner(lab: Lab, key: str) -> int:
    """The partition, of eight, that has the row of a key."""
    hashes = spark_hash([pa.array([key]), pa.array([1])])
    return int(owners_of(hashes, 8)[0])


def _damage_partitions_but(lab: Lab, kept: set[int]) -> None:
    """Change a byte of every artifact of the other partitions."""
    for part in lab.head().operators["table"].partitions:
        for ref in part.artifacts if part.partition_id not in kept else ():
            assert ref.path is not None
            with Path(lab.path("table"), ref.path).open("r+b") as file:
                file.seek(ref.offset + ref.size_bytes // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 255]))


def test_filters_on_keys_of_any_type_lose_nothing(lab: Lab) -> None:
    """Values come from Spark in Python's types: zones, signs of zero and scales must not move a key."""
    columns = [
        "cast(id % 5 - 2 as tinyint) as small",
        "if(id % 3 = 0, double('-0.0'), if(id % 3 = 1, double('NaN'), id / 3)) as fraction",
        "cast(id * 1.37 as decimal(20,2)) as amount",
        "timestamp'2020-03-29 01:30:00' + make_dt_interval(0, int(id)) as moment",
        "timestamp_ntz'2020-03-29 01:30:00' + make_dt_interval(0, int(id)) as clock",
        "date_add(date'2020-01-01', int(id)) as day",
        "unhex(hex(id)) as bytes",
    ]
    rows = lab.spark.range(40).selectExpr("id", *columns)
    for name in rows.columns[1:]:
        keyed = rows.dropDuplicates([name]).select(name, "id").localCheckpoint()
        writer = keyed.write.format("ckpt-sink").option("keyColumns", name).option("partitions", "8")
        writer.mode("append").save(lab.path(name))
        table = lab.read(name)
        text = f"hex({name})" if name == "bytes" else f"cast({name} as string)"
        texts = keyed.orderBy("id").selectExpr(f"{text} as text").collect()
        for value in (texts[0]["text"], texts[-1]["text"]):
            kind = keyed.schema[name].dataType.simpleString()
            literal = f"unhex('{value}')" if name == "bytes" else f"cast('{value}' as {kind})"
            for condition in (
                f"{name} = {literal}",
                f"{name} <=> {literal}",
                f"{name} in ({literal}, null)",
            ):
                found = table.where(condition)
                assert found.count() == 1, condition
                assert found.rdd.getNumPartitions() <= 2, condition


UNUSUAL = {
    "day": ("date'1582-10-10'", "date'1582-10-15'", "date'-0100-01-01'", "date'+12000-01-01'"),
    "moment": ("timestamp'1582-10-10 01:02:03'", "timestamp'1582-10-15'", "timestamp'+12000-01-01'"),
    "clock": ("timestamp_ntz'1582-10-10 01:02:03'", "timestamp_ntz'+12000-01-01'"),
    "amount": (f"{'123' * 12}.5BD", f"{'123' * 12}.6BD", f"{'123' * 12}.7BD", "1BD"),
    "pair": (
        "named_struct('day', date'1582-10-10', 'text', 'a')",
        "named_struct('day', date'+12000-01-01', 'text', 'a')",
        "named_struct('day', date'2020-01-01', 'text', cast(X'FF' as string))",
    ),
    "span": ("interval '3' day", "interval '-4' day"),
    "text": ("cast(X'FF' as string)", "cast(X'80' as string)", "cast(X'EFBFBD' as string)"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_filters_with_values_that_python_does_not_get_lose_nothing(lab: Lab, name: str) -> None:
    """Days that an old calendar skips, years beyond Python's, long decimals, texts that are not UTF-8."""
    values = UNUSUAL[name]
    rows = lab.spark.sql(
        " union all ".join(f"select {at} as id, {value} as {name}" for at, value in enumerate(values))
    )
    writer = rows.coalesce(1).write.format("ckpt-sink").mode("append")
    writer.option("keyColumns", name).option("partitions", "64").save(lab.path(name))
    table = lab.read(name)
    for value in values:
        for condition in (f"{name} = {value}", f"{name} in ({value}, null)", f"{name} >= {value}"):
            expected = sorted(row.id for row in rows.where(condition).select("id").collect())
            found = sorted(row.id for row in table.where(condition).select("id").collect())
            assert found == expected, condition


def test_a_deleted_table_may_be_created_again_in_the_same_session(lab: Lab) -> None:
    """As in a notebook: table and location deleted, the same cell run again, while workers live on."""
    lab.put(numbers(0, 3, 1))
    for options in ({"keyColumns": "k"}, {"keyColumns": "k"}, {}):
        lab.run(**options)
        assert lab.read().count() == 3
        shutil.rmtree(lab.path("table"))
        shutil.rmtree(lab.path("location-table"))


@pytest.mark.promise
def test_another_query_is_refused_and_may_take_over(lab: Lab) -> None:
    """A new checkpoint location is a new query; the message says how to let it."""
    lab.put(numbers(0, 3, 1))
    lab.run(keyColumns="k")
    with pytest.raises(StreamingQueryException, match="written by the streaming query"):
        lab.run(keyColumns="k", location="elsewhere")
    lab.put(numbers(2, 5, 2))
    lab.run(keyColumns="k", location="elsewhere", takeOver="true")
    assert sorted(tuple(row) for row in lab.read().collect()) == [
        (f"key-{n}", 1 if n < 2 else 2) for n in range(5)
    ]
    assert lab.head().epoch == 2


def test_batch_jobs_write_too(lab: Lab) -> None:
    """Append upserts by key, overwrite replaces all; each is one epoch, and final at once."""
    frame = lab.spark.createDataFrame([("a", 1), ("b", 2)], "k string, v int")
    writer = frame.write.format("ckpt-sink").option("keyColumns", "k")
    writer.mode("append").save(lab.path("table"))
    changed = lab.spark.createDataFrame([("b", 3), ("c", 4)], "k string, v int")
    changed.write.format("ckpt-sink").option("keyColumns", "k").mode("append").save(lab.path("table"))
    assert sorted(map(tuple, lab.read().collect())) == [("a", 1), ("b", 3), ("c", 4)]
    writer.mode("overwrite").save(lab.path("table"))
    assert sorted(map(tuple, lab.read().collect())) == [("a", 1), ("b", 2)]
    assert sorted(map(tuple, lab.read(epoch="1").collect())) == [("a", 1), ("b", 3), ("c", 4)]


@pytest.mark.promise
def test_the_stream_of_changes_continues_after_a_restart(lab: Lab) -> None:
    """readStream has two columns more than read; a consumer gets every final epoch once."""
    for epoch in range(3):
        lab.put(numbers(epoch, epoch + 2, epoch))
    lab.run(keyColumns="k")
    for _ in range(2):
        changes = lab.spark.readStream.format("ckpt-sink").option("startingEpoch", "0")
        sink = changes.load(lab.path("table")).writeStream.format("ckpt-sink")
        sink = sink.option("checkpointLocation", lab.path("consumer")).trigger(availableNow=True)
        sink.start(lab.path("changes")).awaitTermination()
        lab.put(numbers(50, 51, 50))
        lab.run(keyColumns="k")
    found = sorted(map(tuple, lab.read("changes").collect()))
    expected = [(f"key-{n}", e, "upsert", e) for e in range(3) for n in (e, e + 1)]
    assert found == sorted(expected)
    assert lab.read("changes").columns == ["k", "v", "_change_type", "_epoch"]
    assert lab.read().columns == ["k", "v"]


def test_unknown_options_fail_the_start_with_the_nearest_name(lab: Lab) -> None:
    """Said by the driver, before any task."""
    lab.put(numbers(0, 1, 0))
    with pytest.raises(Exception, match=r"unknown option maxdelta.*did you mean maxDeltas"):
        lab.run(keyColumns="k", maxDelta="3")
    with pytest.raises(Exception, match=r"unknown option epok.*did you mean epoch"):
        lab.read(epok="3")
