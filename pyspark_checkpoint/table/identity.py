"""When two values are equal: as Spark's grouping has it, for every type that can be a key.

Null equals null, minus zero equals zero and NaN equals NaN. Plain types are compared by Arrow itself;
floats are normalised first; structs and lists become byte strings that are equal exactly when the
values are. All of it works on whole columns. What cannot be a key, a map or a struct without fields, is
equal when its entries are, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Codes = npt.NDArray[np.int64]
_NULL = b"\x00"
_ESCAPE = b"\x01"
_SEPARATOR = b"\x02"
_END = b"\x03"
_CODES = ((_ESCAPE, b"\x01e"), (_NULL, b"\x01n"), (_SEPARATOR, b"\x01s"), (_END, b"\x01x"))


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of a type that Arrow can group by, equal where Spark would group together."""
    if pt.is_floating(column.type):
        return pa.chunked_array([_normal_floats(chunk) for chunk in column.chunks], column.type)
    if pt.is_nested(column.type):
        return pa.chunked_array([_encoded(chunk) for chunk in column.chunks], pa.large_binary())
    return column


def key_codes(rows: pa.Table, keys: Sequence[str]) -> tuple[Codes, int]:
    """Return a number for each row, equal exactly for equal keys, and how many different keys there are.

    The numbers are 0 up to the count.
    """
    codes, count = column_codes(rows.column(keys[0]))
    for name in keys[1:]:
        more, width = column_codes(rows.column(name))
        _, codes = np.unique(codes * width + more, return_inverse=True)
        count = int(codes.max(initial=-1)) + 1
    return codes, count


def column_codes(column: pa.ChunkedArray) -> tuple[Codes, int]:
    """The same for one column."""
    encoded = pc.dictionary_encode(comparable(column).combine_chunks(), null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks else pa.array([], encoded.type)
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, len(encoded.dictionary)


def last_rows(codes: Codes, count: int) -> Codes:
    """Return the position of the last row of each key, in rising order."""
    last = np.empty(count, dtype=np.int64)
    last[codes] = np.arange(len(codes))
    last.sort()
    return last


def _normal_floats(array: pa.Array) -> pa.Array:
    zero, nan = pa.scalar(0, array.type), pa.scalar(float("nan"), array.type)
    return pc.if_else(pc.equal(array, zero), zero, pc.if_else(pc.is_nan(array), nan, array))


def _encoded(array: pa.Array) -> pa.Array:
    """One byte string per value, null for null; never holds a bare separator."""
    kind = array.type
    if pt.is_struct(kind):
        parts = [_framed(child) for child in array.flatten()]
        nothing = pa.scalar(b"", pa.large_binary())
        joined = pc.binary_join_element_wise(*parts, nothing) if parts else nothing
        return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.large_binary()))
    if pt.is_map(kind):
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        kind = array.type
    if pt.is_list(kind) or pt.is_large_list(kind):
        framed = _framed(array.flatten())
        offsets = _tight_offsets(array)
        lists = pa.LargeListArray.from_arrays(offsets, framed)
        joined = pc.binary_join(lists, pa.scalar(b"", pa.large_binary()))
        return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.large_binary()))
    return _scalar_bytes(array)


def _framed(array: pa.Array) -> pa.Array:
    """Escaped bytes between a start and an end, so that joined parts can be told apart; null is its own."""
    encoded = _encoded(array)
    for plain, code in _CODES:
        encoded = pc.replace_substring(encoded, pattern=plain, replacement=code)
    framed = pc.binary_join_element_wise(
        pa.scalar(_SEPARATOR, pa.large_binary()),
        encoded,
        pa.scalar(_END, pa.large_binary()),
        pa.scalar(b"", pa.large_binary()),
    )
    return framed.fill_null(_NULL)


def _tight_offsets(array: pa.Array) -> pa.Array:
    """Offsets into ``array.flatten()``, which leaves out what stands behind nulls."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths.astype(np.int64))]), pa.int64())


def _scalar_bytes(array: pa.Array) -> pa.Array:
    kind = array.type
    if pt.is_floating(kind):
        bits = pa.int64() if pt.is_float64(kind) else pa.int32()
        array = _normal_floats(array).view(bits)
    elif pt.is_date32(kind):
        array = array.view(pa.int32())
    elif pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time64(kind):
        array = array.view(pa.int64())
    elif pt.is_null(kind):
        return pa.nulls(len(array), pa.large_binary())
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return array.cast(pa.large_binary())
    return array.cast(pa.large_string()).cast(pa.large_binary())
