"""Spark's ``hash``: Murmur3 (x86, 32 bits) with Spark's own treatment of bytes, over whole columns.

Spark moves each row of a keyed table to its partition by this hash; Python needs it only to find the
partition of given keys and to re-split a table. Every function takes the running hash of each row
(``seeds``, unsigned 32 bits) and returns the new ones. A null leaves the hash as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pyspark_checkpoint.errors import RefusedError

Hashes = npt.NDArray[np.uint32]
SPARK_SEED = 42
MAX_LONG_PRECISION = 18

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_M5, _ADD = np.uint32(5), np.uint32(0xE6546B64)


def spark_hash(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """Return what Spark's SQL function ``hash(columns...)`` returns, as unsigned 32 bits."""
    if not columns:
        raise ValueError("hash needs at least one column")
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
    seeds = np.full(len(arrays[0]), SPARK_SEED, dtype=np.uint32)
    for array in arrays:
        seeds = hash_array(array, seeds)
    return seeds


def hash_array(array: pa.Array, seeds: Hashes) -> Hashes:
    """Mix one column into the running hashes."""
    if array.null_count == len(array):
        return seeds
    hashed = _hash_values(array, seeds)
    if array.null_count == 0:
        return hashed
    return np.where(_valid(array), hashed, seeds)


def _hash_values(array: pa.Array, seeds: Hashes) -> Hashes:
    """Mix the values in, whatever stands at nulls."""
    kind = array.type
    if pt.is_boolean(kind) or pt.is_int8(kind) or pt.is_int16(kind) or pt.is_int32(kind):
        return _mix_ints(_numbers(pc.cast(array, pa.int32()), np.int32), seeds)
    if pt.is_date32(kind):
        return _mix_ints(_numbers(array.view(pa.int32()), np.int32), seeds)
    if pt.is_int64(kind) or pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time64(kind):
        return _mix_longs(_numbers(array.view(pa.int64()), np.int64), seeds)
    if pt.is_floating(kind):
        return _hash_floats(array, seeds)
    if pt.is_decimal128(kind):
        return _hash_decimals(array, seeds)
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        starts, lengths, data = _bytes_of(array)
        return _mix_bytes(starts, lengths, data, seeds)
    if pt.is_struct(kind):
        for child in array.flatten():
            seeds = hash_array(child, seeds)
        return seeds
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _hash_lists(array, seeds)
    raise RefusedError(
        f"a column of type {kind} cannot be hashed, so it cannot be a key", hint="choose other key columns"
    )


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _numbers(array: pa.Array, dtype: type[Any]) -> npt.NDArray[Any]:
    filled = array.fill_null(0) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=dtype)


def _hash_floats(array: pa.Array, seeds: Hashes) -> Hashes:
    """Hash bit patterns; minus zero counts as zero and every NaN as Java's one."""
    double = pt.is_float64(array.type)
    values = _numbers(array, np.float64 if double else np.float32).copy()
    values[values == 0] = 0
    values[np.isnan(values)] = np.nan
    if double:
        return _mix_longs(values.view(np.int64), seeds)
    return _mix_ints(values.view(np.int32), seeds)


def _hash_decimals(array: pa.Array, seeds: Hashes) -> Hashes:
    """Hash the unscaled value: as a long if the type's precision fits one, else Java's bytes of it."""
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8)
    words = raw[array.offset * 16 : (array.offset + len(array)) * 16].reshape(len(array), 16)
    if array.type.precision <= MAX_LONG_PRECISION:
        return _mix_longs(np.ascontiguousarray(words[:, :8]).view(np.int64).reshape(-1), seeds)
    big_endian = np.ascontiguousarray(words[:, ::-1])
    sign = np.where(big_endian[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))
    redundant = (big_endian[:, :-1] == sign[:, None]) & (
        (big_endian[:, 1:] >= 0x80) == (sign == 0xFF)[:, None]
    )
    leading = np.cumprod(redundant, axis=1).sum(axis=1)
    starts = np.arange(len(array), dtype=np.int64) * 16 + leading
    return _mix_bytes(starts, 16 - leading, big_endian.reshape(-1), seeds)


def _hash_lists(array: pa.Array, seeds: Hashes) -> Hashes:
    """Mix the first elements of all lists, then the second ones, and so on."""
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if array.null_count:
        lengths = np.where(_valid(array), lengths, 0)
    seeds = seeds.copy()
    for position in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > position)
        elements = array.values.take(pa.array(starts[rows] + position))
        seeds[rows] = hash_array(elements, seeds[rows])
    return seeds


def _bytes_of(
    array: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, offset_buffer, data_buffer = array.buffers()
    width = np.int64 if large else np.int32
    stored = np.frombuffer(offset_buffer, dtype=width)[array.offset : array.offset + len(array) + 1]
    offsets: npt.NDArray[np.int64] = stored.astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return offsets[:-1], np.diff(offsets), data


def _mix_bytes(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
    seeds: Hashes,
) -> Hashes:
    """Mix whole little-endian words first, then each byte that is left as a signed word of its own."""
    if (
        len(lengths)
        and lengths[0] == (starts[-1] + lengths[-1] - starts[0]) / len(lengths) == lengths.max()
    ):
        return _mix_equal_lengths(int(starts[0]), int(lengths[0]), data, seeds)
    hashes = seeds.copy()
    words = lengths // 4
    for position in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > position)
        at = starts[rows] + 4 * position
        word = data[at].astype(np.uint32)
        for byte in (1, 2, 3):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[rows] = _mix(hashes[rows], word)
    for tail in range(3):
        rows = np.flatnonzero(lengths - 4 * words > tail)
        byte_value = data[starts[rows] + 4 * words[rows] + tail].view(np.int8).astype(np.int32)
        hashes[rows] = _mix(hashes[rows], byte_value.view(np.uint32))
    return _finish(hashes, lengths.astype(np.uint32))


def _mix_equal_lengths(start: int, length: int, data: npt.NDArray[np.uint8], seeds: Hashes) -> Hashes:
    """The same for texts of one length that lie back to back: a table of bytes, column by column."""
    table = data[start : start + length * len(seeds)].reshape(len(seeds), length)
    whole = length // 4
    words = np.ascontiguousarray(table[:, : 4 * whole]).view(np.dtype("<u4"))
    hashes = seeds
    for position in range(whole):
        hashes = _mix(hashes, words[:, position].astype(np.uint32))
    for position in range(4 * whole, length):
        hashes = _mix(hashes, table[:, position].view(np.int8).astype(np.int32).view(np.uint32))
    return _finish(hashes, np.uint32(length))


def _mix_ints(values: npt.NDArray[np.int32], seeds: Hashes) -> Hashes:
    return _finish(_mix(seeds, values.view(np.uint32)), np.uint32(4))


def _mix_longs(values: npt.NDArray[np.int64], seeds: Hashes) -> Hashes:
    bits = values.view(np.uint64)
    low = (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (bits >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), np.uint32(8))


def _rotate(values: Hashes, bits: int) -> Hashes:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _mix(hashes: Hashes, word: Hashes) -> Hashes:
    mixed = hashes ^ (_rotate(word * _C1, 15) * _C2)
    return _rotate(mixed, 13) * _M5 + _ADD


def _finish(hashes: Hashes, length: Hashes | np.uint32) -> Hashes:
    hashes = hashes ^ length
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
