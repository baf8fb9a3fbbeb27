"""Schemas: Spark's types in Arrow, what is refused, and how a table's schema may change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpoint.errors import FormatError, RefusedError, SettingsError
from pyspark_checkpoint.table.codec import Compression, decode_rows, encode_delta, encode_snapshot
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.schema import (
    TableSchema,
    check_keys,
    check_schema,
    evolve_schema,
    resolve_columns,
)


def schema_of(*columns: tuple[str, Any] | tuple[str, Any, bool], **metadata: Any) -> TableSchema:
    fields = [
        {"name": c[0], "type": c[1], "nullable": c[2] if len(c) > 2 else True, "metadata": metadata}
        for c in columns
    ]
    return TableSchema.from_json({"type": "struct", "fields": fields})


STRUCT = {
    "type": "struct",
    "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}],
}
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}


def test_inside_nested_types_everything_may_be_null() -> None:
    """A later plan may give nulls where an earlier one did not; that is no other type."""
    schema = schema_of(("s", STRUCT), ("m", MAP))
    assert schema.arrow().field("s").type.field("x").nullable
    assert schema.arrow().field("m").type.item_field.nullable


def test_notes_that_spark_leaves_for_itself_are_dropped() -> None:
    """A watermark in the metadata must not look like a changed schema."""
    plain, noted = (
        schema_of(("t", "timestamp")),
        schema_of(("t", "timestamp"), **{"spark.watermarkDelayMs": 5}),
    )
    assert plain == noted


@pytest.mark.parametrize("kind", ["interval", "interval year to month", "object"])
def test_types_without_an_arrow_form_are_refused_by_name(kind: str) -> None:
    """The message names the column, the type and the cure."""
    with pytest.raises(RefusedError, match=f"column c has type {kind}") as caught:
        check_schema(schema_of(("c", kind)))
    assert "cast" in str(caught.value)


@pytest.mark.parametrize(
    "kind", [MAP, "variant", {"type": "array", "elementType": MAP, "containsNull": True}]
)
def test_types_without_an_equality_cannot_be_keys(kind: Any) -> None:
    """Maps and variants, also inside, and texts with a collation."""
    with pytest.raises(RefusedError, match="key column k"):
        check_keys(schema_of(("k", kind)), ["k"])
    with pytest.raises(RefusedError, match="collate"):
        check_keys(schema_of(("k", "string"), **{"__COLLATIONS": {"k": "icu.UNICODE_CI"}}), ["k"])


def test_reserved_and_ambiguous_names_are_refused() -> None:
    """Ours begin with a prefix; and Spark does not tell letters by case."""
    with pytest.raises(RefusedError, match="reserved"):
        check_schema(schema_of(("_ckpt_x", "long")))
    with pytest.raises(RefusedError, match="upper and lower case"):
        check_schema(schema_of(("a", "long"), ("A", "long")))


def test_columns_are_found_in_any_case_of_letters() -> None:
    """As in Spark; one that is not there is an error that shows the others."""
    assert resolve_columns(schema_of(("Key", "long")), ["KEY"], "keyColumns") == ("Key",)
    with pytest.raises(SettingsError, match=r"no column kee .*the columns are Key"):
        resolve_columns(schema_of(("Key", "long")), ["kee"], "keyColumns")


def test_nullable_columns_may_be_added_in_any_place() -> None:
    """The table keeps its order; new columns come last. Old columns may become nullable."""
    old = schema_of(("a", "long", False), ("b", "string"))
    new = schema_of(("c", "date"), ("a", "long", True), ("b", "string"))
    evolved = evolve_schema(old, new)
    assert evolved.names == ("a", "b", "c")
    assert evolved.field("a").nullable


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ([("a", "string"), ("b", "string")], "column a was long and is string"),
        ([("a", "long")], "column b is gone"),
        ([("a", "long"), ("b", "string"), ("c", "date", False)], "column c is new and not nullable"),
    ],
)
def test_other_changes_are_refused_with_both_schemas(new: list[Any], problem: str) -> None:
    """One message says what differs and shows what the table has and what the query gives."""
    old = schema_of(("a", "long"), ("b", "string"))
    with pytest.raises(RefusedError) as caught:
        evolve_schema(old, schema_of(*new))
    assert problem in str(caught.value)
    assert "The table has (a long, b string)" in str(caught.value)
    assert "the query gives (a " in str(caught.value)


def test_rows_conform_by_name_and_keep_their_values() -> None:
    """Another zone, large offsets and another order are the same rows."""
    rows = pa.table(
        {"b": pa.array(["x"], pa.large_string()), "a": pa.array([5], pa.timestamp("us", "+02:00"))}
    )
    target = pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.string()), ("c", pa.int32())])
    found = conform(rows, target)
    assert found.schema == target
    assert found.column("a").cast(pa.int64()).to_pylist() == [5]
    with pytest.raises(FormatError, match="column b"):
        conform(rows, pa.schema([("b", pa.int32())]))


@pytest.mark.parametrize(
    "codec", [Compression(), Compression("zstd", 9), Compression("lz4", None), Compression("none")]
)
def test_deltas_and_snapshots_read_back(codec: Compression) -> None:
    """Both forms, every codec, told apart by their first bytes."""
    rows = pa.table({"k": list(range(1000)), "v": [[{"x": None}]] * 1000})
    assert decode_rows(encode_delta(rows, codec), "d", 1000).equals(rows)
    assert decode_rows(encode_snapshot(rows, codec), "s", 1000).equals(rows)


def test_snapshots_hold_what_parquet_has_no_form_for() -> None:
    """A struct without fields, at any depth; and the parts of a variant are null where it is."""
    empty = {"type": "struct", "fields": []}
    for kind in (empty, {"type": "array", "elementType": empty, "containsNull": True}):
        schema = schema_of(("c", kind)).arrow()
        rows = pa.table({"c": pa.array([None, {} if kind is empty else [{}, None]], schema.field(0).type)})
        assert decode_rows(encode_snapshot(rows, Compression()), "s", 1000).equals(rows)
    kind = schema_of(("c", "variant")).arrow().field(0).type
    nothing = pa.nulls(1, pa.binary())
    mask = pa.array([True])
    sent = pa.StructArray.from_arrays([nothing, nothing], fields=list(kind), mask=mask)
    rows = pa.table({"c": sent})
    written = encode_snapshot(rows, Compression())
    assert written[:4] == b"PAR1"
    assert decode_rows(written, "s", 1000).to_pylist() == [{"c": None}]


@pytest.mark.parametrize(
    ("kind", "srid", "mark"),
    [
        ("geometry(SRID:0)", b"0", b"geometry"),
        ("geometry(SRID:ANY)", b"-1", b"geometry"),
        ("geometry(EPSG:3857)", b"3857", b"geometry"),
        ("geography(OGC:CRS84, SPHERICAL)", b"4326", b"geography"),
    ],
)
def test_places_are_stored_as_spark_sends_them(kind: str, srid: bytes, mark: bytes) -> None:
    """A struct that says what it is; also as a snapshot, where a null has parts that may not be null."""
    schema = schema_of(("c", kind)).arrow()
    assert schema.field(0).type.field("wkb").metadata == {mark: b"true", b"srid": srid}
    parts = [pa.array([5, None], pa.int32()), pa.array([b"x", None])]
    sent = pa.StructArray.from_arrays(
        parts, fields=list(schema.field(0).type), mask=pa.array([False, True])
    )
    rows = pa.table({"c": sent}, schema=schema)
    written = encode_snapshot(rows, Compression())
    assert written[:4] == b"PAR1"
    assert decode_rows(written, "s", 1000).to_pylist() == [{"c": {"srid": 5, "wkb": b"x"}}, {"c": None}]
    with pytest.raises(RefusedError, match="key column c"):
        check_keys(schema_of(("c", kind)), ["c"])


@pytest.mark.parametrize("data", [b"", b"PAR1", b"ARROW1\0\0", b"something else"])
def test_damaged_artifacts_are_an_error_of_ours(data: bytes) -> None:
    """No exception of pyarrow's leaves."""
    with pytest.raises(FormatError):
        decode_rows(data, "checkpoints/x", 1000)


def test_unknown_codecs_are_refused() -> None:
    """Said when the option is read, not in a task."""
    with pytest.raises(SettingsError, match="codec is one of"):
        Compression("snappy")
    with pytest.raises(SettingsError, match="codecLevel"):
        Compression("zstd", 99)
