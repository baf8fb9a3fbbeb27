"""The queries that a test driver can run. Every batch of each is the same in every run.

A query is given as a dictionary, so that it can go over a wire; see ``QuerySpec``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.support.waiting import wait_until

_STATE = "spark.sql.streaming.stateStore."
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
PROVIDER = f"{_STATE}providerClass"
_CHANGELOG = f"{_STATE}rocksdb.changelogCheckpointing.enabled"
_FORMAT = f"{_STATE}checkpointFormatVersion"
HDFS = {PROVIDER: f"{_PROVIDERS}HDFSBackedStateStoreProvider", _CHANGELOG: "false", _FORMAT: "1"}
ROCKSDB = {**HDFS, PROVIDER: f"{_PROVIDERS}RocksDBStateStoreProvider"}
ROCKSDB_CHANGELOG = {**ROCKSDB, _CHANGELOG: "true"}
ROCKSDB_V2 = {**ROCKSDB_CHANGELOG, _FORMAT: "2"}
PROVIDERS = {
    "hdfs": HDFS,
    "rocksdb": ROCKSDB,
    "rocksdb-v2": {**ROCKSDB, _FORMAT: "2"},
    "rocksdb-changelog": ROCKSDB_CHANGELOG,
    "rocksdb-changelog-v2": ROCKSDB_V2,
}
"""The state stores of Spark, by the names that tests have for them."""


@dataclass(frozen=True)
class QuerySpec:
    """A query to run: what it computes, where its checkpoint is, where its results go, how far."""

    name: str
    kind: str
    location: str
    results: str
    batches: int
    conf: dict[str, str] = field(default_factory=dict)
    rows: int = 200
    interval_ms: int = 0
    format: str = ""
    """A sink to write to; without one, each batch becomes a file in ``results``."""
    options: dict[str, str] = field(default_factory=dict)
    listen: str = ""
    """Where a listener keeps the query's checkpoints; without it there is no listener."""
    listen_options: dict[str, str] = field(default_factory=dict)
    """How to open that store."""
    listen_seconds: float = 0.0
    """At least so long from one capture to the next."""
    keys: int = 0
    """How many keys a query has that lets one choose; 0 is as many as rows."""

    def as_dict(self) -> dict[str, Any]:
        """What goes over the wire."""
        return asdict(self)


def rates(session: SparkSession, rows: int) -> DataFrame:
    """One second of event time and ``rows`` consecutive numbers a batch."""
    return (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .option("startTimestamp", 1_700_000_000_000)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )


def _count(session: SparkSession, spec: QuerySpec) -> DataFrame:
    numbers = rates(session, spec.rows).withWatermark("timestamp", "3 seconds")
    keys = (F.window("timestamp", "2 seconds"), (F.col("value") % 37).alias("key"))
    return numbers.groupBy(*keys).agg(F.count("*").alias("n"), F.sum("value").alias("sum"))


