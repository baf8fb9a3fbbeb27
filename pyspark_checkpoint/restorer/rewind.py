"""``rewind``: a query goes back to an earlier batch, whole: its history, its outputs and its location.

The steps, in the order in which they become durable; killed at any of them, repeating finishes it:

1. Choose the checkpoint, ask outputs and sources, and refuse what cannot be done. A dry run ends here.
2. Mark the location: a query that is started there meanwhile is stopped before its first batch.
3. Write the checkpoint beside the location; ``commits`` not yet. Every byte is verified on the way.
4. Take the history over, which fences whoever still writes, and record the rollback in it, once.
5. Ask the outputs once more, and roll them back. Write ``commits``.
6. Two renames put it in the location's place; the old one is kept aside. Remove the mark.

Objects are not renamed. There every byte of the checkpoint is verified before step 2, the history is taken
over before anything of the location goes, and the location is written in its own place, under the mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import AlreadyExists, CheckpointError, InUse, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.manifest_diff import flatten_offsets
from pyspark_checkpoint.inputs.check import InputQuestion, check_inputs, refuse_lost
from pyspark_checkpoint.inputs.offset_reader import InputFinding
from pyspark_checkpoint.outputs.decide import ROLLBACK
from pyspark_checkpoint.outputs.output import OutputKind, RollBackPlan
from pyspark_checkpoint.registry.queries import check_named_location, plain_options, read_names
from pyspark_checkpoint.restorer.api import (
    PreparedRestore,
    RestoreRequest,
    choose_checkpoint,
    execute_restore,
    find_newest_readable,
    load_checkpoint,
)
from pyspark_checkpoint.restorer.execute import Progress, Restore, RestoreReport
from pyspark_checkpoint.restorer.lock import RestoreMark, is_marked, mark_in_use, newest_step, unmark
from pyspark_checkpoint.restorer.plan import IN_USE, RESTORE_MARKER, RestorePlan
from pyspark_checkpoint.restorer.repartition import SparkSide
from pyspark_checkpoint.restorer.replace_stale import check_replaceable, rename_location, swap_locations
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.store.url import parse_store_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READERS: Mapping[OutputKind, str] = {
    OutputKind.FILE: "readers of the sink's log no longer see the files of those batches; a stream that "
    "reads the directory has their rows already, and gets them again",
    OutputKind.DELTA: "readers see the earlier rows as a new version; a stream that reads the table stops "
    "at the removed files unless it ignores them (ignoreChanges, skipChangeCommits)",
    OutputKind.ICEBERG: "readers see the earlier snapshot; a stream that has read later ones stops, "
    "because its last snapshot is no ancestor any more",
    OutputKind.CKPT_SINK: "readers see the earlier rows; a reader of changes that was given later ones "
    "stops with an error that says so",
}
"""What those who read an output notice when it goes back."""


@dataclass(frozen=True, slots=True)
class SourceMove:
    """How far one offset of a source goes back. ``before`` is what the history knows as its newest."""

    source: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """Everything that a rewind does. A dry run shows it, ``rewind`` obeys it.

    Attributes:
        restore: The files to write, the outputs that go back, and what has to be said of others.
        location: Where the query's checkpoint location is.
        is_there: Whether anything is there now, which is kept aside or replaced.
        in_place: Whether it is replaced in its own place, because objects are not renamed.
        inputs: Whether each source still has what comes after the checkpoint, as far as it could be asked.
        moves: Which offsets the sources go back by, as far as the history knows.
        readers: What those who read the outputs notice.
    """

    restore: RestorePlan
    location: str
    is_there: bool
    in_place: bool
    inputs: tuple[InputFinding, ...]
    moves: tuple[SourceMove, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewindReport:
    """What a rewind did; ``restored`` is None for a dry run.

    ``set_aside`` is where the location is kept that was there before; empty if nothing is.
    """

    plan: RewindPlan
    restored: RestoreReport | None = None
    set_aside: str = ""


def rewind(
    url: str,
    *,
    query: str | None = None,
    at: int | str | None = None,
    epoch: int | None = None,
    timestamp_ms: int | None = None,
    to: str | LocationSpec | None = None,
    sink: str = ROLLBACK,
    drop_others: bool = False,
    sink_location: str | None = None,
    spark: SparkSession | None = None,
    options: Mapping[str, str] | None = None,
    location_options: Mapping[str, str] | None = None,
    sink_options: Mapping[str, str] | None = None,
    source_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RewindReport:
    """Take a query back to a checkpoint: its history, its outputs and its location. Stop the query first.

    The unmodified query then goes on from there, at the same checkpoint location and with the same outputs.
    An interrupted rewind is finished by repeating it.

    Args:
        url: Where the checkpoints are: one query's history, or what several queries share.
        query: Name or id of the query, if there are several below ``url``.
        at: A checkpoint's number, a savepoint's name, ``epoch=N`` or ``latest``.
        epoch: Choose the newest checkpoint of this epoch instead.
        timestamp_ms: Choose the newest checkpoint that was made by then instead.
        to: The checkpoint location, if it is not where the query had it last.
        sink: What happens to outputs that have later batches: ``rollback``, ``fail`` or ``warn``.
        drop_others: Whether an output may go back although somebody else has committed to it since.
        sink_location: Where the output is, if it was moved or is known only by the name of a table.
        spark: A session, for locations that only Hadoop reaches, for large state, and for the catalogs of
            Iceberg tables.
        options: Options of the store, and ``encryptionKeyFile``.
        location_options: Options of the location's store, if they are others.
        sink_options: Options of the output's store, if they are others.
        source_options: What the query's sources read with and a checkpoint does not know, such as
            ``kafka.bootstrap.servers``: so they can be asked whether they still have what comes after it.
        dry_run: Say what would be done, and change nothing.
        progress: Called with the bytes that are done and all bytes, after each group of files.

    Returns:
        The plan, and unless it was a dry run what was restored, and where the old location is kept.

    Raises:
        NoCheckpoint: There is no such checkpoint, savepoint, epoch or query.
        RefusedError: A source no longer has what comes after the checkpoint.
        InUse: The query runs, or another restore into the location was interrupted.
        Diverged: An output has commits of others, or no longer has what it would go back to.
        Unsupported: An output or a location that cannot go back from here.
        FormatError: Stored bytes are damaged.
        SettingsError: The URL, an option or an argument is not valid.
    """
    if at is None and epoch is None and timestamp_ms is None:
        raise SettingsError("nobody has said how far back", hint="give at, epoch or timestamp_ms")
    request = RestoreRequest(
        url,
        to or "",
        "latest" if at is None else at,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        query=query,
        sink=sink,
        sink_location=sink_location,
        drop_others=drop_others,
        options=options,
        location_options=location_options,
        sink_options=sink_options,
    )
    prepared = _Rewind.prepare(request.with_session(spark), spark, source_options or {})
    return RewindReport(prepared.plan) if dry_run else prepared.execute(progress)


@dataclass(frozen=True, slots=True)
class _Rewind:
    """A rewind that may be carried out, with what was found out about it."""

    plan: RewindPlan
    request: RestoreRequest
    side: SparkSide | None
    spec: LocationSpec
    prepared: PreparedRestore
    fresh: LocationSpec
    clock: Clock

    @staticmethod
    def prepare(
        request: RestoreRequest,
        spark: SparkSession | None,
        source_options: Mapping[str, str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> _Rewind:
        """Ask history, location, outputs and sources, and plan. Refused is what cannot be done."""
        history = CheckpointStore.open(request.history_url(), request.options)
        manifest = load_checkpoint(history, choose_checkpoint(history, request))
        newest = find_newest_readable(history) or manifest
        request = replace(
            request,
            to=request.to or _find_location(request, newest),
            at=manifest.checkpoint_id,
            epoch=None,
            timestamp_ms=None,
        )
        spec, side = request.location(), SparkSide.find(spark, must_repartition=False)
        spec = spec if side is None else side.reach(spec)
        prepared = PreparedRestore.of(history, manifest, request, spec.open(), clock)
        fresh = spec.beside(f"rewound-{RestoreMark.of(prepared.plan).content_sha256[:12]}")
        plan = RewindPlan(
            replace(prepared.plan, newest_id=newest.checkpoint_id),
            spec.url,
            is_there=_is_used(prepared.location),
            in_place=_is_object_store(spec),
            inputs=_check_inputs(request, source_options, prepared),
            moves=tuple(_moves(newest, manifest)),
            readers=tuple(
                dict.fromkeys(
                    READERS[one.kind] for one in _going_back(prepared.plan) if one.kind in READERS
                )
            ),
        )
        if not plan.in_place:
            check_replaceable(spec, request.url)
        return _Rewind(plan, request, side, spec, prepared, fresh, clock)

    def execute(self, progress: Progress | None = None) -> RewindReport:
        """Do it; see the steps at the top of this file."""
        location, is_there = self.prepared.location, self.plan.is_there
        is_begun = _is_used(self.fresh.open())
        mark, seen = RestoreMark.of(self.prepared.plan), _step(location)
        is_written = is_there and not self.plan.in_place and is_marked(location, mark)
        if is_written or not (is_there or is_begun):
            return self._report(execute_restore(replace(self.request, to=self.spec), progress=progress))
        if self.plan.in_place:
            self._writer(location).prove()
            self._mark_in_place(replace(mark, newest_step=max(mark.newest_step, seen)))
        is_ours = is_there and not self.plan.in_place and mark_in_use(location, mark)
        target = location if self.plan.in_place else self.fresh.open()
        writer = self._writer(target)
        try:
            if self.plan.in_place:
                writer.check()
                self.prepared.take_over()
            report = writer.execute(progress)
            if not self.plan.in_place:
                self._check_idle(location, seen)
                self.prepared.take_over()
        except CheckpointError:
            if is_ours:
                unmark(location)  # nothing was changed but for what lies beside it, which repeating finds
            raise
        rolled_back = self.prepared.roll_back_outputs(writer.check_lock)
        writer.write_commits()
        if self.plan.in_place:
            writer.finish()
            return self._report(report, rolled_back)
        aside = self._put_in_place(seen, writer)
        return self._report(report, rolled_back, aside)

    def _mark_in_place(self, mark: RestoreMark) -> None:
        """Let the location be one whose restore was interrupted: its files are then replaced."""
        with contextlib.suppress(AlreadyExists):  # whose it is, the restore finds out
            self.prepared.location.store.put(RESTORE_MARKER, mark.encode(), if_absent=True)

    def _put_in_place(self, seen: int, writer: Restore) -> str:
        """Swap the locations; the mark stays until all is done, and goes from both of them."""
        aside = self.spec.beside(f"before-rewind-{self.clock.uuid7()}")
        if self.plan.is_there:
            self._check_idle(self.prepared.location, seen)
            swap_locations(self.spec, self.fresh, aside)
            self._check_idle(aside.open(), seen)  # who wrote until then may have written to an output too
            unmark(aside.open())
        else:
            rename_location(self.spec, self.fresh.url, self.spec.url)
        writer.finish(self.spec.open())
        return aside.url if self.plan.is_there else ""

    def _writer(self, location: CheckpointLocation) -> Restore:
        spread = None
        if self.side is not None:
            url = self.prepared.history.store.url
            spread = self.side.writer(url, plain_options(self.request.options), location.spec)
        return replace(self.prepared, location=location).writer(spread)

    def _check_idle(self, location: CheckpointLocation, seen: int) -> None:
        """Refuse to go on if a query has written to the location since: it would write to the new one."""
        if self.plan.is_there and _step(location) != seen:
            raise InUse(
                f"a query runs in {self.spec.url}: it has written there since this rewind began",
                hint="stop the query, and repeat the rewind",
            )

    def _report(
        self, restored: RestoreReport, rolled_back: tuple[RollBackPlan, ...] = (), aside: str = ""
    ) -> RewindReport:
        done = restored.rolled_back or rolled_back
        return RewindReport(self.plan, replace(restored, location=self.spec.url, rolled_back=done), aside)


def _find_location(request: RestoreRequest, newest: CheckpointManifest) -> str:
    """Where the query has its checkpoint location: where it started last, else what its checkpoint says."""
    parent = open_object_store(request.url, plain_options(request.options))
    started = [root for root in read_names(parent).roots if root.query_id == newest.query.id]
    found = next((root.checkpoint_location for root in started), "") or newest.query.checkpoint_location
    if not found:
        raise SettingsError("nobody has said where the query's location is", hint="give to=, --to")
    check_named_location(found, request.url, request.options)
    return found


def _check_inputs(
    request: RestoreRequest, source_options: Mapping[str, str], prepared: PreparedRestore
) -> tuple[InputFinding, ...]:
    """Ask the sources; refused by name is one that no longer has what comes after the checkpoint."""
    question = InputQuestion(request.url, source_options, request.options, prepared.history)
    findings = check_inputs(prepared.manifest, question)
    refuse_lost(findings)
    return findings


def _moves(newest: CheckpointManifest, manifest: CheckpointManifest) -> Iterator[SourceMove]:
    for source, position in sorted(newest.source_offsets.items()):
        after = flatten_offsets(manifest.source_offsets.get(source))
        for name, before in flatten_offsets(position).items():
            if after.get(name) != before:
                yield SourceMove(source, name, before, after.get(name, "not begun"))


def _going_back(plan: RestorePlan) -> Iterator[RollBackPlan]:
    yield from plan.outputs.roll_backs
    if plan.table_target is not None:
        yield RollBackPlan(
            OutputKind.CKPT_SINK, "", plan.query_id, plan.done_batch, "", str(plan.table_target)
        )


def _is_used(location: CheckpointLocation) -> bool:
    """Whether anything of a query or of a restore is in a location."""
    return any(info.key.startswith((*IN_USE, RESTORE_MARKER)) for info in location.store.list())


def _is_object_store(spec: LocationSpec) -> bool:
    return not spec.is_foreign and parse_store_url(spec.url).scheme != "file"


def _step(location: CheckpointLocation) -> int:
    """How far the query is whose logs are in a location."""
    return newest_step(info.key for info in location.store.list())
