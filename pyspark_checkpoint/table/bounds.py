"""What an artifact's rows can have: the least and the greatest value of each column, and its nulls. Pure.

A reader leaves out artifacts that no row of interest can be in. A bound may be wider than the values, and
never narrower: a long text is cut below and open above; a column with NaN, an infinity, a least or greatest
text that is not UTF-8, or a collation, or of a type whose order is not that of its stored numbers, has no
bounds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pyspark_checkpoint.format.artifact import MAX_BOUNDED_COLUMNS, ColumnBounds
from pyspark_checkpoint.table.schema import TableSchema

MIN_BOUNDED_BYTES = 64 * 1024
"""Smaller artifacts have no bounds: reading them costs less than what would be kept of them."""
ROWS_AT_ONCE = 131_072
"""How many rows of a stream are looked at together."""
_TEXT_LETTERS = 32
_INTEGER_DIGITS = 18
_ORDERED_OTHERWISE = {"__COLLATIONS", "__CHAR_VARCHAR_TYPE_STRING"}
Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Condition:
    """What a filter leaves of one column: values from ``low`` to ``high``, each None if open, or nulls.

    ``is_strict``: without the ends themselves.
    """

    column: str
    ranges: tuple[tuple[Value | None, Value | None], ...] = ()
    with_nulls: bool = False
    is_strict: bool = False

    def may_hold(self, bounds: Mapping[str, ColumnBounds]) -> bool:
        """Whether an artifact with these bounds can have a row that meets the condition."""
        known = bounds.get(self.column)
        if known is None or (self.with_nulls and known.nulls):
            return True
        if known.low is None and known.high is None:
            return False  # nulls only
        try:
            return any(self._overlaps(known, low, high) for low, high in self.ranges)
        except TypeError:
            return True  # the bounds are of another kind than the column

    def _overlaps(self, known: ColumnBounds, low: Any, high: Any) -> bool:
        within = operator.lt if self.is_strict else operator.le
        above = low is None or known.high is None or within(low, known.high)
        return above and (high is None or known.low is None or within(known.low, high))


def stored_value(value: Any, kind: pa.DataType) -> Value | None:
    """A value of a column as bounds keep it; None if it has no such form, or is null.

    Raises:
        pa.ArrowException: The value is not one of the column's type.
    """
    scalar = value if isinstance(value, pa.Scalar) else pa.array([value], kind)[0]
    if not scalar.is_valid:
        return None
    if pt.is_decimal(kind):
        return int(scalar.as_py().scaleb(kind.scale)) if kind.precision <= _INTEGER_DIGITS else None
    if pt.is_date32(kind) or pt.is_timestamp(kind):
        return int(scalar.value)
    found = scalar.as_py()
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found if isinstance(found, int | float | str) else None


def bounded_columns(schema: TableSchema) -> tuple[str, ...]:
    """The columns of a table that get bounds: the first ones that have an order."""
    arrow = schema.arrow()
    names = [field.name for field in schema.fields if not _ORDERED_OTHERWISE & field.metadata.keys()]
    return tuple(name for name in names if _has_order(arrow.field(name).type))[:MAX_BOUNDED_COLUMNS]


def _has_order(kind: pa.DataType) -> bool:
    plain = (pt.is_integer, pt.is_floating, pt.is_boolean, pt.is_string, pt.is_large_string)
    if pt.is_decimal(kind):
        return bool(kind.precision <= _INTEGER_DIGITS)
    return any(is_kind(kind) for is_kind in (*plain, pt.is_date32, pt.is_timestamp))


class BoundsOfRows:
    """Adds up the bounds of rows that come one table after the other.

    Many rows are looked at together, as late as they can be: nobody asks for those of a small artifact.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._found: dict[str, ColumnBounds | None] = {}

    def add(self, rows: pa.Table) -> None:
        """Take these rows in too."""
        if not self._columns:
            return
        self._waiting.append(rows.select(self._columns))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROWS_AT_ONCE:
            self._look()

    def _look(self) -> None:
        if self._waiting_rows:
            rows = pa.concat_tables(self._waiting)
            for name in self._columns:
                more = _bounds(name, rows.column(name))
                known = self._found.get(name, ColumnBounds(name, None, None, 0))
                self._found[name] = None if more is None or known is None else _union(known, more)
        self._waiting, self._waiting_rows = [], 0

    def bounds(self) -> tuple[ColumnBounds, ...]:
        """What is known of the columns, in the order of the table."""
        self._look()
        return tuple(found for found in self._found.values() if found is not None)


def bounds_of(rows: pa.Table, columns: Sequence[str]) -> tuple[ColumnBounds, ...]:
    """The bounds of the rows of an artifact."""
    found = BoundsOfRows(columns)
    found.add(rows)
    return found.bounds()


def _bounds(name: str, column: pa.ChunkedArray) -> ColumnBounds | None:
    """A column's bounds; None if it has values that have none."""
    nulls = int(column.null_count)
    if nulls == len(column):
        return ColumnBounds(name, None, None, nulls)
    if pt.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    ends = pc.min_max(column)
    try:
        low, high = (stored_value(ends[end], column.type) for end in ("min", "max"))
    except UnicodeDecodeError:
        return None  # Spark's texts are bytes, as ``cast(value as string)`` finds them
    if low is None or high is None:
        return None
    if isinstance(high, str) and len(high) > _TEXT_LETTERS:
        high = None
    return ColumnBounds(name, low[:_TEXT_LETTERS] if isinstance(low, str) else low, high, nulls)


def _union(one: ColumnBounds, other: ColumnBounds) -> ColumnBounds:
    nulls = one.nulls + other.nulls
    if one.low is None:  # nulls only
        return ColumnBounds(one.name, other.low, other.high, nulls)
    if other.low is None:
        return ColumnBounds(one.name, one.low, one.high, nulls)
    low: Any = min(one.low, other.low)
    high: Any = None if one.high is None or other.high is None else max(one.high, other.high)
    return ColumnBounds(one.name, low, high, nulls)


def may_match(bounds: Iterable[ColumnBounds], conditions: Sequence[Condition]) -> bool:
    """Whether rows within ``bounds`` can meet all conditions."""
    known = {found.name: found for found in bounds}
    return all(condition.may_hold(known) for condition in conditions)
