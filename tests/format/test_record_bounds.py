"""Records that something else has made huge: a clear error, and never much of them in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.crypto.keyring import make_key_ring
from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import MAX_RECORD_BYTES
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    MAX_NUMBER,
    committed_key,
    data_key_key,
    manifest_key,
    seal_key,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.records import Control, Pin, encode_control, encode_latest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.control import swap_control
from pyspark_checkpoint.history.rekey import rekey
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.history.sink_status import read_statuses
from pyspark_checkpoint.history.vnode_share import missing_vnodes
from pyspark_checkpoint.registry.queries import find_query, list_queries, name_key
from pyspark_checkpoint.store.base import Stored
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.manual_clock import ManualClock

RING = make_key_ring({"k1": b"the master key, never to be seen"}, "k1")
MANIFEST_KEY = data_key_key(MANIFEST_KEY_ID)
HUGE = b"{" + b" " * (3 * MAX_RECORD_BYTES)


class Watched(MemoryStore):
    """Knows how much it has handed out at once."""

    most_bytes = 0

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        data = super().get(key, start=start, end=end)
        self.most_bytes = max(self.most_bytes, len(data))
        return data

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        stored = super().read(key, max_bytes=max_bytes)
        self.most_bytes = max(self.most_bytes, len(stored.data))
        return stored


def made() -> tuple[Watched, CheckpointManifest]:
    store, clock = Watched(), ManualClock()
    history = CheckpointStore(store, clock=clock, key_ring=RING)
    manifest = history.save(CheckpointManifest(checkpoint_id=0, epoch=0, sink_names=("out",)))
    return store, manifest


def opened(store: MemoryStore) -> CheckpointStore:
    return CheckpointStore(store, clock=ManualClock("reader"), key_ring=RING)


def renewed(store: MemoryStore) -> object:
    newer = make_key_ring({"k1": b"the master key, never to be seen", "k2": bytes(32)}, "k2")
    return rekey(store, "x", newer)


CASES: dict[str, tuple[str, Callable[[MemoryStore, CheckpointManifest], object]]] = {
    "control, reading": (CONTROL_KEY, lambda store, _: opened(store).load_latest()),
    "control, changing": (CONTROL_KEY, lambda store, _: swap_control(store, lambda _: None, ManualClock())),
    "key, reading": (MANIFEST_KEY, lambda store, _: opened(store).load_latest()),
    "key, rekeying": (MANIFEST_KEY, lambda store, _: renewed(store)),
    "seal": (seal_key(1), find_seal),
    "status": (committed_key(1, "out"), read_statuses),
    "name": (name_key("q"), lambda store, _: find_query(store, "q")),
    "names": (name_key("q"), lambda store, _: list_queries(store)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_huge_record_is_a_clear_error_and_is_not_gathered(case: str) -> None:
    """``records_io.max_bytes_of``: whatever its size is, no more than a record can have is read."""
    store, manifest = made()
    key, read = CASES[case]
    store.put(key, HUGE)
    store.most_bytes = 0
    with pytest.raises(FormatError, match="more than any object of its kind") as caught:
        read(store, manifest)
    assert key in str(caught.value)
    assert store.most_bytes <= MAX_RECORD_BYTES + 1


def test_a_huge_pointer_is_only_a_bad_hint() -> None:
    """It loses nothing, as every other damage of it; the next commit puts it right."""
    store, _ = made()
    store.put(LATEST_KEY, HUGE)
    store.most_bytes = 0
    found = opened(store).load_latest()
    assert found is not None
    assert found.checkpoint_id == 1
    assert store.most_bytes <= MAX_RECORD_BYTES + 1
    assert [finding.object for finding in opened(store).verify()] == [LATEST_KEY]
    opened(store).save(CheckpointManifest.new(0, 1))
    assert list(opened(store).verify()) == []


def test_nothing_is_written_that_is_too_large_to_be_read() -> None:
    """So many savepoints that the control record would be refused by its readers: refused before."""
    pins = {f"{number:0>100}": Pin(number, "f" * 64) for number in range(1, 60_000)}
    with pytest.raises(FormatError, match="larger than any that is read"):
        encode_control(Control("store", pins=pins))


def test_verify_looks_at_what_is_stored_and_not_at_every_number_of_a_gap() -> None:
    """A manifest under the highest number of all, and a pointer to it: one finding, in no time."""
    store = Watched()
    history = CheckpointStore(store, clock=ManualClock())
    for epoch in range(3):
        history.save(CheckpointManifest(checkpoint_id=0, epoch=epoch))
    store.put(manifest_key(MAX_NUMBER - 1), store.get(manifest_key(3)))
    store.put(LATEST_KEY, encode_latest(MAX_NUMBER - 1))
    found = [str(finding) for finding in CheckpointStore(store, clock=ManualClock()).verify()]
    assert found == [
        f"{manifest_key(4)}: is missing, as are all up to {MAX_NUMBER - 2} (checkpoint 4)",
        f"{manifest_key(MAX_NUMBER - 1)}: {manifest_key(MAX_NUMBER - 1)} is the manifest of checkpoint 3 "
        f"(checkpoint {MAX_NUMBER - 1})",
    ]


def test_a_number_of_vnodes_that_nobody_has_is_damage_before_they_are_counted() -> None:
    """A manifest of a few bytes that says 10**12 vnodes, of which it covers one."""
    manifest = CheckpointManifest(checkpoint_id=1, epoch=0, vnode_count=10**12, vnodes=(0,))
    with pytest.raises(FormatError, match="vnode_count"):
        missing_vnodes(manifest, None)
