"""A proxy on loopback that breaks chosen requests, delays all of them, and counts them.

It relays bytes as they come, the Host header included, so that a client which signs for the proxy's
own endpoint is believed by the server behind it. Give clients ``proxy.endpoint`` and tell the proxy
what to break::

    with seaweedfs() as server, FaultProxy(server.endpoint) as proxy:
        proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains="manifest-"))
        store = open_object_store(server.url("p"), options=server.options_at(proxy.endpoint))
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from tests.support.servers.faults import Fault, Request, Rule
from tests.support.servers.process import LOOPBACK
from tests.support.servers.relay import Relay
from tests.support.servers.wire import Closed, Wire

UPSTREAM_TIMEOUT_SECONDS = 120.0

__all__ = ["Fault", "FaultProxy", "Request", "Rule"]


class FaultProxy:
    """See the module. Use as a context manager; threads and connections end with it."""

    def __init__(self, upstream: str, *, delay_seconds: float = 0.0) -> None:
        parts = urllib.parse.urlsplit(upstream)
        assert parts.hostname is not None and parts.port is not None, upstream
        self.upstream = (parts.hostname, parts.port)
        self.delay_seconds = delay_seconds
        self.before: Callable[[str, str], None] | None = None
        """Called with method and target of each request before the server gets it."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._under_way = 0
        self._rules: list[list[Any]] = []
        self._requests: list[Request] = []
        self._open: set[socket.socket] = set()
        self._server = _Server((LOOPBACK, 0), self)
        self.port: int = self._server.server_address[1]
        self.endpoint = f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.drop_connections()

    def add(self, rule: Rule) -> None:
        """Break requests that match; the first rule that matches and is not used up wins."""
        with self._lock:
            self._rules.append([rule, rule.skip, rule.times])

    def clear(self) -> None:
        """Forget rules and the log, also of requests that are about to end."""
        with self._idle:
            self._idle.wait_for(lambda: self._under_way == 0, timeout=2)
            self._rules.clear()
            self._requests.clear()

    @property
    def requests(self) -> list[Request]:
        """What came by since the start or the last ``clear``, in the order of their ends.

        Waits a little for requests whose answer the client has, but which are not in the log yet.
        """
        with self._idle:
            self._idle.wait_for(lambda: self._under_way == 0, timeout=2)
            return list(self._requests)

    def count(self, method: str | None = None, contains: str = "") -> int:
        """How many requests had this method, and this text in their decoded target."""
        return sum(1 for r in self.requests if method in (None, r.method) and contains in r.target)

    def drop_connections(self) -> None:
        """End every open connection now."""
        with self._lock:
            alive = list(self._open)
        for sock in alive:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def choose(self, method: str, target: str) -> Rule | None:
        """Return the rule for this request, and use it up by one."""
        if self.before is not None:
            self.before(method, target)
        with self._lock:
            for entry in self._rules:
                rule: Rule = entry[0]
                if not rule.matches(method, target) or entry[2] == 0:
                    continue
                if entry[1] > 0:
                    entry[1] -= 1
                    continue
                if entry[2] is not None:
                    entry[2] -= 1
                return rule
        return None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A request is under way."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()

    def record(self, request: Request) -> None:
        """Add a line to the log."""
        with self._lock:
            self._requests.append(request)

    @contextlib.contextmanager
    def tracked(self, sock: socket.socket) -> Iterator[None]:
        """Know a connection while it is open."""
        with self._lock:
            self._open.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(sock)

    def connect(self) -> Wire:
        """A new connection to the server behind."""
        return Wire(socket.create_connection(self.upstream, timeout=UPSTREAM_TIMEOUT_SECONDS))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        proxy = self.server.proxy
        with proxy.tracked(self.request), contextlib.suppress(OSError, Closed):
            Relay(proxy, Wire(self.request)).run()
