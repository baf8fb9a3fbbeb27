"""Perfect races and answers that never come, for the tests of the protocol's rules."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, FaultPlan, StoreCall
from tests.support.history_kit import History

Patch = pytest.MonkeyPatch


def once(history: History, verb: str, key_part: str, action) -> list[str]:  # type: ignore[no-untyped-def]
    """Let ``action`` happen right before the first call of ``verb`` on ``key_part``: a perfect race."""
    done: list[str] = []

    def plan(call: StoreCall) -> Fault | None:
        if not done and call.verb == verb and key_part in call.key:
            done.append(call.key)
            action()
        return None

    history.plan = plan
    return done


def lost_for_good(key: str) -> FaultPlan:
    """The first put of ``key`` lands without an answer; no later one gets through."""
    seen: list[int] = []

    def plan(call: StoreCall) -> Fault | None:
        if (call.verb, call.key) != ("put", key):
            return None
        seen.append(call.index)
        return Fault(FaultKind.LOST_RESPONSE if len(seen) == 1 else FaultKind.LOST_REQUEST)

    return plan


def quiet_prune(history: History) -> None:
    """Prune by another process, which no fault plan watches."""
    other = History(inner=history.inner, clock=history.clock)
    other.prune(1)
