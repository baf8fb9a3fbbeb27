"""Bringing rows into a schema: columns by name, missing ones null, the same values in every column."""

from __future__ import annotations

import pyarrow as pa

from pyspark_checkpoint.errors import FormatError


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ``rows`` with exactly the columns of ``schema``.

    Columns are found by name; one that is not there is null. Only the outer form of a type may differ:
    the zone of a timestamp, large offsets, nullability. A column whose values differ is an error.
    """
    if rows.schema.equals(schema):
        return rows
    columns = [_column(rows, field) for field in schema]
    return pa.table(columns, schema=schema)


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    at = rows.schema.get_field_index(field.name)
    if at < 0:
        return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
    column = rows.column(at)
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise FormatError(f"column {field.name} is {column.type} where {field.type} belongs") from None
