"""Executing a restore: verified bytes into a fresh location, state first and ``commits`` last.

``execute`` writes all but ``commits``, which it only verifies. The caller takes the history over and rolls
outputs back; then ``finish`` writes ``commits``, without which Spark does not go on after the batch.

A mark is written before anything else and removed after everything else. A restore that was interrupted
is resumed by repeating it, of several processes that do so by one; a location that a query uses is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact, stream_stored
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.idempotent import begin_lineage
from pyspark_checkpoint.outputs.output import OutputKind, RollBackPlan
from pyspark_checkpoint.restorer.file_writer import LocationWriter, location_writer
from pyspark_checkpoint.restorer.lock import (
    InspectedLocation,
    IsLost,
    RestoreLock,
    RestoreMark,
    acquire_lock,
    inspect_location,
    is_state,
    newest_step,
    used_since,
)
from pyspark_checkpoint.restorer.plan import IN_USE, RestoredFile, RestorePlan, Rewrite, Stage
from pyspark_checkpoint.spark_files.location import CheckpointLocation
from pyspark_checkpoint.spark_files.logs import encode_query_id, relocate_operator_metadata
from pyspark_checkpoint.spark_files.names import LINEAGE
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.spark_files.state_artifacts import state_owners
from pyspark_checkpoint.store.base import CHUNK_BYTES, ObjectStore
from pyspark_checkpoint.store.parallel import group_by_size, iter_bounded
from pyspark_checkpoint.store.url import parse_store_url

CONCURRENCY = 8
GROUP_BYTES = 8 * 1024 * 1024
"""How much one thread reads, verifies and writes at a time. A larger file is a group of its own."""
DISK_PIECE_BYTES = 1024 * 1024
"""A file on a disk is read in pieces that stay in the processor's cache until they are written."""
SPREAD_BYTES = 256 * 1024 * 1024
"""From here on state is written by others than this process, if there are any."""

Progress = Callable[[int, int], None]
"""Told after each group of files: bytes done, bytes in all."""
Spread = Callable[[Sequence[Sequence[RestoredFile]]], Iterable[int]]
"""Writes groups of plain state files elsewhere, and yields the size of each group that is written."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore wrote."""

    checkpoint_id: int
    epoch: int
    query_id: str
    location: str
    files: int
    size_bytes: int
    resumed: bool
    point: RestorePoint = RestorePoint.AFTER
    """Whether the query goes on after the batch, or runs it again first."""
    batch_id: int = 0
    """Spark's number. ``epoch`` is the table's, where rows and state are in one history."""
    rolled_back: tuple[RollBackPlan, ...] = ()
    """The outputs that were rolled back."""
    notes: tuple[str, ...] = ()
    """What has to be said of the query's outputs, such as what comes twice."""


