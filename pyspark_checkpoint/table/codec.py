"""The bytes of deltas (Arrow IPC) and snapshots (Parquet), both compressed.

What has no form in Parquet, such as a struct without fields, makes a snapshot that is Arrow as well.

Every artifact of a table says by its first bytes which of the two it is, so that a chain may hold both.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpoint.errors import FormatError, SettingsError

CODECS = ("zstd", "lz4", "none")
_MAX_LEVEL = 22
_ARROW_MAGIC = b"ARROW1"
_PARQUET_MAGIC = b"PAR1"
ROWS_PER_BATCH = 131_072


@dataclass(frozen=True, slots=True)
class Compression:
    """How artifacts of a table are compressed. A level is for zstd alone; None is the codec's own."""

    codec: str = "zstd"
    level: int | None = 1

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise SettingsError(f"codec is one of {', '.join(CODECS)}, not {self.codec!r}")
        if self.level is not None and not 1 <= self.level <= _MAX_LEVEL:
            raise SettingsError(f"codecLevel is 1 to {_MAX_LEVEL}, not {self.level}")

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


def decode_rows(data: bytes, name: str) -> pa.Table:
    """Return the rows of a delta or of a snapshot; ``name`` is for the error."""
    try:
        if data[: len(_ARROW_MAGIC)] == _ARROW_MAGIC:
            return pa.ipc.open_file(pa.BufferReader(data)).read_all()
        if data[: len(_PARQUET_MAGIC)] == _PARQUET_MAGIC:
            return pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{name} is damaged: {type(error).__name__}") from None
    raise FormatError(f"{name} is neither a delta (Arrow) nor a snapshot (Parquet)")


def concat_rows(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return all rows one after the other; without parts an empty table."""
    tables = list(parts)
    return pa.concat_tables(tables) if tables else schema.empty_table()
