"""Whether a store is encrypted, and the cipher to use with it."""

from __future__ import annotations

from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.crypto.master_keys import KeyRing
from pyspark_checkpoint.errors import FormatError, MissingKey, RefusedError
from pyspark_checkpoint.format.envelope import Mac, plain_only
from pyspark_checkpoint.format.keys import data_key_key
from pyspark_checkpoint.history.head import HeadLocation, locate_head
from pyspark_checkpoint.history.keyring import find_key_ring
from pyspark_checkpoint.history.manifest_reader import exists, load_manifest_bytes
from pyspark_checkpoint.history.store_cipher import StoreCipher, read_wrapped_key
from pyspark_checkpoint.store.base import ObjectStore


def is_encrypted(store: ObjectStore) -> bool:
    """Whether manifests of this store are authenticated, which is so from the first one or never."""
    return exists(store, data_key_key(MANIFEST_KEY_ID))


def choose_cipher(
    store: ObjectStore, store_id: str, ring: KeyRing | None, clock: Clock, *, writing: bool
) -> StoreCipher | None:
    """The cipher for a store, None if it is plain, or new and not ``writing``.

    ``ring`` is the one that the caller was told to use; without it the environment's is used where the
    store is encrypted, or is new and being begun. Plain stores stay plain. A writer without a ring
    is refused before it has staged anything: nothing plain ever goes to an encrypted store. A store whose
    head says that it is encrypted has a cipher, also if its manifests' key is gone: nothing is read then.
    """
    found = ring or find_key_ring()
    if found is None:
        if writing and is_encrypted(store):
            raise _needs_ring(store, store_id)
        return None
    cipher = StoreCipher(store, store_id, found, clock)
    if is_encrypted(store):
        return cipher
    where = locate_head(store, store_id=store_id)
    if where is None:
        return cipher if writing else None
    # Asked again, because another run may have begun the store, with its key first, since we asked.
    if is_encrypted(store) or _says_encrypted(where):
        return cipher
    if ring is not None:
        raise RefusedError(
            f"{store.url} is plain, and stays plain",
            hint="open it without a key ring, or begin a new store",
        )
    return None


def read_with(cipher: StoreCipher | None) -> Mac:
    """What somebody who has keys reads manifests with: nothing that says it is encrypted goes unproved."""
    return plain_only if cipher is None else cipher.mac


def _says_encrypted(where: HeadLocation) -> bool:
    try:
        manifest = load_manifest_bytes(where.data, where.number).manifest
    except FormatError:
        return False
    return manifest.encryption_key_id is not None or any(ref.data_key_id for ref in manifest.artifacts())


def _needs_ring(store: ObjectStore, store_id: str) -> MissingKey:
    needed = read_wrapped_key(store, store_id, MANIFEST_KEY_ID).master_key_id
    return MissingKey(
        needed,
        f"{store.url} is encrypted: writing to it needs master key {needed!r}",
        hint="give encryptionKeyFile, or set CKPT_KEY_FILE or CKPT_KEYRING",
    )
