"""Changing the master key of a store: every data key is wrapped by the ring's active key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.crypto.data_keys import (
    WrappedKey,
    decode_wrapped_key,
    encode_wrapped_key,
    rewrap,
    unwrap,
)
from pyspark_checkpoint.crypto.keyring import KeyRing
from pyspark_checkpoint.errors import Busy, Conflict, OutcomeUnknown
from pyspark_checkpoint.format.keys import DATA_KEYS_PREFIX, data_key_key, parse_data_key_key
from pyspark_checkpoint.history.manifest_reader import read_record, read_stored
from pyspark_checkpoint.history.store_cipher import check_wrapped_key, new_wrap_nonce
from pyspark_checkpoint.store.base import ObjectStore

_SWAP_ATTEMPTS = 8
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class RekeyPlan:
    """Which data keys are to be rewrapped, and which are wrapped by the active key already."""

    active_id: str
    rewrap: tuple[str, ...]
    current: tuple[str, ...]


def plan_rekey(records: Sequence[WrappedKey], ring: KeyRing) -> RekeyPlan:
    """Decide what ``rekey`` rewrites. Pure; ``MissingKey`` if a needed key is absent, or is another one.

    Records that need not be rewritten are opened too: who is told that the active key opens all of them
    will throw the other keys away.
    """
    for record in records:
        unwrap(record, ring)
    outdated = [record for record in records if record.master_key_id != ring.active_id]
    current = [r.data_key_id for r in records if r.master_key_id == ring.active_id]
    return RekeyPlan(
        ring.active_id,
        tuple(sorted(record.data_key_id for record in outdated)),
        tuple(sorted(current)),
    )


def read_wrapped_keys(store: ObjectStore, store_id: str) -> tuple[WrappedKey, ...]:
    """Read every wrapped data key of a store. Lists: for rare operations only."""
    records: list[WrappedKey] = []
    for info in store.list(DATA_KEYS_PREFIX):
        data_key_id = parse_data_key_key(info.key)
        if data_key_id is not None:
            record = decode_wrapped_key(read_record(store, info.key), info.key)
            records.append(check_wrapped_key(record, store_id, data_key_id))
    return tuple(records)


def rekey(
    store: ObjectStore,
    store_id: str,
    ring: KeyRing,
    *,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> RekeyPlan:
    """Wrap every data key of the store by the ring's active key; rewrite no artifact and no manifest.

    Nothing is written unless every old key that is needed is in the ring. Each record is replaced by
    compare-and-swap, so that a crash at any point leaves each key wrapped by the old or the new master
    key; running it again finishes. When this returns, all keys were wrapped by the active key when they
    were listed last, after the last write. A run that still uses the old active key may add a data key
    later: run it once more when that run has ended, then take the old key out of the ring.
    """
    plan = plan_rekey(read_wrapped_keys(store, store_id), ring)
    if dry_run or not plan.rewrap:
        return plan
    done: set[str] = set()
    left = plan
    for _ in range(_ROUNDS):
        execute_rekey(store, store_id, ring, left, clock=clock)
        done.update(left.rewrap)
        left = plan_rekey(read_wrapped_keys(store, store_id), ring)
        if not left.rewrap:
            return RekeyPlan(plan.active_id, tuple(sorted(done)), plan.current)
    raise _contested(", ".join(map(data_key_key, left.rewrap)))


def execute_rekey(
    store: ObjectStore, store_id: str, ring: KeyRing, plan: RekeyPlan, *, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Do what ``plan_rekey`` decided."""
    for data_key_id in plan.rewrap:
        _swap(store, store_id, data_key_id, ring, clock)


def _swap(store: ObjectStore, store_id: str, data_key_id: str, ring: KeyRing, clock: Clock) -> None:
    name = data_key_key(data_key_id)
    for _ in range(_SWAP_ATTEMPTS):
        stored = read_stored(store, name)
        record = check_wrapped_key(decode_wrapped_key(stored.data, name), store_id, data_key_id)
        if record.master_key_id == ring.active_id:
            unwrap(record, ring)
            return
        renewed = encode_wrapped_key(rewrap(record, ring, new_wrap_nonce(clock)))
        try:
            store.put(name, renewed, if_match=stored.version)
        except (Conflict, OutcomeUnknown):
            continue
        return
    raise _contested(name)


def _contested(names: str) -> Busy:
    return Busy(
        f"gave up after {_SWAP_ATTEMPTS} conflicting writes to {names}",
        hint="two rekeys with different active keys run at once, or runs begin with the old one; stop them",
    )
