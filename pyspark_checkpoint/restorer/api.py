"""``restore`` and ``savepoint``: what people do with the checkpoints of a query. Needs no Spark.

A restore, in the order in which things become durable:

1. Choose the checkpoint. ``latest`` is the newest; if it turns out to be damaged, the one before it.
2. Plan, and refuse what cannot be done. Nothing is written yet; a dry run ends here.
3. Mark the location as unfinished; write state first, then logs, but not ``commits`` (``Restore``).
4. Let Spark repartition the state, if that is wanted.
5. Take the history over, so that a driver that still runs is fenced; record a rollback if it goes back.
6. Ask the query's outputs once more, and roll them back, if that is wanted.
7. Write ``commits``. Remove the mark.

Killed anywhere, it is finished by repeating it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark_checkpoint.capture.commit_log import find_commit, keep_commit, seal_known
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import FormatError, NoCheckpoint, SettingsError, StaleAttempt, UnknownVersion
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.lookup import LATEST, choose_number, no_checkpoint
from pyspark_checkpoint.history.savepoint import Savepoint
from pyspark_checkpoint.history.sink_status import origins
from pyspark_checkpoint.outputs.ask import (
    OutputQuestion,
    OutputsPlan,
    replayed_offsets,
    resumption_after,
)
from pyspark_checkpoint.outputs.ckpt_sink import LinkedSink, keep_others
from pyspark_checkpoint.outputs.decide import FAIL, ROLLBACK, Resumption
from pyspark_checkpoint.outputs.iceberg_table import FindTable
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.outputs.pins import pin_outputs
from pyspark_checkpoint.outputs.pyiceberg_table import find_pyiceberg_table
from pyspark_checkpoint.registry.queries import plain_options, resolve_root
from pyspark_checkpoint.restorer.execute import Progress, Restore, RestoreReport, Spread
from pyspark_checkpoint.restorer.lock import find_interrupted
from pyspark_checkpoint.restorer.plan import RestorePlan, parse_point, plan_restore
from pyspark_checkpoint.restorer.repartition import SparkSide, needs_repartition, repartition_point
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.restore_points import RestorePoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_LIST = "ckpt list shows what it has"
_MAX_REPEATS = 8
"""So many claims and rollbacks are looked behind for what the query wrote to last."""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What to restore, where and how: the arguments of ``restore``, checked. Options are never printed."""

    url: str
    to: str | LocationSpec
    at: int | str = LATEST
    epoch: int | None = None
    timestamp_ms: int | None = None
    query: str | None = None
    point: RestorePoint | None = None
    clone: bool = False
    sink: str = FAIL
    sink_location: str | None = None
    drop_others: bool = False
    partitions: int | None = None
    automatic: bool = False
    """Nobody chose this restore. An interrupted one of its kind gives way to it if its checkpoint is older,
    gone or damaged; any other interrupted restore has to be repeated as it was."""
    options: Mapping[str, str] | None = field(default=None, repr=False)
    location_options: Mapping[str, str] | None = field(default=None, repr=False)
    sink_options: Mapping[str, str] | None = field(default=None, repr=False)
    tables: FindTable = field(default=find_pyiceberg_table, repr=False)
    """How an Iceberg table of a catalog is found: ``with_session`` has the catalogs of a session too."""

    def __post_init__(self) -> None:
        if sum((self.at != LATEST, self.epoch is not None, self.timestamp_ms is not None)) > 1:
            raise SettingsError(
                "at, epoch and timestamp_ms each choose a checkpoint", hint="give one of them"
            )
        self.output_question()
        if self.clone and self.sink == ROLLBACK:
            raise SettingsError(
                "a clone leaves the query's outputs as they are",
                hint="restore without clone, or without sink",
            )
        if self.partitions is not None and self.partitions < 1:
            raise SettingsError(f"partitions is {self.partitions}", hint="at least one is needed")

    @property
    def is_latest(self) -> bool:
        """Whether the newest one that is whole is meant."""
        return self.at == LATEST and self.epoch is None and self.timestamp_ms is None

    def output_question(self) -> OutputQuestion:
        """How the query's outputs are asked how far they are."""
        options = self.options if self.sink_options is None else self.sink_options
        return OutputQuestion(
            self.url, self.sink, self.sink_location, options, self.drop_others, self.tables
        )

    def with_session(self, spark: SparkSession | None) -> RestoreRequest:
        """The same request, by which an Iceberg table is found in the catalogs of a session, if any."""
        return self if spark is None else replace(self, tables=find_tables(spark))

    @property
    def rolls_tables_back(self) -> bool:
        """Whether a ckpt-sink goes back: nothing of it is lost by that, its rollback is recorded."""
        return self.sink == ROLLBACK or self.automatic

    def history_url(self) -> str:
        """The URL of the query's own history."""
        return resolve_root(self.url, self.query, self.options)

    def location(self) -> LocationSpec:
        """The location; one that only Hadoop reaches is opened by ``SparkSide``."""
        if isinstance(self.to, LocationSpec):
            return self.to
        options = self.options if self.location_options is None else self.location_options
        return LocationSpec(self.to, plain_options(options))


