"""What tests of copies share."""

from __future__ import annotations

from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.history.retention import RetentionPolicy, prune_history
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.testing.manual_clock import ManualClock


def copy(source: ObjectStore, target: ObjectStore, **options: object) -> object:
    return copy_store(source, target, clock=ManualClock("copy"), concurrency=1, **options)  # type: ignore[arg-type]


def prune(store: ObjectStore, keep: int) -> None:
    head = find_head(store)
    assert head is not None
    prune_history(store, head, RetentionPolicy(keep), ManualClock("prune"))


def findings(store: ObjectStore) -> list[object]:
    return list(verify_store(store))


def head_number(store: ObjectStore) -> int:
    head = find_head(store)
    assert head is not None
    return head.number


def shown(store: ObjectStore) -> dict[int, bytes]:
    """Every checkpoint that a reader of the store sees, by number."""
    control = read_control(store).control
    numbers = {*range(control.floor, head_number(store) + 1), *control.pinned_numbers()}
    found = {number: find_checkpoint(store, number) for number in numbers}
    return {number: loaded.data for number, loaded in found.items() if loaded is not None}
