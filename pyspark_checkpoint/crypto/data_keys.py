"""Wrapped data keys as they are stored: the only records that ``rekey`` rewrites."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace

from pyspark_checkpoint.crypto.aead import DataKey, unwrap_data_key, wrap_data_key
from pyspark_checkpoint.crypto.keyring import KEY_RING_HINT, KeyRing, MasterKey
from pyspark_checkpoint.errors import FormatError, MissingKey
from pyspark_checkpoint.format.envelope import decode_record, encode_record

ALGORITHM = "AES-256-GCM"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key that only its master key opens. ``counter`` rises each time it is rewrapped."""

    data_key_id: str
    store_id: str
    master_key_id: str
    nonce: bytes
    wrapped: bytes
    timestamp_ms: int
    counter: int = 0


def wrap(key: DataKey, store_id: str, master: MasterKey, nonce: bytes, timestamp_ms: int) -> WrappedKey:
    """Return the record of a new data key."""
    wrapped = wrap_data_key(master.secret, store_id, key, nonce)
    return WrappedKey(key.data_key_id, store_id, master.key_id, nonce, wrapped, timestamp_ms)


def rewrap(record: WrappedKey, ring: KeyRing, nonce: bytes) -> WrappedKey:
    """Return the same data key wrapped by the ring's active key."""
    key = unwrap(record, ring)
    wrapped = wrap_data_key(ring.active.secret, record.store_id, key, nonce)
    return replace(
        record,
        master_key_id=ring.active_id,
        nonce=nonce,
        wrapped=wrapped,
        counter=record.counter + 1,
    )


def unwrap(record: WrappedKey, ring: KeyRing | None) -> DataKey:
    """Return the data key, or raise ``MissingKey`` that names the master key which is needed."""
    needed = record.master_key_id
    if ring is None:
        raise MissingKey(
            needed,
            f"this store is encrypted: data key {record.data_key_id} needs master key {needed!r}",
            hint=KEY_RING_HINT,
        )
    master = ring.find(needed)
    key = unwrap_data_key(master.secret, record.store_id, record.data_key_id, record.nonce, record.wrapped)
    if key is None:
        raise MissingKey(
            needed,
            f"the key ring's {needed!r} is not the key that wrapped data key {record.data_key_id}",
            hint=f"another key has the same id; find the right {needed!r}",
        )
    return key


def encode_wrapped_key(record: WrappedKey) -> bytes:
    """Return the bytes of a wrapped data key."""
    return encode_record(
        {
            "algorithm": ALGORITHM,
            "data_key_id": record.data_key_id,
            "store_id": record.store_id,
            "master_key_id": record.master_key_id,
            "nonce": base64.b64encode(record.nonce).decode("ascii"),
            "wrapped": base64.b64encode(record.wrapped).decode("ascii"),
            "timestamp_ms": record.timestamp_ms,
            "counter": record.counter,
        }
    )


def decode_wrapped_key(data: bytes, name: str) -> WrappedKey:
    """Read a wrapped data key back."""
    fields = decode_record(data, name)
    if fields.get("algorithm") != ALGORITHM:
        raise FormatError(
            f"{name} is wrapped by an algorithm that this version does not know",
            hint="a newer version of pyspark-checkpoint wrote it, or it is damaged; upgrade, or restore it",
        )
    try:
        return WrappedKey(
            data_key_id=str(fields["data_key_id"]),
            store_id=str(fields["store_id"]),
            master_key_id=str(fields["master_key_id"]),
            nonce=base64.b64decode(fields["nonce"], validate=True),
            wrapped=base64.b64decode(fields["wrapped"], validate=True),
            timestamp_ms=int(fields["timestamp_ms"]),
            counter=int(fields["counter"]),
        )
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise FormatError(
            f"{name} lacks a field, or has one of another type",
            hint="restore the object from a copy of the store; without it its artifacts cannot be read",
        ) from None
