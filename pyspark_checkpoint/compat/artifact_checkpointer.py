"""Artifacts and manifests, saved and loaded one by one. For whole checkpoints see ``CheckpointStore``."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import NotFound, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity
from pyspark_checkpoint.format.cipher import Cipher
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths, check_artifact_path, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, PartitionSnapshotEntry
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.deletion import delete_checkpoint
from pyspark_checkpoint.history.head import find_head, locate_head
from pyspark_checkpoint.history.lookup import find_checkpoint, iter_newest_first
from pyspark_checkpoint.history.publish import move_latest
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.staging import NO_PARTITION, artifact_context, put_artifact
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, run_bounded

PartitionData = tuple[str, int, bool, bytes]
"""Operator, partition, whether it is a delta, and the bytes."""


class Checkpointer(abc.ABC):
    """Saves and loads what a checkpoint consists of."""

    @abc.abstractmethod
    def save_manifest(
        self, manifest: CheckpointManifest, attempt: CheckpointId | None = None
    ) -> CheckpointManifest:
        """Commit a manifest and return it as stored."""

    @abc.abstractmethod
    def load_manifest(self, checkpoint: CheckpointId | int) -> CheckpointManifest:
        """Return a manifest, or raise ``NotFound``."""

    @abc.abstractmethod
    def save_snapshot(self, attempt: CheckpointId, operator: str, partition: int, data: bytes) -> str:
        """Store a partition's snapshot and return the SHA-256 of the stored bytes."""

    @abc.abstractmethod
    def save_delta(self, attempt: CheckpointId, operator: str, partition: int, data: bytes) -> str:
        """Store a partition's delta and return the SHA-256 of the stored bytes."""

    @abc.abstractmethod
    def load_artifact(self, artifact: ArtifactRef | str, expected_sha256: str | None = None) -> bytes:
        """Return an artifact's bytes, verified."""

    @abc.abstractmethod
    def update_latest(self, checkpoint: CheckpointId) -> None:
        """Point the hint at a checkpoint."""

    @abc.abstractmethod
    def read_latest(self) -> CheckpointId | None:
        """Return the newest checkpoint, None for a store that is new."""

    @abc.abstractmethod
    def list_checkpoints(self) -> list[CheckpointId]:
        """Return all checkpoints, oldest first."""

    @abc.abstractmethod
    def delete_checkpoint(self, checkpoint: CheckpointId | int) -> None:
        """Delete a checkpoint that is neither the newest nor pinned."""


