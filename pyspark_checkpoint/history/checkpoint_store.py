"""``CheckpointStore``: a history of checkpoints under one URL, as a user sees it. The way to open one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Self

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.crypto.keyring import KEY_FILE_OPTION, KeyRing, find_key_ring, load_key_ring
from pyspark_checkpoint.errors import (
    CheckpointError,
    FormatError,
    Incompatible,
    RefusedError,
    SettingsError,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import Mac
from pyspark_checkpoint.format.keys import CheckpointId, manifest_key
from pyspark_checkpoint.format.manifest import DEFAULT_VNODE_COUNT, CheckpointManifest, QueryInfo
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.format.summary import ManifestSummary, summarize_manifest
from pyspark_checkpoint.history import lookup, orphans, rules, verify
from pyspark_checkpoint.history import recovery as recover
from pyspark_checkpoint.history import retention as retain
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, find_sidecar, iter_sidecar
from pyspark_checkpoint.history.control import ensure_control, find_control_or_new
from pyspark_checkpoint.history.deletion import Removal, delete_checkpoint
from pyspark_checkpoint.history.head import find_head, locate_head, lost_problem
from pyspark_checkpoint.history.overview import Overview, read_overview
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.run import HeadCheck, Run
from pyspark_checkpoint.history.savepoint import (
    Savepoint,
    add_savepoint,
    list_savepoints,
    remove_savepoint,
)
from pyspark_checkpoint.history.sink_status import (
    SinkDrivers,
    drive_sinks,
    read_status,
    read_statuses,
    record_status,
    usable_statuses,
)
from pyspark_checkpoint.history.staging import Staged, StagedItem, stage, stage_sidecar, with_sidecar
from pyspark_checkpoint.history.store_cipher import StoreCipher, choose_cipher, read_with
from pyspark_checkpoint.history.vnode_share import check_others, check_share, check_vnodes, select_share
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store, parse_store_settings
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, Progress
from pyspark_checkpoint.store.probe import require_conditional_writes

_LOG = logging.getLogger(__name__)


class CheckpointStore:
    """A linear history of verified checkpoints. Reading changes nothing; the first save takes over.

    Open one by its URL with ``CheckpointStore.open``, or give the constructor an ``ObjectStore`` that is
    open already. Not for two threads at once. Every method that asks the store raises ``StoreError`` if
    the store does not answer, and ``FormatError`` if what it finds is damaged.
    """

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
        """Sends no request.

        Args:
            store: Where the history is.
            run_id: The run that commits; by default a new one, which fences every other at its first save.
            instance_id: Who writes, for people.
            query: Whose history this is; a store is one query's.
            max_retained: How many epochs every save keeps; None keeps all.
            vnode_count: How many vnodes manifests have.
            vnodes: The static share of the vnodes that is read and written; None means all.
            key_ring: The master keys; by default those of the environment, where the store is encrypted.
            accept_unsafe: Whether to write to a store that ignores conditional writes.
            max_concurrent_uploads: How many artifacts are uploaded at a time.
            clock: Where times and ids come from.

        Raises:
            SettingsError: A number is out of its range.
        """
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
        self._opened: tuple[str, StoreCipher | None] | None = None
        self._attempt: CheckpointId | None = None
        self._sidecar: ArtifactRef | None = None
        self._places: set[str] = set()
        self._summaries: dict[int, ManifestSummary] = {}

    @classmethod
    def open(
        cls,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        run_id: str | None = None,
        instance_id: str = "",
        query: QueryInfo | None = None,
        max_retained: int | None = None,
        vnode_count: int = DEFAULT_VNODE_COUNT,
        vnodes: Set[int] | None = None,
        key_ring: KeyRing | None = None,
        accept_unsafe: bool | None = None,
        max_concurrent_uploads: int = DEFAULT_CONCURRENCY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Open the history at ``url``. Sends no request.

        Args:
            url: ``s3://``, ``gs://``, ``az://``, ``file://``, ``memory://`` or a directory.
            options: Options of the store, and ``encryptionKeyFile``, which wins over ``key_ring``.
            run_id: As in the constructor, like all that follow.
            instance_id: Who writes, for people.
            query: Whose history this is.
            max_retained: How many epochs every save keeps; None keeps all.
            vnode_count: How many vnodes manifests have.
            vnodes: The static share of the vnodes; None means all.
            key_ring: The master keys.
            accept_unsafe: By default what the option ``allowUnsafeStore`` says.
            max_concurrent_uploads: How many artifacts are uploaded at a time.
            clock: Where times and ids come from.

        Returns:
            The history, which may be one in which nothing was committed yet.

        Raises:
            SettingsError: The URL, an option or the key file is wrong, or a package is missing.
        """
        given = dict(options or {})
        key_file = given.pop(KEY_FILE_OPTION, None)
        if accept_unsafe is None:
            accept_unsafe = parse_store_settings(url, given).allow_unsafe_store
        return cls(
            open_object_store(url, given),
            run_id=run_id,
            instance_id=instance_id,
            query=query,
            max_retained=max_retained,
            vnode_count=vnode_count,
            vnodes=vnodes,
            key_ring=key_ring if key_file is None else load_key_ring(key_file),
            accept_unsafe=accept_unsafe,
            max_concurrent_uploads=max_concurrent_uploads,
            clock=clock,
        )

    def close(self) -> None:
        """Release connections."""
        self.store.close()

    @property
    def vnode_count(self) -> int:
        """How many vnodes manifests of this store are expected to have."""
        return self._vnode_count

    def with_vnode_count(self, vnode_count: int) -> Self:
        """The same store, for the same run, expecting ``vnode_count`` vnodes."""
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

    # --- writing -----------------------------------------------------------------------------------

    def writer(self) -> Run:
        """The run that this object commits for. Makes the control record of a store that is new.

        Raises:
            UnsafeStore: The store ignores conditional writes.
            MissingKey: The store is encrypted, and there is no key ring.
        """
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

    def claim(self, check: HeadCheck | None = None) -> CheckpointManifest | None:
        """Take the store over now, before the first save: every other run is fenced at its next commit.

        Args:
            check: Asked about the head before it is claimed; what it raises is raised.

        Returns:
            The claim, or None if there is nothing to take over.

        Raises:
            FencedError: Another run has taken the store over from this one.
            StaleAttempt: Other runs kept committing; claim again.
        """
        return self.writer().claim(check)

    def attempt(self) -> CheckpointId:
        """Where artifacts of the next checkpoint are staged; the same until it is saved."""
        run = self.writer()
        if self._attempt is None or self._attempt.number != rules.next_number(run.head):
            self._attempt, self._sidecar = run.attempt(), None
            self._places.clear()
        return self._attempt

    def stage(self, items: Sequence[StagedItem]) -> Staged:
        """Make artifacts of the next checkpoint durable, in few requests. May be repeated, or go on.

        Args:
            items: The artifacts' bytes, and whose they are.

        Returns:
            One reference an item, in order, for the manifest, and what it cost.
        """
        run, attempt = self.writer(), self._place("artifacts")
        return stage(
            self.store,
            attempt,
            items,
            store_id=run.store_id or "",
            cipher=run.cipher,
            inline_used_bytes=0 if run.head is None else run.head.manifest.inline_bytes,
            max_concurrent_uploads=self.max_concurrent_uploads,
            clock=self._clock,
        )

    def save(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Commit a checkpoint, atomically; then keep ``max_retained`` epochs, if that is set.

        Args:
            manifest: What the checkpoint holds. Its ``checkpoint_id`` is the next one, or 0 for "the next".

        Returns:
            The manifest as it is in the store.

        Raises:
            FencedError: Another run has taken the store over; stop.
            StaleAttempt: The number is taken; stage and save again.
            OutcomeUnknown: It may be committed; look at the newest checkpoint before anything else.
            RefusedError: It does not follow what is in the store, or does not fit together.
        """
        run, attempt = self.writer(), self.attempt()
        if manifest.checkpoint_id not in (0, attempt.number):
            raise RefusedError(
                f"checkpoint {manifest.checkpoint_id} is not the next: that is {attempt.number}",
                hint="leave checkpoint_id 0, or use attempt().number",
            )
        if manifest.vnode_count != self._vnode_count:
            raise Incompatible(
                f"the manifest has {manifest.vnode_count} vnodes, this store {self._vnode_count}",
                hint="open the store with_vnode_count, or make the manifest with the store's",
            )
        draft = check_share(manifest, self.vnodes)
        if self._sidecar is not None:
            draft = with_sidecar(draft, self._sidecar)
        check_others(run.head, self.vnodes)
        saved = run.publish(draft, attempt)
        self._attempt = self._sidecar = None
        self._retain(saved)
        return saved

    def save_with_state(
        self, manifest: CheckpointManifest, state_data: Iterable[bytes] | None = None
    ) -> CheckpointManifest:
        """Commit ``manifest`` together with its state sidecar: both or nothing. Otherwise as ``save``.

        Args:
            manifest: As for ``save``.
            state_data: The sidecar, as for ``save_state_data``; None if there is none.
        """
        if state_data is not None:
            self.save_state_data(manifest.checkpoint_id, state_data)
        return self.save(manifest)

    def save_state_data(self, checkpoint_id: int, chunks: Iterable[bytes]) -> str:
        """Stage the state sidecar of the next checkpoint, which ``save`` then commits.

        Args:
            checkpoint_id: The next checkpoint, or 0.
            chunks: The bytes, one after the other. Memory is bounded, unless the store is encrypted.

        Returns:
            The SHA-256 of the stored bytes.

        Raises:
            RefusedError: ``checkpoint_id`` is not the next one.
        """
        run, attempt = self.writer(), self.attempt()
        if checkpoint_id not in (0, attempt.number):
            raise RefusedError(
                f"checkpoint {checkpoint_id} is not the next one", hint="state is saved before its manifest"
            )
        place = self._place("state")
        self._sidecar = stage_sidecar(
            self.store, place, chunks, self._clock, store_id=run.store_id or "", cipher=run.cipher
        )
        return self._sidecar.sha256

    def update_manifest(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Record the sink statuses that ``manifest`` carries; nothing else of a checkpoint ever changes.

        Returns:
            The manifest with the statuses as they are now: ``committed`` wins over ``failed``.

        Raises:
            NoCheckpoint: There is no such checkpoint.
            RefusedError: Something else than statuses differs from what is stored.
        """
        stored = lookup.read_checkpoint(self.store, manifest.checkpoint_id, mac=self.authenticator())
        mine = select_share(stored.manifest, self.vnodes)
        if mine != manifest.with_statuses({}):
            raise RefusedError(
                f"checkpoint {manifest.checkpoint_id} is immutable",
                hint="only sink statuses can be updated",
            )
        for sink, status in manifest.sink_commit_statuses.items():
            self._record(mine, sink, status)
        return mine.with_statuses(read_statuses(self.store, mine, mac=self.authenticator()))

    def record_sink_status(
        self, checkpoint_id: int, sink: str, status: SinkCommitStatus, message: str = ""
    ) -> None:
        """Record that a sink has committed a checkpoint, or has failed to. Repeating it is harmless.

        Args:
            checkpoint_id: The checkpoint.
            sink: A name among its ``sink_names``.
            status: What became of it; ``PENDING`` records nothing.
            message: Kept with the record.

        Raises:
            NoCheckpoint: There is no such checkpoint.
            RefusedError: It has no such sink, or the store is encrypted and there is no key.
        """
        stored = lookup.read_checkpoint(self.store, checkpoint_id, mac=self.authenticator()).manifest
        self._record(stored, sink, status, message)

    # --- reading -----------------------------------------------------------------------------------

    def load_latest(self) -> CheckpointManifest | None:
        """The newest checkpoint with its sinks' statuses; None for a store that is new, and only then."""
        head = find_head(self.store, mac=self.authenticator())
        return None if head is None else self._loaded(head.manifest)

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Checkpoint ``checkpoint_id``, None if there is none. Below the floor only savepoints are."""
        found = lookup.find_checkpoint(self.store, checkpoint_id, mac=self.authenticator())
        return None if found is None else self._loaded(found.manifest)

    def list_ids(self) -> list[int]:
        """The ids of all checkpoints, ascending, damaged ones included."""
        where = locate_head(self.store)
        return [] if where is None else lookup.visible_numbers(where.control, where.number)

    def find_lost(self) -> FormatError | None:
        """Says that the newest checkpoint, which was committed, is gone; None if nothing shows that."""
        where = locate_head(self.store)
        if where is None or where.lost is None:
            return None
        return FormatError(
            f"{manifest_key(where.lost)} {lost_problem(where.lost, where.number)}",
            hint=f"bring it back from a copy, or go on from what is left: ckpt rollback URL {where.number}",
        )

    def list(self) -> list[tuple[int, int]]:
        """All readable checkpoints as (checkpoint id, epoch), ascending."""
        return [(found.number, found.epoch) for found in self.summaries()]

    def summaries(self) -> Iterator[ManifestSummary]:
        """What each readable checkpoint is, ascending. A damaged one is left out, with a warning."""
        for number in self.list_ids():
            try:
                found = lookup.find_checkpoint(self.store, number)
            except FormatError as error:
                _LOG.warning("checkpoint %d is left out: %s", number, error)
                continue
            if found is not None:
                yield summarize_manifest(found.manifest)

    def overview(self, last: int | None = None) -> Overview:
        """What each checkpoint is, cost and added; with ``last`` of the newest and the savepoints only."""
        return read_overview(self.store, mac=self.authenticator(), last=last)

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """The state sidecar of ``checkpoint_id``, verified; None if that has none, or does not exist."""
        chunks = self.iter_state_data(checkpoint_id)
        return None if chunks is None else b"".join(chunks)

    def iter_state_data(self, checkpoint_id: int) -> Iterator[bytes] | None:
        """The state sidecar of ``checkpoint_id`` in chunks; after an error at the end none may be used."""
        manifest = self.load_by_id(checkpoint_id)
        ref = None if manifest is None else find_sidecar(manifest)
        if ref is None:
            return None
        return iter_sidecar(self.store, ref, store_id=self._store_id(), cipher=self._cipher())

    def load_partition(
        self, manifest: CheckpointManifest, operator: str, partition: int
    ) -> Sequence[bytes]:
        """A partition's snapshot and deltas, in the order to apply, verified and decrypted.

        Args:
            manifest: The checkpoint.
            operator: A name among its ``operators``.
            partition: Which of the operator's partitions.

        Raises:
            NoCheckpoint: The checkpoint has no such partition, or it is not in this object's share.
            IntegrityError: An artifact is not what was written.
            MissingKey: It is encrypted, and its key is not in the ring.
        """
        mine = select_share(manifest, self.vnodes)
        return self.reader().read_partition(mine, operator, partition)

    def reader(self) -> ArtifactReader:
        """What reads artifacts of this store. Threads may share it."""
        return ArtifactReader(self.store, store_id=self._store_id(), cipher=self._cipher())

    def authenticator(self) -> Mac | None:
        """What authenticates manifests; None without keys, ``plain_only`` with keys and a plain store."""
        cipher = self._cipher()
        return None if self._opened is None else read_with(cipher)

    # --- keeping order -----------------------------------------------------------------------------

    def plan_prune(
        self, keep: int | None = None, *, keep_newer_than_ms: int | None = None
    ) -> retain.PrunePlan | None:
        """What a prune would do. Changes nothing.

        Args:
            keep: How many of the newest epochs stay; None: that is no limit.
            keep_newer_than_ms: What was made at or after this time stays; None: that is no limit.

        Returns:
            The plan; None for a store that is new. With both limits a checkpoint goes only if both let it.

        Raises:
            RefusedError: ``keep`` is less than 1.
        """
        policy = retain.RetentionPolicy(keep, keep_newer_than_ms)
        head = find_head(self.store, cached=None if self._run is None else self._run.head)
        if head is None:
            return None
        recent = retain.read_recent(self.store, head, policy, cache=self._summaries)
        return retain.plan_prune(recent, head.control, policy)

    def execute_prune(self, plan: retain.PrunePlan) -> retain.PruneResult:
        """Do what ``plan`` says, and finish what earlier prunes left. Repeatable after a crash."""
        return retain.execute_prune(
            self.store, plan, self._clock, cache=self._summaries, mac=self.authenticator()
        )

    def prune(self, keep: int | None = None, *, keep_newer_than_ms: int | None = None) -> int:
        """Plan and execute a prune, by ``keep`` and ``keep_newer_than_ms`` of ``plan_prune``.

        Returns:
            How many checkpoints were removed.
        """
        plan = self.plan_prune(keep, keep_newer_than_ms=keep_newer_than_ms)
        return 0 if plan is None else len(self.execute_prune(plan).removal.checkpoint_ids)

    def remember(self, published: CheckpointManifest) -> None:
        """Note what the run of this object has ``published``: ``prune`` need not read it again."""
        self._summaries[published.checkpoint_id] = summarize_manifest(published)

    def plan_cleanup(self, *, grace_ms: int = orphans.GRACE_MS) -> orphans.OrphanPlan:
        """What ``cleanup_orphans`` would delete with this ``grace_ms``. Lists the store."""
        return orphans.scan_orphans(self.store, self._clock, grace_ms=grace_ms)

    def cleanup_orphans(self, *, grace_ms: int = orphans.GRACE_MS) -> int:
        """Delete what no checkpoint needs and none can come to need, and is older than ``grace_ms``.

        Returns:
            How many objects were deleted.
        """
        return orphans.execute_orphans(self.store, self.plan_cleanup(grace_ms=grace_ms))

    def validate_checkpoint(self, checkpoint_id: int) -> recover.ValidationResult:
        """Check checkpoint ``checkpoint_id`` whole: its manifest and every byte that it needs.

        Raises:
            NoCheckpoint: There is no such checkpoint.
        """
        where = locate_head(self.store)
        found = None
        if where is not None and checkpoint_id in lookup.visible_numbers(where.control, where.number):
            found = recover.validate_at(
                self.store, where, checkpoint_id, mac=self.authenticator(), select=self._select
            )
        if found is None:
            raise lookup.no_checkpoint(self.store, checkpoint_id)
        return found

    def recover_latest_validated(self, expected: recover.Expected | None = None) -> recover.RecoveryReport:
        """The newest good checkpoint, and a report of what was passed over and what is to be done.

        Args:
            expected: What the pipeline that recovers looks like; differences become warnings.

        Raises:
            FormatError: There are checkpoints, and none is good.
            UnknownVersion: A newer version of this package wrote the newest one.
        """
        wanted = expected or recover.Expected()
        if wanted.vnode_count is None:
            wanted = replace(wanted, vnode_count=self._vnode_count, vnodes=self.vnodes)
        return recover.recover_latest_validated(
            self.store, self._clock, mac=self.authenticator(), expected=wanted, select=self._select
        )

    def drive_sinks(self, report: recover.RecoveryReport, sinks: SinkDrivers) -> CheckpointManifest | None:
        """Let every sink that may lack the recovered checkpoint commit it again, and record the outcome.

        Args:
            report: What ``recover_latest_validated`` gave.
            sinks: What makes a sink commit, by the sink's name.

        Returns:
            The checkpoint with its sinks' statuses as they are then; one that failed again is failed, and
            is driven next time. None for a store that is new.

        Raises:
            RefusedError: One of them is not in ``sinks``. None has been called then.
        """
        if report.manifest is None:
            return None
        return drive_sinks(
            self.store,
            report.manifest,
            report.sinks_to_drive,
            sinks,
            self._clock,
            mac=self.authenticator(),
        )

    def verify(
        self, *, read_artifacts: bool = True, progress: Progress | None = None
    ) -> Iterator[verify.Finding]:
        """Everything that is not as it should be, as it is found.

        Args:
            read_artifacts: Whether to read every byte; else records, manifests and chain only.
            progress: Told after each object: bytes done, bytes in all.
        """
        return verify.verify_store(
            self.store, mac=self.authenticator(), read_artifacts=read_artifacts, progress=progress
        )

    def savepoint(self, name: str, checkpoint_id: int | None = None) -> Savepoint:
        """Pin ``checkpoint_id``, the newest by default, under ``name``. Repeating it changes nothing.

        Raises:
            NoCheckpoint: There is no such checkpoint, or it is pruned or deleted.
            RefusedError: The name is taken by another checkpoint, or cannot be a savepoint's.
        """
        return add_savepoint(self.store, name, self._clock, number=checkpoint_id)

    def savepoints(self) -> Sequence[Savepoint]:
        """All savepoints, by name."""
        state = find_control_or_new(self.store)
        return [] if state is None else list_savepoints(self.store)

    def remove_savepoint(self, name: str) -> Removal:
        """Forget the savepoint ``name``; what only it kept is deleted.

        Raises:
            NoCheckpoint: There is no such savepoint.
        """
        return remove_savepoint(self.store, name, self._clock)

    def rollback(self, checkpoint_id: int) -> CheckpointManifest:
        """Make the content of ``checkpoint_id`` the newest one. Every running query is fenced.

        Returns:
            The new manifest.

        Raises:
            NoCheckpoint: The checkpoint is deleted, or below the floor and not pinned.
            StaleAttempt: A query kept committing; stop it first.
        """
        cipher = self._cipher()
        return rollback(
            self.store, checkpoint_id, clock=self._clock, instance_id=self.instance_id, cipher=cipher
        )

    def delete_checkpoint(self, checkpoint_id: int) -> Removal:
        """Delete checkpoint ``checkpoint_id``; its id stays taken, and the chain stays provable.

        Raises:
            NoCheckpoint: There is no such checkpoint.
            RefusedError: It is the newest one, or pinned.
            MissingKey: The store is encrypted, and there is no key ring.
        """
        return delete_checkpoint(self.store, checkpoint_id, self._clock, mac=self.authenticator())

    # --- inside ------------------------------------------------------------------------------------

    def _cipher(self) -> StoreCipher | None:
        """The cipher to read with; None for a plain store, and for one that is new."""
        if self._opened is None:
            if self._ring is None and find_key_ring() is None:
                return None
            where = locate_head(self.store)
            if where is None:
                return None
            store_id = where.control.store_id
            cipher = choose_cipher(self.store, store_id, self._ring, self._clock, writing=False)
            self._opened = store_id, cipher
        return self._opened[1]

    def _store_id(self) -> str:
        """The store's id where it matters: for a cipher."""
        return self._opened[0] if self._cipher() is not None and self._opened is not None else ""

    def _place(self, what: str) -> CheckpointId:
        """The attempt, the first time that ``what`` is staged for it; later a fresh one for its number.

        So that staging can be repeated after a failure, whatever the first try has left behind.
        """
        attempt = self.attempt()
        if what in self._places:
            return self.writer().attempt()
        self._places.add(what)
        return attempt

    def _select(self, manifest: CheckpointManifest) -> CheckpointManifest:
        return select_share(manifest, self.vnodes)

    def _loaded(self, manifest: CheckpointManifest) -> CheckpointManifest:
        mine = self._select(manifest)
        if not mine.sink_names:
            return mine
        return mine.with_statuses(usable_statuses(self.store, mine, mac=self.authenticator()))

    def _record(
        self, stored: CheckpointManifest, sink: str, status: SinkCommitStatus, message: str = ""
    ) -> None:
        if status is SinkCommitStatus.PENDING:
            return
        mac = self.authenticator()
        now = read_status(self.store, stored, sink, mac=mac)
        if now is not status and now is not SinkCommitStatus.COMMITTED:
            record_status(self.store, stored, sink, status, self._clock, message=message, mac=mac)

    def _retain(self, saved: CheckpointManifest) -> None:
        """Prune after a commit, never before; a failure of it is not a failure of the commit."""
        if self.max_retained is None:
            self._summaries.clear()
            return
        self.remember(saved)
        try:
            self.prune(self.max_retained)
        except CheckpointError as error:
            _LOG.warning("checkpoint %d is saved, but pruning failed: %s", saved.checkpoint_id, error)
