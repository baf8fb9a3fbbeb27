"""Whether a store is encrypted, and the cipher to use with it."""

from __future__ import annotations

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.crypto import MANIFEST_KEY_ID
from pyspark_checkpoint.format.keys import data_key_key
from pyspark_checkpoint.format.master_keys import KeyRing
from pyspark_checkpoint.history.cipher import StoreCipher
from pyspark_checkpoint.history.keyring import find_key_ring
from pyspark_checkpoint.history.records_io import exists
from pyspark_checkpoint.store.base import ObjectStore


def is_encrypted(store: ObjectStore) -> bool:
    """Whether manifests of this store are authenticated, which is so from the first one or never."""
    return exists(store, data_key_key(MANIFEST_KEY_ID))


def choose_cipher(
    store: ObjectStore, store_id: str, ring: KeyRing | None, clock: Clock, *, fresh: bool
) -> StoreCipher | None:
    """The cipher for a store, None if it is plain.

    ``ring`` is the one that the caller was told to use; without it the environment's is used where the
    store is encrypted, or is ``fresh`` and being begun. Plain stores stay plain.
    """
    found = ring or find_key_ring()
    if found is None:
        return None
    if fresh or is_encrypted(store):
        return StoreCipher(store, store_id, found, clock)
    if ring is not None:
        raise RefusedError(
            f"{store.url} is plain, and stays plain",
            hint="open it without a key ring, or begin a new store",
        )
    return None
