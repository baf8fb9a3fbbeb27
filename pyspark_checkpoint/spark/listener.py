"""``CheckpointListener``: checkpoints of every streaming query of a session, whatever its sink and state.

The callbacks return at once; a thread for each query does the work (``spark.worker``). Only the start
of a query waits for a short look at its history, because there it can still be stopped in time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_checkpoint.capture.covered import Captures, find_table_checkpoint, watch_query
from pyspark_checkpoint.capture.describe import QueryFacts, sink_store_url
from pyspark_checkpoint.capture.location import LocationSpec
from pyspark_checkpoint.capture.replace import replace_location
from pyspark_checkpoint.capture.restore import find_interrupted
from pyspark_checkpoint.capture.roots import QueryRoot, plain_options, register, root_url
from pyspark_checkpoint.capture.server_copy import find_server_copier
from pyspark_checkpoint.capture.take import QueryCapture, claim_alone
from pyspark_checkpoint.capture.trouble import Trouble, clear_trouble, put_trouble
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError, FencedError, RefusedError, SettingsError, StoreError
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.spark.executor_upload import ExecutorUploader
from pyspark_checkpoint.spark.gateway import (
    find_running_query,
    hadoop_settings,
    java_listener,
    plugin_watches,
    stop_query,
    stop_starting_query,
)
from pyspark_checkpoint.spark.hadoop import location_spec
from pyspark_checkpoint.spark.hadoop_upload import HadoopUploader
from pyspark_checkpoint.spark.worker import CaptureStatus, QueryWorker, WorkerSettings
from pyspark_checkpoint.store.open import open_object_store

_LOG = logging.getLogger(__name__)
STALE_CHOICES = ("fail", "warn", "restore")
PLUGIN = "the driver plugin"
"""How the plugin's side process is called in manifests, also when it is started again."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """What a listener does. ``queries`` says by name which queries are meant; None means all."""

    interval_seconds: float = 0.0
    retain: int = 20
    poll_seconds: float = 10.0
    queries: Callable[[str], bool] | None = None
    stale: str = "fail"
    stop_when_fenced: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    location_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    producer: str = ""


