"""The control record: made once, swapped by many, whatever answers are lost."""

from __future__ import annotations

import threading

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import OutcomeUnknown, Unavailable
from pyspark_checkpoint.format.keys import CONTROL_KEY
from pyspark_checkpoint.format.records import Control, Pin
from pyspark_checkpoint.history.control import ControlChange, ensure_control, read_control, swap_control
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, FaultyStore, fault_on
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.history_kit import History


def pin(name: str, number: int = 1) -> ControlChange:
    def change(control: Control) -> Control | None:
        if name in control.pins:
            return None
        return control.changed(pins={**control.pins, name: Pin(number, "0" * 64)})

    return change


def new_store() -> History:
    history = History()
    ensure_control(history.inner, history.clock)
    return history


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_answer_to_a_swap_is_settled_by_reading_back(kind: FaultKind, times: int) -> None:
    """Landed or not, the change is there once and the counter has risen once."""
    history = new_store()
    history.plan = fault_on("put", CONTROL_KEY, kind, times=times)
    state = swap_control(history.store, pin("a"), history.clock)
    assert state.control == read_control(history.inner).control
    assert (state.control.counter, set(state.control.pins)) == (1, {"a"})


def test_a_swap_that_landed_unseen_and_was_built_upon_is_not_repeated() -> None:
    """Between our lost answer and our look another change came on top: ours is asked for only once."""
    history = new_store()
    first = [True]

    def plan(call: object) -> Fault | None:
        if getattr(call, "verb", "") == "put" and first:
            first.clear()
            return Fault(FaultKind.LOST_RESPONSE)
        if getattr(call, "verb", "") == "read" and not first:
            swap_control(history.inner, pin("other"), history.clock)
        return None

    history.plan = plan
    state = swap_control(history.store, pin("mine"), history.clock)
    assert set(state.control.pins) == {"mine", "other"}
    assert state.control.counter == 2


def test_a_swap_in_flight_cannot_land_on_a_later_state() -> None:
    """The counter never repeats, so neither does a version: a late write finds another one."""
    history = new_store()
    before = read_control(history.inner)
    swap_control(history.inner, pin("a"), history.clock)
    swap_control(history.inner, lambda c: c.changed(pins={}) if c.pins else None, history.clock)
    after = read_control(history.inner)
    assert after.control.pins == before.control.pins
    assert after.data != before.data


def test_a_store_that_never_answers_leaves_the_outcome_unknown() -> None:
    """And one that only conflicts says that it is busy."""
    history = new_store()
    history.plan = lambda call: Fault(FaultKind.LOST_REQUEST) if call.verb == "put" else None
    with pytest.raises(OutcomeUnknown):
        swap_control(history.store, pin("a"), history.clock)

    def meddle(call: object) -> Fault | None:
        if getattr(call, "verb", "") == "put":
            swap_control(history.inner, lambda c: c.changed(), history.clock)
        return None

    history.plan = meddle
    with pytest.raises(Unavailable, match="conflicting writes to _control"):
        swap_control(history.store, pin("a"), history.clock)


def test_a_hundred_swaps_by_ten_threads_all_take_effect() -> None:
    """Lost races are repeated, with the answer of every third swap lost as well."""
    inner = MemoryStore()
    ensure_control(inner, SYSTEM_CLOCK)

    def lossy(call: object) -> Fault | None:
        lost = getattr(call, "verb", "") == "put" and getattr(call, "index", 0) % 3 == 0
        return Fault(FaultKind.LOST_RESPONSE) if lost else None

    def work(worker: int) -> None:
        store = FaultyStore(inner, lossy)
        for n in range(10):
            swap_control(store, pin(f"{worker}-{n}"), ManualClock(f"worker {worker}"))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    control = read_control(inner).control
    assert len(control.pins) == 100
    assert control.counter == 100


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_a_new_store_has_one_id_whoever_makes_it(kind: FaultKind) -> None:
    """A lost answer to the create is settled by reading what is there."""
    history = History()
    history.plan = fault_on("put", CONTROL_KEY, kind)
    first = ensure_control(history.store, history.clock).control
    second = ensure_control(history.inner, ManualClock("another")).control
    assert first == second
    assert first.store_id
