"""``CheckpointStore``: a history of checkpoints under one URL, as a user sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyspark_checkpoint.errors import CheckpointError, FormatError, RefusedError
from pyspark_checkpoint.format.keys import CheckpointId, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.format.summary import ManifestSummary, summarize_manifest
from pyspark_checkpoint.history import lookup, orphans, rules, verify
from pyspark_checkpoint.history import recovery as recover
from pyspark_checkpoint.history import retention as retain
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.checkpoint_deletion import delete_checkpoint
from pyspark_checkpoint.history.control import find_control_or_new
from pyspark_checkpoint.history.deletion import Removal
from pyspark_checkpoint.history.findings import Finding
from pyspark_checkpoint.history.head import find_head, locate_head, lost_problem
from pyspark_checkpoint.history.keyring import load_key_ring
from pyspark_checkpoint.history.overview import Overview, read_overview
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.run import HeadCheck
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
from pyspark_checkpoint.history.staging import Staged, StagedItem, stage
from pyspark_checkpoint.history.state_sidecar import find_sidecar, iter_sidecar, stage_sidecar, with_sidecar
from pyspark_checkpoint.history.store_access import StoreAccess
from pyspark_checkpoint.history.verify_bytes import Progress
from pyspark_checkpoint.history.vnode_share import check_others, check_share, select_share
from pyspark_checkpoint.store.open import open_object_store, parse_store_settings

_LOG = logging.getLogger(__name__)


class CheckpointStore(StoreAccess):
    """A linear history of verified checkpoints. Reading changes nothing; the first save takes over."""

    @classmethod
    def open(
        cls, url: str, options: Mapping[str, str] | None = None, **settings: object
    ) -> CheckpointStore:
        """Open the history at ``url``. Options are the store's, and ``encryptionKeyFile``."""
        given = dict(options or {})
        key_file = given.pop("encryptionKeyFile", None)
        if key_file is not None:
            settings["key_ring"] = load_key_ring(key_file)
        settings.setdefault("accept_unsafe", parse_store_settings(url, given).allow_unsafe_store)
        return cls(open_object_store(url, given), **settings)  # type: ignore[arg-type]

    # --- writing -----------------------------------------------------------------------------------

    def claim(self, check: HeadCheck | None = None) -> CheckpointManifest | None:
        """Take the store over now, before the first save; None if there is nothing to take over.

        ``check`` is asked about the head before it is claimed; see ``Run.claim``.
        """
        return self.writer().claim(check)

    def attempt(self) -> CheckpointId:
        """Where artifacts of the next checkpoint are staged; the same until it is saved."""
        run = self.writer()
        if self._attempt is None or self._attempt.number != rules.next_number(run.head):
            self._attempt, self._sidecar = run.attempt(), None
            self._places.clear()
        return self._attempt

    def _place(self, what: str) -> CheckpointId:
        """The attempt, the first time that ``what`` is staged for it; later a fresh one for its number.

        So that staging can be repeated after a failure, whatever the first try has left behind.
        """
        attempt = self.attempt()
        if what in self._places:
            return self.writer().attempt()
        self._places.add(what)
        return attempt

    def stage(self, items: Sequence[StagedItem]) -> Staged:
        """Make artifacts of the next checkpoint durable, in few requests. May be repeated, or go on."""
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
        """Commit a checkpoint, atomically, and return it as stored.

        Its number must be the next one, or 0 for "the next one". See ``Run.publish`` for the errors.
        """
        run, attempt = self.writer(), self.attempt()
        if manifest.checkpoint_id not in (0, attempt.number):
            raise RefusedError(
                f"checkpoint {manifest.checkpoint_id} is not the next: that is {attempt.number}"
            )
        if manifest.vnode_count != self._vnode_count:
            raise RefusedError(
                f"the manifest has {manifest.vnode_count} vnodes, this store {self._vnode_count}"
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
        """Commit a checkpoint together with its state sidecar: both or nothing."""
        if state_data is not None:
            self.save_state_data(manifest.checkpoint_id, state_data)
        return self.save(manifest)

    def save_state_data(self, checkpoint_id: int, chunks: Iterable[bytes]) -> str:
        """Stage the state sidecar of the next checkpoint, which ``save`` then commits; its digest."""
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

        ``committed`` wins over ``failed``. Returns the manifest with the statuses as they are now.
        """
        stored = lookup.read_checkpoint(self.store, manifest.checkpoint_id, mac=self._mac()).manifest
        stored = select_share(stored, self.vnodes)
        if stored != manifest.with_statuses({}):
            raise RefusedError(
                f"checkpoint {manifest.checkpoint_id} is immutable",
                hint="only sink statuses can be updated",
            )
        for sink, status in manifest.sink_commit_statuses.items():
            self._record(stored, sink, status)
        return stored.with_statuses(read_statuses(self.store, stored, mac=self._mac()))

    def record_sink_status(
        self, checkpoint_id: int, sink: str, status: SinkCommitStatus, message: str = ""
    ) -> None:
        """Record that a sink has committed a checkpoint, or has failed to."""
        stored = lookup.read_checkpoint(self.store, checkpoint_id, mac=self._mac()).manifest
        self._record(stored, sink, status, message)

    # --- reading -----------------------------------------------------------------------------------

    def load_latest(self) -> CheckpointManifest | None:
        """The newest checkpoint, None for a store that is new. Everything else is an error."""
        head = find_head(self.store, mac=self._mac())
        return None if head is None else self._loaded(head.manifest)

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Checkpoint ``checkpoint_id``, None if there is none. Below the floor only savepoints are."""
        found = lookup.find_checkpoint(self.store, checkpoint_id, mac=self._mac())
        return None if found is None else self._loaded(found.manifest)

    def list_ids(self) -> list[int]:
        """All checkpoint numbers, ascending, damaged ones included."""
        where = locate_head(self.store)
        return [] if where is None else lookup.visible_numbers(where.control, where.number)

    def find_lost(self) -> FormatError | None:
        """Says that the newest checkpoint, which was committed, is gone; None if nothing shows that."""
        where = locate_head(self.store)
        if where is None or where.lost is None:
            return None
        return FormatError(f"{manifest_key(where.lost)} {lost_problem(where.lost, where.number)}")

    def list(self) -> list[tuple[int, int]]:
        """All readable checkpoints as (number, epoch), ascending."""
        return [(found.number, found.epoch) for found in self.summaries()]

    def summaries(self) -> Iterator[ManifestSummary]:
        """What each readable checkpoint is, ascending."""
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
        return read_overview(self.store, mac=self._mac(), last=last)

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """The state sidecar of a checkpoint, verified; None if it has none."""
        chunks = self.iter_state_data(checkpoint_id)
        return None if chunks is None else b"".join(chunks)

    def iter_state_data(self, checkpoint_id: int) -> Iterator[bytes] | None:
        """The state sidecar in chunks; an error at the end means that none of them may be used."""
        manifest = self.load_by_id(checkpoint_id)
        ref = None if manifest is None else find_sidecar(manifest)
        if ref is None:
            return None
        return iter_sidecar(self.store, ref, store_id=self._store_id(), cipher=self._cipher())

    def load_partition(
        self, manifest: CheckpointManifest, operator: str, partition: int
    ) -> Sequence[bytes]:
        """A partition's snapshot and deltas, in the order to apply, verified and decrypted."""
        mine = select_share(manifest, self.vnodes)
        return self.reader().read_partition(mine, operator, partition)

    def reader(self) -> ArtifactReader:
        """What reads artifacts of this store."""
        return ArtifactReader(self.store, store_id=self._store_id(), cipher=self._cipher())

    # --- keeping order -----------------------------------------------------------------------------

    def plan_prune(
        self, keep: int | None = None, *, keep_newer_than_ms: int | None = None
    ) -> retain.PrunePlan | None:
        """What a prune would do; None for a store that is new."""
        head = find_head(self.store, cached=None if self._run is None else self._run.head)
        if head is None:
            return None
        recent = retain.read_recent(
            self.store, head, keep=keep, keep_newer_than_ms=keep_newer_than_ms, cache=self._summaries
        )
        return retain.plan_prune(recent, head.control, keep=keep, keep_newer_than_ms=keep_newer_than_ms)

    def execute_prune(self, plan: retain.PrunePlan) -> retain.PruneResult:
        """Do what a plan says, and finish what earlier prunes left."""
        return retain.execute_prune(self.store, plan, self._clock, cache=self._summaries, mac=self._mac())

    def prune(self, keep: int | None = None, *, keep_newer_than_ms: int | None = None) -> int:
        """Keep the newest ``keep`` epochs and every savepoint; return how many checkpoints were removed."""
        plan = self.plan_prune(keep, keep_newer_than_ms=keep_newer_than_ms)
        return 0 if plan is None else len(self.execute_prune(plan).removal.numbers)

    def remember(self, published: CheckpointManifest) -> None:
        """Note a checkpoint that the run of this object has published: ``prune`` need not read it again."""
        self._summaries[published.checkpoint_id] = summarize_manifest(published)

    def plan_cleanup(self, *, grace_ms: int = orphans.GRACE_MS) -> orphans.OrphanPlan:
        """What ``cleanup_orphans`` would delete."""
        return orphans.scan_orphans(self.store, self._clock, grace_ms=grace_ms)

    def cleanup_orphans(self, *, grace_ms: int = orphans.GRACE_MS) -> int:
        """Delete what no checkpoint needs and none can come to need; return how many objects."""
        return orphans.execute_orphans(self.store, self.plan_cleanup(grace_ms=grace_ms))

    def validate_checkpoint(self, checkpoint_id: int) -> recover.ValidationResult:
        """Check one checkpoint whole: its manifest and every byte that it needs."""
        where = locate_head(self.store)
        found = None
        if where is not None and checkpoint_id in lookup.visible_numbers(where.control, where.number):
            found = recover.validate_at(
                self.store, where, checkpoint_id, mac=self._mac(), select=self._select
            )
        if found is None:
            raise RefusedError(f"{self.store.url} has no checkpoint {checkpoint_id}")
        return found

    def recover_latest_validated(self, expected: recover.Expected | None = None) -> recover.RecoveryReport:
        """The newest good checkpoint, and a report of what was passed over and what is to be done."""
        wanted = expected or recover.Expected()
        if wanted.vnode_count is None:
            wanted = replace(wanted, vnode_count=self._vnode_count, vnodes=self.vnodes)
        return recover.recover_latest_validated(
            self.store, self._clock, mac=self._mac(), expected=wanted, select=self._select
        )

    def drive_sinks(self, report: recover.RecoveryReport, sinks: SinkDrivers) -> CheckpointManifest | None:
        """Let every sink that may lack the recovered checkpoint commit it again, and record the outcome.

        Refused, before any is called, if one of them is not in ``sinks``. Returns the checkpoint with its
        sinks' statuses as they are then; one that failed again is failed, and is driven next time.
        """
        if report.manifest is None:
            return None
        return drive_sinks(
            self.store, report.manifest, report.sinks_to_drive, sinks, self._clock, mac=self._mac()
        )

    def verify(self, *, read_artifacts: bool = True, progress: Progress | None = None) -> Iterator[Finding]:
        """Everything that is not as it should be; without ``read_artifacts`` only of the manifests."""
        return verify.verify_store(
            self.store, mac=self._mac(), read_artifacts=read_artifacts, progress=progress
        )

    def savepoint(self, name: str, checkpoint_id: int | None = None) -> Savepoint:
        """Pin a checkpoint, the newest by default, under a name."""
        return add_savepoint(self.store, name, self._clock, number=checkpoint_id)

    def savepoints(self) -> Sequence[Savepoint]:
        """All savepoints, by name."""
        state = find_control_or_new(self.store)
        return [] if state is None else list_savepoints(self.store)

    def remove_savepoint(self, name: str) -> Removal:
        """Forget a savepoint; what only it kept is deleted."""
        return remove_savepoint(self.store, name, self._clock)

    def rollback(self, checkpoint_id: int) -> CheckpointManifest:
        """Make the content of an earlier checkpoint the newest one. Every running query is fenced."""
        cipher = self._cipher()
        return rollback(
            self.store, checkpoint_id, clock=self._clock, instance_id=self.instance_id, cipher=cipher
        )

    def delete_checkpoint(self, checkpoint_id: int) -> Removal:
        """Delete one checkpoint that is neither the newest nor pinned."""
        return delete_checkpoint(self.store, checkpoint_id, self._clock, mac=self._mac())

    def _select(self, manifest: CheckpointManifest) -> CheckpointManifest:
        return select_share(manifest, self.vnodes)

    def _loaded(self, manifest: CheckpointManifest) -> CheckpointManifest:
        mine = self._select(manifest)
        return (
            mine.with_statuses(usable_statuses(self.store, mine, mac=self._mac()))
            if mine.sink_names
            else mine
        )

    def _record(
        self, stored: CheckpointManifest, sink: str, status: SinkCommitStatus, message: str = ""
    ) -> None:
        if status is SinkCommitStatus.PENDING:
            return
        now = read_status(self.store, stored, sink, mac=self._mac())
        if now is not status and now is not SinkCommitStatus.COMMITTED:
            record_status(self.store, stored, sink, status, self._clock, message=message, mac=self._mac())

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
