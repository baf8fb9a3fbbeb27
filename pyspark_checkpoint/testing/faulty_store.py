"""A store that fails on purpose, at exactly the call a test names.

Every call is numbered and recorded. A plan looks at a call and says what happens to it. A test that
wants "a crash at every step" runs once without faults, counts ``calls``, and runs once more for
each index. After a simulated crash the store is dead for this caller: every later call raises
``SimulatedCrash`` and has no effect, as in a process that is gone; the inner store lives on.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import OutcomeUnknown, Unavailable
from pyspark_checkpoint.store.base import ObjectStore, WrappedStore

T = TypeVar("T")


class SimulatedCrash(Exception):
    """The process "died" here. Not one of our errors, so that no handler takes it for an answer."""


class FaultKind(enum.Enum):
    """What can happen to one call."""

    CRASH_BEFORE = "the process dies before the call has any effect"
    CRASH_AFTER = "the process dies after the effect, before it sees the answer"
    UNAVAILABLE = "no effect, and the store says so"
    LOST_RESPONSE = "the effect is there, the answer is lost"
    LOST_REQUEST = "no effect, and nobody knows"
    DELAY = "the call takes longer, and works"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; the seconds are used by ``DELAY`` and as what the server asks for by ``UNAVAILABLE``."""

    kind: FaultKind
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a store, in the order in which they came."""

    index: int
    verb: str
    key: str


FaultPlan = Callable[[StoreCall], Fault | None]


def no_faults(call: StoreCall) -> Fault | None:  # noqa: ARG001
    """Let every call through; for a run that only counts."""
    return None


def fault_at(index: int, kind: FaultKind) -> FaultPlan:
    """Plan one fault at the call with this index."""
    return lambda call: Fault(kind) if call.index == index else None


def fault_on(verb: str, key_part: str, kind: FaultKind, *, times: int = 1) -> FaultPlan:
    """Plan faults on the first ``times`` calls of ``verb`` whose key contains ``key_part``."""
    lock, left = threading.Lock(), [times]

    def plan(call: StoreCall) -> Fault | None:
        if call.verb != verb or key_part not in call.key:
            return None
        with lock:
            left[0] -= 1
            return Fault(kind) if left[0] >= 0 else None

    return plan


class FaultyStore(WrappedStore):
    """Passes calls on to ``store`` unless ``plan`` says otherwise; deletes go one key a call."""

    def __init__(
        self, store: ObjectStore, plan: FaultPlan = no_faults, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(store)
        self.calls: list[StoreCall] = []
        self.crashed = False
        self._plan = plan
        self._clock = clock
        self._lock = threading.Lock()

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._call("delete", key, lambda key=key: self.inner.delete([key]))  # type: ignore[misc]

    def _items(self, verb: str, key: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        yield from self._call(verb, key, lambda: tuple(begin()))

    def _call(self, verb: str, key: str, effect: Callable[[], T]) -> T:
        with self._lock:
            if self.crashed:
                raise SimulatedCrash(f"{verb} {key} after the crash")
            call = StoreCall(len(self.calls), verb, key)
            self.calls.append(call)
            fault = self._plan(call)
        if fault is None:
            return effect()
        self._before(fault, call)
        result = effect()
        if fault.kind is FaultKind.CRASH_AFTER:
            self._crash(call)
        if fault.kind is FaultKind.LOST_RESPONSE:
            raise _lost(call)
        return result

    def _before(self, fault: Fault, call: StoreCall) -> None:
        if fault.kind is FaultKind.CRASH_BEFORE:
            self._crash(call)
        if fault.kind is FaultKind.UNAVAILABLE:
            raise Unavailable(
                f"injected: {call.verb} refused",
                key=call.key,
                retry_after_seconds=fault.seconds or None,
            )
        if fault.kind is FaultKind.LOST_REQUEST:
            raise _lost(call)
        if fault.kind is FaultKind.DELAY:
            self._clock.sleep(fault.seconds)

    def _crash(self, call: StoreCall) -> None:
        self.crashed = True
        raise SimulatedCrash(f"at call {call.index}: {call.verb} {call.key}")


def _lost(call: StoreCall) -> Exception:
    """A read that got no answer may simply be repeated; a write may have landed."""
    kind = OutcomeUnknown if call.verb in ("put", "delete", "copy") else Unavailable
    return kind(f"injected: no answer to {call.verb}", key=call.key)
