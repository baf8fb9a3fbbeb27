"""The driver's part of committing state with rows: what the tasks took, what they left, Spark's logs.

Everything is looked at again when all tasks are done: a file that a task has not seen, or that was
written again since, is taken here. What is missing then is refused, and nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_checkpoint.capture.describe import operator_entries
from pyspark_checkpoint.capture.location import FileGone
from pyspark_checkpoint.capture.upload import NO_INLINE, UploadedGroup, UploadTarget, upload_group
from pyspark_checkpoint.capture.uploads import (
    KnownFile,
    UploadItem,
    UploadPlan,
    artifacts_by_path,
    plan_uploads,
)
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.format.pack import PackBounds
from pyspark_checkpoint.history.commit import Run
from pyspark_checkpoint.spark.draft import Batch, CommittedState
from pyspark_checkpoint.spark.session import ProcessCache
from pyspark_checkpoint.spark.state_plan import StatePlan, plan_state
from pyspark_checkpoint.spark.state_task import (
    WatchedLocation,
    add_requests,
    commits_before,
    open_location,
)
from pyspark_checkpoint.sparkstate.capture import CapturePlan, plan_operators
from pyspark_checkpoint.sparkstate.coordinated import (
    StateRecord,
    check_committable,
    plan_both_points,
    plan_small_files,
    record_state,
)
from pyspark_checkpoint.sparkstate.divergence import find_divergence
from pyspark_checkpoint.sparkstate.logs import (
    CommitLog,
    OffsetLog,
    OperatorInfo,
    decode_offset_log,
    decode_query_id,
)
from pyspark_checkpoint.sparkstate.names import METADATA
from pyspark_checkpoint.sparkstate.pipeline import pipeline_hash
from pyspark_checkpoint.sparkstate.preflight import PARTITIONS

LOG_BOUNDS = PackBounds(max_inline_bytes=16 * 1024)
"""Spark's logs travel inside the manifest, so that they cost no request; the total stays bounded."""
_ATTEMPTS = 5
_LOGS: ProcessCache[dict[str, KnownFile]] = ProcessCache()
"""Spark's small files as this process committed them last."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The location as it is when all tasks are done."""

    captured: CapturePlan
    record: StateRecord
    offsets: OffsetLog
    operators: Mapping[int, OperatorInfo]
    commits: Mapping[int, CommitLog]
    schemas: Mapping[str, str]


def commit_state(run: Run, batch: Batch) -> CommittedState | None:
    """Cover the state of a batch completely; None if the batch commits rows only."""
    plan = batch.plan.state
    if plan is None:
        return None
    head = plan_state(None if run.head is None else run.head.manifest, plan.location, tasks=0)
    for attempt in range(_ATTEMPTS):
        try:
            return _commit_state(run, batch, head, open_location(plan.location, run.run_id))
        except FileGone:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _commit_state(run: Run, batch: Batch, head: StatePlan, watched: WatchedLocation) -> CommittedState:
    reading = _read(batch, watched)
    captured = reading.captured
    uploads = plan_uploads(captured, *_already_there(run, batch, head, captured))
    refs, requests = _upload(uploads, run, batch, watched)
    _refuse_divergence(run, batch, head, reading, refs)
    _LOGS.put(_logs_key(run, watched), {f.path: KnownFile(f.facts, refs[f.path]) for f in captured.files})
    return CommittedState(
        operators=operator_entries(captured.operators, refs),
        files=tuple(refs[file.path] for file in captured.files),
        record=reading.record,
        conf=reading.offsets.conf,
        pipeline_hash=pipeline_hash(
            (operator.name for operator in captured.operators),
            reading.schemas,
            (),
            "ckpt-sink",
            batch.facts.output_mode,
        ),
        requests=requests,
        location=watched.location.url,
    )


