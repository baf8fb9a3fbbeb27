"""A change of the master key while others commit, die, or change it too: no byte becomes unreadable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_checkpoint.crypto.keyring import KeyRing, make_key_ring
from pyspark_checkpoint.errors import MissingKey, RefusedError
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.rekey import rekey
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, SimulatedCrash, StoreCall, fault_at
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.history_kit import History

KEYS = {name: name.encode() * 8 for name in ("old1", "new1", "else")}
OLD = make_key_ring({"old1": KEYS["old1"]}, "old1")
BOTH = make_key_ring({name: KEYS[name] for name in ("old1", "new1")}, "new1")
NEW = make_key_ring({"new1": KEYS["new1"]}, "new1")
ALL_NEW, ALL_ELSE = make_key_ring(KEYS, "new1"), make_key_ring(KEYS, "else")


def rows(epoch: int) -> bytes:
    return f"rows of epoch {epoch} ".encode() * 50


def save(store: CheckpointStore, epoch: int) -> None:
    staged = store.stage([StagedItem(rows(epoch), False, epoch, "op", 0)])
    operators = {"op": OperatorSnapshotEntry((PartitionSnapshotEntry(0, staged.refs),))}
    store.save(CheckpointManifest(checkpoint_id=0, epoch=epoch, operators=operators))


def begun() -> tuple[History, CheckpointStore]:
    """Two runs have committed under the old key; the second, which has its keys in memory, goes on."""
    history = History()
    save(CheckpointStore(history.inner, clock=history.clock, key_ring=OLD), 0)
    running = CheckpointStore(history.inner, clock=history.clock, key_ring=OLD)
    save(running, 1)
    return history, running


def readable(store: MemoryStore, ring: KeyRing, epochs: int) -> None:
    """Every epoch is there, authenticated and decrypted, and ``verify`` finds nothing."""
    reader = CheckpointStore(store, clock=ManualClock("reader"), key_ring=ring)
    found = [manifest for number in reader.list_ids() if (manifest := reader.load_by_id(number))]
    read = {manifest.epoch: reader.load_partition(manifest, "op", 0) for manifest in found}
    assert read == {epoch: [rows(epoch)] for epoch in range(epochs)}
    assert list(reader.verify()) == []


def renew(history: History, ring: KeyRing) -> None:
    rekey(history.store, history.control().store_id, ring, clock=history.clock)


def calls_of_a_rekey() -> int:
    history, _ = begun()
    return len(history.calls(lambda: renew(history, BOTH)))


CALLS = range(calls_of_a_rekey())


def before_call(history: History, index: int, action: Callable[[], object]) -> None:
    """Let ``action`` happen right before the call of that index, once."""
    first = len(history.store.calls)

    def plan(call: StoreCall) -> Fault | None:
        if call.index == first + index:
            action()
        return None

    history.plan = plan


@pytest.mark.parametrize("index", CALLS)
def test_a_run_goes_on_committing_during_a_rekey(index: int) -> None:
    """It has its keys in memory; whoever has the new key reads what it wrote before, during and after."""
    history, running = begun()
    before_call(history, index, lambda: save(running, 2))
    renew(history, BOTH)
    save(running, 3)
    readable(history.inner, NEW, 4)


@pytest.mark.parametrize("index", CALLS)
def test_a_run_that_begins_during_a_rekey_loses_nothing(index: int) -> None:
    """Its data key may be made after the last look: it opens with the old key until rekey is run again."""
    history, _ = begun()

    def begin() -> None:
        try:
            save(CheckpointStore(history.inner, clock=history.clock, key_ring=OLD), 2)
        except MissingKey:
            # The manifests' key is wrapped anew already: a run without the new key is refused, and loudly.
            save(CheckpointStore(history.inner, clock=history.clock, key_ring=BOTH), 2)

    before_call(history, index, begin)
    renew(history, BOTH)
    readable(history.inner, BOTH, 3)
    history.plan = lambda _: None
    renew(history, BOTH)
    readable(history.inner, NEW, 3)


def test_a_key_made_after_the_listing_is_rewrapped_by_the_same_rekey() -> None:
    """``rekey`` looks again after its last write; else the old key would be thrown away too early."""
    history, _ = begun()
    seen: list[str] = []

    def plan(call: StoreCall) -> Fault | None:
        if call.verb == "put" and not seen:
            seen.append(call.key)
            save(CheckpointStore(history.inner, clock=history.clock, key_ring=OLD), 2)
        return None

    history.plan = plan
    renew(history, BOTH)
    assert seen
    readable(history.inner, NEW, 3)


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
@pytest.mark.parametrize("index", CALLS)
def test_a_rekey_that_dies_anywhere_stops_no_run_and_is_finished_by_the_next(
    index: int, kind: FaultKind
) -> None:
    """Between, all opens with both keys, and the run that was there goes on."""
    history, running = begun()
    history.plan = fault_at(len(history.store.calls) + index, kind)
    with pytest.raises(SimulatedCrash):
        renew(history, BOTH)
    save(running, 2)
    readable(history.inner, BOTH, 3)
    renew(History(inner=history.inner, clock=history.clock), BOTH)
    readable(history.inner, NEW, 3)


@pytest.mark.parametrize("index", CALLS)
def test_two_rekeys_to_one_key_at_once_are_one(index: int) -> None:
    """Each record is swapped once; the loser of a swap finds it done."""
    history, _ = begun()
    other = History(inner=history.inner, clock=history.clock)
    before_call(history, index, lambda: renew(other, BOTH))
    renew(history, BOTH)
    readable(history.inner, NEW, 2)


@pytest.mark.parametrize("index", CALLS)
def test_two_rekeys_to_different_keys_never_lose_a_data_key(index: int) -> None:
    """Each record is wrapped by one or the other, and the next rekey puts all under one."""
    history, _ = begun()
    other = History(inner=history.inner, clock=history.clock)
    before_call(history, index, lambda: renew(other, ALL_ELSE))
    renew(history, ALL_NEW)
    readable(history.inner, ALL_NEW, 2)
    history.plan = lambda _: None
    renew(history, ALL_NEW)
    readable(history.inner, NEW, 2)


def test_rekeys_that_fight_for_ever_say_so() -> None:
    """Neither claims success while the other undoes it."""
    history, _ = begun()
    other = History(inner=history.inner, clock=history.clock)
    history.plan = lambda call: renew(other, ALL_ELSE) if call.verb == "list" else None
    with pytest.raises(RefusedError, match="stop them"):
        renew(history, ALL_NEW)
    readable(history.inner, ALL_NEW, 2)


def test_another_key_under_the_active_id_is_noticed() -> None:
    """Otherwise rekey would call all keys current, and the one that opens them would be thrown away."""
    history, _ = begun()
    before = {key: history.inner.get(key) for key in history.keys("keys/")}
    wrong = make_key_ring({"old1": KEYS["new1"]}, "old1")
    with pytest.raises(MissingKey, match="is not the key that wrapped"):
        renew(history, wrong)
    assert {key: history.inner.get(key) for key in history.keys("keys/")} == before
