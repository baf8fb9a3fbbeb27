"""Spark's types, as they stand in the JSON of a schema, and the Arrow types that Spark sends for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pyspark_checkpoint.errors import RefusedError

_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_TIME = re.compile(r"time\(\d\)")
_TEXT = re.compile(r"(char|varchar)\(\d+\)|string collate \S+", re.IGNORECASE)
_PLACE = re.compile(
    r"(geometry|geography)\((?:(?:SRID|EPSG):(\d+)|(OGC:CRS84)|(SRID:ANY))(?:,.*)?\)", re.IGNORECASE
)
_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)


def arrow_type(spark_type: Any, column: str) -> pa.DataType:
    """Return the Arrow type of a Spark type; ``column`` is for the refusal of one that cannot travel."""
    if isinstance(spark_type, str):
        return _named_type(spark_type, column)
    kind = spark_type.get("type") if isinstance(spark_type, Mapping) else None
    if kind == "array":
        element = arrow_type(spark_type["elementType"], f"{column}.element")
        return pa.list_(pa.field("element", element, nullable=bool(spark_type["containsNull"])))
    if kind == "map":
        key = arrow_type(spark_type["keyType"], f"{column}.key")
        value = arrow_type(spark_type["valueType"], f"{column}.value")
        contains_null = bool(spark_type["valueContainsNull"])
        return pa.map_(
            pa.field("key", key, nullable=False), pa.field("value", value, nullable=contains_null)
        )
    if kind == "struct":
        return pa.struct(_struct_fields(spark_type, column))
    if kind == "udt":
        return arrow_type(spark_type["sqlType"], column)
    raise _refused(spark_type, column)


def _named_type(name: str, column: str) -> pa.DataType:
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "variant":
        return _VARIANT
    if match := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    if _DAY_TIME.fullmatch(name):
        return pa.duration("us")
    if _TIME.fullmatch(name):
        return pa.time64("ns")
    if _TEXT.fullmatch(name):
        return pa.string()
    if match := _PLACE.fullmatch(name):
        return _place_type(match)
    raise _refused(name, column)


def _place_type(match: re.Match[str]) -> pa.DataType:
    """Geometries and geographies, with the number of the system in which their coordinates are."""
    srid = match[2] or ("4326" if match[3] else "-1")
    wkb = pa.field("wkb", pa.binary(), nullable=False, metadata={match[1].lower(): "true", "srid": srid})
    return pa.struct([pa.field("srid", pa.int32(), nullable=False), wkb])


def _struct_fields(spark_type: Mapping[str, Any], column: str) -> list[pa.Field]:
    names = [field["name"] for field in spark_type["fields"]]
    if len(set(names)) != len(names):
        raise RefusedError(
            f"column {column} is a struct with a field name twice: {', '.join(names)}",
            hint="rename the fields of the struct",
        )
    return [
        pa.field(
            field["name"], arrow_type(field["type"], f"{column}.{field['name']}"), bool(field["nullable"])
        )
        for field in spark_type["fields"]
    ]


def type_text(spark_type: Any) -> str:
    """A type as people write it."""
    if not isinstance(spark_type, Mapping):
        return str(spark_type)
    kind = spark_type.get("type")
    if kind == "array":
        return f"array<{type_text(spark_type['elementType'])}>"
    if kind == "map":
        return f"map<{type_text(spark_type['keyType'])},{type_text(spark_type['valueType'])}>"
    if kind == "struct":
        fields = (f"{field['name']}:{type_text(field['type'])}" for field in spark_type["fields"])
        return f"struct<{','.join(fields)}>"
    if kind == "udt":
        return f"udt<{spark_type.get('class') or spark_type.get('pyClass')}>"
    return str(kind)


def _refused(spark_type: Any, column: str) -> RefusedError:
    return RefusedError(
        f"column {column} has type {type_text(spark_type)}, which Spark does not hand to Python as Arrow",
        hint="cast it, for example to string or to a number, before it reaches ckpt-sink",
    )


def relaxed(spark_type: Any) -> Any:
    """The same type with everything inside it nullable, so that a later row may have nulls there."""
    if not isinstance(spark_type, Mapping):
        return spark_type
    kind = spark_type.get("type")
    if kind == "array":
        return {**spark_type, "elementType": relaxed(spark_type["elementType"]), "containsNull": True}
    if kind == "map":
        return {
            **spark_type,
            "keyType": relaxed(spark_type["keyType"]),
            "valueType": relaxed(spark_type["valueType"]),
            "valueContainsNull": True,
        }
    if kind == "struct":
        fields = [{**f, "type": relaxed(f["type"]), "nullable": True} for f in spark_type["fields"]]
        return {**spark_type, "fields": fields}
    return spark_type


def has_order(spark_type: Any) -> bool:
    """Whether values of a type can be put in an order: those of plain types, but not variants."""
    return isinstance(spark_type, str) and spark_type not in ("variant", "void") and spark_type[:3] != "geo"


def unhashable_part(spark_type: Any) -> str | None:
    """What in a type keeps it from being a key, or None."""
    if isinstance(spark_type, str):
        if spark_type == "variant" or spark_type.lower().startswith(("string collate", "geo")):
            return spark_type
        return None
    kind = spark_type.get("type")
    if kind in ("map", "udt"):
        return str(kind)
    if kind == "array":
        return unhashable_part(spark_type["elementType"])
    return next(
        (found for field in spark_type["fields"] if (found := unhashable_field(field)) is not None), None
    )


def unhashable_field(field: Mapping[str, Any]) -> str | None:
    """What in a column keeps it from being a key, or None; collations stand in its metadata."""
    collations = (field.get("metadata") or {}).get("__COLLATIONS")
    if collations:
        return f"string collate {next(iter(collations.values()))}"
    return unhashable_part(field["type"])
