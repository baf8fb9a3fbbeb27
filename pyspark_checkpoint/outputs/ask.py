"""Asking the outputs of a checkpoint's query before the query goes on from that checkpoint.

A sink drops batches by their numbers. A query that goes on after batch N while its output already has M > N
loses what it writes as N + 1 to M, in silence. So whoever restores or starts a query asks first, by
``decide``, and rolls back what it says when the history is taken over and nobody else writes any more.
What cannot be asked is said to be so, with the offsets that will come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pyspark_checkpoint.capture.sink_description import CKPT_SINK
from pyspark_checkpoint.errors import (
    CheckpointError,
    Diverged,
    NotFound,
    SettingsError,
    StaleAttempt,
    Unsupported,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.history.manifest_diff import flatten_offsets
from pyspark_checkpoint.outputs.decide import (
    FAIL,
    OUTPUT_CHOICES,
    ROLLBACK,
    WARN,
    OutputVerdict,
    Resumption,
    decide,
)
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.outputs.iceberg_table import FindTable, IcebergOutput
from pyspark_checkpoint.outputs.output import Output, OutputPosition, RollBackPlan, listed
from pyspark_checkpoint.outputs.pyiceberg_table import find_pyiceberg_table
from pyspark_checkpoint.registry.queries import check_named_table, plain_options
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.requirements import FORMAT
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store

_OUTPUTS: Mapping[str, type[FileSinkOutput | DeltaOutput | IcebergOutput]] = {
    "file": FileSinkOutput,
    "delta": DeltaOutput,
    "iceberg": IcebergOutput,
    "table": IcebergOutput,
}
"""By the kind that a manifest records. ``table``: a table of a catalog whose place nobody has said."""

_WHERE_HINT = (
    "give a Spark session that has its catalog (spark=, --conf), configure pyiceberg for it, or give the "
    "table's path (sink_location, --sink-location)"
)
_ROUNDS = 5
_SILENT = (CKPT_SINK, "noop")
"""Asked elsewhere, or without anything that could come twice."""
_TWICE = "comes twice"
_BY_NUMBER: Mapping[str, str] = {
    "hudi": "is dropped by its batch numbers as far as the table has those: then its rows are lost",
    "foreach-batch": f"{_TWICE}, or is lost where the function drops batches by number (txnVersion)",
    "other": f"{_TWICE}, or is lost if it drops batches by number",
}
"""What becomes of the batches that a query writes again, if it is not that they come twice."""


@dataclass(frozen=True, slots=True)
class OutputsPlan:
    """What happens to the outputs of a query that goes on, and what has to be said of them."""

    roll_backs: tuple[RollBackPlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputQuestion:
    """How to reach the outputs that a checkpoint names, and what to do about those that are ahead.

    Attributes:
        typed_url: The URL that led to the checkpoint: what a record names elsewhere is not opened.
        choice: ``fail``, ``rollback`` or ``warn``.
        place: Where the output is now, if that is not what the checkpoint says: it was moved, or the
            checkpoint knows only the name of a catalog's table.
        options: Options of the output's store.
        drop_others: Whether commits that others made to an output since may go too.
        tables: How a table of a catalog is found by its name.
        opener: Opens the store of an output whose place Spark itself has said, and no record.
    """

    typed_url: str
    choice: str = FAIL
    place: str | None = None
    options: Mapping[str, str] | None = field(default=None, repr=False)
    drop_others: bool = False
    tables: FindTable = field(default=find_pyiceberg_table, repr=False)
    opener: Callable[[str], ObjectStore] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.choice not in OUTPUT_CHOICES:
            raise SettingsError(
                f"sink is {self.choice!r}", hint=f"choose one of {', '.join(OUTPUT_CHOICES)}"
            )

    def open(self, sink: SinkRecord) -> Output | None:
        """The output of a sink, for which there is an adapter; None if nobody has said where it is.

        A table of a catalog is asked and changed through that: its own files do not always say which of
        them are current.
        """
        place, opener = self.place, self.opener
        if _OUTPUTS[sink.kind] is IcebergOutput:
            name = sink.target if place is None or ("/" in place and "/" not in sink.target) else place
            if place is None and "/" in name:
                check_named_table(name, self.typed_url, self.options)
            try:
                table = self.tables(name)
            except (NotFound, Unsupported):
                table = None  # the caller's catalogs do not have it
            if table is not None:
                return IcebergOutput(name, table=table)
            if place is not None and "/" not in place:
                return None
        if place is None:
            place = sink.location or sink.target
            if not place or sink.kind == "table":
                return None
            if opener is None and LocationSpec(place).is_foreign:
                raise Unsupported(
                    f"a record names the output {place}, on a file system of Hadoop",
                    hint="if it is yours, give it as sink_location (--sink-location), with a session of "
                    "Spark",
                )
            if opener is None:
                check_named_table(place, self.typed_url, self.options)
        elif opener is None and LocationSpec(place).is_foreign:
            opener = _hadoop_opener(self.tables, place)
        store = open_object_store(place, plain_options(self.options)) if opener is None else opener(place)
        return _OUTPUTS[sink.kind](place, store)

    def plan(self, sinks: Sequence[SinkRecord], resumption: Resumption, twice: str = "") -> OutputsPlan:
        """Ask every output of a query that is to go on. Changes nothing.

        ``twice`` is what comes twice where an output cannot be asked; see ``replayed_offsets``.

        Raises:
            Diverged: An output has later batches of the query, and may not or cannot go back.
            Unsupported: It is of a kind that cannot go back from here.
        """
        roll_backs, notes = list[RollBackPlan](), list[str]()
        for _, plan, note in self._ask(sinks, resumption, twice):
            roll_backs += [plan] if plan is not None else []
            notes += [note] if note else []
        return OutputsPlan(tuple(roll_backs), tuple(notes))

    def roll_back(
        self, sinks: Sequence[SinkRecord], resumption: Resumption, check: Callable[[], None]
    ) -> tuple[RollBackPlan, ...]:
        """Ask once more, and roll back what is ahead. ``check`` is called before each change.

        To be called when nobody else writes any more. Who still did may have committed since the first
        question. Killed anywhere, repeating finishes it.
        """
        if self.choice == WARN:
            return ()  # what is ahead was said when the outputs were asked first
        done = list[RollBackPlan]()
        for _ in range(_ROUNDS):
            try:
                for output, plan, _note in self._ask(sinks, resumption):
                    if output is not None and plan is not None:
                        check()
                        output.roll_back(plan)
                        done.append(plan)
            except StaleAttempt:
                continue
            return tuple(done)
        raise StaleAttempt(
            f"gave up rolling the query's output back after {_ROUNDS} commits of others",
            hint="stop what else writes to it, and repeat this",
        )

    def begin(self, sinks: Sequence[SinkRecord], done_batch: int) -> None:
        """Let the target of a clone begin where the clone does, if somebody has said where that is.

        To be called before the clone can start. Killed anywhere, repeating finishes it.
        """
        for sink in sinks:
            if self.place is not None and can_be_asked(sink) and _OUTPUTS[sink.kind].records_every_batch:
                output = self.open(sink)
                if output is not None:
                    output.begin(done_batch)

    def _ask(
        self, sinks: Sequence[SinkRecord], resumption: Resumption, twice: str = ""
    ) -> Iterator[tuple[Output | None, RollBackPlan | None, str]]:
        """Each output, how it goes back if it does, and what has to be said of it."""
        for sink in sinks:
            if not can_be_asked(sink):
                yield None, None, "" if sink.kind in _SILENT else _replay_note(sink, resumption, twice)
                continue
            try:
                output = self.open(sink)
                if output is None:
                    raise Unsupported(f"nobody has said where {sink.target} is", hint=_WHERE_HINT)
                position = output.position(resumption.query_id)
            except CheckpointError as error:
                yield None, None, self._unanswered(sink, error)
                continue
            yield output, *self._plan_one(output, position, resumption)

    def _plan_one(
        self, output: Output, position: OutputPosition, resumption: Resumption
    ) -> tuple[RollBackPlan | None, str]:
        """How one output goes back, if it does, and what has to be said of it."""
        verdict = decide(
            resumption, position, runs_skipped_batches=output.runs_skipped_batches, choice=self.choice
        )
        match verdict:
            case OutputVerdict.ROLL_BACK:
                return self._plan_roll_back(output, resumption), ""
            case OutputVerdict.REFUSE:
                raise self._ahead(output, position, resumption)
            case OutputVerdict.WARN:
                return None, self._ahead(output, position, resumption).message
            case OutputVerdict.UNKNOWN if self.choice == ROLLBACK:
                return self._plan_roll_back(output, resumption), ""
            case OutputVerdict.UNKNOWN:
                return None, f"the {output} no longer says which batches it has of this query"
        if resumption.is_clone and self.place is not None and output.can_begin(resumption.done_batch):
            return None, f"the {output} begins with empty batches up to batch {resumption.done_batch}"
        if (behind := find_behind(output, position, resumption)) is not None:
            if output.records_every_batch and position.batch_id is not None and self.choice != WARN:
                raise behind
            return None, behind.message
        is_ahead = position.batch_id is not None and position.batch_id > resumption.done_batch
        if self.choice != ROLLBACK or is_ahead:
            return None, ""
        try:  # it has what it should have; or somebody was killed while it went back
            return self._plan_roll_back(output, resumption), ""
        except (Unsupported, Diverged):
            return None, ""

    def _plan_roll_back(self, output: Output, resumption: Resumption) -> RollBackPlan | None:
        plan = output.plan_roll_back(resumption.query_id, resumption.done_batch)
        if plan is not None and plan.others and not self.drop_others:
            raise Diverged(
                f"the {output} has commits that are not of this query, and would lose them too: "
                f"{listed(plan.others)}",
                hint="if they may go: drop_others=True, --drop-others; else write to another target, or "
                "undo the query's batches in the table itself",
            )
        return plan

    def _unanswered(self, sink: SinkRecord, error: CheckpointError) -> str:
        """What is said of an output that gives no answer; refused if it was to be rolled back."""
        problem = f"the output {sink.target} cannot be asked how far it is: {error.message}"
        if self.choice != ROLLBACK:
            return f"{problem}; so that it can: {error.hint}" if error.hint else problem
        raise Unsupported(
            problem, hint=f"{error.hint}; or choose sink=warn, and look at the output yourself"
        )

    def _ahead(self, output: Output, position: OutputPosition, resumption: Resumption) -> Diverged:
        batch_id, newest = resumption.done_batch, position.batch_id
        first = batch_id + 1
        lost = f"batch {first}" if first == newest else f"batches {first} to {newest}"
        is_trap = resumption.is_planned and newest == first and resumption.state_format != 1
        trap = "; every start would end with 'CheckpointInfo length: 0'" if is_trap else ""
        after = f"after batch {batch_id}" if batch_id >= 0 else "from its first batch"
        if resumption.is_left:
            return Diverged(
                f"the query was taken back to batch {resumption.left_at} since, and the {output} has batch "
                f"{newest} of what it has written then: the rows of the checkpoint's own batches up to "
                f"{batch_id} are not in it",
                hint="restore a checkpoint that was made since; or bring the output to the state of that "
                "batch by its own means, and say so with sink=warn (--sink warn)",
            )
        if resumption.is_clone:
            return Diverged(
                f"the {output} has batch {newest} of query {resumption.query_id}, and a clone would go on "
                f"{after}: the rows of {lost} would be there twice, or be dropped by number",
                hint="let the clone write to another target, and give that (sink_location, --sink-location)"
                f" or say so (sink=warn, --sink warn); or restore a checkpoint of batch {newest}",
            )
        return Diverged(
            f"the {output} has batch {newest} of this query, and the query would go on {after}: the output "
            f"would drop {lost} by number, whatever rows are in it{trap}",
            hint="roll the output back with it (sink=rollback, --sink rollback, spark.ckpt.sink=rollback), "
            f"restore a checkpoint of batch {newest}, or write to another target",
        )


def find_behind(output: Output, position: OutputPosition, resumption: Resumption) -> Diverged | None:
    """What is to be said of an output that lacks batches which the query takes for done."""
    newest, done = position.batch_id, resumption.done_batch
    if done < 0 or (newest is not None and newest >= done):
        return None
    if newest is not None:
        lacks = (
            f"has batch {newest} of this query as its newest, and the query would go on after batch {done}"
        )
        rows = "the rows between are not in it" + (
            "" if output.records_every_batch else ", if there were any"
        )
    elif output.records_every_batch:
        lacks, rows = (
            "has no batch",
            "Spark's log of it must begin at 0, and its next compaction would fail",
        )
    else:
        lacks = f"has no batch of this query, which would go on after batch {done}"
        rows = "it was made anew, or is another target than before; what was written before is not in it"
    return Diverged(
        f"the {output} {lacks}: {rows}",
        hint="restore a checkpoint of a batch that it has, or accept that with sink=warn; a new target "
        "begins with a fresh checkpoint location",
    )


def can_be_asked(sink: SinkRecord) -> bool:
    """Whether there is an adapter for outputs of this kind."""
    return sink.kind in _OUTPUTS


@runtime_checkable
class OpensStores(Protocol):
    """What finds tables by a session of Spark, which reaches every file system of Hadoop besides."""

    def open_store(self, url: str) -> ObjectStore:
        """The files at a place that only Hadoop reaches."""


def _hadoop_opener(tables: object, place: str) -> Callable[[str], ObjectStore]:
    if isinstance(tables, OpensStores):
        return tables.open_store
    raise Unsupported(
        f"the output {place} is on a file system that is reached through Spark alone",
        hint="give a session (spark=), or a conf with which the command starts one (--conf)",
    )


def resumption_after(manifest: CheckpointManifest, done_batch: int) -> Resumption:
    """Where a query goes on after a batch, from a checkpoint that may know what is planned. Pure.

    Of a query that has not done its first batch it is not known whether it has state: it may.
    """
    planned = manifest.planned
    has_state = any(entry.kind == STATE_KIND for entry in manifest.operators.values())
    return Resumption(
        manifest.query.id,
        done_batch,
        is_planned=planned is not None and planned.batch_id == done_batch + 1,
        is_stateful=has_state or manifest.is_start,
        state_format=1 if manifest.query.conf.get(FORMAT, "1") == "1" else 2,
    )


def replayed_offsets(done: CheckpointManifest, newest: CheckpointManifest | None) -> str:
    """Which offsets a query that goes on from ``done`` reads again, as far as its history knows. Pure."""
    if newest is None or newest.batch_id is None or newest.batch_id <= (done.batch_id or 0):
        return ""
    moved = []
    for name, source in sorted(newest.source_offsets.items()):
        before = flatten_offsets(done.source_offsets.get(name))
        for part, offset in flatten_offsets(source).items():
            if before.get(part) != offset:
                moved.append(
                    f"{name} {part} from {before.get(part, 'its start')} to {offset}".replace("  ", " ")
                )
    return listed(moved)


def _replay_note(sink: SinkRecord, resumption: Resumption, twice: str) -> str:
    kind = f"{sink.kind} output" if sink.kind != "other" else "output"
    known = f"; known are {twice}" if twice else ""
    return (
        f"the {kind} cannot be asked nor rolled back: what it got after batch {resumption.done_batch} "
        f"{_BY_NUMBER.get(sink.kind, _TWICE)}{known}"
    )
