"""Streaming queries whose every batch is kept, so that two runs can be compared batch by batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.logs import decode_query_id
from tests.support.drivers.inputs import give_turn

SCHEMA = "id long, k long, ts long"
ROWS = 30
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_STATE = "org.apache.spark.sql.execution.streaming.state."
HDFS = {PROVIDER: f"{_STATE}HDFSBackedStateStoreProvider", CHANGELOG: "false", FORMAT: "1"}
ROCKSDB = {PROVIDER: f"{_STATE}RocksDBStateStoreProvider", CHANGELOG: "false", FORMAT: "1"}
ROCKSDB_CHANGELOG = {**ROCKSDB, CHANGELOG: "true"}
ROCKSDB_2 = {**ROCKSDB, FORMAT: "2"}
ROCKSDB_CHANGELOG_2 = {**ROCKSDB_CHANGELOG, FORMAT: "2"}
PROVIDERS = {
    "hdfs": HDFS,
    "rocksdb": ROCKSDB,
    "rocksdb-v2": ROCKSDB_2,
    "rocksdb-changelog": ROCKSDB_CHANGELOG,
    "rocksdb-changelog-v2": ROCKSDB_CHANGELOG_2,
}


def write_inputs(directory: Path, numbers: Iterable[int]) -> None:
    """One file a number; event times move on by ten seconds from file to file.

    So do the files' own times: Spark reads files in their order, and those of one millisecond in any.
    """
    for number in numbers:
        lines = (
            json.dumps(
                {"id": number * ROWS + row, "k": (number * ROWS + row) * 7 % 11, "ts": 1_000 + number * 10}
            )
            for row in range(ROWS)
        )
        hidden = directory / f".{number:03d}.json"
        hidden.write_text("\n".join(lines))
        give_turn(hidden, number)
        hidden.rename(directory / f"{number:03d}.json")


class Counter(StatefulProcessor):
    """A value, a list and a map for each key, and a timer that reports late."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._seen = handle.getListState("seen", "id long")
        self._by_ts = handle.getMapState("byTs", "ts long", "n long")

    def handleInputRows(  # type: ignore[override]  # pandas is given to it, never rows
        self, key: tuple[int], rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        count = (self._count.get() or (0,))[0]
        for frame in rows:
            count += len(frame)
            for id_, ts in zip(frame["id"], frame["ts"], strict=True):
                self._seen.appendValue((int(id_),))
                before = (self._by_ts.getValue((int(ts),)) or (0,))[0]
                self._by_ts.updateValue((int(ts),), (before + 1,))
        self._count.update((count,))
        if timerValues.getCurrentWatermarkInMs() > 0:
            self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 15_000)
        total = sum(row[0] for row in self._seen.get())
        times = sum(1 for _ in self._by_ts.iterator())
        yield pd.DataFrame({"k": [key[0]], "n": [count], "total": [total], "times": [times]})

    def handleExpiredTimer(
        self, key: tuple[int], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "n": [-1], "total": [-1], "times": [-1]})

    def close(self) -> None:
        pass


def _grouped_state(
    key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    count = state.get[0] if state.exists else 0
    for frame in frames:
        count += len(frame)
    state.update((count,))
    yield pd.DataFrame({"k": [key[0]], "n": [count]})


class Input(Protocol):
    """A session and the directory of its input files: all that a query is built from."""

    spark: SparkSession
    inputs: Path


def _events(lab: Input) -> DataFrame:
    frame = lab.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(lab.inputs))
    return frame.withColumn("t", F.timestamp_seconds("ts"))


def _late(lab: Input) -> DataFrame:
    return _events(lab).withWatermark("t", "20 seconds")


def _join(lab: Input) -> DataFrame:
    left = _events(lab).where("id % 3 = 0").select("id", "k", F.col("t").alias("lt"))
    right = (
        _events(lab)
        .where("id % 5 = 0")
        .select(F.col("id").alias("rid"), F.col("k").alias("rk"), F.col("t").alias("rt"))
    )
    condition = F.expr("k = rk and rt >= lt and rt <= lt + interval 20 seconds")
    return left.withWatermark("lt", "20 seconds").join(
        right.withWatermark("rt", "20 seconds"), condition, "leftOuter"
    )


def _sessions(lab: Input) -> DataFrame:
    """Of every other key a session grows with each batch; those of the others end after each."""
    gap = F.expr("if(k % 2 = 0, '8 seconds', '12 seconds')")
    return _late(lab).groupBy(F.session_window("t", gap), "k").count()


