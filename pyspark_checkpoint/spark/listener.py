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

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_checkpoint.capture.describe import QueryFacts
from pyspark_checkpoint.capture.location import LocationSpec
from pyspark_checkpoint.capture.roots import QueryRoot, plain_options, register, root_url
from pyspark_checkpoint.capture.take import QueryCapture
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError, FencedError, RefusedError, SettingsError, StoreError
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.spark.executor_upload import ExecutorUploader
from pyspark_checkpoint.spark.gateway import find_running_query, hadoop_settings, stop_query
from pyspark_checkpoint.spark.worker import CaptureStatus, QueryWorker, WorkerSettings
from pyspark_checkpoint.store.open import open_object_store

_LOG = logging.getLogger(__name__)
STALE_CHOICES = ("fail", "warn")


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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``options`` are the store's, ``location_options`` those of the checkpoint locations."""
        if stale not in STALE_CHOICES:
            raise SettingsError(
                f"stale is {stale!r}",
                hint="choose fail or warn; a location is restored before its query starts, by restore()",
            )
        if retain < 1:
            raise SettingsError(f"retain is {retain}", hint="keep at least one epoch")
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
        )
        self._clock = clock
        self._workers: dict[str, QueryWorker] = {}
        self._lock = threading.Lock()
        open_object_store(self._url, plain)  # a bad URL or option fails here, where it was typed

    @property
    def statuses(self) -> list[CaptureStatus]:
        """How far the captures of each watched query are."""
        with self._lock:
            return [worker.status for worker in self._workers.values()]

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
        worker = self._worker(str(event.runId))
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
        if running is None:
            return
        if not running.is_micro_batch:
            raise RefusedError(
                "only micro-batch queries write the logs that a checkpoint needs",
                hint="use a processing-time or available-now trigger",
            )
        location = LocationSpec(running.checkpoint_location, self._settings.location_options)
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
        )
        with self._lock:
            self._workers[run_id] = worker

    def _check_stale(self, facts: QueryFacts, location: LocationSpec) -> bool:
        """Whether the query may run: a location behind its history would double what it has written.

        A store that does not answer stops no query: its captures then begin when it answers, and one
        that is behind its history is refused there.
        """
        try:
            newest = self._history(facts).load_latest()
        except StoreError as error:
            _LOG.warning("query %s: its history cannot be read yet: %s", facts.query.id, error)
            return True
        if newest is None:
            return True
        here = location.open().listing().newest_committed
        if here is not None and here >= newest.epoch:
            return True
        message = (
            f"query {facts.query.id}: its checkpoint location is at batch {here}, its history at "
            f"{newest.epoch}: running on would repeat batches whose output is written"
        )
        if self._settings.stale == "warn":
            _LOG.warning("%s", message)
            return True
        _LOG.error("%s; the query is stopped. Run ckpt restore, or set stale=warn", message)
        threading.Thread(target=stop_query, args=(self._spark, facts.query.id), daemon=True).start()
        return False

    def _begin(self, facts: QueryFacts, location: LocationSpec) -> QueryCapture:
        history = self._history(facts)
        run = history.writer()
        run.claim()
        query = facts.query
        plain = plain_options(self._settings.options)
        parent = open_object_store(self._url, plain)
        register(parent, QueryRoot(query.name, query.id, query.app_name, self._clock.now_ms()))
        uploader = ExecutorUploader(self._spark, location, root_url(self._url, query.id), plain)
        return QueryCapture(location.open(), run, facts, uploader)

    def _history(self, facts: QueryFacts) -> CheckpointStore:
        return CheckpointStore.open(
            root_url(self._url, facts.query.id),
            self._settings.options,
            run_id=facts.run_id,
            query=facts.query,
            clock=self._clock,
        )

    def _captured(self, query_id: str, manifest: CheckpointManifest) -> None:
        """Retention: now and then, so that most epochs pay nothing for it."""
        if manifest.checkpoint_id % max(1, self._settings.retain // 2) != 0:
            return
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