def find_tables(spark: SparkSession | None) -> FindTable:
    """How an Iceberg table of a catalog is found: with a session in its catalogs, and by pyiceberg."""
    if spark is None:
        return find_pyiceberg_table
    from pyspark_checkpoint.spark.iceberg_catalog import SessionTables  # noqa: PLC0415 - needs Spark

    return SessionTables(spark)


def savepoint(
    url: str,
    name: str,
    *,
    query: str | None = None,
    at: int | str = LATEST,
    sink_location: str | None = None,
    spark: SparkSession | None = None,
    options: Mapping[str, str] | None = None,
) -> Savepoint:
    """Keep a checkpoint of a query under a name; retention never removes it.

    Its outputs keep their batch too, as far as each can; the answer says so, or until when it can be had.

    Args:
        url: Where the checkpoints are: one query's history, or what several queries share.
        name: The savepoint's name. Repeating it for the same checkpoint changes nothing.
        query: Name or id of the query, if there are several below ``url``.
        at: A checkpoint's number, another savepoint's name, ``epoch=N`` or ``latest``.
        sink_location: Where the output is, if it was moved or is known only by the name of a table.
        spark: The session that has the catalog of an Iceberg table. Without it none is needed.
        options: Options of the store, and ``encryptionKeyFile``.

    Returns:
        The savepoint, with the number of the checkpoint that it keeps.

    Raises:
        NoCheckpoint: There is no such checkpoint or query.
        RefusedError: The name is taken by another checkpoint.
        SettingsError: The URL, an option or the name is not valid.
    """
    history = CheckpointStore.open(resolve_root(url, query, options), options)
    made = history.savepoint(name, None if at == LATEST else choose_number(history.store, at))
    seal_known(history, made.checkpoint_id, options, typed_url=url)
    question = OutputQuestion(url, place=sink_location, options=options, tables=find_tables(spark))
    kept = pin_outputs(load_checkpoint(history, made.checkpoint_id), name, question)
    return replace(made, outputs=tuple(map(str, kept)))