QUERIES: dict[str, tuple[Callable[[Input], DataFrame], str]] = {
    "aggregation": (
        lambda lab: (
            _late(lab)
            .groupBy(F.window("t", "20 seconds"), "k")
            .agg(F.count("*").alias("n"), F.sum("id").alias("s"))
        ),
        "update",
    ),
    "aggregation-append": (
        lambda lab: _late(lab).groupBy(F.window("t", "20 seconds"), "k").count(),
        "append",
    ),
    "global-aggregation": (lambda lab: _events(lab).groupBy().agg(F.count("*").alias("n")), "complete"),
    "join": (_join, "append"),
    "deduplication": (lambda lab: _late(lab).dropDuplicates(["k", "t"]).select("k", "t"), "append"),
    "deduplication-within-watermark": (
        lambda lab: _late(lab).dropDuplicatesWithinWatermark(["k"]).select("k", "t"),
        "append",
    ),
    "session-window": (
        _sessions,
        "append",
    ),
    "two-operators": (
        lambda lab: (
            _late(lab).dropDuplicates(["id", "t"]).groupBy(F.window("t", "20 seconds"), "k").count()
        ),
        "append",
    ),
    "grouped-state": (
        lambda lab: (
            _events(lab)
            .groupBy("k")
            .applyInPandasWithState(
                _grouped_state, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout
            )
        ),
        "update",
    ),
    "transform-with-state": (
        lambda lab: (
            _late(lab)
            .select("k", "id", "ts", "t")
            .groupBy("k")
            .transformWithStateInPandas(
                Counter(), "k long, n long, total long, times long", "update", "eventTime"
            )
        ),
        "update",
    ),
    "limit": (lambda lab: _events(lab).limit(200).select("id"), "append"),
    "stateless": (lambda lab: _events(lab).select("id", "k"), "append"),
}


@dataclass
class Lab:
    """A session, its input, and the directories of one test."""

    spark: SparkSession
    inputs: Path
    directory: Path

    def start(self, query: str, location: Path | str, confs: dict[str, str], **options: str) -> Run:
        """Start a query on a checkpoint location; it ends when the input is used up."""
        build, mode = QUERIES[query]
        batches: dict[int, list[str]] = {}

        def keep(frame: DataFrame, batch: int) -> None:
            rows = frame.select(F.to_json(F.struct("*"))).collect()
            batches[batch] = sorted(row[0] for row in rows)

        def begin() -> StreamingQuery:
            for name, value in confs.items():
                self.spark.conf.set(name, value)
            writer = build(self).writeStream.outputMode(mode).foreachBatch(keep)
            writer = writer.option("checkpointLocation", str(location)).options(**options)
            return writer.trigger(availableNow=True).start()

        return Run(begin(), batches, begin)

    def run(self, query: str, location: Path | str, confs: dict[str, str]) -> dict[int, list[str]]:
        """Run a query to the end of its input and return what each batch put out."""
        return self.start(query, location, confs).finished()

    def capture(
        self, location: Path | str | LocationSpec, store: Path | str, epochs: Iterable[int]
    ) -> list[int]:
        """Capture these epochs of a location into a store, as the listener would; return their numbers."""
        spec = location if isinstance(location, LocationSpec) else LocationSpec(str(location))
        opened = spec.open()
        info = QueryInfo(id=decode_query_id(opened.read("metadata")), checkpoint_location=spec.url)
        history = CheckpointStore.open(str(store), query=info)
        run = history.writer()
        run.claim()
        taker = QueryCapture(opened, run, QueryFacts(info, history.run_id, (), "test", "update"))
        numbers = []
        for epoch in epochs:
            manifest = taker.capture(epoch)
            assert manifest is not None
            numbers.append(manifest.checkpoint_id)
        return numbers


@dataclass
class Run:
    """A running query and what its batches have put out so far."""

    query: StreamingQuery
    batches: dict[int, list[str]]
    begin: Callable[[], StreamingQuery]

    def finished(self) -> dict[int, list[str]]:
        """Wait for the end of the input, and return what each batch put out.

        Spark gives a Python process of transformWithState ten seconds to start, which a busy machine
        may not keep: then the query is started again, as its user would.
        """
        for _ in range(5):
            try:
                assert self.query.awaitTermination(240), "the query has not ended in time"
                break
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
                self.query = self.begin()
        else:
            raise AssertionError("Spark's Python process does not start in time")
        assert self.query.exception() is None
        return self.batches
