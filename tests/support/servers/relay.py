"""One client connection of the fault proxy, and its one connection to the server behind."""

from __future__ import annotations

import contextlib
import select
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator

from tests.support.servers.faults import Fault, Host, Request, Rule
from tests.support.servers.wire import Closed, Head, Piece, Wire

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_DRIBBLES = 20
_CUTTING = (Fault.LOSE_RESPONSE, Fault.CUT_HEAD, Fault.TRUNCATE, Fault.STALL)
_REFUSALS = {
    Fault.ERROR_403: (403, "Forbidden"),
    Fault.ERROR_409: (409, "Conflict"),
    Fault.ERROR_500: (500, "Internal Server Error"),
    Fault.ERROR_503: (503, "Service Unavailable"),
}


class Relay:
    """Relays requests one after the other until a side ends the connection or a fault does."""

    def __init__(self, proxy: Host, client: Wire) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream: Wire | None = None
        self._target = ""
        self._request_bytes = 0
        self._response_bytes = 0

    def run(self) -> None:
        """Serve the connection to its end."""
        try:
            while (head := self._client.read_head()) is not None:
                with self._proxy.busy():
                    goes_on = self._serve(head)
                if not goes_on:
                    break
        finally:
            self._client.close()
            self._drop_upstream()

    def _serve(self, head: Head) -> bool:
        """Handle one request; False ends the connection."""
        self._target = urllib.parse.unquote(head.target)
        self._request_bytes = self._response_bytes = 0
        rule = self._proxy.choose(head.method, self._target)
        fault = None if rule is None else rule.fault
        if self._proxy.delay_seconds:
            time.sleep(self._proxy.delay_seconds)
        if rule is None:
            return self._forward(head, None)
        if fault is Fault.RESET:
            self._client.reset()
            self._log(head, 0, rule)
            return False
        if fault in _REFUSALS:
            return self._refuse(head, rule)
        if fault is Fault.LATE_EFFECT:
            self._forward_late(head, rule)
            return False
        return self._forward(head, rule)

    def _refuse(self, head: Head, rule: Rule) -> bool:
        if head.expects_continue:
            self._client.send(_CONTINUE)
        for piece in self._client.request_body(head):
            self._request_bytes += len(piece.data)
        status, reason = _REFUSALS[rule.fault]
        wait = f"Retry-After: {rule.retry_after_seconds}\r\n" if status == 503 else ""
        self._client.send(f"HTTP/1.1 {status} {reason}\r\n{wait}Content-Length: 0\r\n\r\n".encode())
        self._log(head, status, rule)
        return True

    def _forward(self, head: Head, rule: Rule | None) -> bool:
        upstream = self._connect()
        response = self._send_request(upstream, head, rule)
        body_was_sent = response is None
        while response is None or response.status == 100:
            response = upstream.read_head()
            if response is None:
                raise Closed("no answer")
        if rule is None:
            self._answer(upstream, head, response)
            self._log(head, response.status, None)
            alive = True
        else:
            alive = self._answer_badly(upstream, head, response, rule)
        if response.closes or not body_was_sent:
            self._drop_upstream()
            return False
        return alive and not head.closes

    def _send_request(self, upstream: Wire, head: Head, rule: Rule | None) -> Head | None:
        """Send head and body; return an answer that came instead of leave to send the body."""
        pieces = self._flipped(self._client.request_body(head), head, rule, Fault.FLIP_REQUEST)
        first = head.raw
        if head.expects_continue:
            upstream.send(head.raw)
            first = b""
            interim = upstream.read_head()
            if interim is None:
                raise Closed("no answer")
            if interim.status != 100:
                return interim
            self._client.send(interim.raw)
        for piece in pieces:
            self._request_bytes += len(piece.data)
            upstream.send(first + piece.data if first else piece.data)
            first = b""
        if first:
            upstream.send(first)
        return None

    def _answer(self, upstream: Wire, head: Head, response: Head) -> None:
        pending = response.raw
        for piece in upstream.response_body(response, head.method):
            self._response_bytes += len(piece.data)
            self._client.send(pending + piece.data if pending else piece.data)
            pending = b""
        if pending:
            self._client.send(pending)

    def _answer_badly(self, upstream: Wire, head: Head, response: Head, rule: Rule) -> bool:
        """Give the client what the rule says; False ends its connection."""
        body = self._flipped(
            upstream.response_body(response, head.method), response, rule, Fault.FLIP_RESPONSE
        )
        whole = b"".join(piece.data for piece in body)
        self._response_bytes = len(whole)
        if rule.fault in _CUTTING:
            self._client.send(_cut(response.raw, whole, rule))
            if rule.fault is Fault.STALL:
                self._wait_for_client(rule.seconds)
            self._client.close()
            self._log(head, 0, rule)
            return False
        self._client.send(response.raw)
        if rule.fault is Fault.SLOW_BODY:
            self._dribble(whole, rule.seconds)
        else:
            self._client.send(whole)
        self._log(head, response.status, rule)
        return True

    def _forward_late(self, head: Head, rule: Rule) -> None:
        if head.expects_continue:
            self._client.send(_CONTINUE)
        body = b"".join(piece.data for piece in self._client.request_body(head))
        self._request_bytes = len(body)
        self._client.close()
        self._log(head, 0, rule)
        raw = b"\r\n".join(
            line for line in head.raw.split(b"\r\n") if not line.lower().startswith(b"expect:")
        )

        def land() -> None:
            time.sleep(rule.seconds)
            with contextlib.suppress(OSError, Closed):
                upstream = self._proxy.connect()
                upstream.send(raw + body)
                response = upstream.read_head()
                if response is not None:
                    for _ in upstream.response_body(response, head.method):
                        pass
                upstream.close()

        threading.Thread(target=land, daemon=True).start()

    def _flipped(
        self, pieces: Iterable[Piece], head: Head, rule: Rule | None, fault: Fault
    ) -> Iterator[Piece]:
        """Flip one bit in the middle of a body, or of its first chunk where its length is not known."""
        if rule is None or rule.fault is not fault:
            yield from pieces
            return
        target = (head.content_length or 0) // 2
        seen, done = 0, False
        for piece in pieces:
            if done or not piece.is_payload:
                yield piece
                continue
            if head.content_length is None:
                target = len(piece.data) // 2
            if seen <= target < seen + len(piece.data):
                data = bytearray(piece.data)
                data[target - seen] ^= 0x01
                yield Piece(bytes(data), True)
                done = True
            else:
                yield piece
            seen += len(piece.data)

    def _dribble(self, body: bytes, seconds: float) -> None:
        step = max(1, -(-len(body) // _DRIBBLES))
        for start in range(0, len(body), step):
            time.sleep(seconds / _DRIBBLES)
            self._client.send(body[start : start + step])

    def _wait_for_client(self, seconds: float) -> None:
        """Send nothing for a while, or until the client has given up."""
        select.select([self._client.socket], [], [], seconds)

    def _connect(self) -> Wire:
        """The connection to the server; a new one where the server has ended the old one."""
        if self._upstream is not None:
            readable, _, _ = select.select([self._upstream.socket], [], [], 0)
            if readable:
                self._drop_upstream()
        if self._upstream is None:
            self._upstream = self._proxy.connect()
        return self._upstream

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def _log(self, head: Head, status: int, rule: Rule | None) -> None:
        fault = None if rule is None else rule.fault
        self._proxy.record(
            Request(
                head.method,
                self._target,
                status,
                self._request_bytes,
                self._response_bytes,
                fault,
                head.headers,
            )
        )


def _cut(head: bytes, body: bytes, rule: Rule) -> bytes:
    """What of an answer arrives; of one without a body, its head is what can be cut."""
    if rule.fault is Fault.LOSE_RESPONSE:
        return b""
    if rule.fault is Fault.CUT_HEAD or not body:
        return head[: int(len(head) * rule.cut_at)]
    return head + body[: int(len(body) * rule.cut_at)]
