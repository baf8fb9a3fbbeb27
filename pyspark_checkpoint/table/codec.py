"""The bytes of deltas (Arrow IPC) and snapshots (Parquet), both compressed.

What has no form in Parquet, such as a struct without fields, makes a snapshot that is Arrow as well.

Every artifact of a table says by its first bytes which of the two it is, so that a chain may hold both.

A few stored bytes may stand for any number of rows. So the manifest records beside each artifact how much
its rows take in memory (``recorded_size``), and no reader decodes more than that.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpoint.errors import FormatError, SettingsError
from pyspark_checkpoint.table.ipc import batch_bytes

CODECS = ("zstd", "lz4", "none")
_MAX_LEVEL = 22
_ARROW_MAGIC = b"ARROW1"
_ARROW_STREAM = 8
"""Where the messages of an Arrow file begin: after its magic, and zeros up to a multiple of eight."""
_PARQUET_MAGIC = b"PAR1"
ROWS_PER_BATCH = 131_072
_ROWS_AT_ONCE = 16_384
"""How many rows of a snapshot are decoded before it is asked whether there are too many."""
_SPARE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Compression:
    """How artifacts of a table are compressed. A level is for zstd alone; None is the codec's own."""

    codec: str = "zstd"
    level: int | None = 1

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise SettingsError(
                f"codec is one of {', '.join(CODECS)}, not {self.codec!r}",
                hint="leave the option codec out for the default",
            )
        if self.level is not None and not 1 <= self.level <= _MAX_LEVEL:
            raise SettingsError(
                f"codecLevel is 1 to {_MAX_LEVEL}, not {self.level}",
                hint="leave the option codecLevel out for the default",
            )

    def ipc_options(self) -> pa.ipc.IpcWriteOptions:
        """What the Arrow writer needs."""
        if self.codec == "none":
            return pa.ipc.IpcWriteOptions(compression=None)
        level = self.level if self.codec == "zstd" else None
        return pa.ipc.IpcWriteOptions(compression=pa.Codec(self.codec, compression_level=level))


class DeltaWriter:
    """Writes a delta into a file as its rows arrive, in batches of a size that reads well."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, compression: Compression) -> None:
        self._writer = pa.ipc.new_file(sink, schema, options=compression.ipc_options())
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Append rows; their schema is the one given."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.rows += rows.num_rows
        if self._waiting_rows >= ROWS_PER_BATCH:
            self._flush()

    def close(self) -> None:
        """Finish the delta; the file stays open."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting_rows:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks(), ROWS_PER_BATCH)
        self._waiting, self._waiting_rows = [], 0


def encode_delta(rows: pa.Table, compression: Compression) -> bytes:
    """Return the bytes of a delta."""
    sink = io.BytesIO()
    writer = DeltaWriter(sink, rows.schema, compression)
    writer.write(rows)
    writer.close()
    return sink.getvalue()


def encode_snapshot(rows: pa.Table, compression: Compression) -> bytes:
    """Return the bytes of a snapshot: a Parquet file that any tool reads."""
    sink = pa.BufferOutputStream()
    level = compression.level if compression.codec == "zstd" else None
    try:
        pq.write_table(
            pa.table([_for_parquet(column) for column in rows.columns], schema=rows.schema),
            sink,
            compression=compression.codec,
            compression_level=level,
            row_group_size=ROWS_PER_BATCH * 8,
            store_schema=True,
        )
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return encode_delta(rows, compression)
    return bytes(sink.getvalue().to_pybytes())


def _for_parquet(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same column with no nulls in the parts of null variants and places, where Spark sends some."""
    kind = column.type
    if not pa.types.is_struct(kind) or not any(
        pa.types.is_binary(part.type) and not part.nullable for part in kind
    ):
        return column
    chunks = [
        pa.StructArray.from_arrays(
            [
                part.fill_null(b"" if pa.types.is_binary(part.type) else 0) if not field.nullable else part
                for part, field in zip(chunk.flatten(), kind, strict=True)
            ],
            fields=list(kind),
            mask=chunk.is_null(),
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, kind)


def decoded_size(rows: pa.Table) -> int:
    """The memory that rows take, and one byte a row.

    By the latter also rows of columns that take no memory are bounded.
    """
    return int(rows.nbytes) + int(rows.num_rows)


def recorded_size(data: bytes, rows: pa.Table) -> int:
    """What a manifest records of an artifact that was encoded from ``rows``; readers count the same way."""
    return arrow_size(data) if data[: len(_ARROW_MAGIC)] == _ARROW_MAGIC else decoded_size(rows)


def arrow_size(data: bytes) -> int:
    """What the rows of a delta take once they are decoded, read from its messages.

    The rows that it was made of may have taken far less: one null gives a whole batch its bitmaps.
    """
    return sum(_batch_sizes(pa.py_buffer(data).slice(_ARROW_STREAM), "a delta"))


def decode_rows(data: bytes, name: str, decoded_bytes: int) -> pa.Table:
    """Return the rows of a delta or of a snapshot; ``name`` is for the error.

    ``decoded_bytes`` is what the manifest says that they take. Rows that take far more are damage, and are
    not decoded to the end. (A reader may need up to twice as much as the writer: it has bitmaps of nulls
    where there are none.)
    """
    limit = 2 * decoded_bytes + _SPARE_BYTES
    try:
        if data[: len(_ARROW_MAGIC)] == _ARROW_MAGIC:
            return _decode_arrow(pa.py_buffer(data), name, limit)
        if data[: len(_PARQUET_MAGIC)] == _PARQUET_MAGIC:
            return _decode_parquet(pa.py_buffer(data), name, limit)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{name} is damaged: {type(error).__name__}") from None
    raise FormatError(f"{name} is neither a delta (Arrow) nor a snapshot (Parquet)")


def _decode_arrow(data: pa.Buffer, name: str, limit: int) -> pa.Table:
    """Decode the messages one after the other, each after a look at what it says of its buffers.

    The footer is not read: it could lead to other bytes than those that were looked at.
    """
    stream = data.slice(_ARROW_STREAM)
    total = 0
    for size_bytes in _batch_sizes(stream, name):
        total += size_bytes
        if total > limit:
            raise _too_large(name, limit)
    return pa.ipc.open_stream(pa.BufferReader(stream)).read_all()


def _batch_sizes(stream: pa.Buffer, name: str) -> Iterator[int]:
    """What each record batch of a stream of messages takes once it is decoded."""
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type == "schema":
            continue
        if message.type != "record batch":
            raise FormatError(f"{name} has a message of kind {message.type}, which no delta has")
        yield batch_bytes(message.metadata, message.body)


def _decode_parquet(data: pa.Buffer, name: str, limit: int) -> pa.Table:
    """Decode some rows at a time, and stop where they are too many."""
    file = pq.ParquetFile(pa.BufferReader(data))
    if file.metadata.num_rows > limit:
        raise _too_large(name, limit)
    batches: list[pa.RecordBatch] = []
    total = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
        total += batch.nbytes + batch.num_rows
        if total > limit:
            raise _too_large(name, limit)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=file.schema_arrow)


def _too_large(name: str, limit: int) -> FormatError:
    return FormatError(
        f"{name} has rows of more than {limit} bytes, which is more than its manifest says",
        hint="something else has written it; run ckpt verify",
    )


def concat_rows(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return all rows one after the other; without parts an empty table."""
    tables = list(parts)
    return pa.concat_tables(tables) if tables else schema.empty_table()
