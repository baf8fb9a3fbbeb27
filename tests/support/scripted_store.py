"""A store whose answers to put and head a test writes down beforehand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pyspark_checkpoint.errors import OutcomeUnknown, StoreError, Unavailable
from pyspark_checkpoint.store.base import Body, ObjectInfo, Version
from pyspark_checkpoint.store.memory import MemoryStore

Step = Callable[["Scripted", Callable[[], Any]], Any]


class Scripted(MemoryStore):
    """A store that works, except where its script for a verb says what happens next."""

    def __init__(self, puts: list[Step] | None = None, heads: list[Step] | None = None) -> None:
        super().__init__()
        self.scripts = {"put": puts or [], "head": heads or []}
        self.calls: list[str] = []
        self.bodies: list[bytes] = []
        self.nonces: list[str | None] = []
        self.forgets_nonces = False

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        content = data if isinstance(data, bytes) else data.read()  # type: ignore[union-attr]
        self.bodies.append(content)
        self.nonces.append(nonce)
        result: Version = self._next(
            "put",
            lambda: super(Scripted, self).put(
                key, content, if_absent=if_absent, if_match=if_match, nonce=nonce
            ),
        )
        return result

    def head(self, key: str) -> ObjectInfo:
        found: ObjectInfo = self._next("head", lambda: super(Scripted, self).head(key))
        if self.forgets_nonces:
            return ObjectInfo(found.key, found.size_bytes, found.version, found.modified_ms)
        return found

    def other_puts(self, data: bytes, **condition: Any) -> Version:
        """Another writer, whose calls nobody disturbs."""
        return MemoryStore.put(self, "k", data, nonce="other", **condition)

    def _next(self, verb: str, effect: Callable[[], Any]) -> Any:
        self.calls.append(verb)
        script = self.scripts[verb]
        return script.pop(0)(self, effect) if script else effect()


def fails(error: StoreError) -> Step:
    """The call has no effect and this answer."""

    def step(store: Scripted, effect: Callable[[], Any]) -> Any:
        raise error

    return step


def lost(store: Scripted, effect: Callable[[], Any]) -> Any:
    """The call has its effect, whatever that is, and no answer."""
    with contextlib.suppress(StoreError):
        effect()
    raise OutcomeUnknown("no answer", key="k")


def lost_then(action: Callable[[Scripted], object]) -> Step:
    """The call has its effect and no answer; then somebody else acts."""

    def step(store: Scripted, effect: Callable[[], Any]) -> Any:
        try:
            lost(store, effect)
        finally:
            action(store)

    return step


def before(action: Callable[[Scripted], object]) -> Step:
    """Somebody else acts first; the call has no effect and no answer."""

    def step(store: Scripted, effect: Callable[[], Any]) -> Any:
        action(store)
        raise OutcomeUnknown("no answer", key="k")

    return step


def ok(store: Scripted, effect: Callable[[], Any]) -> Any:
    """The call works."""
    return effect()


NOT_SENT = fails(OutcomeUnknown("no answer", key="k"))
BUSY = fails(Unavailable("busy"))
