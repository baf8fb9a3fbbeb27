"""One capture of one query: list, plan, upload what is new, publish. Needs no Spark.

1. List the checkpoint location, and read the logs of the batch (``_read``): which files belong to it.
2. Claim the history if another run has it, and begin an attempt (``_begin_attempt``).
3. Upload the files that neither the head nor this attempt has (``_upload``).
4. Publish the manifest that names them all.

Nothing here blocks the query, and nothing of the query's is changed. What Spark purges or rewrites
while it is read is noticed, and the capture starts over from a new listing. What it has uploaded by then
and cannot change is reused, so that a capture that is slower than Spark's purge comes to an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pyspark_checkpoint.capture.manifest_builder import (
    CapturedLogs,
    QueryFacts,
    described_by,
    draft_manifest,
)
from pyspark_checkpoint.capture.upload import (
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
from pyspark_checkpoint.format.manifest import CheckpointManifest, RequestCount
from pyspark_checkpoint.format.manifest_parts import PlannedBatch
from pyspark_checkpoint.format.pack import DEFAULT_BOUNDS
from pyspark_checkpoint.history.orphans import give_up
from pyspark_checkpoint.history.rules import fenced_by
from pyspark_checkpoint.history.run import HeadCheck, Run
from pyspark_checkpoint.spark_files.inventory import (
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
from pyspark_checkpoint.spark_files.names import METADATA, offsets_file
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

    def capture(self, epoch: int | None = None) -> CheckpointManifest | None:
        """Checkpoint ``epoch``, the newest committed batch by default; None if there is none yet.

        The run has claimed the store before. An epoch that this run has captured costs no upload.
        """
        try:
            made = self._try_capture(epoch)
        except RefusedError:
            self._give_up_unused()
            raise
        self._overtaken = 0
        return made

    def capture_planned(self, batch: int, offsets: bytes) -> CheckpointManifest | None:
        """Checkpoint the batch before ``batch``, which Spark is about to plan with these offsets.

        Of batch 0 there is nothing but its plan. Refused if the store has another plan of the batch: its
        output may have seen that one.
        """
        name = offsets_file(batch)
        self._seen, self.location.ahead = None, {name: offsets}
        try:
            return self.capture(batch - 1)
        finally:
            self.location.ahead = {}

    def _try_capture(self, epoch: int | None) -> CheckpointManifest | None:
        gone = False
        for attempt in range(_ATTEMPTS):
            try:
                return self._capture(epoch)
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

    def _capture(self, epoch: int | None) -> CheckpointManifest | None:
        listing, self._seen = self._seen or self.location.listing(), None
        wanted = listing.newest_committed if epoch is None else epoch
        if wanted is None:
            return None
        reading = self._read(listing, wanted)
        attempt = self._begin_attempt()
        head = self.run.head
        earlier = artifacts_by_path(head.manifest) if head is not None else {}
        planned = head.manifest.planned if head is not None else None
        once = {file.path for file in reading.plan.all_files() if file.is_named_once}
        staged = self._staged.begin(attempt.number, once)
        uploads = plan_uploads(reading.plan, earlier, self._known, reading.opened, staged=staged)
        refs, requests = self._upload(uploads, attempt, once)
        if planned is not None and reading.plan.planned is not None:
            _check_plan(planned, reading.plan.planned, earlier, refs)
        facts, logs = self.facts, reading.logs
        if head is not None and logs is not None:
            facts = described_by(facts, logs.offsets, head.manifest)
        draft = draft_manifest(reading.plan, facts, logs, refs, requests)
        manifest = self.run.publish(draft, attempt, self._staged.sent)
        self._remember(reading.plan, artifacts_by_path(manifest))
        return manifest

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

    def _read(self, listing: CheckpointListing, epoch: int) -> _Reading:
        logs = self._logs
        if METADATA in listing.facts:
            self._check_query(decode_query_id(self.location.read(METADATA)))
        if epoch < 0:
            plan = self._with_planned(plan_start(listing), listing)
            return _Reading(plan, None, {})
        operators = logs.operators(listing, epoch)
        check_capturable(listing, epoch)
        commits = logs.commits(listing, epoch)
        offsets = logs.offsets(epoch)
        pinned = int(offsets.conf[PARTITIONS]) if PARTITIONS in offsets.conf else None
        together = logs.written_together(listing, epoch + 1)
        chains = plan_chains(listing, epoch, commits, operators, partitions=pinned, together=together)
        newest = logs.offsets(max(listing.offsets))
        plan = CapturePlan(
            epoch,
            plan_operators(chains, listing, logs.shared_files(chains, listing), operators),
            plan_small_files(listing, epoch, offsets, newest, is_committed=True),
        )
        captured = CapturedLogs(offsets, commits[epoch], logs.schemas(listing, epoch))
        return _Reading(self._with_planned(plan, listing), captured, logs.opened(chains, listing))

    def _with_planned(self, plan: CapturePlan, listing: CheckpointListing) -> CapturePlan:
        """The plan, with the batch that Spark runs now, so that a restored query repeats it.

        The checkpoint is whole without it: what it lacks is not waited for, unless Spark waits.
        """
        batch = plan.epoch + 1
        if batch not in listing.offsets - listing.commits:
            return plan
        try:
            return plan_ahead(plan, listing, self._logs.offsets(batch))
        except RefusedError as error:
            if self.location.ahead:
                raise
            _LOG.debug("batch %d is left out of the checkpoint of batch %d: %s", batch, plan.epoch, error)
            return plan

    def _check_query(self, query_id: str) -> None:
        if query_id != self.facts.query.id:
            raise LocationReplaced(
                f"the checkpoint location is of query {query_id}, not of {self.facts.query.id}",
                hint="give every query a checkpoint location of its own",
            )

    def _upload(
        self, uploads: UploadPlan, attempt: CheckpointId, once: Set[str]
    ) -> tuple[dict[str, ArtifactRef], RequestCount]:
        answers: list[UploadedGroup] = []
        try:
            for done in self._upload_groups(uploads, attempt):
                answers.append(done)
                self._staged.add(done.refs, once)
        except FileGone as error:
            self._staged.add(error.uploaded, once)
            raise
        refs = dict(uploads.reused)
        for answer in answers:
            refs |= dict(answer.refs)
        wanted = {item.file.path for group in (uploads.here, *uploads.groups) for item in group}
        missing = wanted - refs.keys()
        if missing:
            raise RefusedError(
                f"{len(missing)} files were not uploaded, {sorted(missing)[0]} among them",
                hint="the next capture uploads them; if this repeats, look at the executors' logs",
            )
        return refs, RequestCount.total([answer.requests for answer in answers])

    def _upload_groups(self, uploads: UploadPlan, attempt: CheckpointId) -> Iterator[UploadedGroup]:
        """Upload group by group, here or on the executors; each is in the store when it is yielded."""
        run, clock = self.run, self.run.clock
        target = UploadTarget(run.store, attempt.number, run.store_id or "", run.cipher, self._copier)
        yield upload_group(self.location, target, uploads.here, clock=clock, bounds=DEFAULT_BOUNDS)
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
    before: PlannedBatch,
    planned: PlannedBatch,
    earlier: Mapping[str, ArtifactRef],
    refs: Mapping[str, ArtifactRef],
) -> None:
    """Refuse another plan of a batch than the head's. What has the same bytes is named where it was."""
    name = offsets_file(planned.batch_id)
    if before.batch_id == planned.batch_id and refs[name] != earlier.get(name):
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
