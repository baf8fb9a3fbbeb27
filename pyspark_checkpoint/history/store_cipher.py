"""Whether a store is encrypted, and the ciphers to use with it: one for tasks, one for the driver.

``StoreCipher`` reads and makes ``keys/*.json`` with the master keys of a key ring. ``task_cipher`` gives
what executors need, and no more: data keys, by value. A task can neither unwrap other keys nor
authenticate a manifest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.crypto.aead import (
    MANIFEST_KEY_ID,
    DataKey,
    decrypt_artifact,
    encrypt_artifact,
    manifest_mac,
)
from pyspark_checkpoint.crypto.data_keys import (
    WrappedKey,
    decode_wrapped_key,
    encode_wrapped_key,
    unwrap,
    wrap,
)
from pyspark_checkpoint.crypto.keyring import KEY_BYTES, KEY_RING_HINT, KeyRing, find_key_ring
from pyspark_checkpoint.errors import (
    FormatError,
    Incompatible,
    MissingKey,
    NotFound,
    RefusedError,
)
from pyspark_checkpoint.format.cipher import ArtifactContext
from pyspark_checkpoint.format.envelope import Mac, plain_only
from pyspark_checkpoint.format.keys import LATEST_KEY, data_key_key
from pyspark_checkpoint.history.control import has_manifests
from pyspark_checkpoint.history.head import HeadLocation, locate_head
from pyspark_checkpoint.history.manifest_reader import (
    create_object,
    exists,
    load_manifest_bytes,
    read_record,
)
from pyspark_checkpoint.store.base import ObjectStore

_WRAP_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class DataKeyCipher:
    """Encrypts under one data key and decrypts under those it was given. Travels to tasks by value.

    Its repr shows key ids only. ``clock`` is None for the machine's own, so that it can be sent.
    """

    key_id: str
    active: DataKey
    others: Mapping[str, DataKey] = field(default_factory=dict)
    clock: Clock | None = None

    @property
    def data_key_id(self) -> str:
        """The id of the data key that ``encrypt`` uses."""
        return self.active.data_key_id

    def encrypt(self, data: bytes, context: ArtifactContext) -> bytes:
        """Return ``data`` encrypted and bound to ``context``."""
        return encrypt_artifact(self.active, context, data, new_salt(self.clock or SYSTEM_CLOCK))

    def decrypt(self, data: bytes, data_key_id: str, context: ArtifactContext) -> bytes:
        """Return what was encrypted; ``MissingKey`` if the driver did not give this data key."""
        key = self.active if data_key_id == self.data_key_id else self.others.get(data_key_id)
        if key is None:
            raise MissingKey(
                data_key_id,
                f"this task was not given data key {data_key_id}",
                hint="the driver names the keys that tasks need; this is a bug: please report it",
            )
        return decrypt_artifact(key, context, data)

    def mac(self, body: bytes) -> str:  # noqa: ARG002
        """Refuse: manifests are authenticated on the driver only."""
        raise RefusedError(
            "a task cannot authenticate a manifest", hint="use the StoreCipher of the driver"
        )


class StoreCipher:
    """Encrypts, decrypts and authenticates for one store, with its key ring. Lives on the driver.

    The data key of this run is made when it is first needed: a reader writes nothing. Data keys are
    fetched once each. Threads may share it.
    """

    def __init__(
        self, store: ObjectStore, store_id: str, ring: KeyRing | None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store = store
        self._store_id = store_id
        self._ring = ring
        self._clock = clock
        self._lock = threading.RLock()
        self._keys: dict[str, DataKey] = {}
        self._active: DataKey | None = None
        self._mac: Mac | None = None

    def __repr__(self) -> str:
        return f"StoreCipher(store_id={self._store_id!r}, ring={self._ring!r})"

    @property
    def key_id(self) -> str:
        """The id of the active master key."""
        return self._needed_ring().active_id

    @property
    def data_key_id(self) -> str:
        """The id of this run's data key, whose record is durable when this returns."""
        return self._active_key().data_key_id

    def encrypt(self, data: bytes, context: ArtifactContext) -> bytes:
        """Return ``data`` encrypted under this run's data key and bound to ``context``."""
        return encrypt_artifact(self._active_key(), context, data, new_salt(self._clock))

    def decrypt(self, data: bytes, data_key_id: str, context: ArtifactContext) -> bytes:
        """Return what was encrypted; ``MissingKey`` without the key, ``FormatError`` if it was changed."""
        return decrypt_artifact(self.data_key(data_key_id), context, data)

    def mac(self, body: bytes) -> str:
        """Return 64 hex digits that authenticate a manifest's bytes; the same for every master key."""
        with self._lock:
            if self._mac is None:
                self._mac = manifest_mac(self._manifest_key())
        return self._mac(body)

    def data_key(self, data_key_id: str) -> DataKey:
        """Return a data key of this store, unwrapped."""
        with self._lock:
            if data_key_id not in self._keys:
                record = read_wrapped_key(self._store, self._store_id, data_key_id)
                self._keys[data_key_id] = unwrap(record, self._ring)
            return self._keys[data_key_id]

    def task_cipher(self, data_key_ids: Iterable[str] = ()) -> DataKeyCipher:
        """Return what tasks need: this run's data key, and the named ones to read earlier artifacts."""
        others = {key_id: self.data_key(key_id) for key_id in data_key_ids if key_id != MANIFEST_KEY_ID}
        return DataKeyCipher(self.key_id, self._active_key(), others)

    def _active_key(self) -> DataKey:
        with self._lock:
            if self._active is None:
                self._active = self._create(self._clock.uuid7())
            return self._active

    def _manifest_key(self) -> DataKey:
        """The key of all manifests. Made with the first one; missing later, it is an error."""
        try:
            return self.data_key(MANIFEST_KEY_ID)
        except NotFound:
            if not exists(self._store, LATEST_KEY) and not has_manifests(self._store):
                return self._create(MANIFEST_KEY_ID)
        try:
            # The key is made before the first manifest, perhaps by another run just now.
            return self.data_key(MANIFEST_KEY_ID)
        except NotFound:
            raise FormatError(
                f"the store has checkpoints, but {data_key_key(MANIFEST_KEY_ID)} is gone",
                hint="restore that object from a copy of the store; without it no manifest can be trusted",
            ) from None

    def _create(self, data_key_id: str) -> DataKey:
        """Make a data key durable; if another made it meanwhile, or our answer was lost, take theirs."""
        record, key = self._new_record(data_key_id)
        name, data = data_key_key(data_key_id), encode_wrapped_key(record)
        if not create_object(self._store, name, data, self._clock):
            return self.data_key(data_key_id)
        self._keys[data_key_id] = key
        return key

    def _new_record(self, data_key_id: str) -> tuple[WrappedKey, DataKey]:
        key = DataKey(data_key_id, new_secret(self._clock))
        nonce = new_wrap_nonce(self._clock)
        master = self._needed_ring().active
        return wrap(key, self._store_id, master, nonce, self._clock.now_ms()), key

    def _needed_ring(self) -> KeyRing:
        if self._ring is None:
            raise MissingKey(
                "",
                "writing to an encrypted store needs a key ring",
                hint=KEY_RING_HINT,
            )
        return self._ring


