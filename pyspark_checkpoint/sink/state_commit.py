"""The driver's part of committing state with rows: what the tasks took, what they left, Spark's logs.

A file that no task has seen, or that was written again since, is taken here. What is missing then is
refused, and nothing is published.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_checkpoint.capture.manifest_builder import LocationPart, operator_entries
from pyspark_checkpoint.capture.upload import (
    LOG_BOUNDS,
    NO_INLINE,
    UploadedGroup,
    UploadTarget,
    upload_group,
)
from pyspark_checkpoint.capture.upload_plan import (
    KnownFile,
    UploadItem,
    UploadPlan,
    artifacts_by_path,
    plan_uploads,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.sink.batch_manifest import Batch
from pyspark_checkpoint.sink.location_check import (
    refuse_divergence,
    refuse_other_attempts,
    refuse_other_offsets,
)
from pyspark_checkpoint.sink.state_driver import StateReading, read_state
from pyspark_checkpoint.sink.state_task import StatePlan, plan_state
from pyspark_checkpoint.sink.worker_cache import CACHE, LastCommit, open_location
from pyspark_checkpoint.spark_files.listing import pinned_conf
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone

_ATTEMPTS = 5


def commit_state(run: Run, batch: Batch) -> LocationPart | None:
    """Cover the state of a batch completely; None if the batch commits rows only."""
    plan = batch.plan.state
    if plan is None:
        return None
    # Another query's state, whose table is taken over, says nothing about this one's.
    ours = None if run.head is None or not batch.plan.follows else run.head.manifest
    head = plan_state(ours, plan.location, tasks=0)
    watched = open_location(plan.location, run.run_id)
    refuse_other_attempts(run, batch, head, watched.logs)
    refuse_other_offsets(run, batch, head, watched.logs)
    before = CACHE.last_commits.find(_key(run, watched.location))
    files = {} if run.head is None else {ref.name: ref for ref in run.head.manifest.files}
    for attempt in range(_ATTEMPTS):
        try:
            reading = read_state(batch, watched, head, files, before if attempt == 0 else None)
            return _commit_state(run, batch, head, reading)
        except FileGone:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _commit_state(run: Run, batch: Batch, head: StatePlan, reading: StateReading) -> LocationPart:
    captured, location = reading.captured, reading.location
    uploads = plan_uploads(captured, *_already_there(run, batch, head, reading), reading.opened)
    refs, requests = _upload(uploads, run, batch, location)
    refuse_divergence(run, batch, head, reading, refs)
    files = {file.path: KnownFile(file.facts, refs[file.path]) for file in captured.files}
    done = LastCommit(batch.batch_id, reading.newest, files, captured.operators)
    CACHE.last_commits.put(_key(run, location), done)
    return LocationPart(
        operators=operator_entries(captured.operators, refs),
        files=tuple(refs[file.path] for file in captured.files),
        record=reading.record,
        conf=pinned_conf(reading.offsets.conf, refs),
        schemas=reading.schemas,
        requests=requests,
        location=location.url,
    )


def _already_there(
    run: Run, batch: Batch, head: StatePlan, reading: StateReading
) -> tuple[dict[str, ArtifactRef], dict[str, KnownFile]]:
    """What the store has, by path, and what of that needs no look: the head's, and what tasks took."""
    earlier = {} if run.head is None else artifacts_by_path(run.head.manifest)
    known = dict(reading.known)
    known |= head.known(reading.captured.all_files(), batch.batch_id, run.run_id, reading.opened)
    for part in batch.parts:
        for file in part.state:
            earlier[file.path] = file.ref
            known[file.path] = KnownFile(file.facts, file.ref)
    return earlier, known


def _upload(
    uploads: UploadPlan, run: Run, batch: Batch, location: CheckpointLocation
) -> tuple[dict[str, ArtifactRef], RequestCount]:
    target = UploadTarget(run.store, batch.plan.checkpoint_id, batch.plan.store_id, run.cipher)
    inline = sum(ref.size_bytes for ref in uploads.reused.values() if ref.inline is not None)
    small = [item for item in uploads.here if not item.operator]
    state = [item for item in uploads.here if item.operator]
    answers = [
        upload_group(
            location,
            target,
            small,
            clock=run.clock,
            bounds=LOG_BOUNDS,
            inline_used_bytes=inline,
        )
    ]
    groups: Sequence[Sequence[UploadItem]] = [state, *uploads.groups]
    answers += [_upload_state(location, target, group, run) for group in groups if group]
    refs = dict(uploads.reused)
    for answer in answers:
        refs |= dict(answer.refs)
    return refs, RequestCount.total([answer.requests for answer in answers])


def _upload_state(
    location: CheckpointLocation, target: UploadTarget, group: Sequence[UploadItem], run: Run
) -> UploadedGroup:
    return upload_group(location, target, group, clock=run.clock, bounds=NO_INLINE)


def _key(run: Run, location: CheckpointLocation) -> tuple[object, ...]:
    return (run.store.url, run.run_id, location.url)