class ObjectStoreCheckpointer(Checkpointer):
    """The ``Checkpointer`` on an object store, committing for one run."""

    def __init__(
        self,
        store: ObjectStore,
        run_id: str | None = None,
        *,
        max_concurrent_uploads: int = DEFAULT_CONCURRENCY,
        clock: Clock = SYSTEM_CLOCK,
        cipher: Cipher | None = None,
        run: Run | None = None,
    ) -> None:
        self.store = store
        self.max_concurrent_uploads = max_concurrent_uploads
        self.paths = CheckpointPaths()
        self._clock = clock
        self._cipher = cipher
        self._run = run or Run(store, run_id or clock.uuid7(), clock=clock, cipher=cipher)

    def new_id(self) -> CheckpointId:
        """A fresh place to stage the next checkpoint in."""
        return self._run.attempt()

    def save_manifest(
        self, manifest: CheckpointManifest, attempt: CheckpointId | None = None
    ) -> CheckpointManifest:
        """Commit a manifest whose artifacts are staged for ``attempt``; see ``Run.publish``."""
        if attempt is None:
            attempt = CheckpointId(manifest.checkpoint_id, manifest.attempt or self._clock.uuid7())
        return self._run.publish(manifest, attempt)

    def load_manifest(self, checkpoint: CheckpointId | int) -> CheckpointManifest:
        """Return a manifest that exists for readers, or raise ``NotFound``."""
        number = checkpoint if isinstance(checkpoint, int) else checkpoint.number
        loaded = find_checkpoint(self.store, number, mac=self._run.mac)
        wanted = loaded is not None and (
            isinstance(checkpoint, int) or loaded.manifest.attempt == checkpoint.uuid
        )
        if loaded is None or not wanted:
            raise NotFound(
                f"no checkpoint {checkpoint}",
                key=manifest_key(number),
                hint="list_checkpoints() has them all",
            )
        return loaded.manifest

    def save_snapshot(self, attempt: CheckpointId, operator: str, partition: int, data: bytes) -> str:
        """Store a partition's snapshot and return the SHA-256 of the stored bytes."""
        return self._save(attempt, (operator, partition, False, data), 0).sha256

    def save_delta(self, attempt: CheckpointId, operator: str, partition: int, data: bytes) -> str:
        """Store a partition's delta and return the SHA-256 of the stored bytes."""
        return self._save(attempt, (operator, partition, True, data), 0).sha256

    def save_partitions(
        self, attempt: CheckpointId, snapshots: Sequence[PartitionData], *, epoch: int = 0
    ) -> list[tuple[str, PartitionSnapshotEntry]]:
        """Store many partitions, at most ``max_concurrent_uploads`` at a time; one entry for each of them.

        The entries are in the order of the requests, and there is exactly one for each, or an error.
        """
        requests = [(operator, partition, is_delta) for operator, partition, is_delta, _ in snapshots]
        if len(set(requests)) != len(requests):
            raise RefusedError("a partition is there twice", hint="give each partition once")
        refs = run_bounded(
            lambda item: self._save(attempt, item, epoch), snapshots, self.max_concurrent_uploads
        )
        return [
            (operator, PartitionSnapshotEntry(partition, (ref,)))
            for (operator, partition, _), ref in zip(requests, refs, strict=True)
        ]

    save_partitions_concurrent = save_partitions

    def load_artifact(
        self,
        artifact: ArtifactRef | str,
        expected_sha256: str | None = None,
        *,
        operator: str = "",
        partition: int = NO_PARTITION,
    ) -> bytes:
        """Return an artifact's bytes: by reference, decrypted; or by path, as stored, with its digest."""
        if isinstance(artifact, ArtifactRef):
            reader = ArtifactReader(self.store, store_id=self._store_id(), cipher=self._cipher)
            return reader.read(artifact, operator, partition)
        if expected_sha256 is None:
            raise RefusedError(
                "a path alone proves nothing", hint="give the digest too, or the ArtifactRef of a manifest"
            )
        data = self.store.get(check_artifact_path(artifact))
        verify_integrity(artifact, data, expected_sha256)
        return data

    def update_latest(self, checkpoint: CheckpointId) -> None:
        """Point the hint at a checkpoint. Readers find the newest one whatever it says."""
        move_latest(self.store, checkpoint.number)

    def read_latest(self) -> CheckpointId | None:
        """Return the newest checkpoint: the truth, for which the pointer is only a hint."""
        head = find_head(self.store, mac=self._run.mac)
        return None if head is None else CheckpointId(head.number, head.manifest.attempt)

    def list_checkpoints(self) -> list[CheckpointId]:
        """Return all checkpoints that exist for readers, oldest first."""
        where = locate_head(self.store)
        if where is None:
            return []
        newest_first = iter_newest_first(self.store, where)
        return sorted(CheckpointId(found.number, found.attempt) for found in newest_first)

    def delete_checkpoint(self, checkpoint: CheckpointId | int) -> None:
        """Delete a checkpoint; its number stays taken and the chain stays provable."""
        number = self.load_manifest(checkpoint).checkpoint_id
        delete_checkpoint(self.store, number, self._clock, mac=self._run.mac)

    def _store_id(self) -> str:
        """The store's id, which only encryption needs."""
        if self._cipher is None:
            return ""
        return self._run.store_id or read_control(self.store).control.store_id

    def _save(self, attempt: CheckpointId, item: PartitionData, epoch: int) -> ArtifactRef:
        operator, partition, is_delta, data = item
        build = CheckpointPaths.delta if is_delta else CheckpointPaths.snapshot
        path, key_id = build(attempt, operator, partition), None
        if self._cipher is not None:
            context = artifact_context(
                self._store_id(), attempt.number, operator, partition, is_delta=is_delta, name=""
            )
            data, key_id = self._cipher.encrypt(data, context), self._cipher.data_key_id
        put_artifact(self.store, path, data, self._clock)
        return ArtifactRef(path, len(data), sha256_hex(data), is_delta, epoch, data_key_id=key_id)
