"""Spark's callbacks: checkpoints of every streaming query of a session, whatever its sink and state.

The callbacks return at once; a thread for each query does the work (``listener.worker``). Only the start
of a query waits for a short look at its history, because there it can still be stopped in time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import orjson
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_checkpoint.capture.location_status import FAIL, STALE_CHOICES
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.capture.sink_description import sink_store_url
from pyspark_checkpoint.capture.upload import find_server_copier
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError, FencedError, SettingsError, Unsupported
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.listener.checkpointer import QueryCapture, claim_alone
from pyspark_checkpoint.listener.health import HealthRecord, clear_health, put_health
from pyspark_checkpoint.listener.sink_watcher import Captures, watch_query
from pyspark_checkpoint.listener.startup_guard import QueryHold, Restorer, StartupGuard
from pyspark_checkpoint.listener.worker import (
    ACTIVE_RUNS,
    INTERVAL_SECONDS,
    Answer,
    CaptureStatus,
    HeldBatch,
    QueryWorker,
    WorkerSettings,
)
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.registry.queries import QueryRoot, plain_options, register, root_url
from pyspark_checkpoint.spark.hadoop_store import location_spec
from pyspark_checkpoint.spark.iceberg_catalog import SessionTables
from pyspark_checkpoint.spark.jobs import ExecutorUploader, HadoopUploader
from pyspark_checkpoint.spark.jvm import (
    check_classic,
    find_last_progress,
    find_running_query,
    hadoop_settings,
    java_listener,
    plugin_watches,
    remove_listener,
    stop_query,
)
from pyspark_checkpoint.spark_files.location import LocationSpec, location_options
from pyspark_checkpoint.store.open import open_object_store

_LOG = logging.getLogger(__name__)
MAX_ENDED = 100
"""How many queries that have ended, and are captured, ``statuses`` goes on to show."""
PLUGIN = "the driver plugin"
"""How the plugin's side process is called in manifests, also after a restart."""


