"""Rows of one key: which of them counts within an epoch, and how epochs lie on top of each other.

Between epochs the later one wins. Within an epoch every key has one row; where the query gives
several, the greatest value of the sequence column wins, and without such a column, or when two rows
have the same value and differ, that is an error. There is never an arbitrary winner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.table.codec import concat_rows
from pyspark_checkpoint.table.conform import conform
from pyspark_checkpoint.table.identity import Codes, column_codes, key_codes, last_rows
from pyspark_checkpoint.table.murmur3 import Hashes, spark_hash
from pyspark_checkpoint.table.schema import DELETED_COLUMN

DELETE_VALUES = frozenset({"d", "delete", "deleted", "remove"})
UPSERT_VALUES = frozenset(
    {"c", "u", "r", "i", "create", "read", "insert", "update", "upsert", "update_postimage"}
)


def delta_schema(table: pa.Schema, *, deletes: bool) -> pa.Schema:
    """The schema of a delta: the table's, and the mark of deleted rows where there may be some."""
    return table.append(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False)) if deletes else table


def mark_deletes(rows: pa.Table, op_column: str) -> pa.Table:
    """Return the rows with the operation column replaced by the mark of deleted ones.

    A boolean column is true for deletes. A text column says ``d``, ``delete`` and the like, or ``c``,
    ``u``, ``insert``, ``update`` and the like, in any case; another value, or null, is an error.
    """
    column = rows.column(op_column)
    if pt.is_boolean(column.type):
        marks = column
    else:
        lower = pc.utf8_lower(column.cast(pa.string()))
        marks = pc.is_in(lower, pa.array(sorted(DELETE_VALUES)))
        known = pc.or_(marks, pc.is_in(lower, pa.array(sorted(UPSERT_VALUES))))
        if not pc.all(known, min_count=0).as_py():
            value = column.filter(pc.invert(known))[0].as_py()
            raise RefusedError(
                f"operation column {op_column} has the value {value!r}",
                hint=f"deletes are {', '.join(sorted(DELETE_VALUES))}; the rest is one of "
                f"{', '.join(sorted(UPSERT_VALUES))}",
            )
    if marks.null_count:
        raise RefusedError(
            f"operation column {op_column} is null in {marks.null_count} rows",
            hint="fill the column before the sink, or leave the option opColumn out",
        )
    return rows.drop_columns([op_column]).append_column(
        pa.field(DELETED_COLUMN, pa.bool_(), nullable=False), marks
    )


def one_row_per_key(
    rows: pa.Table, keys: Sequence[str], sequence_column: str | None, *, hashes: Hashes | None = None
) -> pa.Table:
    """Return the rows of one epoch with one row per key, or refuse them naming a key.

    ``hashes`` are those of the keys, if the caller has them already.
    """
    if hashes is None:
        hashes = spark_hash([rows.column(name) for name in keys])
    if _surely_distinct(rows, keys, hashes):
        return rows
    codes, count = key_codes(rows, keys)
    if sequence_column is None:
        first = int(np.flatnonzero(np.bincount(codes, minlength=count)[codes] > 1)[0])
        several = int(np.count_nonzero(codes == codes[first]))
        raise RefusedError(
            f"{several} rows of one batch have the key {_key_text(rows, keys, first)}, "
            "and nothing says which of them counts",
            hint="name a column that orders them in the option sequenceColumn, or aggregate by the key",
        )
    order = _ascending(rows.column(sequence_column))
    last = order[last_rows(codes[order], count)]
    _refuse_ties(rows, keys, sequence_column, codes, last)
    return _only(rows, last)


def _only(rows: pa.Table, wanted: Codes) -> pa.Table:
    """The rows at these positions, in the order in which they are.

    ``take`` would join all texts of a column into one array, which holds no more than 2 GB of them.
    """
    mask = np.zeros(rows.num_rows, dtype=np.bool_)
    mask[wanted] = True
    return rows.filter(pa.array(mask))


def _surely_distinct(rows: pa.Table, keys: Sequence[str], hashes: Hashes) -> bool:
    """Whether no two rows have the same key: by hash, and exactly only for the few whose hashes collide."""
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return True
    suspects = rows.select(list(keys)).take(pa.array(np.flatnonzero(np.isin(hashes, repeated))))
    return bool(key_codes(suspects, keys)[1] == suspects.num_rows)


def _ascending(column: pa.ChunkedArray) -> Codes:
    """Positions from the smallest to the greatest value, nulls first."""
    order = pc.sort_indices(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.roll(order, column.null_count)


def _refuse_ties(
    rows: pa.Table, keys: Sequence[str], sequence_column: str, codes: Codes, last: Codes
) -> None:
    """Refuse rows that share key and greatest sequence value and differ; equal ones are one row twice."""
    sequence, _ = column_codes(rows.column(sequence_column))
    top = np.empty(len(last), dtype=np.int64)
    top[codes[last]] = sequence[last]
    at_top = np.flatnonzero(sequence == top[codes])
    tied = at_top[np.bincount(codes[at_top], minlength=len(last))[codes[at_top]] > 1]
    if not len(tied):
        return
    contents, _ = key_codes(_only(rows, tied), rows.column_names)
    first_of: dict[int, int] = {}
    for at, content in zip(tied.tolist(), contents.tolist(), strict=True):
        if first_of.setdefault(int(codes[at]), content) != content:
            value = _text_of(rows.column(sequence_column).slice(at, 1))
            raise RefusedError(
                f"two rows of one batch have the key {_key_text(rows, keys, at)} and the same "
                f"{sequence_column} {value}, and differ",
                hint="the sequence column must tell the rows of one key apart",
            )


def _key_text(rows: pa.Table, keys: Sequence[str], at: int) -> str:
    return ", ".join(f"{name}={_text_of(rows.column(name).slice(at, 1))}" for name in keys)


def _text_of(value: pa.ChunkedArray) -> str:
    """One value for a message. Python has no dates beyond the year 9999; Arrow has."""
    try:
        return repr(value[0].as_py())
    except (OverflowError, ValueError):
        return str(value.to_string(skip_new_lines=True)).strip("[] ")


def merge_deltas(deltas: Iterable[pa.Table], keys: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return one delta that does what ``deltas`` do one after the other; marks of deleted rows stay."""
    rows = concat_rows((_conform_delta(delta, schema) for delta in deltas), schema)
    if not keys or not rows.num_rows:
        return rows
    codes, count = key_codes(rows, keys)
    return rows if count == rows.num_rows else _only(rows, last_rows(codes, count))


def apply_deltas(
    base: pa.Table | None, deltas: Iterable[pa.Table], keys: Sequence[str], table: pa.Schema
) -> pa.Table:
    """Return the rows of a partition: the snapshot ``base`` with all deltas applied in their order."""
    schema = delta_schema(table, deletes=True)
    parts = [] if base is None else [base]
    merged = merge_deltas([*parts, *deltas], keys, schema)
    deleted = merged.column(DELETED_COLUMN)
    if pc.any(deleted, min_count=0).as_py():
        merged = merged.filter(pc.invert(deleted))
    return merged.drop_columns([DELETED_COLUMN])


def _conform_delta(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if DELETED_COLUMN in schema.names and DELETED_COLUMN not in rows.column_names:
        mark = pa.repeat(pa.scalar(False), rows.num_rows)
        rows = rows.append_column(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False), mark)
    return conform(rows, schema)
