"""Rows of one key: within an epoch, and between epochs, against a model that is a dictionary."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.table.identity import key_codes
from pyspark_checkpoint.table.merge import (
    apply_deltas,
    delta_schema,
    mark_deletes,
    merge_deltas,
    one_row_per_key,
)
from pyspark_checkpoint.table.schema import DELETED_COLUMN

TABLE = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
DELTA = delta_schema(TABLE, deletes=True)
KEYS = ("a", "b")
key = st.tuples(st.sampled_from([None, "", "x", "y"]), st.sampled_from([None, 0, 1]))
epoch = st.dictionaries(key, st.tuples(st.integers(0, 99), st.booleans()), max_size=8)


def delta_of(changes: dict[Any, tuple[int, bool]]) -> pa.Table:
    rows = [{"a": a, "b": b, "v": v, DELETED_COLUMN: gone} for (a, b), (v, gone) in changes.items()]
    return pa.Table.from_pylist(rows, schema=DELTA)


def as_dict(rows: pa.Table) -> dict[Any, int]:
    found = {(row["a"], row["b"]): row["v"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


@settings(deadline=None)
@given(st.lists(epoch, max_size=6), st.integers(0, 6))
def test_deltas_on_a_snapshot_give_what_a_dictionary_gives(epochs: list[Any], cut: int) -> None:
    """Upserts and deletes in order, with null keys; merging some deltas first changes nothing."""
    model: dict[Any, int] = {}
    for changes in epochs:
        for k, (value, gone) in changes.items():
            model.pop(k, None) if gone else model.update({k: value})
    deltas = [delta_of(changes) for changes in epochs]
    assert as_dict(apply_deltas(None, deltas, KEYS, TABLE)) == model
    snapshot = apply_deltas(None, deltas[:cut], KEYS, TABLE)
    assert as_dict(apply_deltas(snapshot, deltas[cut:], KEYS, TABLE)) == model
    merged = merge_deltas(deltas[cut:], KEYS, DELTA)
    assert as_dict(apply_deltas(snapshot, [merged], KEYS, TABLE)) == model


def test_without_keys_rows_are_joined() -> None:
    """Equal rows of a table without keys stay what they are: two rows."""
    one = pa.table({"a": ["x"], "b": [1], "v": [1]})
    assert merge_deltas([one, one], (), TABLE).num_rows == 2


def test_added_columns_are_null_in_older_rows() -> None:
    """A snapshot from before a column was added reads as null there."""
    old = pa.table({"a": ["x"], "b": [1]})
    assert apply_deltas(old, [], KEYS, TABLE).to_pylist() == [{"a": "x", "b": 1, "v": None}]


def test_a_key_twice_without_sequence_is_an_error_that_names_it() -> None:
    """Never an arbitrary winner."""
    rows = pa.table({"a": ["x", "y", "x"], "b": [1, 1, 1], "v": [1, 2, 3]})
    with pytest.raises(RefusedError, match="a='x', b=1") as caught:
        one_row_per_key(rows, KEYS, None)
    assert "sequenceColumn" in str(caught.value)


@settings(deadline=None)
@given(st.lists(st.tuples(key, st.one_of(st.none(), st.integers(0, 3))), max_size=12))
def test_the_greatest_sequence_wins_and_null_is_least(rows: list[Any]) -> None:
    """One row per key; the value is told by the sequence, so that equal ones are equal rows."""
    columns = {
        "a": pa.array([k[0] for k, _ in rows], pa.string()),
        "b": pa.array([k[1] for k, _ in rows], pa.int64()),
        "v": pa.array([s for _, s in rows], pa.int64()),
    }
    model: dict[Any, Any] = {}
    for k, s in rows:
        if k not in model or (s is not None and (model[k] is None or s > model[k])):
            model[k] = s
    found = one_row_per_key(pa.table(columns), KEYS, "v")
    assert {(r["a"], r["b"]): r["v"] for r in found.to_pylist()} == model
    assert found.num_rows == len(model)


def test_a_tie_between_different_rows_is_an_error() -> None:
    """The same key and sequence with other content has no right answer."""
    rows = pa.table({"a": ["x", "x"], "b": [1, 1], "v": [1, 2], "s": [7, 7]})
    with pytest.raises(RefusedError, match="the same s 7, and differ"):
        one_row_per_key(rows, KEYS, "s")


INSTANT = pa.timestamp("us", "UTC")
BEYOND_PYTHON = pa.array([253_402_300_800_000_000] * 2, pa.int64()).cast(INSTANT)
"""The first microsecond of the year 10000, twice."""


@pytest.mark.parametrize(
    "values",
    [
        BEYOND_PYTHON,
        pa.ListArray.from_arrays([0, 1, 2], BEYOND_PYTHON),
        pa.StructArray.from_arrays([BEYOND_PYTHON, pa.array([0.0, -0.0])], ["t", "f"]),
        pa.array([math.nan] * 2),
        pa.array([[("x", 1)]] * 2, pa.map_(pa.string(), pa.int64())),
        pa.array([{}] * 2, pa.struct([])),
        pa.nulls(2),
    ],
    ids=lambda values: str(values.type),
)
def test_a_row_that_came_twice_is_one_row_whatever_is_in_it(values: pa.Array) -> None:
    """Times that Python has no date for, values that are not equal to themselves, maps, nothing at all."""
    twice = pa.table({"k": [1, 1], "s": [7, 7], "x": values})
    assert one_row_per_key(twice, ["k"], "s").num_rows == 1
    differs = twice.append_column("y", pa.array([1, 2]))
    with pytest.raises(RefusedError, match="the same s 7, and differ"):
        one_row_per_key(differs, ["k"], "s")


def test_a_key_that_python_has_no_date_for_is_named_all_the_same() -> None:
    """The end of all times is a favourite of people who fill in dates."""
    with pytest.raises(RefusedError, match=r"2 rows of one batch have the key t=.*10000-01-01"):
        one_row_per_key(pa.table({"t": BEYOND_PYTHON}), ["t"], None)
    nested = pa.StructArray.from_arrays([BEYOND_PYTHON], ["t"])
    with pytest.raises(RefusedError, match="2 rows of one batch have the key t="):
        one_row_per_key(pa.table({"t": nested}), ["t"], None)


@pytest.mark.parametrize(
    ("values", "distinct"),
    [
        ([0.0, -0.0, math.nan, float("-nan"), None, None], 3),
        ([[1.5, None], [1.5], [None], [], None, [1.5, None]], 5),
        ([{"x": "a", "y": [0.0]}, {"x": "a", "y": [-0.0]}, {"x": "a", "y": None}, None], 3),
        ([b"\x02", b"\x03\x02", b""], 3),
        ([{"x": "a\x03\x02b", "y": [1.0]}, {"x": "a", "y": [1.0]}, {"x": "\x01", "y": []}], 3),
    ],
)
def test_keys_are_equal_as_in_sparks_grouping(values: list[Any], distinct: int) -> None:
    """Zero is zero, NaN is NaN, null is null, also inside lists and structs."""
    _, count = key_codes(pa.table({"k": pa.array(values)}), ["k"])
    assert count == distinct


def test_operations_mark_deletes_in_any_case_of_letters() -> None:
    """The words of the usual change streams, and booleans; the column itself is gone."""
    marked = mark_deletes(pa.table({"k": [1, 2, 3], "op": ["D", "u", "Insert"]}), "op")
    assert marked.column(DELETED_COLUMN).to_pylist() == [True, False, False]
    assert marked.column_names == ["k", DELETED_COLUMN]
    flags = mark_deletes(pa.table({"k": [1, 2], "gone": [True, False]}), "gone")
    assert flags.column(DELETED_COLUMN).to_pylist() == [True, False]


@pytest.mark.parametrize("column", [["d", "what"], ["d", None], [True, None], ["u", "replace"]])
def test_an_operation_that_nobody_knows_is_an_error(column: list[Any]) -> None:
    """Taking it for an upsert would keep what was to be deleted; our own ``replace`` deletes all rows."""
    with pytest.raises(RefusedError, match="operation column op"):
        mark_deletes(pa.table({"op": column}), "op")


def large_deltas() -> list[pa.Table]:
    """Forty deltas of the same eight keys, together more than two gigabytes of text, which they share."""
    texts = pa.array(["x" * (8 * 1024 * 1024)] * 8)
    return [pa.table({"k": pa.array(range(8)), "v": texts, "n": pa.array([n] * 8)}) for n in range(40)]


def test_a_partition_may_have_more_text_than_one_array_can_hold() -> None:
    """Arrow counts the bytes of a text column in 31 bits; rows are never joined into one array."""
    deltas = large_deltas()
    merged = merge_deltas(deltas, ["k"], deltas[0].schema)
    assert merged.column("n").to_pylist() == [39] * 8
    rows = one_row_per_key(pa.concat_tables(deltas), ["k"], "n")
    assert rows.column("n").to_pylist() == [39] * 8
