"""What ``put`` is given: bytes of any kind, or a seekable file; read in chunks, or from any offset."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

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


def body_chunks(data: Body, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes | memoryview]:
    """Yield a body in order. Memory is bounded by one chunk; bytes are not copied at all."""
    body = UploadBody(data)
    return body.pieces(0, body.size_bytes, chunk_bytes)


def body_bytes(data: Body) -> bytes:
    """Return a whole body as bytes of our own that no caller can change later."""
    body = UploadBody(data)
    return bytes(body.read(0, body.size_bytes))


PIECE_BYTES = 1024 * 1024
"""How much of a file is in memory at once when it is sent in one request."""


class UploadBody:
    """A body with a known size that can be read again from any offset, by many threads.

    A file is measured once, from its current position to its end; when it turns out shorter, or
    cannot be read, the put ends with ``Invalid`` and nothing is stored.
    """

    size_bytes: int

    def __init__(self, data: Body) -> None:
        self._lock = threading.Lock()
        if isinstance(data, bytes | bytearray | memoryview):
            self._view: memoryview | None = memoryview(data).cast("B")
            self.size_bytes = self._view.nbytes
            return
        self._view = None
        self._file = data
        self._origin = body_position(data) or 0
        try:
            self.size_bytes = max(0, data.seek(0, io.SEEK_END) - self._origin)
            data.seek(self._origin)
        except OSError as error:
            raise _unreadable(error) from error

    @property
    def whole(self) -> bytes | None:
        """The body itself where it is a ``bytes`` object, so that nothing need be copied."""
        held = None if self._view is None else self._view.obj
        return held if isinstance(held, bytes) and len(held) == self.size_bytes else None

    def read(self, start: int, end: int) -> bytes:
        """Return exactly the bytes ``[start, end)``. The whole of a ``bytes`` object is not copied."""
        if self._view is not None:
            whole = self.whole
            if whole is not None and start == 0 and end == self.size_bytes:
                return whole
            return bytes(self._view[start:end])
        with self._lock:
            return self._read_file(start, end)

    def pieces(self, start: int, end: int, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes | memoryview]:
        """Yield the bytes ``[start, end)`` in order, a piece at a time; from memory without a copy."""
        for offset in range(start, end, piece_bytes):
            stop = min(offset + piece_bytes, end)
            yield self.read(offset, stop) if self._view is None else self._view[offset:stop]

    def _read_file(self, start: int, end: int) -> bytes:
        missing = end - start
        found: list[bytes] = []
        try:
            self._file.seek(self._origin + start)
            while missing:
                piece = self._file.read(missing)
                if not isinstance(piece, bytes):
                    raise Invalid("put takes a file that is open in binary mode, not in text mode")
                if not piece:
                    raise Invalid("the file became shorter while it was uploaded; nothing was stored")
                found.append(piece)
                missing -= len(piece)
        except OSError as error:
            raise _unreadable(error) from error
        return found[0] if len(found) == 1 else b"".join(found)


def _unreadable(error: OSError) -> Invalid:
    """Not an OSError further up: a transport would take it for a broken connection."""
    return Invalid(f"the file to upload cannot be read: {error.strerror or 'read error'}")
