"""HTTP/1.1 messages on a socket, just enough to relay them byte for byte."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

RECV_BYTES = 256 * 1024
MAX_HEAD_BYTES = 256 * 1024


class Closed(Exception):
    """The other side ended the connection inside a message."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the header lines of a message, as they came."""

    raw: bytes
    first_line: str
    headers: dict[str, str]

    @property
    def content_length(self) -> int | None:
        """The announced length, if there is one."""
        value = self.headers.get("content-length")
        return None if value is None else int(value)

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.first_line.split(" ", 1)[0]

    @property
    def target(self) -> str:
        """The target of a request: path and query as they were sent."""
        return self.first_line.split(" ", 2)[1]

    @property
    def status(self) -> int:
        """The status of a response."""
        return int(self.first_line.split(" ", 2)[1])

    @property
    def expects_continue(self) -> bool:
        """Whether a client waits for leave to send its body."""
        return self.headers.get("expect", "").lower() == "100-continue"

    @property
    def closes(self) -> bool:
        """Whether the sender ends the connection after this message."""
        return "close" in self.headers.get("connection", "").lower()


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a body as they were on the wire; framing of chunks is not payload."""

    data: bytes
    is_payload: bool


class Wire:
    """A socket with a buffer for what was read too far."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read_head(self) -> Head | None:
        """Return the next message's head, or None when the connection ended between messages."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Closed("a head without an end")
            more = self.socket.recv(RECV_BYTES)
            if not more:
                if self._buffer:
                    raise Closed("inside a head")
                return None
            self._buffer += more
        raw, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :]
        return parse_head(raw)

    def request_body(self, head: Head) -> Iterator[Piece]:
        """Yield the body of a request."""
        if head.is_chunked:
            yield from self._chunked()
        else:
            yield from self._exactly(head.content_length or 0)

    def response_body(self, head: Head, method: str) -> Iterator[Piece]:
        """Yield the body of the response to ``method``."""
        if method == "HEAD" or head.status in (204, 304) or head.status < 200:
            return
        if head.is_chunked:
            yield from self._chunked()
        elif head.content_length is not None:
            yield from self._exactly(head.content_length)
        else:
            yield from self._until_end()

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self.socket.sendall(data)

    def close(self) -> None:
        """End the connection in order."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def reset(self) -> None:
        """End the connection by RST."""
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()

    def _more(self) -> bytes:
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        data = self.socket.recv(RECV_BYTES)
        if not data:
            raise Closed("inside a body")
        return data

    def _exactly(self, size_bytes: int) -> Iterator[Piece]:
        left = size_bytes
        while left:
            data = self._more()
            if len(data) > left:
                self._buffer = data[left:]
                data = data[:left]
            left -= len(data)
            yield Piece(data, True)

    def _until_end(self) -> Iterator[Piece]:
        while True:
            try:
                yield Piece(self._more(), True)
            except Closed:
                return

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            more = self.socket.recv(RECV_BYTES)
            if not more:
                raise Closed("inside a chunk's head")
            self._buffer += more
        line, self._buffer = self._buffer[: end + 2], self._buffer[end + 2 :]
        return line

    def _chunked(self) -> Iterator[Piece]:
        while True:
            line = self._line()
            size = int(line.split(b";", 1)[0], 16)
            yield Piece(line, False)
            if size == 0:
                break
            yield from self._exactly(size)
            yield Piece(self._line(), False)
        while True:  # trailers, then an empty line
            line = self._line()
            yield Piece(line, False)
            if line == b"\r\n":
                return


def parse_head(raw: bytes) -> Head:
    """Split a head; names of headers become lower case."""
    lines = raw.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, found, value = line.partition(":")
        if found:
            headers[name.lower()] = value.strip()
    return Head(raw, lines[0], headers)