def is_prune_due(checkpoint_id: int, before: int, retain: int) -> bool:
    """Whether retention is due: now and then, so that most epochs pay nothing for it. Pure.

    ``checkpoint_id`` is the one just published, ``before`` the last one at which this was asked: a run may
    publish several at a time. Up to ``retain`` checkpoints there is nothing to remove.
    """
    step = max(1, retain // 2)
    return checkpoint_id > retain and checkpoint_id // step > before // step


class QueryListener(StreamingQueryListener):
    """Register it with ``spark.streams.addListener``; every query started afterwards is checkpointed.

    Checkpoints of a query go to ``{url}/{query id}``. The newest ``retain`` epochs are kept, and every
    savepoint. A capture that fails is logged once, counted in ``statuses`` and retried.
    """

    restorer: Restorer
    """What restores the location of a query that starts from a stale one; see ``session.py``."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        retain: int = 20,
        queries: Callable[[str], bool] | None = None,
        stale: str = FAIL,
        sink: str = FAIL,
        stop_when_fenced: bool = False,
        options: Mapping[str, str] | None = None,
        location_options: Mapping[str, str] | None = None,
        poll_seconds: float = 10.0,
        holds_batches: bool = False,
        concurrency: int = 4,
        producer: str | None = None,
        hold: QueryHold | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Check the settings; nothing is written.

        Args:
            spark: A classic session; its queries are meant.
            url: Where checkpoints go; those of a query to ``{url}/{query id}``.
            interval_seconds: How long captures of one query lie apart at least.
            retain: How many epochs of a query are kept, besides savepoints.
            queries: Says by name which queries are meant; None means all.
            stale: What happens to a query whose location is behind its history, or has diverged from it:
                ``fail``, ``warn`` or ``restore``.
            sink: What happens to a query whose output has batches already that it would write again:
                ``fail``, ``rollback`` (of the output) or ``warn``.
            stop_when_fenced: Whether a query is stopped when another run has claimed its history.
            options: Options of the store, such as credentials, and ``encryptionKeyFile``.
            location_options: Options of the checkpoint locations; by default those of the session and the
                store.
            poll_seconds: How often a location is listed if no event comes.
            holds_batches: Whether batches wait in ``hold_batch``; they are captured when the next comes.
            concurrency: How many queries are captured at a time.
            producer: Written into every manifest: of two producers in one run the second steps aside.
            hold: For callbacks that do not come from Spark itself: queries wait for them a limited time.
            clock: Time and ids.

        Raises:
            SettingsError: An argument, the URL or an option is not valid.
            Unsupported: ``spark`` is a session of Spark Connect.
        """
        check_classic(spark)
        if stale not in STALE_CHOICES:
            raise SettingsError(f"stale is {stale!r}", hint="choose fail, warn or restore")
        if retain < 1:
            raise SettingsError(f"retain is {retain}", hint="keep at least one epoch")
        if concurrency < 1:
            raise SettingsError(
                f"concurrency is {concurrency}", hint="capture at least one query at a time"
            )
        self._spark = spark
        self._url = url.rstrip("/")
        self._outputs = OutputQuestion(
            self._url,
            sink,
            options=options,
            tables=SessionTables(spark),
            opener=lambda place: self._location(place).open().store,
        )
        self._timing = WorkerSettings(interval_seconds, poll_seconds, holds_batches)
        self._retain = retain
        self._queries = queries
        self._stale = stale
        self._stop_when_fenced = stop_when_fenced
        self._options = dict(options or {})
        self._store_options = plain_options(self._options)
        self._location_options = location_options
        self._producer = producer or f"listener {clock.uuid7()}"
        self._clock = clock
        self._hold = hold
        self._bridge: Any = None
        self._closed = threading.Event()
        self._gate = threading.Semaphore(concurrency)
        self._workers: dict[str, QueryWorker] = {}
        self._left_alone: dict[str, CaptureStatus] = {}
        self._prune_asked: dict[str, int] = {}
        self._histories: dict[str, CheckpointStore] = {}
        self._lock = threading.Lock()
        open_object_store(
            self._url, self._store_options
        )  # a bad URL or option fails here, where it was typed

    @property
    def statuses(self) -> list[CaptureStatus]:
        """How far the captures of each query are, and which queries are left to another producer."""
        with self._lock:
            return [*(worker.status for worker in self._workers.values()), *self._left_alone.values()]

    @property
    def is_done(self) -> bool:
        """Whether every query that it watched has ended and is captured as far as it can be."""
        return all(worker.is_done for worker in self._watched())

    @property
    def has_ended(self) -> bool:
        """Whether every query that it watched has ended, captured or not."""
        return all(worker.has_ended for worker in self._watched())

    def flush(self, timeout_seconds: float = 60.0) -> bool:
        """Wait until everything committed so far is durable.

        Args:
            timeout_seconds: How long to wait at most, for all queries together.

        Returns:
            False if some capture failed or is late, or if another producer makes the checkpoints of a
            query: how far that one is, is not known here.
        """
        deadline = self._clock.monotonic_seconds() + timeout_seconds
        results = [
            worker.flush(max(0.0, deadline - self._clock.monotonic_seconds())) for worker in self._watched()
        ]
        with self._lock:
            return all(results) and not self._left_alone

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Capture what is left, end all threads, and leave the session: later queries are not captured.

        Waits ``timeout_seconds`` at most for each query. Closing again waits again, and changes nothing.
        """
        with self._lock:
            self._closed.set()
        for worker in self._watched():
            worker.finish()
        for worker in self._watched():
            worker.finish(timeout_seconds)
        if self._bridge is not None:
            remove_listener(self._spark, self._bridge)

    def __enter__(self) -> Self:
        """The listener, which the end of the block closes."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Capture what is left, whatever has happened."""
        self.close()

    def onQueryStarted(self, event: Any) -> None:
        """Spark's callback; runs before ``start()`` returns."""
        try:
            self._started(str(event.id), str(event.runId), event.name or "")
        except CheckpointError as error:
            _LOG.error("query %s is not checkpointed: %s", event.id, error)

    def onQueryProgress(self, event: Any) -> None:
        """Spark's callback."""
        self.heard_progress(event.progress.json)

    def onQueryIdle(self, event: Any) -> None:
        """Spark's callback."""
        self.heard_idle(str(event.runId))

    @property
    def _jlistener(self) -> Any:
        """What Spark's JVM calls: a bridge of ours, which costs each batch less than PySpark's own."""
        if self._bridge is None:
            self._bridge = java_listener(self._spark, self)
        return self._bridge

    def heard_progress(self, text: str) -> None:
        """A batch is done; ``text`` is its progress as JSON."""
        progress = orjson.loads(text)
        worker = self._worker(progress["runId"])
        if worker is not None:
            worker.notify_described(*_descriptions(progress), progress["batchId"])

    def hold_batch(self, run_id: str, held: HeldBatch) -> None:
        """Spark waits to plan ``held`` of ``run_id``: the batch before is not durable. Returns at once."""
        worker = self._worker(run_id)
        if worker is None:
            held.answer(Answer.REFUSED, "it is not checkpointed")
        else:
            worker.hold(held)

    def heard_commit(self, run_id: str) -> None:
        """A batch of ``run_id`` is committed, which Spark's own event says later."""
        worker = self._worker(run_id)
        if worker is not None:
            worker.notify_committed()

    def heard_idle(self, run_id: str) -> None:
        """The run ``run_id`` had nothing to do."""
        worker = self._worker(run_id)
        if worker is not None:
            worker.notify()

    def onQueryTerminated(self, event: Any) -> None:
        """Spark's callback."""
        worker = self._worker(str(event.runId))
        if worker is not None:
            worker.end()

    def _started(self, query_id: str, run_id: str, name: str) -> None:
        if self._closed.is_set() or (self._queries is not None and not self._queries(name)):
            return
        running = find_running_query(self._spark, query_id)
        if running is None:
            return
        if self._producer != PLUGIN and plugin_watches(self._spark, run_id, self._url):
            self._leave(query_id, name, PLUGIN)
            return
        if not running.is_micro_batch:
            raise Unsupported(
                "only micro-batch queries write the logs that a checkpoint needs",
                hint="use a processing-time or available-now trigger",
            )
        query = QueryInfo(
            id=query_id,
            name=name,
            checkpoint_location=running.checkpoint_location,
            spark_version=self._spark.version,
            app_name=self._spark.sparkContext.appName or "",
        )
        facts = QueryFacts(query, run_id, (), running.sink, running.output_mode, running.iceberg_location)
        location = self._location(running.checkpoint_location)
        url = root_url(self._url, query_id)
        guard = StartupGuard(
            self._spark,
            facts,
            location,
            url=url,
            stale=self._stale,
            options=self._options,
            clock=self._clock,
            restorer=self.restorer,
            outputs=self._outputs,
            hold=self._hold,
        )
        if not guard.allow(lambda: self._history(facts)):
            return
        with self._lock:
            if self._closed.is_set():
                return
            worker = ACTIVE_RUNS.begin(
                url, run_id, lambda before: self._make_worker(facts, location, guard, before)
            )
            if worker is not None:
                self._watch(worker)
        if worker is None:
            self._leave(query_id, name, "another listener of this application")

    def _watch(self, worker: QueryWorker) -> None:
        """Take a worker in; let go of those that its query had before, and of old ones that are done."""
        query_id = worker.status.query_id
        self._left_alone.pop(query_id, None)
        past = [run for run, other in self._workers.items() if other.status.query_id == query_id]
        ended = [run for run, other in self._workers.items() if other.is_done]
        for run in {*past, *ended[:-MAX_ENDED]}:
            del self._workers[run]
        self._workers[worker.run_id] = worker

    def _location(self, url: str) -> LocationSpec:
        found, given = hadoop_settings(self._spark), self._location_options
        options = location_options(url, found, self._store_options) if given is None else {**found, **given}
        return location_spec(self._spark, url, options)

    def _make_worker(
        self, facts: QueryFacts, location: LocationSpec, guard: StartupGuard, before: QueryWorker | None
    ) -> QueryWorker:
        query_id, began_ms = facts.query.id, self._clock.now_ms()
        return QueryWorker(
            facts,
            lambda: self._begin(facts, location, guard, began_ms),
            settings=self._timing,
            clock=self._clock,
            on_captured=lambda manifest: self._captured(query_id, manifest),
            on_fenced=lambda error: self._fenced(query_id, error),
            on_health=lambda problem: self._note_health(query_id, problem),
            on_done=lambda: self._forget(query_id),
            describe=lambda: self._describe(query_id),
            gate=self._gate,
            after=before,
        )

    def _describe(self, query_id: str) -> tuple[tuple[str, ...], str] | None:
        text = find_last_progress(self._spark, query_id)
        return None if text is None else _descriptions(orjson.loads(text))

    def _leave(self, query_id: str, name: str, producer: str) -> None:
        """Of two producers in one run the second steps aside, and says so."""
        reason = f"its checkpoints are made by {producer} already"
        _LOG.warning("query %s is left alone: %s", query_id, reason)
        with self._lock:
            self._left_alone[query_id] = CaptureStatus(query_id, name, last_error=reason, aside=True)

    def _begin(
        self, facts: QueryFacts, location: LocationSpec, guard: StartupGuard, began_ms: int
    ) -> Captures:
        """Register the query, and find out who makes its checkpoints: its own sink, or we."""
        query, table = facts.query, sink_store_url(facts.sink) or ""
        parent = open_object_store(self._url, self._store_options)
        place = query.checkpoint_location
        register(parent, QueryRoot(query.name, query.id, query.app_name, began_ms, table, place))
        return watch_query(
            facts,
            location.open(),
            self._options,
            lambda: self._begin_capture(facts, location, guard),
        )

    def _begin_capture(
        self, facts: QueryFacts, location: LocationSpec, guard: StartupGuard
    ) -> QueryCapture:
        history = self._history(facts)
        run = history.writer()
        if run.refresh() is None:
            guard.check_again(history, None)

        def check(head: Head) -> None:
            guard.check_again(history, head.manifest)

        claim_alone(run, check)
        self._histories[facts.query.id] = history
        url, options = root_url(self._url, facts.query.id), self._store_options
        kind = HadoopUploader if location.is_foreign else ExecutorUploader
        copier = find_server_copier(location, url, options)
        uploader = kind(self._spark, location, url, options)
        return QueryCapture(location.open(), run, facts, uploader, copier, check=check)

    def _note_health(self, query_id: str, problem: str | None) -> None:
        """Record in the store whether captures work, for those who watch it from elsewhere."""
        try:
            options = {**self._store_options, "retrySeconds": "2"}
            parent = open_object_store(self._url, options)
            if problem is None:
                clear_health(parent, query_id)
            else:
                put_health(parent, HealthRecord(query_id, problem, self._clock.now_ms()))
        except CheckpointError as error:
            _LOG.info("query %s: its health was not recorded: %s", query_id, error)

    def _history(self, facts: QueryFacts) -> CheckpointStore:
        return CheckpointStore.open(
            root_url(self._url, facts.query.id),
            self._options,
            run_id=facts.run_id,
            instance_id=self._producer,
            query=facts.query,
            clock=self._clock,
        )

    def _captured(self, query_id: str, manifest: CheckpointManifest) -> None:
        """Prune when it is due. The first ``checkpoint_id`` of a run is its claim, not a batch."""
        before = self._prune_asked.get(query_id, manifest.checkpoint_id - 2)
        self._prune_asked[query_id] = manifest.checkpoint_id
        history = self._histories.get(query_id)
        if manifest.table is not None or history is None:
            return  # a table's checkpoints are its sink's to prune
        history.remember(manifest)
        if not is_prune_due(manifest.checkpoint_id, before, self._retain):
            return
        try:
            history.prune(self._retain)
        except CheckpointError as error:
            _LOG.warning("query %s is captured, but pruning failed: %s", query_id, error)

    def _forget(self, query_id: str) -> None:
        """A run has ended; the next one of its query begins afterwards."""
        self._histories.pop(query_id, None)
        self._prune_asked.pop(query_id, None)

    def _fenced(self, query_id: str, error: FencedError) -> None:
        if self._stop_when_fenced:
            _LOG.error("query %s is stopped: %s", query_id, error)
            stop_query(self._spark, query_id)

    def _worker(self, run_id: str) -> QueryWorker | None:
        with self._lock:
            return self._workers.get(run_id)

    def _watched(self) -> list[QueryWorker]:
        with self._lock:
            return list(self._workers.values())


def _descriptions(progress: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Sources and sink, as a progress event describes them."""
    return tuple(source["description"] for source in progress["sources"]), progress["sink"]["description"]