def restore(
    url: str,
    to: str | LocationSpec,
    at: int | str = LATEST,
    *,
    epoch: int | None = None,
    timestamp_ms: int | None = None,
    query: str | None = None,
    point: str | None = None,
    clone: bool = False,
    sink: str = FAIL,
    sink_location: str | None = None,
    drop_others: bool = False,
    partitions: int | None = None,
    spark: SparkSession | None = None,
    options: Mapping[str, str] | None = None,
    location_options: Mapping[str, str] | None = None,
    sink_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Rebuild a checkpoint location from a checkpoint; the unmodified query goes on from there.

    A restore that resumes takes the history over, so that a driver that still runs is fenced, and records
    a rollback if the checkpoint is not the newest. An interrupted restore is finished by repeating it.

    Args:
        url: Where the checkpoints are: one query's history, or what several queries share.
        to: The checkpoint location to write, which must be fresh.
        at: A checkpoint's number, a savepoint's name, ``epoch=N``, or ``latest``: the newest that is whole,
            with a warning about each newer one that is not.
        epoch: Choose the newest checkpoint of this epoch instead.
        timestamp_ms: Choose the newest checkpoint that was made by then instead.
        query: Name or id of the query, if there are several below ``url``.
        point: ``after``: Spark goes on with the next batch; possible if Spark is known to have finished the
            checkpoint's batch. ``before``: Spark runs that batch again, and the table replaces its rows;
            possible for a ckpt-sink with state. None: after where it is known, else before.
        clone: Give the location a new query id, and leave the history and the query's table as they are.
        sink: What happens if an output already has later batches of the query, which it would drop by
            their numbers: ``fail``, ``rollback`` (it goes back with the query; a ckpt-sink by a recorded
            rollback) or ``warn``. Kafka, ``foreachBatch`` and others cannot be asked: the report says what
            comes twice.
        sink_location: Where that output is, if it was moved or is known only by the name of a table; for a
            clone, where that is to write. The log of a new path of the file sink then begins with empty
            batches, without which Spark can neither read it nor go on.
        drop_others: Whether an output may go back although somebody else has committed to it since.
        partitions: Repartition the state to so many, by Spark (4.2 or newer, state in RocksDB).
        spark: The session that repartitions (by default the active one), writes large state from its
            executors, reaches locations on any file system of Hadoop, and has the catalogs of Iceberg
            tables. Without it none is needed.
        options: Options of the store, and ``encryptionKeyFile``.
        location_options: Options of the location's store, if they are others.
        sink_options: Options of the table's store, if they are others.
        progress: Called with the bytes that are done and all bytes, after each group of files.

    Returns:
        What was restored: the checkpoint, its batch, the point, and what was written.

    Raises:
        NoCheckpoint: There is no such checkpoint, savepoint, epoch or query.
        InUse: A query or another restore uses the location.
        Diverged: The query's table is at another epoch, or at this one from other batches; or another
            output already has batches that the query would write again.
        Unsupported: State that Spark cannot repartition, or a location that it does not reach.
        FormatError: Stored bytes are damaged, and no older checkpoint was allowed or is whole.
        SettingsError: The URL, an option or an argument is not valid.
    """
    request = RestoreRequest(
        url,
        to,
        at,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        query=query,
        point=parse_point(point),
        clone=clone,
        sink=sink,
        sink_location=sink_location,
        drop_others=drop_others,
        partitions=partitions,
        options=options,
        location_options=location_options,
        sink_options=sink_options,
    )
    return execute_restore(request, spark=spark, progress=progress)


def dry_run(request: RestoreRequest) -> RestorePlan:
    """What ``execute_restore`` would do, refused as that would be. Changes nothing; needs no Spark."""
    history = CheckpointStore.open(request.history_url(), request.options)
    if request.is_latest:
        report = history.recover_latest_validated()
        if report.skipped:
            _LOG.warning("%s", report.report)
        if report.chosen_id is None:
            raise NoCheckpoint(f"{history.store.url} has no checkpoint", hint=_LIST)
        number = report.chosen_id
    else:
        number = choose_checkpoint(history, request)
    prepared = PreparedRestore.of(
        history, load_checkpoint(history, number), request, request.location().open()
    )
    resumes = prepared.writer().check().resumes
    return replace(prepared.plan, newest_id=max(history.list_ids()), resumes=resumes)


def execute_restore(
    request: RestoreRequest,
    *,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RestoreReport:
    """Do what a request asks for. See ``restore``, and the steps at the top of this file."""
    request = request.with_session(spark)
    url = request.history_url()
    history, spec = CheckpointStore.open(url, request.options), request.location()
    side = SparkSide.find(spark, must_repartition=request.partitions is not None)
    if side is not None:
        spec = side.reach(spec)
    location, skipped = spec.open(), list[str]()
    for manifest in _candidates(history, request, skipped):
        prepared = PreparedRestore.of(history, manifest, request, location, clock)
        plan = prepared.plan
        for note in plan.outputs.notes:
            _LOG.warning("%s", note)
        target = side.repartition_url(spec) if side is not None and plan.partitions is not None else ""
        spread = None if side is None else side.writer(url, plain_options(request.options), spec)
        writer = prepared.writer(spread)
        try:
            report = writer.execute(progress)
        except UnknownVersion:
            raise  # nothing is damaged: going back would throw away what a newer version has written
        except FormatError as error:
            if not request.is_latest:
                raise
            writer.undo()
            _skip(skipped, manifest.checkpoint_id, error)
            continue
        if side is not None and plan.partitions is not None:
            writer.write_commits()  # it is a batch of Spark's, which goes on after the checkpoint's
            side.repartition(target, plan.partitions)
            writer.check_lock()
        if request.clone:
            request.output_question().begin(manifest.sinks, plan.done_batch)
        else:
            prepared.take_over()
            report = replace(report, rolled_back=prepared.roll_back_outputs(writer.check_lock))
        writer.finish()
        location.store.close()
        return report
    raise FormatError(
        f"none of the checkpoints is good: {'; '.join(skipped)}",
        hint="restore the damaged objects from a copy; starting afresh would lose what they hold",
    )


@dataclass(frozen=True, slots=True)
class PreparedRestore:
    """One checkpoint that may be restored, with what was found out about it."""

    request: RestoreRequest
    history: CheckpointStore
    manifest: CheckpointManifest
    location: CheckpointLocation
    sink: LinkedSink
    commit: bytes | None
    plan: RestorePlan
    resumption: Resumption
    sinks: tuple[SinkRecord, ...]
    """The outputs that are asked, and go back."""

    @staticmethod
    def of(
        history: CheckpointStore,
        manifest: CheckpointManifest,
        request: RestoreRequest,
        location: CheckpointLocation,
        clock: Clock = SYSTEM_CLOCK,
    ) -> PreparedRestore:
        """Ask the history, the table and the location, and plan. Refused is what cannot be done."""
        commit, point, partitions = find_commit(history, manifest), request.point, request.partitions
        if partitions is not None and needs_repartition(manifest, partitions, is_clone=request.clone):
            point = repartition_point(manifest, point, commit)
        else:
            partitions = None
        sink = LinkedSink(manifest, request.url, request.options, request.sink_options)
        target = None
        if not request.clone:
            may, drop = request.rolls_tables_back, request.drop_others
            target = sink.plan(may_roll_back=may, drop_others=drop)
            if manifest.table is not None and not (drop or request.is_latest):
                keep_others(history, manifest.checkpoint_id, manifest.query.id)
        query_id = _clone_id(location, manifest, clock) if request.clone else None
        files = plan_restore(
            manifest, query_id=query_id, point=point, commit=commit, with_planned=partitions is None
        )
        sinks, resumption, outputs = ask_outputs(history, manifest, request, files)
        plan = replace(files, partitions=partitions, table_target=target, outputs=outputs)
        return PreparedRestore(request, history, manifest, location, sink, commit, plan, resumption, sinks)

    def writer(self, spread: Spread | None = None) -> Restore:
        """What writes it."""
        return Restore(
            self.history,
            self.manifest,
            self.plan,
            self.location,
            spread=spread,
            automatic=self.request.automatic and self.request.is_latest,
            is_lost=lambda number: _is_lost(self.history, number),
        )

    def take_over(self) -> None:
        """Fence whoever still writes, and bring the history to what was restored."""
        made = _take_over(self.history, self.manifest.checkpoint_id)
        if made is not None and self.commit is not None and self.plan.point is RestorePoint.AFTER:
            keep_commit(self.history, made, self.commit)

    def roll_back_outputs(self, check: Callable[[], None]) -> tuple[RollBackPlan, ...]:
        """Bring the outputs to what was restored: asked again, for who still ran may have written."""
        target = self.plan.table_target
        if self.request.rolls_tables_back:
            target = self.sink.plan(may_roll_back=True, drop_others=self.request.drop_others)
        if target is not None:
            self.sink.roll_back(target)
        return self.request.output_question().roll_back(self.sinks, self.resumption, check)


def ask_outputs(
    history: CheckpointStore, manifest: CheckpointManifest, request: RestoreRequest, files: RestorePlan
) -> tuple[tuple[SinkRecord, ...], Resumption, OutputsPlan]:
    """Ask the outputs of a checkpoint's query, but for its ckpt-sink. Changes nothing.

    ``files`` say where the query goes on. The answer names the outputs that were asked.

    Raises:
        Diverged: An output has later batches of the query, and may not or cannot go back.
        Unsupported: It is of a kind that cannot go back from here.
    """
    head = None if request.is_latest else find_newest_readable(history)
    resumption = replace(
        resumption_after(manifest, files.done_batch),
        is_planned=files.planned_batch is not None,
        goes_back=not request.is_latest,
        is_clone=request.clone,
        left_at=_left_at(head, manifest),
    )
    sinks = manifest.sinks
    if not request.sink_location:
        sinks = _sinks_since(history, manifest, head or manifest)
    twice = replayed_offsets(manifest, head)
    return sinks, resumption, request.output_question().plan(sinks, resumption, twice)


def find_newest_readable(history: CheckpointStore) -> CheckpointManifest | None:
    """The newest checkpoint; None if it is damaged, which may be the reason for going back."""
    try:
        return history.load_latest()
    except UnknownVersion:
        raise
    except FormatError:
        return None


def _left_at(head: CheckpointManifest | None, manifest: CheckpointManifest) -> int | None:
    """The batch to which the query was taken back below a checkpoint since it was made; None if it was not.

    Its outputs then have other batches under the same numbers, or none.
    """
    since = () if head is None else head.rollbacks
    return min((batch for number, batch in since if number > manifest.checkpoint_id), default=None)


def _sinks_since(
    history: CheckpointStore, manifest: CheckpointManifest, newest: CheckpointManifest
) -> tuple[SinkRecord, ...]:
    """The outputs of a checkpoint, and those that the query has had last, where it writes elsewhere since.

    A claim or a rollback repeats what an earlier checkpoint names, so that its parent is asked too.
    """
    sinks, known = list(manifest.sinks), {sink.target or sink.kind for sink in manifest.sinks}
    head: CheckpointManifest | None = newest
    for _ in range(_MAX_REPEATS):
        if head is None:
            break
        sinks += [sink for sink in head.sinks if (sink.target or sink.kind) not in known]
        known |= {sink.target or sink.kind for sink in head.sinks}
        if head.kind not in (ManifestKind.CLAIM, ManifestKind.ROLLBACK):
            break
        try:
            head = history.load_by_id(head.parent_id)
        except FormatError:
            break
    return tuple(sinks)


def choose_checkpoint(history: CheckpointStore, request: RestoreRequest) -> int:
    """The number of the checkpoint that a request means."""
    return choose_number(history.store, request.at, epoch=request.epoch, timestamp_ms=request.timestamp_ms)


def load_checkpoint(history: CheckpointStore, number: int) -> CheckpointManifest:
    """A checkpoint that must be there."""
    manifest = history.load_by_id(number)
    if manifest is None:
        raise no_checkpoint(history.store, number)
    return manifest


def _candidates(
    history: CheckpointStore, request: RestoreRequest, skipped: list[str]
) -> Iterator[CheckpointManifest]:
    """The checkpoint that is meant; for ``latest`` one after the other, newest first.

    The bytes of each are verified while they are restored, so that nothing is read twice.
    """
    if not request.is_latest:
        yield load_checkpoint(history, choose_checkpoint(history, request))
        return
    lost = history.find_lost()
    if lost is not None:
        skipped.append(f"lost: {lost}")
        _LOG.warning("%s", lost)
    numbers = history.list_ids()
    if not numbers:
        raise NoCheckpoint(f"{history.store.url} has no checkpoint", hint=_LIST)
    for number in reversed(numbers):
        try:
            manifest = history.load_by_id(number)
        except UnknownVersion:
            raise
        except FormatError as error:
            _skip(skipped, number, error)
            continue
        if manifest is not None:
            yield manifest


def _is_lost(history: CheckpointStore, number: int) -> bool:
    """Whether a checkpoint is gone or its manifest damaged; one of a newer version is neither."""
    try:
        return history.load_by_id(number) is None
    except UnknownVersion:
        return False
    except FormatError:
        return True


def _skip(skipped: list[str], number: int, error: FormatError) -> None:
    skipped.append(f"skipped checkpoint {number}: {error}")
    _LOG.warning("%s", skipped[-1])


def _clone_id(location: CheckpointLocation, manifest: CheckpointManifest, clock: Clock) -> str:
    """A fresh query id, or that of the interrupted restore of a clone which this one goes on with."""
    begun = find_interrupted(location)
    return clock.uuid7() if begun is None or begun == manifest.query.id else begun


def _take_over(history: CheckpointStore, number: int) -> CheckpointManifest | None:
    """Fence whoever still writes; go back in the history if the location did, also over a damaged head.

    A head that only repeats the checkpoint, because somebody was killed after this, is not gone back from
    again. Who still writes may have committed since it was chosen: the location has not got that.
    """

    def check(head: Head) -> None:
        repeated = origins(history.store, head.manifest, mac=history.authenticator())
        if number not in (found.checkpoint_id for found in repeated):
            raise StaleAttempt(f"checkpoint {head.number} was committed meanwhile", hint="restore again")

    if history.find_lost() is None:
        with contextlib.suppress(StaleAttempt, FormatError):
            return history.claim(check)
    return history.rollback(number)