def read_wrapped_key(store: ObjectStore, store_id: str, data_key_id: str) -> WrappedKey:
    """Read the record of a data key and check that it is the one asked for."""
    name = data_key_key(data_key_id)
    return check_wrapped_key(decode_wrapped_key(read_record(store, name), name), store_id, data_key_id)


def check_wrapped_key(record: WrappedKey, store_id: str, data_key_id: str) -> WrappedKey:
    """Refuse a record that was copied from elsewhere."""
    if record.data_key_id != data_key_id or record.store_id != store_id:
        raise FormatError(
            f"{data_key_key(data_key_id)} is the record of another data key or store",
            hint="it was moved here; restore the object from a copy of the store",
        )
    return record


def new_salt(clock: Clock) -> bytes:
    """A salt that nobody else has made."""
    return bytes.fromhex(clock.nonce())


def new_secret(clock: Clock) -> bytes:
    """A new data key's secret, from the random source of the clock."""
    return bytes.fromhex(clock.nonce() + clock.nonce())[:KEY_BYTES]


def new_wrap_nonce(clock: Clock) -> bytes:
    """A nonce for wrapping a key."""
    return bytes.fromhex(clock.nonce())[:_WRAP_NONCE_BYTES]


# --- which cipher a store needs ---------------------------------------------------------------------


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
        raise Incompatible(
            f"{store.url} is plain, and stays plain",
            hint="open it without a key ring, or begin a new store",
        )
    return None


def read_with(cipher: StoreCipher | None) -> Mac:
    """What a holder of keys reads manifests with: nothing that says it is encrypted goes unproved."""
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
        hint=KEY_RING_HINT,
    )
