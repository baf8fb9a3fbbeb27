"""Bounds of columns: what they leave out cannot have a row that a filter wants."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import (
    ArtifactRef,
    ColumnBounds,
    Tables,
    decode_artifact,
    encode_artifact,
)
from pyspark_checkpoint.format.manifest import PartitionSnapshotEntry
from pyspark_checkpoint.format.manifest_parts import TableMode
from pyspark_checkpoint.sink import batch_manifest
from pyspark_checkpoint.sink.batch_manifest import keep_bounds
from pyspark_checkpoint.sink.table_options import parse_read_options
from pyspark_checkpoint.sink.table_reader import FilteringTableReader, TableSplit, conditions_of
from pyspark_checkpoint.table.bounds import BoundsOfRows, bounded_columns, bounds_of, may_match
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.schema import TableSchema
from tests.sink.test_encrypted_table import RING
from tests.support.sink_kit import SCHEMA, Query

MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "string": st.text(max_size=40),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": MOMENTS,
    "decimal(18,3)": st.decimals(-(10**14), 10**14, places=3, allow_nan=False),
    "decimal(38,3)": st.decimals(-(10**14), 10**14, places=3, allow_nan=False),
}
COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    EqualTo: operator.eq,
}


def schema_of(kind: str) -> TableSchema:
    """One column ``c`` of a type of Spark."""
    field = {"name": "c", "type": kind, "nullable": True, "metadata": {}}
    return TableSchema.from_json({"type": "struct", "fields": [field]})


def greater(one: Any, other: Any, compare: Callable[[Any, Any], bool]) -> bool:
    """As Spark compares: NaN is equal to itself, and above everything else."""
    ranks = [(1, 0.0) if isinstance(v, float) and math.isnan(v) else (0, v) for v in (one, other)]
    return compare(*ranks)


def wants(found: Filter, value: Any) -> bool:
    """Whether a filter lets a value through, as Spark evaluates it."""
    if isinstance(found, IsNull):
        return value is None
    if isinstance(found, IsNotNull):
        return value is not None
    if isinstance(found, EqualNullSafe) and found.value is None:
        return value is None
    if value is None:
        return False
    if isinstance(found, In):
        return any(one is not None and greater(value, one, operator.eq) for one in found.value)
    compare = COMPARISONS.get(type(found), operator.eq)
    wanted: Any = getattr(found, "value", None)
    return wanted is not None and greater(value, wanted, compare)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Any], Filter]:
    kind = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[kind]
    rows = draw(st.lists(st.none() | value, min_size=1, max_size=8))
    end = draw(st.sampled_from(rows) | value)
    make: Any = draw(st.sampled_from([*COMPARISONS, EqualNullSafe, In, IsNull, IsNotNull]))
    if make in (IsNull, IsNotNull):
        return kind, rows, make(("c",))
    if make is In:
        return kind, rows, In(("c",), (end, draw(st.none() | value)))
    return kind, rows, make(("c",), end)


@given(cases(), st.integers(0, 8), st.sampled_from([1, 100]))
def test_rows_that_a_filter_wants_are_never_left_out(
    case: tuple[str, list[Any], Filter], cut: int, at_once: int
) -> None:
    """Whatever the type, with nulls, NaN and infinities, and if the rows came in two parts."""
    kind, values, found = case
    schema = schema_of(kind)
    rows = pa.table({"c": pa.array(values, schema.arrow().field("c").type)})
    added = BoundsOfRows(bounded_columns(schema))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark_checkpoint.table.bounds.ROWS_AT_ONCE", at_once)
        added.add(rows.slice(0, cut))
        added.add(rows.slice(cut))
    conditions = conditions_of([found], TableInfo(operator="t", schema=schema, mode=TableMode.APPEND))
    for known in (added.bounds(), bounds_of(rows, bounded_columns(schema))):
        row = encode_artifact(ref(bounds=known), Tables())
        assert decode_artifact(row, ["x"], []).bounds == known
        assert may_match(known, conditions) or not any(wants(found, value) for value in values)


def ref(size_bytes: int = 1, bounds: tuple[ColumnBounds, ...] = ()) -> ArtifactRef:
    """An artifact somewhere."""
    return ArtifactRef("x", size_bytes, "0" * 64, True, 1, bounds=bounds)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (GreaterThan(("c",), 9), False),
        (GreaterThanOrEqual(("c",), 9), True),
        (LessThan(("c",), 3), True),
        (LessThan(("c",), 2), False),
        (LessThanOrEqual(("c",), 2), True),
        (In(("c",), (0, 10)), False),
        (IsNull(("c",)), False),
        (EqualTo(("c", "inner"), 100), True),
        (EqualTo(("other",), 100), True),
        (EqualTo(("c",), "a text"), True),
    ],
)
def test_a_filter_beyond_the_bounds_leaves_the_artifact_out(found: Filter, expected: bool) -> None:
    """What is not understood leaves nothing out."""
    schema = schema_of("long")
    known = bounds_of(pa.table({"c": [2, 9, 5]}), bounded_columns(schema))
    conditions = conditions_of([found], TableInfo(operator="t", schema=schema, mode=TableMode.APPEND))
    assert may_match(known, conditions) is expected


@pytest.mark.parametrize("at_once", [1, 100])
def test_nulls_are_counted_once(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Also where the rows are looked at in several parts."""
    monkeypatch.setattr("pyspark_checkpoint.table.bounds.ROWS_AT_ONCE", at_once)
    added = BoundsOfRows(("c",))
    for values in ([None], [None, 1], [7]):
        added.add(pa.table({"c": pa.array(values, pa.int64())}))
    assert added.bounds() == (ColumnBounds("c", 1, 7, 2),)


