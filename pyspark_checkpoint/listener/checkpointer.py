"""One capture of one query: list, plan, upload what is new, publish. Needs no Spark.

1. List the checkpoint location, and read the logs of the batch (``_read``): which files belong to it.
2. Claim the history if another run has it, and begin an attempt (``_begin_attempt``).
3. Upload the files that neither the head nor this attempt has (``_stage``).
4. Publish the manifest that names them all.

``prepare`` does the first three as soon as a batch is committed, where the next one will wait for its
checkpoint: what is left then is to add the plan of that one, and the fourth.

Nothing here blocks the query, and nothing of the query's is changed. What Spark purges or rewrites
while it is read is noticed, and the capture starts over from a new listing. What it has uploaded by then
and cannot change is reused, so that a capture that is slower than Spark's purge comes to an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_checkpoint.capture.manifest_builder import (
    CapturedLogs,
    QueryFacts,
    described_by,
    draft_manifest,
)
from pyspark_checkpoint.capture.upload import (
    LOG_BOUNDS,
    ServerCopier,
    UploadedGroup,
    UploadTarget,
    upload_group,
)
from pyspark_checkpoint.capture.upload_plan import (
    KnownFile,
    StagedFiles,
    UploadItem,
    UploadPlan,
    artifacts_by_path,
    plan_uploads,
)
from pyspark_checkpoint.errors import Diverged, RefusedError, StaleAttempt, StepAside, StoreError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import PlannedBatch
from pyspark_checkpoint.format.pack import DEFAULT_BOUNDS, PackBounds
from pyspark_checkpoint.history.orphans import give_up
from pyspark_checkpoint.history.rules import fenced_by
from pyspark_checkpoint.history.run import HeadCheck, OnCommit, Run
from pyspark_checkpoint.spark_files.inventory import (
    CapturedFile,
    CapturePlan,
    plan_ahead,
    plan_chains,
    plan_operators,
    plan_small_files,
    plan_start,
)
from pyspark_checkpoint.spark_files.listing import CheckpointListing, check_capturable
from pyspark_checkpoint.spark_files.location import (
    CheckpointLocation,
    FileGone,
    LocationAhead,
    LocationGone,
    LocationReplaced,
)
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.logs import decode_query_id
from pyspark_checkpoint.spark_files.names import METADATA, SOURCES, offsets_file
from pyspark_checkpoint.spark_files.requirements import PARTITIONS

Uploader = Callable[[Sequence[tuple[UploadItem, ...]], UploadTarget], list[UploadedGroup]]
"""Uploads groups of files somewhere else than in this process: on the executors."""
_ATTEMPTS = 5
_OVERTAKEN_ROUNDS = 3
"""After how many captures in a row that were slower than Spark's purge the message says so."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A listing and what was read with it: enough to plan, all of one moment."""

    plan: CapturePlan
    logs: CapturedLogs | None
    """None before the first batch."""
    opened: Mapping[str, str]
    """Digests of what was looked into, by path: what is uploaded must be the same."""


