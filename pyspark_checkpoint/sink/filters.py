"""Which keys a reader's filters leave over: enough to read only the partitions that can have them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, IsNull

from pyspark_checkpoint.table.info import TableInfo

MAX_KEYS = 10_000


def wanted_keys(filters: Sequence[Filter], table: TableInfo) -> pa.Table | None:
    """The only keys that can pass the filters, None if they leave any column of the key open."""
    choices: list[list[Any]] = []
    for key in table.keys:
        values = _values(filters, key)
        if values is None:
            return None
        choices.append(values)
    count = 1
    for values in choices:
        count *= len(values)
    if count > MAX_KEYS:
        return None
    schema = table.schema.arrow()
    rows = list(itertools.product(*choices))
    try:
        columns = [
            pa.array([row[at] for row in rows], schema.field(key).type) for at, key in enumerate(table.keys)
        ]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        # A value that does not convert, such as a number beyond the column's type, prunes nothing.
        return None
    return pa.table(columns, names=list(table.keys))


def _values(filters: Sequence[Filter], key: str) -> list[Any] | None:
    """The values that one column can have, by the first filter that says so."""
    for found in filters:
        if getattr(found, "attribute", None) != (key,):
            continue
        if isinstance(found, EqualTo):
            return [found.value]
        if isinstance(found, EqualNullSafe):
            return [found.value]
        if isinstance(found, IsNull):
            return [None]
        if isinstance(found, In):
            return list(dict.fromkeys(found.value))
    return None
