"""Reads whose rows come with the plan, beside reads by tasks in Python: the same rows either way."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from pyspark_checkpoint.table.schema import TableSchema
from tests.integration.sink.lab import Lab, rows_of
from tests.integration.sink.test_types import KEY_TYPES, all_types
from tests.support.drivers.driver import Driver
from tests.support.sink_kit import Query

IN_TASKS = {"inlineReadBytes": "0"}
SECRET = bytes(range(32))


def parts_of(frame: DataFrame) -> list[str]:
    """The classes of what the tasks of a plan are given, one a task; the plan is made for this."""
    leaf = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    parts = leaf.inputPartitions()
    return [parts.apply(at).getClass().getSimpleName() for at in range(parts.size())]


def test_few_rows_of_every_type_come_with_the_plan(lab: Lab) -> None:
    """Nulls, nested ones and empty structs included, in a table with keys and in one without."""
    rows = all_types(lab.spark)
    writer = rows.write.format("ckpt-sink").mode("append")
    writer.save(lab.path("plain"))
    writer.option("keyColumns", ",".join(KEY_TYPES)).option("partitions", "4").save(lab.path("keyed"))
    text = ["to_json(struct(*)) as row", "hex(`binary`) as b", "cast(timestamp as string) as t"]
    for name in ("plain", "keyed"):
        inline, tasks = lab.read(name), lab.read(name, **IN_TASKS)
        assert parts_of(inline) == ["Rows"]
        assert set(parts_of(tasks)) == {"PythonInputPartition"}
        assert inline.schema == tasks.schema
        assert rows_of(inline.selectExpr(*text)) == rows_of(tasks.selectExpr(*text))
        assert rows_of(inline.selectExpr(*text)) == rows_of(rows.selectExpr(*text))


def test_rows_beyond_the_bound_are_read_by_tasks(lab: Lab) -> None:
    """Exactly those: below it, and with a filter that leaves few, the rows come with the plan."""
    numbers = pa.array(range(4000), pa.int64())
    frame = lab.spark.createDataFrame(pa.table({"k": numbers, "v": numbers}))
    writer = frame.write.format("ckpt-sink").mode("append").option("keyColumns", "k")
    writer.option("partitions", "8").save(lab.path("table"))
    few = lab.read(inlineReadBytes="20000")
    assert set(parts_of(few)) == {"PythonInputPartition"}
    assert parts_of(lab.read(inlineReadBytes="1000000")) == ["Rows"]
    one = few.where("k = 7")
    assert [tuple(row) for row in one.collect()] == [(7, 7)]
    assert "Filter (" in one._jdf.queryExecution().toString(), "Spark evaluates it as well"
    assert parts_of(one) == ["Rows"]
    assert rows_of(few) == rows_of(frame)


def test_many_bytes_are_cut_into_the_messages_of_several_tasks(lab: Lab) -> None:
    """None is larger than Spark likes, except for a row that is."""
    text = "x" * 1000
    rows = [{"k": n, "v": text} for n in range(3000)] + [{"k": 3000, "v": "y" * 2_000_000}]
    frame = lab.spark.createDataFrame(pa.Table.from_pylist(rows)).coalesce(1)
    frame.write.format("ckpt-sink").mode("append").save(lab.path("table"))
    found = lab.read()
    parts = parts_of(found)
    assert 7 <= len(parts) <= 12
    assert set(parts) == {"Rows"}
    assert found.selectExpr("sum(length(v))").collect()[0][0] == 5_000_000
    assert sorted(row["k"] for row in found.select("k").collect()) == list(range(3001))


def test_a_table_without_rows_and_filters_without_any(lab: Lab) -> None:
    """Nothing is found, and that is no error; a sum over it is null."""
    frame = lab.spark.createDataFrame([("a", 1)], "k string, v int")
    frame.where("k = 'b'").write.format("ckpt-sink").mode("append").save(lab.path("empty"))
    frame.write.format("ckpt-sink").option("keyColumns", "k").mode("append").save(lab.path("table"))
    for found in (lab.read("empty"), lab.read().where("k = 'b'"), lab.read().where("k is null")):
        assert parts_of(found) == ["Rows"]
        assert found.collect() == []
        assert found.selectExpr("count(*)", "sum(v)").collect()[0][:] == (0, None)


def test_an_encrypted_table_is_read_without_keys_leaving_the_process_that_plans(lab: Lab) -> None:
    """Neither plan nor its explanation has a key; without the key ring there are no rows."""
    ring = lab.root / "ring"
    ring.write_text(json.dumps({"active": "one", "keys": {"one": base64.b64encode(SECRET).decode()}}))
    ring.chmod(0o600)
    frame = lab.spark.createDataFrame([("a", 1), ("b", None)], "k string, v int")
    writer = frame.write.format("ckpt-sink").option("keyColumns", "k").mode("append")
    writer.option("encryptionKeyFile", str(ring)).save(lab.path("table"))
    made = sorted(Path(lab.path("table"), "keys").iterdir())
    found = lab.read(encryptionKeyFile=str(ring))
    assert parts_of(found) == ["Rows"]
    assert rows_of(found) == rows_of(lab.read(encryptionKeyFile=str(ring), **IN_TASKS)) == rows_of(frame)
    text = found._jdf.queryExecution().explainString(
        lab.spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")  # type: ignore[union-attr]
    )
    assert base64.b64encode(SECRET).decode() not in text
    assert sorted(Path(lab.path("table"), "keys").iterdir())[: len(made)] == made
    with pytest.raises(Exception, match="encrypted"):
        lab.read().collect()


def test_a_query_reads_one_checkpoint_though_the_table_moves_on(lab: Lab) -> None:
    """What is planned stays; the next query over the same DataFrame sees what is there by then."""
    writer = lab.spark.range(3).write.format("ckpt-sink").mode("append")
    writer.save(lab.path("table"))
    table = lab.read()
    planned = table.where("id >= 0")
    assert parts_of(planned) == ["Rows"]
    writer.save(lab.path("table"))
    assert planned.count() == 6, "a count is a query of its own"
    assert len(planned.collect()) == 3
    assert table.where("id = 1").count() == 2
    assert lab.read(epoch="0").count() == 3


def test_a_dataframe_outlives_its_table(lab: Lab) -> None:
    """Deleted and written again: what was seen of the old one does not count."""
    frame = lab.spark.range(3)
    frame.write.format("ckpt-sink").mode("append").save(lab.path("table"))
    table = lab.read()
    assert table.count() == 3
    shutil.rmtree(lab.path("table"))
    with pytest.raises(Exception, match="there is no table"):
        table.count()
    frame.union(frame).write.format("ckpt-sink").mode("append").save(lab.path("table"))
    assert table.count() == 6


def test_damage_is_found_whoever_reads(lab: Lab) -> None:
    """The same error either way."""
    lab.spark.range(100).coalesce(1).write.format("ckpt-sink").mode("append").save(lab.path("table"))
    (stored,) = {ref.path for ref in lab.head().artifacts()}
    assert stored is not None
    file = Path(lab.path("table"), stored)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(bytes(data))
    for options in ({}, IN_TASKS):
        with pytest.raises(Exception, match="integrity"):
            lab.read(**options).collect()


def test_rows_that_are_larger_than_a_message_of_spark_are_fetched_by_tasks(
    jar: Path, tmp_path: Path
) -> None:
    """One row here; a union of many tables that is coalesced into one task has as much in a message."""
    text = "x" * 1_500_000
    field = {"name": "text", "type": "string", "nullable": True, "metadata": {}}
    schema = TableSchema.from_json({"type": "struct", "fields": [field]})
    query = Query(str(tmp_path / "table"), query_id="", keys="", schema=schema, tasks=1)
    query.commit(query.write(query.plan(), 0, pa.table({"text": [text]})), 0)
    conf = {
        "spark.master": "local-cluster[1,1,512]",
        "spark.executor.memory": "512m",
        "spark.executor.extraClassPath": str(jar),
        "spark.rpc.message.maxSize": "1",
    }
    with Driver(tmp_path / "driver.log", conf=conf, class_path=[jar]) as driver:
        options = {"path": query.path}
        [row] = driver.call("read", format="ckpt-sink", options=options, conf={})
    assert json.loads(row) == {"text": text}
