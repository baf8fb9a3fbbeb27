"""The store that an actor sees: every call is handed to whoever schedules, and answered by him."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark_checkpoint import errors
from pyspark_checkpoint.store.base import CHUNK_BYTES, Body, ObjectInfo, ObjectStore, Stored, Version
from pyspark_checkpoint.store.body import body_bytes

WRITES = frozenset({"put", "delete", "copy"})


@dataclass(frozen=True, slots=True)
class Op:
    """One call of a store that has not happened yet."""

    verb: str
    key: str
    data: bytes = b""
    if_absent: bool = False
    if_match: str | None = None
    nonce: str | None = None
    start: int | None = None
    end: int | None = None
    source: str = ""
    after: str | None = None
    limit: int | None = None

    def label(self) -> str:
        """The call as a line of a schedule shows it."""
        how = " if_absent" if self.if_absent else " if_match" if self.if_match is not None else ""
        return f"{self.verb}{how} {short_key(self.key)}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a value, or the name of one of our errors."""

    value: Any = None
    error: str | None = None

    def label(self) -> str:
        """The answer as a line of a schedule shows it."""
        if self.error is not None:
            return self.error
        if isinstance(self.value, tuple):
            return f"{len(self.value)} names"
        return f"{len(self.value.data)} bytes" if isinstance(self.value, Stored) else "ok"


Call = Callable[[Op], Answer]


class PortStore(ObjectStore):
    """Turns every call into an ``Op``. Deletes go one key a call and listings one page a call.

    A server may delete the keys of one call in any order; ``descending`` is one that shows things.
    """

    def __init__(self, call: Call, *, page: int | None = None, descending: bool = False) -> None:
        self.url = "memory://simulation"
        self._descending = descending
        self._call = call
        self._page = page

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        token = if_match.token if if_match is not None else None
        version = self._ask(Op("put", key, body_bytes(data), if_absent, token, nonce))
        assert isinstance(version, Version)
        return version

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        stored = self._ask(Op("read", key))
        assert isinstance(stored, Stored)
        return stored

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        data = self._ask(Op("get", key, start=start, end=end))
        assert isinstance(data, bytes)
        return data

    def stream(self, key: str, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        data = self.get(key)
        for start in range(0, len(data), chunk_bytes):
            yield data[start : start + chunk_bytes]

    def head(self, key: str) -> ObjectInfo:
        info = self._ask(Op("head", key))
        assert isinstance(info, ObjectInfo)
        return info

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        after = start_after
        while True:
            page = self._ask(Op("list", prefix, after=after, limit=self._page))
            yield from page
            if self._page is None or len(page) < self._page:
                return
            after = page[-1].key

    def delete(self, keys: Iterable[str]) -> None:
        for key in sorted(keys, reverse=self._descending):
            self._ask(Op("delete", key))

    def copy(self, source_key: str, target_key: str, *, if_absent: bool = False) -> Version:
        version = self._ask(Op("copy", target_key, if_absent=if_absent, source=source_key))
        assert isinstance(version, Version)
        return version

    def _ask(self, op: Op) -> Any:
        answer = self._call(op)
        if answer.error is not None:
            raise getattr(errors, answer.error)(f"{op.label()}: {answer.error}", key=op.key)
        return answer.value


def perform(store: ObjectStore, op: Op) -> Answer:
    """Let a real store do what was asked, and return its answer as a value."""
    try:
        return Answer(_perform(store, op))
    except errors.StoreError as error:
        return Answer(error=type(error).__name__)


def _perform(store: ObjectStore, op: Op) -> Any:
    match op.verb:
        case "put":
            match_version = Version(op.if_match) if op.if_match is not None else None
            return store.put(
                op.key, op.data, if_absent=op.if_absent, if_match=match_version, nonce=op.nonce
            )
        case "read":
            return store.read(op.key)
        case "get":
            return store.get(op.key, start=op.start, end=op.end)
        case "head":
            return store.head(op.key)
        case "list":
            return tuple(store.list(op.key, start_after=op.after))[: op.limit]
        case "delete":
            return store.delete([op.key])
        case _:
            return store.copy(op.source, op.key, if_absent=op.if_absent)


def short_key(key: str) -> str:
    """A key without the digits that nobody reads."""
    parts = key.replace("manifests/manifest-", "M").replace("checkpoints/", "C")
    head, dash, rest = parts.partition("-")
    if dash and head[1:].isdigit():
        return f"{head[0]}{int(head[1:])}-{rest[26:]}"
    return parts.replace("M000000", "M")