class Restore:
    """Writes one checkpoint into one location, as often as it takes until it is done."""

    def __init__(
        self,
        history: CheckpointStore,
        manifest: CheckpointManifest,
        plan: RestorePlan,
        location: CheckpointLocation,
        *,
        is_lost: IsLost,
        automatic: bool = False,
        spread: Spread | None = None,
    ) -> None:
        """``plan`` is made from ``manifest``, which is in ``history``. ``spread`` writes large state.

        ``automatic``: nobody chose the checkpoint, so that it takes the place of an older one whose
        automatic restore was interrupted, or of one that ``is_lost``.
        """
        self.plan = plan
        self._store = history.store
        self._reader = history.reader()
        self._owners = state_owners(manifest)
        self._location = location
        self._writer = location_writer(location)
        self._spread = spread
        self._mark = RestoreMark.of(plan, automatic=automatic)
        self._is_lost = is_lost
        self._begins_lineage = any(sink.kind == OutputKind.FOREACH_BATCH.value for sink in manifest.sinks)
        self._lock: RestoreLock | None = None
        self._commits: list[tuple[str, bytes]] = []

    def execute(self, progress: Progress | None = None) -> RestoreReport:
        """Write all but ``commits`` and say what was done. Every byte is verified before it is visible.

        The location stays marked as unfinished until ``finish``. Whoever repeats the restore meanwhile
        takes it over: this one is then refused, before its next logs or when all is written.
        """
        plan, done = self.plan, 0
        lock = self._lock = acquire_lock(self._location, self._mark, self._is_lost)
        if lock.inspected.older is not None:
            self._location.store.delete(lock.inspected.older)
        elif lock.inspected.resumes:
            self._remove_added(lock)
        lock.forget_older(newest_step(file.path for file in plan.files))
        for stage, staged in groupby(plan.files, key=lambda file: file.stage):
            if stage is Stage.COMMITS:
                done += self._read_commits(list(staged))
                if progress is not None:
                    progress(done, plan.total_bytes)
                continue
            if stage >= Stage.METADATA:
                self._writer.sync()  # what a log speaks of is on the disk before the log is
                lock.check()  # who took over may restore another checkpoint, and finds no log of this one
            for size_bytes in self._write_stage(stage, list(staged)):
                done += size_bytes
                if progress is not None:
                    progress(done, plan.total_bytes)
        if self._begins_lineage:
            newest = plan.batch_id if plan.planned_batch is None else plan.planned_batch
            is_restored = any(file.path == LINEAGE for file in plan.files)
            begin_lineage(self._location.store, newest + 1, is_restored=is_restored)
        self._writer.sync()
        lock.check()  # the caller takes the history over now, which a query may be using by then
        return RestoreReport(
            plan.checkpoint_id,
            plan.epoch,
            plan.query_id,
            self._location.url,
            len(plan.files),
            plan.total_bytes,
            lock.inspected.resumes,
            plan.point,
            plan.batch_id,
            notes=plan.outputs.notes,
        )

    def check(self) -> InspectedLocation:
        """Find out whether the location can be restored into; refused as ``execute`` would be."""
        return inspect_location(self._location, self._mark, self._is_lost)

    def check_lock(self) -> None:
        """Refused if another process has taken this restore over since it was written."""
        if self._lock is not None:
            self._lock.check()

    def write_commits(self) -> None:
        """Let Spark go on after the checkpoint's batch; the location stays marked until ``finish``."""
        commits, self._commits = self._commits, []
        if commits:
            self.check_lock()
            for path, data in commits:
                self._writer.write(path, data)
            self._writer.sync()

    def prove(self) -> None:
        """Read and verify every byte that the restore would write. Changes nothing."""
        for group in _groups(self.plan.files):
            self._reader.read_many(
                [WantedArtifact(file.ref, *self._owners.get(file.path, ("", -1))) for file in group]
            )

    def finish(self, moved_to: CheckpointLocation | None = None) -> None:
        """Write ``commits`` and take the mark away. What a killed restore has left goes before it.

        ``moved_to``: where the location is by now, if it was renamed; its ``commits`` were written before.
        """
        self.write_commits()
        if self._lock is not None:
            replace(self._lock, location=moved_to or self._location).release()

    def undo(self) -> None:
        """Remove what was written, because the checkpoint turned out to be damaged; the mark goes last."""
        if self._lock is not None:
            self._lock.check()
            self._location.store.delete([*(file.path for file in reversed(self.plan.files)), LINEAGE])
            self._lock.release()

    def _remove_added(self, lock: RestoreLock) -> None:
        """Remove what an interrupted repartition has added, whole or in part; its logs go last.

        Also what is left of a restore that this one had replaced before it was interrupted itself.
        The location was fresh, and nobody else may use it while it is marked. A repartition is one batch,
        and never comes with a planned one: more is of a query which ran all the same, and not touched.
        """
        ours = {file.path for file in self.plan.files}
        found = [info.key for info in self._location.store.list() if not info.key.endswith(".tmp")]
        repartition = 2 if self.plan.planned_batch is None else 0
        if newest_step(found) > max(newest_step(ours), lock.mark.newest_step) + repartition:
            raise used_since()
        added = [key for key in found if key.startswith(IN_USE) and key not in ours]
        for wanted in (True, False):
            self._location.store.delete([key for key in added if is_state(key) is wanted])

    def _read_commits(self, files: Sequence[RestoredFile]) -> int:
        datas = self._reader.read_many([WantedArtifact(file.ref) for file in files])
        self._commits = [(file.path, data) for file, data in zip(files, datas, strict=True)]
        return _size(files)

    def _write_stage(self, stage: Stage, files: Sequence[RestoredFile]) -> Iterable[int]:
        groups = _groups(files)
        is_plain = all(file.ref.data_key_id is None and file.ref.inline is None for file in files)
        if self._spread is not None and stage is Stage.STATE and is_plain and _size(files) >= SPREAD_BYTES:
            return self._spread(groups)
        pieces = Pieces.of(self._store, self._writer, len(groups))
        whole = [file for group in groups if _size(group) > GROUP_BYTES for file in group]
        is_small = all(pieces.has(file) for file in whole)
        return iter_bounded(
            lambda group: self._write(group, pieces), groups, CONCURRENCY if is_small else CONCURRENCY // 2
        )

    def _write(self, group: Sequence[RestoredFile], pieces: Pieces) -> int:
        small = pieces.write(group)
        wanted = [WantedArtifact(file.ref, *self._owners.get(file.path, ("", -1))) for file in small]
        for file, data in zip(small, self._reader.read_many(wanted), strict=True):
            rewritten = _rewritten(file, data, self.plan, self._location.spark_url)
            self._writer.write(file.path, rewritten)
        return _size(group)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Writes large files piece by piece: verified as they pass, visible when the last piece was right."""

    store: ObjectStore
    writer: LocationWriter
    piece_bytes: int
    ahead: int

    @staticmethod
    def of(store: ObjectStore, writer: LocationWriter, groups: int) -> Pieces:
        """As suits the store: a disk in small pieces; others in few requests, several of a file if few."""
        if parse_store_url(store.url).scheme == "file":
            return Pieces(store, writer, DISK_PIECE_BYTES, 1)
        return Pieces(store, writer, CHUNK_BYTES, max(1, CONCURRENCY // max(1, groups)))

    def has(self, file: RestoredFile) -> bool:
        """Whether a file is written in this way. What is decrypted or changed goes through memory."""
        is_plain = file.ref.data_key_id is None and file.rewrite is Rewrite.NOTHING
        is_stored = file.ref.inline is None
        return (
            is_plain and is_stored and file.ref.size_bytes > max(self.piece_bytes, self.writer.whole_bytes)
        )

    def write(self, group: Sequence[RestoredFile]) -> list[RestoredFile]:
        """Write those of a group that are large, and return the others."""
        for file in group:
            if self.has(file):
                chunks = stream_stored(self.store, file.ref, chunk_bytes=self.piece_bytes, ahead=self.ahead)
                self.writer.write_chunks(file.path, chunks)
        return [file for file in group if not self.has(file)]


def write_plain(store: ObjectStore, location: CheckpointLocation, group: Sequence[RestoredFile]) -> int:
    """Write a group of state files, which are neither encrypted nor changed: what a task does."""
    writer = location_writer(location)
    small = Pieces.of(store, writer, CONCURRENCY).write(group)
    datas = ArtifactReader(store).read_many([WantedArtifact(file.ref) for file in small])
    for file, data in zip(small, datas, strict=True):
        writer.write(file.path, data)
    writer.sync()
    return _size(group)


def _groups(files: Sequence[RestoredFile]) -> list[tuple[RestoredFile, ...]]:
    return list(group_by_size(files, lambda file: file.ref.size_bytes, GROUP_BYTES))


def _size(group: Sequence[RestoredFile]) -> int:
    return sum(file.ref.size_bytes for file in group)


def _rewritten(file: RestoredFile, data: bytes, plan: RestorePlan, location_url: str) -> bytes:
    match file.rewrite:
        case Rewrite.NOTHING:
            return data
        case Rewrite.QUERY_ID:
            return encode_query_id(plan.query_id)
        case Rewrite.SCHEMA_PATHS:
            return relocate_operator_metadata(data, file.path, location_url)
