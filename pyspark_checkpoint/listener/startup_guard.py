"""Stops a query before its first batch that starts from a stale or diverged location, or behind its output.

The output is asked which batches it has: somebody may have copied an old location by hand, or killed a
driver where Spark alone never starts again. By ``sink`` it is refused, rolled back or said to be ahead.

A store that does not answer stops no query. It is asked once more before the first capture, with what the
location had when the query started.

A location is replaced only while its query waits for us. ``QueryHold`` answers for that: a query that did
not wait, or whose location could not be replaced for any reason, is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from pyspark.sql import SparkSession

from pyspark_checkpoint.capture.location_status import RESTORE, WARN, LocationStatus
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.capture.sink_description import describe_sink, sink_store_url
from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import CheckpointError, Diverged, FormatError, InUse, StoreError, safe_text
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.sink_watcher import find_table_checkpoint
from pyspark_checkpoint.outputs.ask import OutputQuestion, can_be_asked
from pyspark_checkpoint.outputs.decide import FAIL, ROLLBACK, Resumption
from pyspark_checkpoint.outputs.iceberg_table import FindTable
from pyspark_checkpoint.spark.jvm import stop_query, stop_starting_query
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec

_LOG = logging.getLogger(__name__)
_NOT_EMPTY = (
    "{}. It has a new checkpoint location: give it a new target too, go on from its old location, or set "
    "sink=warn"
)


class QueryHold(Protocol):
    """Who holds a query at its start, and for how long."""

    def restores(self, run_id: str) -> bool:
        """Told that the query's location is stale; whether the query waits until it is restored."""

    def replaces(self, run_id: str) -> bool:
        """Asked before the first rename; yes means that the query waits until all of it is done."""

    def refuses(self, run_id: str) -> None:
        """Told that the query must not run, before it is stopped: who holds it does not let it go on."""


class Replacement(Protocol):
    """A stale location that was replaced."""

    @property
    def batch(self) -> int:
        """The batch that the new one ends with."""

    @property
    def set_aside(self) -> str:
        """Where the stale one is kept."""


class Restorer(Protocol):
    """What restores locations. Passed in: the features of this package do not import each other."""

    def find_interrupted(self, location: CheckpointLocation) -> str | None:
        """The query id of a restore into this location that was not finished; None if there is none."""

    def missing_plan(
        self, history: CheckpointStore, manifest: CheckpointManifest, location: CheckpointLocation
    ) -> Mapping[str, bytes]:
        """What a location lacks of the batch that the checkpoint has planned; refused if it has another."""

    def write_plan(self, location: CheckpointLocation, files: Mapping[str, bytes]) -> None:
        """Write that."""

    def replace_location(
        self,
        url: str,
        spec: LocationSpec,
        options: Mapping[str, str] | None,
        *,
        sink: str,
        tables: FindTable,
        may_replace: Callable[[], bool],
        clock: Clock,
    ) -> Replacement:
        """Put the newest checkpoint of the history at ``url`` in the place of the location ``spec``."""


