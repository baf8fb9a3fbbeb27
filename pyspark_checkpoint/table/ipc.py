"""How much memory a message of Arrow's format needs, read from its header before anything is decoded. Pure.

The header of a message is a flatbuffer, a format of tables whose fields are found by offsets. Of a record
batch two fields matter here: the places of its buffers in the body, and whether they are compressed. A
compressed buffer begins with its size once it is decompressed, and Arrow's reader allocates just that. See
``Message.fbs`` in Arrow's format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from pyspark_checkpoint.errors import FormatError

_MESSAGE_HEADER = 2
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_LENGTH_BYTES = 8
_STORED = -1
"""In the place of a length: the buffer is not compressed after all."""


def batch_bytes(metadata: pa.Buffer, body: pa.Buffer) -> int:
    """Bytes of all buffers of a record batch once they are decompressed, and one byte a row."""
    try:
        header = memoryview(metadata)
        root = _uint32(header, 0)
        field = _field(header, root, _MESSAGE_HEADER)
        batch = field + _uint32(header, field)
        length = _field(header, batch, _BATCH_LENGTH)
        rows = _int64(header, length) if length else 0
        is_compressed = _field(header, batch, _BATCH_COMPRESSION) != 0
        content = memoryview(body)
        sizes = [
            _decompressed(content, start, size) if is_compressed else size
            for start, size in _buffers(header, batch)
        ]
    except struct.error:
        sizes, rows = [-1], 0
    if rows < 0 or any(size < 0 for size in sizes):
        raise FormatError("a record batch says nothing sensible of its buffers")
    return sum(sizes) + rows


def _buffers(header: memoryview, batch: int) -> Iterator[tuple[int, int]]:
    field = _field(header, batch, _BATCH_BUFFERS)
    if not field:
        return
    vector = field + _uint32(header, field)
    for at in range(_uint32(header, vector)):
        yield struct.unpack_from("<qq", header, vector + 4 + 16 * at)


def _decompressed(body: memoryview, start: int, size: int) -> int:
    if size == 0:
        return 0
    if start < 0 or size < _LENGTH_BYTES:
        return -1
    length = _int64(body, start)
    return size - _LENGTH_BYTES if length == _STORED else length


def _field(header: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it has none."""
    (back,) = struct.unpack_from("<i", header, table)
    fields = table - back
    (size,) = _checked("<H", header, fields)
    at = 4 + 2 * number
    if at + 2 > size:
        return 0
    (offset,) = _checked("<H", header, fields + at)
    return table + offset if offset else 0


def _uint32(data: memoryview, at: int) -> int:
    return int(_checked("<I", data, at)[0])


def _int64(data: memoryview, at: int) -> int:
    return int(_checked("<q", data, at)[0])


def _checked(form: str, data: memoryview, at: int) -> tuple[int, ...]:
    """Unpack; a place before the beginning is as bad as one beyond the end."""
    if at < 0:
        raise struct.error("a place before the beginning")
    return struct.unpack_from(form, data, at)
