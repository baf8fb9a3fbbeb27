"""Every type that Spark hands to Arrow, as key and as value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpoint.table.murmur3 import spark_hash
from tests.integration.sink.lab import Lab, rows_of

KEY_TYPES = {
    "bool": ("boolean", "id % 3 = 0"),
    "byte": ("tinyint", "id - 50"),
    "short": ("smallint", "id * 300 - 10000"),
    "int": ("int", "id * 20000000 - 1000000000"),
    "long": ("bigint", "id * 90000000000000000 - 4500000000000000000"),
    "float": ("float", "if(id % 7 = 0, double('-0.0'), if(id % 7 = 1, 'NaN', id / 3))"),
    "double": ("double", "if(id % 7 = 0, double('-0.0'), if(id % 7 = 1, 'NaN', id / -3))"),
    "small_decimal": ("decimal(9,2)", "id * 1.37 - 60"),
    "long_decimal": ("decimal(18,4)", "id * 12345678901.1111 - 9999"),
    "big_decimal": ("decimal(38,6)", "(id - 50) * 1234567890123456789012.5"),
    "string": ("string", "concat(repeat('é', int(id % 5)), 'x', id, repeat('y', int(id % 9)))"),
    "binary": ("binary", "unhex(repeat(hex(id), int(id % 6)))"),
    "date": ("date", "date_add(date'1900-01-01', int(id * 700))"),
    "timestamp": ("timestamp", "timestamp'1582-10-10 01:02:03.456789' + make_interval(id * 5)"),
    "timestamp_ntz": (
        "timestamp_ntz",
        "timestamp_ntz'0001-01-01 01:02:03.456789' + make_interval(id * 30)",
    ),
    "interval": ("interval day to second", "make_dt_interval(id - 50, 3, 4, 5.123456)"),
    "struct": (
        "struct<a:int,b:string>",
        "named_struct('a', int(id % 5), 'b', if(id % 4 = 0, null, string(id)))",
    ),
    "array": ("array<string>", "transform(sequence(0, int(id % 4)), i -> if(i = 1, null, string(id * i)))"),
    "nested": (
        "array<struct<x:decimal(20,1),y:array<double>>>",
        "array(named_struct('x', id, 'y', array(double(id), null, double('-0.0'))), null)",
    ),
}
VALUE_TYPES = {
    "map": ("map<string,array<int>>", "map(string(id), array(int(id), null), 'b', null)"),
    "times": ("map<string,timestamp>", "map(string(id), timestamp'2020-01-01 00:00:00')"),
    "void": ("void", "null"),
    "empty": ("struct<>", "named_struct()"),
    "variant": ("variant", "parse_json(concat('{\"n\":', id, '}'))"),
}


def every_type() -> list[str]:
    """Columns of every type, made of ``id``; each is null in other rows."""
    columns = ["id"]
    for at, (name, (kind, expression)) in enumerate({**KEY_TYPES, **VALUE_TYPES}.items()):
        columns.append(f"if(id % 11 = {at % 11}, null, cast({expression} as {kind})) as `{name}`")
    return columns


def all_types(spark: SparkSession, rows: int = 60) -> DataFrame:
    """Rows of every type."""
    return spark.range(rows).repartition(2).selectExpr(*every_type())


def test_the_hash_is_sparks_for_every_type_and_for_all_together(spark: SparkSession) -> None:
    """Rows are found again only if Python and Spark agree on every bit, nulls included."""
    rows = all_types(spark, 100)
    hashes = [f"hash(`{name}`) as `{name}`" for name in KEY_TYPES]
    everything = f"hash({', '.join(f'`{name}`' for name in KEY_TYPES)}) as everything"
    expected = rows.orderBy("id").selectExpr(*hashes, everything).toArrow()
    values = rows.orderBy("id").select(*KEY_TYPES).toArrow()
    for name in KEY_TYPES:
        found = spark_hash([values.column(name)]).view(np.int32)
        assert found.tolist() == expected.column(name).to_pylist(), name
    columns = [values.column(name) for name in KEY_TYPES]
    assert spark_hash(columns).view(np.int32).tolist() == expected.column("everything").to_pylist()
    assert (
        spark_hash([c.slice(30, 50) for c in columns]).view(np.int32).tolist()
        == (expected.column("everything").to_pylist()[30:80])
    )


def test_every_type_as_key_and_value_comes_back(lab: Lab) -> None:
    """A keyed table over all hashable types at once, written twice: each row is there once, unchanged.

    What was written first is compacted into snapshots by the second write.
    """
    rows = all_types(lab.spark)
    keys = ",".join(KEY_TYPES)
    writer = rows.write.format("ckpt-sink").option("keyColumns", keys).option("partitions", "4")
    writer = writer.option("maxDeltas", "1")
    writer.mode("append").save(lab.path("table"))
    writer.mode("append").save(lab.path("table"))
    found = lab.read()
    assert [(f.name, f.dataType.simpleString()) for f in found.schema] == [
        (f.name, f.dataType.simpleString()) for f in rows.schema
    ]
    text = ["to_json(struct(*)) as row", "hex(`binary`) as b", "cast(timestamp as string) as t"]
    assert rows_of(found.selectExpr(*text)) == rows_of(rows.selectExpr(*text))


def test_rows_that_travel_to_the_driver_are_stored_as_those_of_a_python_task(lab: Lab) -> None:
    """Of every type: the same bytes for every partition, and one object instead of four."""
    lab.put(pa.table({"id": pa.array(range(60), pa.int64())}))
    paths, digests = [], []
    for name, most in (("inline", "1000000"), ("python", "0")):
        options = {"keyColumns": ",".join(KEY_TYPES), "partitions": "4", "inlineTaskBytes": most}
        lab.run(lambda frame: frame.selectExpr(*every_type()), table=name, **options)
        parts = lab.head(name).operators["table"].partitions
        digests.append({part.partition_id: [ref.sha256 for ref in part.artifacts] for part in parts})
        paths.append({ref.path for part in parts for ref in part.artifacts})
    assert digests[0] == digests[1]
    assert (len(paths[0]), len(paths[1])) == (1, 4)


def test_places_come_back(lab: Lab) -> None:
    """Geometries and geographies, null ones included, from deltas and from the snapshot of them."""
    point = "unhex('0101000000000000000000F03F0000000000000040')"
    places = f"if(id = 1, null, st_geomfromwkb({point})) as g", f"st_geogfromwkb({point}) as e"
    rows = lab.spark.range(3).selectExpr("id", *places)
    for _ in range(2):
        writer = rows.write.format("ckpt-sink").option("keyColumns", "id").option("partitions", "1")
        writer.option("maxDeltas", "1").mode("append").save(lab.path("table"))
    text = ["id", "hex(st_asbinary(g)) as g", "hex(st_asbinary(e)) as e"]
    assert lab.read().dtypes == rows.dtypes
    assert rows_of(lab.read().selectExpr(*text)) == rows_of(rows.selectExpr(*text))


def test_a_stream_keeps_times_whatever_the_sessions_zone(lab: Lab) -> None:
    """An instant stays that instant, a time without zone stays that text."""
    times = pa.table(
        {
            "k": pa.array([0, None], pa.timestamp("us", "UTC")),
            "v": pa.array([0, 10**15], pa.timestamp("us")),
        }
    )
    lab.put(times)
    lab.run(keyColumns="k")
    assert lab.read().orderBy("v").toArrow().cast(times.schema).equals(times)


@pytest.mark.parametrize(
    ("expression", "keys", "message"),
    [
        ("make_interval(1, 2) as c", "", "column c has type interval"),
        ("make_ym_interval(1, 2) as c", "", "column c has type interval year to month"),
        ("map('a', k) as c", "c", "key column c is map<string,string>"),
        ("parse_json(k) as c", "c", "variant"),
        ("collate(k, 'UNICODE_CI') as c", "c", "collate"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_any_row(
    lab: Lab, expression: str, keys: str, message: str
) -> None:
    """With a message that names the column, the type and the cure; nothing is committed."""
    lab.put(pa.table({"k": ["1"]}))
    with pytest.raises(StreamingQueryException, match=message):
        lab.run(lambda frame: frame.selectExpr(expression), keyColumns=keys)
    assert not list(lab.root.glob("table/manifests/*"))