class CheckpointListener(StreamingQueryListener):
    """Register it with ``spark.streams.addListener``; every query started afterwards is checkpointed.

    Checkpoints of a query go to ``{url}/{query id}``. The newest ``retain`` epochs are kept, and every
    savepoint. A capture that fails is logged once, counted in ``statuses`` and tried again.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        interval_seconds: float = 0.0,
        retain: int = 20,
        queries: Callable[[str], bool] | None = None,
        stale: str = "fail",
        stop_when_fenced: bool = False,
        options: Mapping[str, str] | None = None,
        location_options: Mapping[str, str] | None = None,
        poll_seconds: float = 10.0,
        concurrency: int = 4,
        producer: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``options`` are the store's, ``location_options`` those of the checkpoint locations.

        ``producer`` is written into every manifest: of two in one run the second steps aside.
        """
        if stale not in STALE_CHOICES:
            raise SettingsError(
                f"stale is {stale!r}",
                hint="choose fail, warn or restore",
            )
        if retain < 1:
            raise SettingsError(f"retain is {retain}", hint="keep at least one epoch")
        if concurrency < 1:
            raise SettingsError(
                f"concurrency is {concurrency}", hint="capture at least one query at a time"
            )
        given = dict(options or {})
        plain = plain_options(given)
        self._spark = spark
        self._url = url.rstrip("/")
        self._settings = ListenerSettings(
            interval_seconds,
            retain,
            poll_seconds,
            queries,
            stale,
            stop_when_fenced,
            given,
            {**hadoop_settings(spark), **(plain if location_options is None else location_options)},
            producer or f"listener {clock.uuid7()}",
        )
        self._clock = clock
        self._bridge: Any = None
        self._gate = threading.Semaphore(concurrency)
        self._workers: dict[str, QueryWorker] = {}
        self._lock = threading.Lock()
        open_object_store(self._url, plain)  # a bad URL or option fails here, where it was typed

    @property
    def statuses(self) -> list[CaptureStatus]:
        """How far the captures of each watched query are."""
        with self._lock:
            return [worker.status for worker in self._workers.values()]

    @property
    def is_done(self) -> bool:
        """Whether every query that it watched has ended and is captured as far as it can be."""
        return all(worker.is_done for worker in self._watched())

    def flush(self, timeout_seconds: float = 60.0) -> bool:
        """Wait until everything committed so far is durable; False if some capture failed or is late."""
        deadline = self._clock.monotonic_seconds() + timeout_seconds
        results = [
            worker.flush(max(0.0, deadline - self._clock.monotonic_seconds())) for worker in self._watched()
        ]
        return all(results)

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Capture what is left and end all threads."""
        for worker in self._watched():
            worker.finish()
        for worker in self._watched():
            worker.finish(timeout_seconds)

    def onQueryStarted(self, event: Any) -> None:
        """Spark's callback; runs before ``start()`` returns."""
        try:
            self._started(str(event.id), str(event.runId), event.name or "")
        except CheckpointError as error:
            _LOG.error("query %s is not checkpointed: %s", event.id, error)

    def onQueryProgress(self, event: Any) -> None:
        """Spark's callback."""
        progress = event.progress
        worker = self._worker(str(progress.runId))
        if worker is not None:
            sources = tuple(source.description for source in progress.sources)
            worker.notify_described(sources, progress.sink.description)

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
            sources = tuple(source["description"] for source in progress["sources"])
            worker.notify_described(sources, progress["sink"]["description"])

    def heard_idle(self, run_id: str) -> None:
        """A run had nothing to do."""
        worker = self._worker(run_id)
        if worker is not None:
            worker.notify()

    def onQueryTerminated(self, event: Any) -> None:
        """Spark's callback."""
        worker = self._worker(str(event.runId))
        if worker is not None:
            worker.finish()

    def _started(self, query_id: str, run_id: str, name: str) -> None:
        wanted = self._settings.queries
        if wanted is not None and not wanted(name):
            return
        running = find_running_query(self._spark, query_id)
        if running is None or self._leaves_to_plugin(query_id, run_id):
            return
        if not running.is_micro_batch:
            raise RefusedError(
                "only micro-batch queries write the logs that a checkpoint needs",
                hint="use a processing-time or available-now trigger",
            )
        location = location_spec(self._spark, running.checkpoint_location, self._settings.location_options)
        query = QueryInfo(
            id=query_id,
            name=name,
            checkpoint_location=running.checkpoint_location,
            spark_version=self._spark.version,
            app_name=self._spark.sparkContext.appName or "",
        )
        facts = QueryFacts(query, run_id, (), running.sink, running.output_mode)
        if not self._check_stale(facts, location):
            return
        worker = QueryWorker(
            facts,
            lambda: self._begin(facts, location),
            settings=WorkerSettings(self._settings.interval_seconds, self._settings.poll_seconds),
            clock=self._clock,
            on_captured=lambda manifest: self._captured(query_id, manifest),
            on_fenced=lambda error: self._fenced(query_id, error),
            on_health=lambda problem: self._note_health(query_id, problem),
            gate=self._gate,
        )
        with self._lock:
            self._workers[run_id] = worker

    def _leaves_to_plugin(self, query_id: str, run_id: str) -> bool:
        if self._settings.producer == PLUGIN or not plugin_watches(self._spark, run_id, self._url):
            return False
        _LOG.warning("query %s is left alone: the driver plugin checkpoints it to this URL", query_id)
        return True

    def _check_stale(self, facts: QueryFacts, location: LocationSpec) -> bool:
        """Whether the query may run: a location behind its history would double what it has written.

        A store that does not answer stops no query: its captures then begin when it answers, and one
        that is behind its history is refused there.
        """
        opened = location.open()
        if find_interrupted(opened) is not None:
            return self._stop(facts, "a restore into its location was not finished: repeat it")
        try:
            table = sink_store_url(facts.sink)
            if table and find_table_checkpoint(table, facts.query.id, self._settings.options):
                return True  # the sink itself refuses a batch that its table is ahead of
            newest = self._history(facts).load_latest()
        except StoreError as error:
            _LOG.warning("query %s: its history cannot be read yet: %s", facts.query.id, error)
            return True
        here = opened.listing().newest_committed if newest is not None else None
        if newest is None or (here is not None and here >= newest.epoch):
            return True
        message = (
            f"its checkpoint location is at batch {here}, its history at {newest.epoch}: "
            "running on would repeat batches whose output is written"
        )
        if self._settings.stale == "warn":
            _LOG.warning("query %s: %s", facts.query.id, message)
            return True
        if self._settings.stale == "restore":
            return self._replace(facts, location, message)
        return self._stop(facts, f"{message}. Run ckpt restore, or set stale=restore or stale=warn")

    def _replace(self, facts: QueryFacts, location: LocationSpec, message: str) -> bool:
        """Bring the location up to date while its query waits for this callback and has read nothing."""
        url = root_url(self._url, facts.query.id)
        try:
            done = replace_location(url, location, self._settings.options, clock=self._clock)
        except CheckpointError as error:
            return self._stop(facts, f"{message}. It could not be restored: {error}")
        _LOG.warning(
            "query %s: %s. It was restored at batch %s; the stale one is kept as %s",
            facts.query.id,
            message,
            done.report.epoch,
            done.set_aside,
        )
        return True

    def _stop(self, facts: QueryFacts, reason: str) -> bool:
        """Stop a query before its first batch. Its start has not returned yet."""
        _LOG.error("query %s is stopped: %s", facts.query.id, reason)
        if not stop_starting_query(self._spark, facts.query.id, self._clock):
            _LOG.error("query %s does not stop", facts.query.id)
        return False

    def _begin(self, facts: QueryFacts, location: LocationSpec) -> Captures:
        """Register the query, and find out who makes its checkpoints: its own sink, or we."""
        query, table = facts.query, sink_store_url(facts.sink) or ""
        parent = open_object_store(self._url, plain_options(self._settings.options))
        now_ms, place = self._clock.now_ms(), query.checkpoint_location
        register(parent, QueryRoot(query.name, query.id, query.app_name, now_ms, table, place))
        return watch_query(
            facts, location.open(), self._settings.options, lambda: self._begin_capture(facts, location)
        )

    def _begin_capture(self, facts: QueryFacts, location: LocationSpec) -> QueryCapture:
        run = self._history(facts).writer()
        claim_alone(run)
        url, plain = root_url(self._url, facts.query.id), plain_options(self._settings.options)
        kind = HadoopUploader if location.is_foreign else ExecutorUploader
        copier = find_server_copier(location, url, plain)
        return QueryCapture(location.open(), run, facts, kind(self._spark, location, url, plain), copier)

    def _note_health(self, query_id: str, problem: str | None) -> None:
        """Let those who watch the store know whether captures work."""
        try:
            options = {**plain_options(self._settings.options), "retrySeconds": "2"}
            parent = open_object_store(self._url, options)
            if problem is None:
                clear_trouble(parent, query_id)
            else:
                put_trouble(parent, Trouble(query_id, problem, self._clock.now_ms()))
        except CheckpointError as error:
            _LOG.info("query %s: the store was not told: %s", query_id, error)

    def _history(self, facts: QueryFacts) -> CheckpointStore:
        return CheckpointStore.open(
            root_url(self._url, facts.query.id),
            self._settings.options,
            run_id=facts.run_id,
            instance_id=self._settings.producer,
            query=facts.query,
            clock=self._clock,
        )

    def _captured(self, query_id: str, manifest: CheckpointManifest) -> None:
        """Retention: now and then, so that most epochs pay nothing for it."""
        if manifest.table is not None or manifest.checkpoint_id % max(1, self._settings.retain // 2) != 0:
            return  # a table's checkpoints are its sink's to prune
        try:
            url = root_url(self._url, query_id)
            CheckpointStore.open(url, self._settings.options).prune(self._settings.retain)
        except CheckpointError as error:
            _LOG.warning("query %s is captured, but pruning failed: %s", query_id, error)

    def _fenced(self, query_id: str, error: FencedError) -> None:
        if self._settings.stop_when_fenced:
            _LOG.error("query %s is stopped: %s", query_id, error)
            stop_query(self._spark, query_id)

    def _worker(self, run_id: str) -> QueryWorker | None:
        with self._lock:
            return self._workers.get(run_id)

    def _watched(self) -> list[QueryWorker]:
        with self._lock:
            return list(self._workers.values())


def checkpoint(spark: SparkSession, url: str, **settings: Any) -> CheckpointListener:
    """Checkpoint every query that ``spark`` starts from now on, and return the registered listener."""
    listener = CheckpointListener(spark, url, **settings)
    spark.streams.addListener(listener)
    return listener
