"""What the fault proxy can do to a request, to which requests, and what it remembers of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tests.support.servers.wire import Wire


class Fault(enum.Enum):
    """What happens to a request that a rule matches."""

    RESET = "reset"
    """The connection is reset and the server never sees the request."""
    LOSE_RESPONSE = "lose-response"
    """The server does its work and answers; the client only sees the connection end."""
    LATE_EFFECT = "late-effect"
    """The client sees the connection end; ``seconds`` later the server gets the request."""
    ERROR_403 = "403"
    """The proxy answers 403; the server never sees the request."""
    ERROR_409 = "409"
    """The proxy answers 409; the server never sees the request."""
    ERROR_500 = "500"
    """The proxy answers 500; the server never sees the request."""
    ERROR_503 = "503"
    """The proxy answers 503 with Retry-After; the server never sees the request."""
    SLOW_BODY = "slow-body"
    """The answer's body dribbles in over ``seconds``."""
    STALL = "stall"
    """The server does its work; half of the answer comes, then nothing for ``seconds``."""
    TRUNCATE = "truncate"
    """The server does its work; half of the answer comes, then the connection ends."""
    CUT_HEAD = "cut-head"
    """The server does its work; the connection ends in the middle of the answer's head."""
    FLIP_REQUEST = "flip-request"
    """One bit in the middle of the request's body is flipped."""
    FLIP_RESPONSE = "flip-response"
    """One bit in the middle of the answer's body is flipped."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which requests suffer which fault: the method, and text in the decoded path and query."""

    fault: Fault
    method: str | None = None
    contains: str = ""
    times: int | None = 1
    """How many requests; None is all of them."""
    skip: int = 0
    """How many matching requests pass first."""
    seconds: float = 1.0
    retry_after_seconds: int = 1
    cut_at: float = 0.5
    """Where a head or a body is cut, as a fraction of it."""

    def matches(self, method: str, target: str) -> bool:
        """Say whether this rule is about such a request."""
        return self.method in (None, method) and self.contains in target


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came by. Status 0: the client got no answer."""

    method: str
    target: str
    status: int
    request_bytes: int
    response_bytes: int
    fault: Fault | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Those of the request; their names are in lower case."""

    @property
    def verb(self) -> str:
        """The method, with LIST and deletes of many by their own names; a copy by the server is a PUT."""
        query = self.target.partition("?")[2]
        if self.method == "GET" and any(part in query for part in ("list-type=", "prefix=", "delimiter=")):
            return "LIST"
        return "DELETES" if self.method == "POST" and query.startswith("delete") else self.method


class Host(Protocol):
    """What a connection asks of the proxy that it belongs to."""

    delay_seconds: float

    def choose(self, method: str, target: str) -> Rule | None:
        """Return the rule for this request, and use it up by one."""

    def busy(self) -> AbstractContextManager[None]:
        """A request is under way."""

    def record(self, request: Request) -> None:
        """Add a line to the log."""

    def connect(self) -> Wire:
        """A new connection to the server behind."""