class StartupGuard:
    """Guards one start of a query. ``stale`` says what happens if its location must not go on."""

    def __init__(
        self,
        spark: SparkSession,
        facts: QueryFacts,
        location: LocationSpec,
        *,
        url: str,
        stale: str,
        options: Mapping[str, str],
        clock: Clock,
        restorer: Restorer,
        outputs: OutputQuestion,
        hold: QueryHold | None = None,
    ) -> None:
        """``url`` is the query's own store. ``hold`` says whether the query waits for us.

        ``outputs``: how the query's output is asked.

        Without one it does: Spark waits for the callback of a listener, however long that takes.
        """
        self._spark = spark
        self._facts = facts
        self._location = location
        self._url = url
        self._stale = stale
        self._options = options
        self._clock = clock
        self._restorer = restorer
        self._outputs = outputs
        self._hold = hold
        self._status: LocationStatus | None = None
        self._is_settled = False

    def allow(self, open_history: Callable[[], CheckpointStore]) -> bool:
        """Whether the query may run; if not, it is stopped. Its ``start()`` has not returned yet."""
        try:
            opened = self._location.open()
            if self._is_unfinished(opened):
                return self._stop("a restore into its location was not finished: repeat it")
            self._status = LocationStatus.of(opened)
            problem = None
            if not self._has_state_in_table():
                history = open_history()
                newest = history.load_latest()
                problem = self._find_problem(self._status, history, newest)
                if problem is None and newest is not None and newest.run_id != self._facts.run_id:
                    self._complete_plan(history, newest, opened)
        except Diverged as error:
            problem = error.message
        except (StoreError, FormatError) as error:
            _LOG.warning("query %s: its history cannot be read yet: %s", self._facts.query.id, error)
            return True
        self._is_settled = True
        if problem is None:
            return self._allow_output(opened)
        if self._stale == WARN:
            _LOG.warning("query %s: %s", self._facts.query.id, problem)
            return self._allow_output(opened)
        if self._stale == RESTORE:
            return self._replace(problem)
        return self._stop(f"{problem}. Run ckpt restore, or set stale=restore or stale=warn")

    def _find_problem(
        self, status: LocationStatus, history: CheckpointStore, newest: CheckpointManifest | None
    ) -> str | None:
        run_id = self._facts.run_id
        return status.find_problem(newest, run_id) or status.find_rolled_back(history, newest, run_id)

    def _complete_plan(
        self, history: CheckpointStore, newest: CheckpointManifest, location: CheckpointLocation
    ) -> None:
        """Give the location the plan of the next batch that its history has: the output may have seen it.

        So it is after a crash between the checkpoint and Spark's own log, and in an old copy of a location
        of which another one went on.
        """
        files = self._restorer.missing_plan(history, newest, location)
        if not files:
            return
        if self._hold is not None and not self._hold.restores(self._facts.run_id):
            raise Diverged(
                "it began before it was known that its next batch is planned in its history",
                hint="start it again",
            )
        self._restorer.write_plan(location, files)
        _LOG.info(
            "query %s: its next batch is run as checkpoint %d has planned it",
            self._facts.query.id,
            newest.checkpoint_id,
        )

    def check_again(self, history: CheckpointStore, newest: CheckpointManifest | None) -> None:
        """Before the first capture: somebody else may have gone on, or the start could not be looked at.

        Refused, and the query stopped, if its location was behind when it started.
        """
        if self._status is None or (self._is_settled and self._stale == WARN):
            return
        problem = self._find_problem(self._status, history, newest)
        if problem is None:
            return
        if self._stale == WARN:
            self._is_settled = True
            _LOG.warning("query %s: %s", self._facts.query.id, problem)
            return
        _LOG.error("query %s is stopped: %s", self._facts.query.id, problem)
        stop_query(self._spark, self._facts.query.id)
        raise Diverged(problem, hint="run ckpt restore, or set stale=warn")

    def _allow_output(self, location: CheckpointLocation) -> bool:
        """Whether the query may run with the output that it has; the output is rolled back where it may be.

        One that gives no answer is said and stops no query: stock Spark would start it too.
        """
        facts, outputs = self._facts, self._outputs
        sink = describe_sink(facts.sink, facts.query.id, None, facts.iceberg_location)
        if not can_be_asked(sink):
            return True
        try:
            listing = location.listing()
            resumption = Resumption.of_location(listing, facts.query.id)
            asking = replace(outputs, choice=FAIL) if outputs.choice == ROLLBACK else outputs
            for note in asking.plan([sink], resumption).notes:
                _LOG.warning("query %s: %s", facts.query.id, note)
        except Diverged as ahead:
            if outputs.choice == ROLLBACK and listing.offsets:
                return self._roll_back(sink, resumption)
            return self._stop(str(ahead) if listing.offsets else _NOT_EMPTY.format(ahead.message))
        except CheckpointError as error:
            _LOG.warning("query %s: its output cannot be asked: %s", facts.query.id, error)
        return True

    def _roll_back(self, sink: SinkRecord, resumption: Resumption) -> bool:
        """Roll the output back while the query waits for this callback and has read nothing."""
        run_id = self._facts.run_id

        def check() -> None:
            if self._hold is not None and not self._hold.replaces(run_id):
                raise InUse("the query has not waited for it", hint="start it again")

        try:
            if self._hold is not None and not self._hold.restores(run_id):
                return self._stop("its output is ahead, and it began before that was known: start it again")
            done = self._outputs.roll_back([sink], resumption, check)
        except Exception as error:  # noqa: BLE001 - whatever it was: its rows would be dropped
            return self._stop(f"its output is ahead, and could not be rolled back: {safe_text(error)}")
        for plan in done:
            _LOG.warning(
                "query %s: the %s output %s was rolled back to batch %d, where the query goes on: %s",
                self._facts.query.id,
                plan.kind.value,
                plan.target,
                plan.batch_id,
                ", ".join(plan.dropped) or "nothing of it was visible",
            )
        return True

    def _has_state_in_table(self) -> bool:
        """Whether the sink itself refuses a batch that its table is ahead of."""
        table = sink_store_url(self._facts.sink)
        return bool(table and find_table_checkpoint(table, self._facts.query.id, self._options))

    def _replace(self, problem: str) -> bool:
        """Bring the location up to date while its query waits for this callback and has read nothing."""
        run_id = self._facts.run_id
        try:
            if self._hold is not None and not self._hold.restores(run_id):
                return self._stop(
                    f"{problem}. It began before that was known, and its location is not replaced under "
                    "it. Start it again, or run ckpt restore"
                )
            done = self._restorer.replace_location(
                self._url,
                self._location,
                self._options,
                sink=self._outputs.choice,
                tables=self._outputs.tables,
                may_replace=lambda: self._hold is None or self._hold.replaces(run_id),
                clock=self._clock,
            )
            self._status = LocationStatus.of(self._location.open())
        except Exception as error:  # noqa: BLE001 - whatever it was: the query must not run from a stale location
            return self._stop(f"{problem}. It could not be restored: {safe_text(error)}")
        _LOG.warning(
            "query %s: %s. It was restored at batch %s; the stale one is kept as %s",
            self._facts.query.id,
            problem,
            done.batch,
            done.set_aside,
        )
        return True

    def _stop(self, reason: str) -> bool:
        """Stop a query before its first batch. Its start has not returned yet."""
        _LOG.error("query %s is stopped: %s", self._facts.query.id, reason)
        if self._hold is not None:
            self._hold.refuses(self._facts.run_id)
        if not stop_starting_query(self._spark, self._facts.query.id, self._clock):
            _LOG.error("query %s does not stop", self._facts.query.id)
        return False

    def _is_unfinished(self, location: CheckpointLocation) -> bool:
        try:
            return self._restorer.find_interrupted(location) is not None
        except FormatError:
            return True  # a mark that cannot be read is a mark
