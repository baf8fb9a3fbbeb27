"""Streaming queries over files, one file a batch, whose every batch is the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from tests.support.drivers.inputs import give_turn

SCHEMA = "id long, k long, ts long"
ROWS = 30


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


@dataclass
class SparkLab:
    """A session, its input, and the directories of one test."""

    spark: SparkSession
    inputs: Path
    directory: Path

    def put(self, *numbers: int) -> None:
        """Add files to the input: each is a batch."""
        write_inputs(self.inputs, numbers)

    def path(self, name: str) -> str:
        """A directory of this test."""
        return str(self.directory / name)

    def set_confs(self, confs: Mapping[str, str]) -> None:
        """Set confs of the session."""
        for name, value in confs.items():
            self.spark.conf.set(name, value)


def has_ended(query: StreamingQuery) -> bool:
    """Wait for the end of a query; False if it must be started once more.

    Spark gives a Python process of transformWithState ten seconds to start, which a busy machine may not
    keep: then the query is started again, as its user would.
    """
    try:
        assert query.awaitTermination(240), "the query has not ended in time"
    except StreamingQueryException as error:
        if "failed to connect back" not in str(error):
            raise
        return False
    assert query.exception() is None
    return True


def _events(lab: SparkLab) -> DataFrame:
    frame = lab.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(lab.inputs))
    return frame.withColumn("t", F.timestamp_seconds("ts"))


def _late(lab: SparkLab) -> DataFrame:
    return _events(lab).withWatermark("t", "20 seconds")


def _join(lab: SparkLab) -> DataFrame:
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


def _sessions(lab: SparkLab) -> DataFrame:
    """Of every other key a session grows with each batch; those of the others end after each."""
    gap = F.expr("if(k % 2 = 0, '8 seconds', '12 seconds')")
    return _late(lab).groupBy(F.session_window("t", gap), "k").count()


QUERIES: dict[str, tuple[Callable[[SparkLab], DataFrame], str]] = {
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