def texts(*values: bytes) -> pa.Table:
    """A column of texts as Spark has them: any bytes."""
    return pa.table({"c": pa.Array.from_buffers(pa.string(), len(values), pa.array(values).buffers())})


def test_texts_that_are_not_utf8_are_written_like_others() -> None:
    """As ``cast(value as string)`` makes them of any bytes: such a column has no bounds."""
    assert bounds_of(texts(b"a", b"\xff"), ("c",)) == ()
    assert bounds_of(texts(b"\x80", b"a"), ("c",)) == ()
    assert bounds_of(texts(b"a", b"b\xff", b"c"), ("c",)) == (ColumnBounds("c", "a", "c", 0),)


def test_columns_of_another_order_have_no_bounds() -> None:
    """Collations compare otherwise than bytes, and long decimals do not fit."""
    fields = [
        {
            "name": "a",
            "type": "string",
            "nullable": True,
            "metadata": {"__COLLATIONS": {"a": "UTF8_LCASE"}},
        },
        {"name": "b", "type": "decimal(38,3)", "nullable": True, "metadata": {}},
        {"name": "c", "type": "binary", "nullable": True, "metadata": {}},
        {"name": "d", "type": "short", "nullable": True, "metadata": {}},
    ]
    assert bounded_columns(TableSchema.from_json({"type": "struct", "fields": fields})) == ("d",)


@pytest.mark.parametrize(
    "listed",
    [
        [["c", 1, 2]],
        [["c", 1, 2, -1]],
        [["c", None, 2, 0]],
        [["c", "x" * 65, None, 0]],
        [[1, 1, 2, 0]],
        [["c", [1], 2, 0]],
        [["c", 1, 2, 0]] * 33,
        ["c"],
    ],
)
def test_damaged_bounds_are_refused(listed: list[Any]) -> None:
    """A store may hold anything."""
    row = [*encode_artifact(ref(), Tables()), listed]
    with pytest.raises(FormatError, match="bounds"):
        decode_artifact(row, ["x"], [])


def test_a_manifest_keeps_bounds_of_the_largest_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a limit, whatever the number of partitions."""
    monkeypatch.setattr(batch_manifest, "MAX_BOUNDS_IN_MANIFEST", 4)
    known = (ColumnBounds("a", 1, 2, 0), ColumnBounds("b", 1, 2, 0))
    parts = tuple(PartitionSnapshotEntry(at, (ref(100 + at, known),)) for at in range(4))
    kept = [part.partition_id for part in keep_bounds(parts) if part.artifacts[0].bounds]
    assert kept == [2, 3]
    assert keep_bounds(parts[:2]) == parts[:2]


def read_pairs(path: str, *filters: Filter) -> tuple[list[tuple[int, int]], int]:
    """What Spark gets of a table with these filters, before it evaluates them, and how many artifacts."""
    options = parse_read_options({"path": path})
    reader = FilteringTableReader(options, SCHEMA.to_json())
    assert list(reader.pushFilters(list(filters))) == list(filters)
    splits = [split for split in reader.partitions() if isinstance(split, TableSplit)]
    rows = [row for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
    refs = [found for split in splits for chain in split.chains for found in chain.refs]
    return sorted((row["k"], row["v"]) for row in rows), len(refs)


def test_a_range_reads_only_the_epochs_that_can_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table without keys: each artifact for itself."""
    path = str(tmp_path / "table")
    monkeypatch.setattr("pyspark_checkpoint.sink.task.MIN_BOUNDED_BYTES", 0)
    query = Query(path, keys="", tasks=1)
    for batch in range(4):
        query.epoch(batch, [(batch * 10 + at, at) for at in range(10)])
    assert read_pairs(path, GreaterThan(("k",), 19), LessThan(("k",), 30)) == (
        [(20 + at, at) for at in range(10)],
        1,
    )
    assert read_pairs(path, IsNull(("k",))) == ([], 0)
    assert read_pairs(path)[1] == 4