def _total(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """State that only grows: every key is updated in every batch."""
    keys = (F.col("value") % spec.rows).alias("key")
    return rates(session, spec.rows).groupBy(keys).agg(F.sum("value").alias("sum"))


def _windowed(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """One window for many batches; ``keys`` keys in it, ``rows`` of them updated in every batch."""
    numbers = rates(session, spec.rows).withWatermark("timestamp", "10 minutes")
    key = (F.col("value") % (spec.keys or spec.rows)).alias("key")
    totals = numbers.groupBy(F.window("timestamp", "1 hour"), key)
    return totals.agg(F.count("*").alias("n"), F.sum("value").alias("sum"))


def _numbers(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """No state: every number once, and a key that comes back in later batches."""
    return rates(session, spec.rows).select((F.col("value") % (2 * spec.rows)).alias("key"), "value")


def _straggler(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """Every number once, by state; the first attempt of one task of each batch takes its time, when it has
    read everything, and a later one says so."""
    directory = spec.results

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        yield from batches
        if context is not None and context.partitionId() == 0:
            if context.attemptNumber() == 0:
                time.sleep(30)
            else:
                Path(directory, f"attempt-{context.taskAttemptId()}").touch()

    late = rates(session, spec.rows).withWatermark("timestamp", "1 minute")
    numbers = late.dropDuplicatesWithinWatermark(["value"]).select("value")
    return numbers.mapInArrow(slowly, numbers.schema)


def _dying(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """Totals; in batch 1 an executor dies that has drained its rows, in batch 2 one whose task is done."""
    totals, directory = _total(session, spec), spec.results

    def die(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        mark, victim = Path(directory, f"died-{batch}"), Path(directory, f"victim-{batch}")
        if batch == "1" and context.partitionId() == 0 and not mark.exists():
            mark.touch()
            os.kill(_executor(), signal.SIGKILL)
            time.sleep(60)
        if batch == "2" and not mark.exists():
            if context.partitionId() == 0:
                victim.write_text(str(_executor()))
            else:
                wait_until(victim.exists, "the other executor", 60)
                time.sleep(3)
                mark.touch()
                os.kill(int(victim.read_text()), signal.SIGKILL)
                time.sleep(3)

    return totals.mapInArrow(die, totals.schema)


def _executor() -> int:
    """The JVM that this Python worker belongs to: the parent of the daemon that forked it."""
    parent = ["ps", "-o", "ppid=", "-p", str(os.getppid())]
    return int(subprocess.run(parent, capture_output=True, check=True).stdout)


def _dedup(session: SparkSession, spec: QuerySpec) -> DataFrame:
    numbers = rates(session, spec.rows).withWatermark("timestamp", "5 seconds")
    coarse = numbers.select("timestamp", (F.col("value") % (3 * spec.rows // 2)).alias("key"))
    return coarse.dropDuplicatesWithinWatermark(["key"])


def _join(session: SparkSession, spec: QuerySpec) -> DataFrame:
    left = rates(session, spec.rows).withWatermark("timestamp", "2 seconds")
    left = left.select(F.col("timestamp").alias("left_time"), F.col("value").alias("left"))
    right = rates(session, spec.rows // 2).withWatermark("timestamp", "2 seconds")
    right = right.select(F.col("timestamp").alias("right_time"), (F.col("value") * 3).alias("right"))
    second = F.expr("INTERVAL 1 SECOND")
    near = F.col("right_time").between(F.col("left_time") - second, F.col("left_time") + second)
    return left.join(right, (F.col("left") == F.col("right")) & near, "leftOuter")


def _sessions(session: SparkSession, spec: QuerySpec) -> DataFrame:
    numbers = rates(session, spec.rows).withWatermark("timestamp", "2 seconds")
    turns = (F.floor(F.col("value") / spec.rows) % 3).alias("turn")
    keys = (F.session_window("timestamp", "1 second"), turns, (F.col("value") % 11).alias("key"))
    return numbers.groupBy(*keys).agg(F.count("*").alias("n"))


def total_after(batch_id: int, rows: int) -> dict[int, int]:
    """What a query of kind ``total`` has for each key after a batch: computed without Spark."""
    return {key: sum(batch * rows + key for batch in range(batch_id + 1)) for key in range(rows)}


class _Counter(StatefulProcessor):
    """Counts rows by key, with a value, a list and a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "n LONG")
        self._seen = handle.getListState("seen", "n LONG")
        self._last = handle.getMapState("last", "name STRING", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        from pyspark.sql import Row

        values = sorted(row.value for row in rows)
        before = (self._total.get() or (0,))[0]
        self._total.update((before + len(values),))
        self._seen.appendValue((values[-1],))
        self._last.updateValue(("last",), (values[-1],))
        yield Row(key=key[0], n=before + len(values), seen=sum(1 for _ in self._seen.get()))

    def close(self) -> None:
        pass


def _processor(session: SparkSession, spec: QuerySpec) -> DataFrame:
    numbers = rates(session, spec.rows).select((F.col("value") % 5).alias("key"), "value")
    return numbers.groupBy("key").transformWithState(
        statefulProcessor=_Counter(),
        outputStructType="key LONG, n LONG, seen LONG",
        outputMode="Update",
        timeMode="None",
    )


def _add_up(key: tuple[int], frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    total = (state.get[0] if state.exists else 0) + sum(int(frame["value"].sum()) for frame in frames)
    state.update((total,))
    yield pandas.DataFrame({"key": [key[0]], "sum": [total]})


def _grouped(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """The totals of ``total``, kept by arbitrary state in Python."""
    numbers = rates(session, spec.rows).select((F.col("value") % spec.rows).alias("key"), "value")
    return numbers.groupBy("key").applyInPandasWithState(
        _add_up, "key LONG, sum LONG", "sum LONG", "update", GroupStateTimeout.NoTimeout
    )


def _first(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """The first numbers, two batches and a half; how many there were is state."""
    return rates(session, spec.rows).limit(5 * spec.rows // 2).select("value")


def _files(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """One file a batch from ``options["input"]``; the names of the files say which."""
    source = session.readStream.format("text").option("maxFilesPerTrigger", 1)
    lines = source.load(spec.options["input"])
    return lines.groupBy((F.length("value") % 5).alias("key")).agg(F.count("*").alias("n"))


def _changes(session: SparkSession, spec: QuerySpec) -> DataFrame:
    """The changes of the table at the conf ``harness.input``."""
    return session.readStream.format("ckpt-sink").load(session.conf.get("harness.input"))


KINDS: dict[str, tuple[Callable[[SparkSession, QuerySpec], DataFrame], str]] = {
    "count": (_count, "update"),
    "count-append": (_count, "append"),
    "total": (_total, "update"),
    "total-complete": (_total, "complete"),
    "windowed": (_windowed, "update"),
    "numbers": (_numbers, "append"),
    "straggler": (_straggler, "append"),
    "dying": (_dying, "update"),
    "dying-complete": (_dying, "complete"),
    "dedup": (_dedup, "append"),
    "join": (_join, "append"),
    "sessions": (_sessions, "append"),
    "processor": (_processor, "update"),
    "grouped": (_grouped, "update"),
    "first": (_first, "append"),
    "files": (_files, "update"),
    "changes": (_changes, "append"),
}
