"""What ``CheckpointStore`` is given and how it reaches its store: run, cipher, share of the vnodes."""

from __future__ import annotations

from collections.abc import Set
from typing import Self

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.crypto.master_keys import KeyRing
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import DEFAULT_VNODE_COUNT, QueryInfo
from pyspark_checkpoint.format.summary import ManifestSummary
from pyspark_checkpoint.history.control import ensure_control
from pyspark_checkpoint.history.encryption import choose_cipher, read_with
from pyspark_checkpoint.history.head import locate_head
from pyspark_checkpoint.history.keyring import find_key_ring
from pyspark_checkpoint.history.parallel import DEFAULT_CONCURRENCY
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.history.vnode_share import check_vnodes
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.probe import require_conditional_writes


class StoreAccess:
    """The settings of a history and the means to read and write it, made when they are first needed."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        run_id: str | None = None,
        instance_id: str = "",
        query: QueryInfo | None = None,
        max_retained: int | None = None,
        vnode_count: int = DEFAULT_VNODE_COUNT,
        vnodes: Set[int] | None = None,
        key_ring: KeyRing | None = None,
        accept_unsafe: bool = False,
        max_concurrent_uploads: int = DEFAULT_CONCURRENCY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``max_retained`` epochs are kept by every save, None keeps all; ``vnodes`` is a static share."""
        if max_retained is not None and max_retained < 1:
            raise SettingsError(f"max_retained is {max_retained}", hint="at least 1, or None to keep all")
        if max_concurrent_uploads < 1:
            raise SettingsError(f"max_concurrent_uploads is {max_concurrent_uploads}", hint="at least 1")
        self.store = store
        self.run_id = run_id or clock.uuid7()
        self.instance_id = instance_id
        self.max_retained = max_retained
        self.max_concurrent_uploads = max_concurrent_uploads
        self.vnodes = check_vnodes(vnodes, vnode_count)
        self._vnode_count = vnode_count
        self._query = query
        self._ring = key_ring
        self._accept_unsafe = accept_unsafe
        self._clock = clock
        self._run: Run | None = None
        self._reader: tuple[str, StoreCipher | None] | None = None
        self._attempt: CheckpointId | None = None
        self._sidecar: ArtifactRef | None = None
        self._places: set[str] = set()
        self._summaries: dict[int, ManifestSummary] = {}

    @property
    def vnode_count(self) -> int:
        """How many vnodes manifests of this store are expected to have."""
        return self._vnode_count

    def with_vnode_count(self, vnode_count: int) -> Self:
        """The same store, expecting another number of vnodes."""
        return type(self)(
            self.store,
            run_id=self.run_id,
            instance_id=self.instance_id,
            query=self._query,
            max_retained=self.max_retained,
            vnode_count=vnode_count,
            vnodes=self.vnodes,
            key_ring=self._ring,
            accept_unsafe=self._accept_unsafe,
            max_concurrent_uploads=self.max_concurrent_uploads,
            clock=self._clock,
        )

    def close(self) -> None:
        """Release connections."""
        self.store.close()

    def writer(self) -> Run:
        """The run that this object commits for. Makes the control record of a store that is new."""
        if self._run is None:
            require_conditional_writes(self.store, self._accept_unsafe, clock=self._clock)
            store_id = ensure_control(self.store, self._clock).control.store_id
            cipher = choose_cipher(self.store, store_id, self._ring, self._clock, writing=True)
            self._run = Run(
                self.store,
                self.run_id,
                clock=self._clock,
                instance_id=self.instance_id,
                query=self._query,
                cipher=cipher,
            )
        return self._run

    def _cipher(self) -> StoreCipher | None:
        """The cipher to read with; None for a plain store, and for one that is new."""
        if self._reader is None:
            if self._ring is None and find_key_ring() is None:
                return None
            where = locate_head(self.store)
            if where is None:
                return None
            store_id = where.control.store_id
            cipher = choose_cipher(self.store, store_id, self._ring, self._clock, writing=False)
            self._reader = store_id, cipher
        return self._reader[1]

    def authenticator(self) -> Mac | None:
        """What authenticates manifests; None without keys, ``plain_only`` with keys and a plain store."""
        return self._mac()

    def _mac(self) -> Mac | None:
        cipher = self._cipher()
        return None if self._reader is None else read_with(cipher)

    def _store_id(self) -> str:
        """The store's id where it matters: for a cipher."""
        return self._reader[0] if self._cipher() is not None and self._reader is not None else ""