class QueryCapture:
    """Captures one run of one query into its own store. Not for two threads at once."""

    def __init__(
        self,
        location: CheckpointLocation,
        run: Run,
        facts: QueryFacts,
        uploader: Uploader | None = None,
        copier: ServerCopier | None = None,
        *,
        check: HeadCheck | None = None,
    ) -> None:
        """``check`` is asked about every head of another run before it is claimed."""
        self.location = LocationAhead(location)
        self.run = run
        self.facts = facts
        self._uploader = uploader
        self._copier = copier
        self._check = check
        self._known: dict[str, KnownFile] = {}
        self._seen: CheckpointListing | None = None
        self._ready: _Reading | None = None
        self._on_durable: OnCommit | None = None
        self._logs = LocationLogs(self.location)
        self._staged = StagedFiles()
        self._overtaken = 0

    def newest_committed(self) -> int | None:
        """The newest batch that can be captured. The next capture uses the same listing."""
        self._seen = self.location.listing()
        newest = self._seen.newest_committed
        if newest is None and self.facts.finished_batch is not None:
            kind = RefusedError if self._seen.facts else LocationGone
            raise kind(
                f"Spark has finished batch {self.facts.finished_batch}, and {self.location.url} has no "
                "batch: it is not the location that Spark writes to",
                hint="give location_options that lead where Spark's own settings lead; a file: path must "
                "be the driver's",
            )
        return newest

    def capture(self, batch_id: int | None = None) -> CheckpointManifest | None:
        """Checkpoint batch ``batch_id``, the newest committed batch by default; None if there is none yet.

        The run has claimed the store before. A batch that this run has captured costs no upload.
        """
        try:
            made = self._try_capture(batch_id)
        except RefusedError:
            self._give_up_unused()
            raise
        self._overtaken = 0
        return made

    def prepare(self) -> None:
        """Upload what the checkpoint of the newest committed batch needs, so that its manifest is left.

        Nothing is committed by that, and nothing is lost if it fails: the capture does what is missing.
        """
        self._ready = None
        batch_id = self.newest_committed()
        if batch_id is None or self._seen is None:
            return
        listing, self._seen = self._seen, None
        reading = self._read(listing, batch_id)
        self._stage(reading, self._begin_attempt(), LOG_BOUNDS)
        self._ready = reading

    def capture_planned(
        self, batch: int, offsets: bytes, on_durable: OnCommit | None = None
    ) -> CheckpointManifest | None:
        """Checkpoint the batch before ``batch``, which Spark is about to plan with these offsets.

        Of batch 0 there is nothing but its plan. Refused if the store has another plan of the batch: its
        output may have seen that one. ``on_durable`` is called as soon as the checkpoint is in the store
        and known to count, unless the store had it already.
        """
        name = offsets_file(batch)
        self._seen, self.location.ahead, self._on_durable = None, {name: offsets}, on_durable
        try:
            return self.capture(batch - 1)
        finally:
            self.location.ahead, self._on_durable = {}, None

    def _try_capture(self, batch_id: int | None) -> CheckpointManifest | None:
        gone = False
        for attempt in range(_ATTEMPTS):
            try:
                return self._capture(batch_id)
            except StaleAttempt:
                if attempt == _ATTEMPTS - 1:
                    raise
            except FileGone as error:
                self._known, self._logs = {}, LocationLogs(self.location)  # what was remembered is outdated
                gone = True
                if attempt == _ATTEMPTS - 1:
                    raise self._overtaken_error(error) from None
            except RefusedError as error:
                if not gone:
                    raise
                raise self._overtaken_error(error) from None
        raise AssertionError("unreachable")

    def _overtaken_error(self, error: RefusedError) -> RefusedError:
        """The error of a capture whose files were purged meanwhile; after some of them, with what helps."""
        self._overtaken += 1
        if self._overtaken < _OVERTAKEN_ROUNDS:
            return error
        return RefusedError(
            "Spark removes the files of a batch before they are uploaded, one capture after the other",
            hint="let Spark keep more batches (spark.sql.streaming.minBatchesToRetain), or run fewer of "
            "them (a longer trigger interval)",
        )

    def _give_up_unused(self) -> None:
        """Record that what a capture has staged in vain is garbage, though its id is still free."""
        number, unused = self._staged.pop_unused()
        try:
            give_up(self.run.store, number, unused, self.run.clock)
        except StoreError as error:
            _LOG.info("checkpoint %d: unused staged objects stay for now: %s", number, error)

    def _capture(self, batch_id: int | None) -> CheckpointManifest | None:
        reading = self._read_planned(batch_id)
        if reading is None:
            return None
        attempt = self._begin_attempt()
        refs = self._stage(reading, attempt, LOG_BOUNDS if self.location.ahead else DEFAULT_BOUNDS)
        head, facts, logs = self.run.head, self.facts, reading.logs
        if head is not None:
            _check_plan(head.manifest, reading.plan.planned, refs)
        if head is not None and logs is not None:
            facts = described_by(facts, logs.offsets, head.manifest)
        draft = draft_manifest(reading.plan, facts, logs, refs, self._staged.requests)
        manifest = self.run.publish(draft, attempt, self._staged.sent, self._on_durable)
        self._remember(reading.plan, artifacts_by_path(manifest))
        return manifest

    def _read_planned(self, batch_id: int | None) -> _Reading | None:
        """What the checkpoint of a batch needs, the plan of the next one too; None if there is no batch.

        Of a batch that was prepared only the logs of the sources can be new: its query waits.
        """
        ready, self._ready = self._ready, None
        if ready is not None and ready.plan.batch_id == batch_id and self.location.ahead:
            reading, listing = ready, self.location.listing(SOURCES)
        else:
            listing, self._seen = self._seen or self.location.listing(), None
            wanted = listing.newest_committed if batch_id is None else batch_id
            if wanted is None:
                return None
            reading = self._read(listing, wanted)
        return replace(reading, plan=self._with_planned(reading.plan, listing))

    def _begin_attempt(self) -> CheckpointId:
        """A place to stage in. A head of another run is claimed first, as at the start of the query.

        A run that began in an empty store had nothing to claim, and another one may have been faster with
        its first checkpoint. That one may be the later start; a query that has ended leaves it alone.
        """
        attempt, head = self.run.attempt(), self.run.head
        if head is None or head.manifest.run_id == self.run.run_id:
            check_alone(self.run)
            return attempt
        if self.facts.has_ended:
            raise fenced_by(head.number, head.manifest)
        claim_alone(self.run, self._check)
        return self.run.attempt()

    def _read(self, listing: CheckpointListing, batch_id: int) -> _Reading:
        logs = self._logs
        if METADATA in listing.facts:
            self._check_query(decode_query_id(self.location.read(METADATA)))
        if batch_id < 0:
            return _Reading(plan_start(listing), None, {})
        operators = logs.operators(listing, batch_id)
        check_capturable(listing, batch_id)
        commits = logs.commits(listing, batch_id)
        offsets = logs.offsets(batch_id)
        pinned = int(offsets.conf[PARTITIONS]) if PARTITIONS in offsets.conf else None
        together = logs.written_together(listing, batch_id + 1)
        chains = plan_chains(listing, batch_id, commits, operators, partitions=pinned, together=together)
        newest = logs.offsets(max(listing.offsets))
        plan = CapturePlan(
            batch_id,
            plan_operators(chains, listing, logs.shared_files(chains, listing), operators),
            plan_small_files(listing, batch_id, offsets, newest, is_committed=True),
        )
        captured = CapturedLogs(offsets, commits[batch_id], logs.schemas(listing, batch_id))
        return _Reading(plan, captured, logs.opened(chains, listing))

    def _with_planned(self, plan: CapturePlan, listing: CheckpointListing) -> CapturePlan:
        """The plan, with the batch that Spark runs now, so that a restored query repeats it.

        The checkpoint is whole without it: what it lacks is not waited for, unless Spark waits.
        """
        batch = plan.batch_id + 1
        if batch not in listing.offsets - listing.commits:
            return plan
        try:
            return plan_ahead(plan, listing, self._logs.offsets(batch))
        except RefusedError as error:
            if self.location.ahead:
                raise
            _LOG.debug(
                "batch %d is left out of the checkpoint of batch %d: %s", batch, plan.batch_id, error
            )
            return plan

    def _check_query(self, query_id: str) -> None:
        if query_id != self.facts.query.id:
            raise LocationReplaced(
                f"the checkpoint location is of query {query_id}, not of {self.facts.query.id}",
                hint="give every query a checkpoint location of its own",
            )

    def _stage(
        self, reading: _Reading, attempt: CheckpointId, bounds: PackBounds
    ) -> dict[str, ArtifactRef]:
        """Bring all files of the plan to the store, unless it has them; where each of them is."""
        head = self.run.head
        earlier = artifacts_by_path(head.manifest) if head is not None else {}
        files = {file.path: file for file in reading.plan.all_files()}
        staged = self._staged.begin(attempt.number, files.values())
        uploads = plan_uploads(reading.plan, earlier, self._known, reading.opened, staged=staged)
        return self._upload(uploads, attempt, files, bounds)

    def _upload(
        self,
        uploads: UploadPlan,
        attempt: CheckpointId,
        files: Mapping[str, CapturedFile],
        bounds: PackBounds,
    ) -> dict[str, ArtifactRef]:
        refs = dict(uploads.reused)
        try:
            for done in self._upload_groups(uploads, attempt, bounds):
                refs |= dict(done.refs)
                self._staged.add(done.refs, files, done.requests)
        except FileGone as error:
            self._staged.add(error.uploaded, files)
            raise
        wanted = {item.file.path for group in (uploads.here, *uploads.groups) for item in group}
        missing = wanted - refs.keys()
        if missing:
            raise RefusedError(
                f"{len(missing)} files were not uploaded, {sorted(missing)[0]} among them",
                hint="the next capture uploads them; if this repeats, look at the executors' logs",
            )
        return refs

    def _upload_groups(
        self, uploads: UploadPlan, attempt: CheckpointId, bounds: PackBounds
    ) -> Iterator[UploadedGroup]:
        """Upload group by group, here or on the executors; each is in the store when it is yielded."""
        run, clock = self.run, self.run.clock
        target = UploadTarget(run.store, attempt.number, run.store_id or "", run.cipher, self._copier)
        inline = sum(ref.size_bytes for ref in uploads.reused.values() if ref.inline is not None)
        yield upload_group(
            self.location, target, uploads.here, clock=clock, bounds=bounds, inline_used_bytes=inline
        )
        if self._uploader is not None and uploads.groups:
            yield from self._uploader(uploads.groups, target)
            return
        for group in uploads.groups:
            yield upload_group(self.location, target, group, clock=clock)

    def _remember(self, plan: CapturePlan, refs: dict[str, ArtifactRef]) -> None:
        self._known = {
            file.path: KnownFile(file.facts, refs[file.path])
            for file in plan.all_files()
            if file.path in refs
        }