def _read(batch: Batch, watched: WatchedLocation) -> _Reading:
    location, logs, number = watched.location, watched.logs, batch.batch_id
    listing = location.listing()
    check_committable(listing, number)
    query_id = decode_query_id(location.read(METADATA))
    if batch.facts.query_id and query_id != batch.facts.query_id:
        raise RefusedError(f"the checkpoint location is of query {query_id}, not {batch.facts.query_id}")
    operators = logs.operators(listing, number)
    offsets = _offsets(batch, watched)
    pinned = int(offsets.conf[PARTITIONS]) if PARTITIONS in offsets.conf else None
    commits = commits_before(logs, listing, number)
    together = logs.written_together(listing, number + 1)
    chains = plan_both_points(listing, number, commits, operators, partitions=pinned, together=together)
    first_epoch = batch.epoch - number
    planned = plan_operators(
        chains, listing, logs.shared_files(chains, listing), operators, first_epoch=first_epoch
    )
    captured = CapturePlan(batch.epoch, planned, plan_small_files(listing, number, batch.epoch, offsets))
    newest = [file for chain in chains for file in chain.files() if file.version == number + 1]
    record = record_state(number, operators, captured.all_files(), newest, partitions=pinned)
    return _Reading(captured, record, offsets, operators, commits, logs.schemas(listing, number))


def _offsets(batch: Batch, watched: WatchedLocation) -> OffsetLog:
    if not batch.facts.offsets:
        return watched.logs.offsets(batch.batch_id)
    return decode_offset_log(batch.facts.offsets.encode("utf-8"), f"offsets/{batch.batch_id}")


def _already_there(
    run: Run, batch: Batch, head: StatePlan, captured: CapturePlan
) -> tuple[dict[str, ArtifactRef], dict[str, KnownFile]]:
    """What the store has, by path, and what of that needs no look: the head's, and what tasks took."""
    earlier = {} if run.head is None else artifacts_by_path(run.head.manifest)
    known = dict(_LOGS.find(_logs_key(run, open_location(head.location, run.run_id))) or {})
    known |= head.known(captured.all_files(), batch.batch_id, run.run_id)
    for part in batch.parts:
        for file in part.state:
            earlier[file.path] = file.ref
            known[file.path] = KnownFile(file.facts, file.ref)
    return earlier, known


def _upload(
    uploads: UploadPlan, run: Run, batch: Batch, watched: WatchedLocation
) -> tuple[dict[str, ArtifactRef], RequestCount]:
    target = UploadTarget(run.store, batch.plan.number, batch.plan.store_id, run.cipher)
    inline = sum(ref.size_bytes for ref in uploads.reused.values() if ref.inline is not None)
    small = [item for item in uploads.here if not item.operator]
    state = [item for item in uploads.here if item.operator]
    answers = [
        upload_group(
            watched.location,
            target,
            small,
            clock=run.clock,
            bounds=LOG_BOUNDS,
            inline_used_bytes=inline,
        )
    ]
    groups: Sequence[Sequence[UploadItem]] = [state, *uploads.groups]
    answers += [_upload_state(watched, target, group, run) for group in groups if group]
    refs = dict(uploads.reused)
    for answer in answers:
        refs |= dict(answer.refs)
    return refs, add_requests(answer.requests for answer in answers)


def _upload_state(
    watched: WatchedLocation, target: UploadTarget, group: Sequence[UploadItem], run: Run
) -> UploadedGroup:
    return upload_group(watched.location, target, group, clock=run.clock, bounds=NO_INLINE)


def _refuse_divergence(
    run: Run, batch: Batch, head: StatePlan, reading: _Reading, refs: Mapping[str, ArtifactRef]
) -> None:
    """Rule 7 for state: a location that went another way than the table must not go on with it."""
    if head.record is None or head.head_run == run.run_id:
        return
    found = find_divergence(batch.batch_id, head.held, refs, reading.record.operators(), reading.commits)
    if found is not None:
        raise RefusedError(
            f"the checkpoint location is not the one that this table was written from: {found}",
            hint="run ckpt restore: the table's newest checkpoint has the state that belongs to its rows",
        )


def _logs_key(run: Run, watched: WatchedLocation) -> tuple[object, ...]:
    return (run.store.url, run.run_id, watched.location.url)
