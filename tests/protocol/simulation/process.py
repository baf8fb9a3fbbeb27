"""One actor as a process that stops before every store call and goes on when it is answered."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import greenlet  # type: ignore[import-untyped]

from pyspark_checkpoint.errors import CheckpointError, FencedError
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.retry import RetryingStore
from tests.protocol.simulation.clock import SimulatedClock
from tests.protocol.simulation.port import Answer, Op, PortStore


@dataclass(frozen=True, slots=True)
class Event:
    """Something that an actor was told, and now believes."""

    what: str
    detail: tuple[Any, ...] = ()

    def label(self) -> str:
        """The event as a line of a schedule shows it."""
        return f"{self.what}{self.detail if self.detail else ''}"


@dataclass(slots=True)
class Context:
    """What an actor's program works with."""

    store: ObjectStore
    clock: SimulatedClock
    emit: Callable[..., None]
    name: str


Program = Callable[[Context], None]


@dataclass(frozen=True, slots=True)
class Actor:
    """A program with a name, what it can do to others, and which of our errors may end it.

    ``may`` holds ``swap`` (changes ``_control``), ``delete``, ``list`` and ``load`` (reads artifacts);
    the exhaustive search trusts it, and checks it at every call.
    """

    name: str
    program: Program
    may: frozenset[str] = frozenset()
    ends: tuple[type[CheckpointError], ...] = ()
    skew_ms: int = 0
    step_ms: int = 1
    retries: bool = False
    """Whether it works through ``RetryingStore``, as every store that is opened by URL does."""


class Process:
    """A running actor. ``pending`` is the call it waits for; ``None`` when it is done."""

    def __init__(
        self, actor: Actor, owner: int, *, page: int | None = None, descending: bool = False
    ) -> None:
        self.actor = actor
        self.pending: Op | None = None
        self.events: list[Event] = []
        self._dead = False
        self._parent = greenlet.getcurrent()
        clock = SimulatedClock(owner, skew_ms=actor.skew_ms, step_ms=actor.step_ms)
        port = PortStore(self._call, page=page, descending=descending)
        self._context = Context(
            store=RetryingStore(port, clock=clock) if actor.retries else port,
            clock=clock,
            emit=lambda what, *detail: self.events.append(Event(what, detail)),
            name=actor.name,
        )
        self._greenlet = greenlet.greenlet(self._run)
        self._go(None)

    def resume(self, answer: Answer) -> None:
        """Hand over the answer of the pending call, and run to the next one."""
        self._go(answer)

    def kill(self) -> None:
        """The process dies where it stands; nothing of it reaches the store any more."""
        self._dead = True
        self.pending = None
        if not self._greenlet.dead:
            self._greenlet.throw(greenlet.GreenletExit)

    def take_events(self) -> list[Event]:
        """What the actor was told since the last look."""
        events, self.events = self.events, []
        return events

    def _go(self, answer: Answer | None) -> None:
        self._parent = greenlet.getcurrent()
        self._greenlet.parent = self._parent
        self.pending = self._greenlet.switch(answer)

    def _call(self, op: Op) -> Answer:
        if self._dead:
            raise greenlet.GreenletExit
        answer = self._parent.switch(op)
        assert isinstance(answer, Answer)
        return answer

    def _run(self, _: None) -> None:
        try:
            self.actor.program(self._context)
        except FencedError as error:
            self.events.append(Event("fenced", (str(error)[:60],)))
        except CheckpointError as error:
            if not isinstance(error, self.actor.ends):
                self.events.append(Event("surprised", (type(error).__name__, str(error))))
            else:
                self.events.append(Event("gave up", (type(error).__name__, str(error)[:60])))
        except Exception as error:  # noqa: BLE001 - any other error is what the search is looking for
            self.events.append(Event("surprised", (type(error).__name__, traceback.format_exc())))