def _check_plan(
    head: CheckpointManifest, planned: PlannedBatch | None, refs: Mapping[str, ArtifactRef]
) -> None:
    """Refuse another plan of a batch than the head's. What has the same bytes is named where it was."""
    before = head.planned
    if before is None or planned is None or before.batch_id != planned.batch_id:
        return
    name = offsets_file(planned.batch_id)
    if refs[name] != artifacts_by_path(head).get(name):
        raise Diverged(
            f"batch {planned.batch_id} is planned with other offsets in the store",
            hint="start the query again: it then repeats the batch with those of the store",
        )


def claim_alone(run: Run, check: HeadCheck | None = None) -> None:
    """Claim the history for a run, unless another producer of the same run has it: ``StepAside``.

    ``check`` is asked about every head before it is claimed: the run before may still commit.
    """
    run.claim(check)
    check_alone(run)


def check_alone(run: Run) -> None:
    """Of two producers in one run, the plugin and a listener for example, the second steps aside."""
    if run.head is None or run.head.manifest.run_id != run.run_id:
        return
    other = run.head.manifest.instance_id
    if other and run.instance_id and other != run.instance_id:
        raise StepAside(
            f"its checkpoints are made by {other} already, in the same run",
            hint="use either the plugin or one listener for a URL",
        )