def test_a_replaced_row_does_not_come_back_through_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key's newer row does not meet the filter: the older one, which does, must stay hidden."""
    path = str(tmp_path / "table")
    monkeypatch.setattr("pyspark_checkpoint.sink.task.MIN_BOUNDED_BYTES", 0)
    query = Query(path)
    query.epoch(0, [(1, 100), (2, 100), (3, 100), (4, 100)])
    query.epoch(1, [(1, 5), (2, 5), (3, 5), (4, 5)])
    rows, _ = read_pairs(path, GreaterThan(("v",), 50))
    assert [pair for pair in rows if pair[1] > 50] == []
    assert read_pairs(path, GreaterThan(("v",), 500)) == ([], 0)
    assert (1, 5) in read_pairs(path, LessThan(("k",), 2))[0]


@pytest.mark.parametrize("make", [EqualTo, EqualNullSafe, GreaterThan, In])
def test_a_text_that_the_jvm_could_not_decode_leaves_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """A filter's bytes that are not UTF-8 come as another letter, whose rows are in another partition."""
    monkeypatch.setattr("pyspark_checkpoint.sink.task.MIN_BOUNDED_BYTES", 0)
    query = Query(str(tmp_path / "table"), schema=schema_of("string"), keys="c", tasks=8)
    plan = query.plan(batch_id=0)
    query.commit(query.write(plan, 0, texts(*(bytes([letter]) for letter in range(256)))), 0)
    reader = FilteringTableReader(parse_read_options({"path": query.path}), query.schema.to_json())
    for value in ("\ufffd", "a\ufffd"):
        reader.pushFilters([make(("c",), ("b", value) if make is In else value)])
        splits = [split for split in reader.partitions() if isinstance(split, TableSplit)]
        assert {chain.partition for split in splits for chain in split.chains} == set(range(8))


@pytest.mark.parametrize(
    "value",
    [
        decimal.Decimal("1234567890123456789012345678E+2"),
        {"inner": [None, {"text": "\ufffd"}]},
    ],
    ids=["rounded", "nested"],
)
def test_a_value_that_may_have_been_changed_on_its_way_leaves_nothing_out(value: Any) -> None:
    """PySpark rounds a filter's decimals to 28 digits; keys may be structs and arrays as well."""
    reader = FilteringTableReader(parse_read_options({"path": "/table"}), SCHEMA.to_json())
    for found in (EqualTo(("c",), value), In(("c",), (None, value))):
        assert list(reader.pushFilters([found, IsNotNull(("c",))])) == [found, IsNotNull(("c",))]
        assert reader._filters == (IsNotNull(("c",)),)


def test_small_artifacts_have_no_bounds(tmp_path: Path) -> None:
    """They would make manifests larger than what they save."""
    manifest = Query(str(tmp_path / "small"), keys="", tasks=1).epoch(0, [(1, 1)])
    assert [found.bounds for found in manifest.artifacts()] == [()]


def test_encrypted_artifacts_have_no_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are values of rows, and a manifest is plain."""
    monkeypatch.setattr("pyspark_checkpoint.sink.task.MIN_BOUNDED_BYTES", 0)
    for name in ("plain", "encrypted"):
        manifest = Query(str(tmp_path / name), keys="", tasks=1).epoch(0, [(1, 1)])
        assert [bool(found.bounds) for found in manifest.artifacts()] == [name == "plain"]
        monkeypatch.setenv("CKPT_KEYRING", RING)
    assert manifest.encryption_key_id == "one"
