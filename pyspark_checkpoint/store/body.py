"""What ``put`` is given, as chunks: bytes of any kind, or a seekable file from where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from pyspark_checkpoint.errors import Invalid
from pyspark_checkpoint.store.base import CHUNK_BYTES, Body


def body_position(data: Body) -> int | None:
    """Return where a file body stands, or None for bytes; refuse a file that cannot be rewound."""
    if isinstance(data, bytes | bytearray | memoryview):
        return None
    try:
        if data.seekable():
            return data.tell()
    except (AttributeError, OSError, ValueError):
        pass
    raise Invalid("put takes bytes or a seekable file that is open for reading in binary mode")


def rewind_body(data: Body, position: int | None) -> None:
    """Bring a file body back to where it stood, so that it can be sent again."""
    if position is not None and not isinstance(data, bytes | bytearray | memoryview):
        data.seek(position)


def body_chunks(data: Body, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Yield a body in order. Memory is bounded by one chunk; bytes are not copied at all."""
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), chunk_bytes):
            yield view[start : start + chunk_bytes]
        return
    body_position(data)
    while chunk := _read(data, chunk_bytes):
        yield chunk


def body_bytes(data: Body) -> bytes:
    """Return a whole body as bytes of our own that no caller can change later."""
    return b"".join(body_chunks(data))


def _read(file: IO[bytes], chunk_bytes: int) -> memoryview:
    try:
        chunk = file.read(chunk_bytes)
    except OSError as error:
        raise Invalid(f"the file to put cannot be read: {error.strerror or 'read error'}") from error
    if not isinstance(chunk, bytes | bytearray | memoryview):
        raise Invalid("put takes a file that is open in binary mode, not in text mode")
    return memoryview(chunk).cast("B")
