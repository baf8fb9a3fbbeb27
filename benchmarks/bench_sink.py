"""ckpt-sink beside an empty Python Arrow sink (the floor), Spark's Parquet file sink, and Delta Lake.

One session on one machine; the contenders take turns in rounds, so that both sides of a ratio were
measured in the same minutes. Times are Spark's own ``addBatch``: medians over all rounds. About a quarter
of an hour on two idle cores; the aims, each with its verdict, come last.

    python -m benchmarks.bench_sink [--rows 100000,1000000] [--rounds 2] [--batches 5] [--epochs 1000]
        [--partitions 2] [--delta COORDINATES]

The environment variables ROWS, ROUNDS, BATCHES, EPOCHS, PARTITIONS and DELTA give the defaults. Delta Lake
is measured if a release is known to fit this Spark, or its coordinates are given, and Spark can load it;
otherwise the report says why not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.sink_aims import (
    AFTER_GROUPS,
    APPEND,
    DELTA,
    EMPTY,
    GROUPED,
    KEYED,
    PARQUET,
    SHOWN,
    SHUFFLED,
    Times,
    aim_line,
    by_mark,
    delta_for,
    judge_sink,
    ratio,
)
from tests.support.servers.hadoop import build_jar

WARM_UP_BATCHES = 2
Shape = Callable[[DataFrame], DataFrame]


class _EmptyWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class EmptySink(DataSource):
    """Takes every row as Arrow and forgets it."""

    @classmethod
    def name(cls) -> str:
        return "empty-arrow"

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002
        return _EmptyWriter()


@dataclass(frozen=True)
class Contender:
    """A sink and what comes before it."""

    name: str
    format: str
    mode: str
    shape: str
    options: dict[str, str] = field(default_factory=dict)


BY_KEY = {"keyColumns": "key"}
CONTENDERS = (
    Contender(EMPTY, "empty-arrow", "append", "plain"),
    Contender(APPEND, "ckpt-sink", "append", "plain"),
    Contender(PARQUET, "parquet", "append", "plain"),
    Contender(SHUFFLED, "empty-arrow", "append", "shuffled"),
    Contender(KEYED, "ckpt-sink", "append", "plain", BY_KEY),
    Contender(GROUPED, "empty-arrow", "complete", "totals"),
    Contender(AFTER_GROUPS, "ckpt-sink", "update", "totals", BY_KEY),
)
DELTA_CONFS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def shapes(partitions: int) -> dict[str, Shape]:
    """What happens to the rows before a sink: a text key of 16 letters and a number, each key once."""

    def plain(frame: DataFrame) -> DataFrame:
        key = F.format_string("key-%012d", F.col("value") % 10_000_000).alias("key")
        return frame.select(key, F.col("value"))

    def totals(frame: DataFrame) -> DataFrame:
        rows = frame.select(F.format_string("key-%012d", F.col("at")).alias("key"), F.col("value"))
        return rows.groupBy("key").agg(F.sum("value").alias("value"))

    return {
        "plain": plain,
        "shuffled": lambda frame: plain(frame).repartition(partitions, "key"),
        "totals": totals,
    }


class Bench:
    """Runs contenders in one session."""

    def __init__(self, spark: SparkSession, root: Path, partitions: int) -> None:
        self._spark = spark
        self._root = root
        self._shapes = shapes(partitions)
        self._runs = 0

    def start(self, contender: Contender, rows: int, **options: str) -> tuple[StreamingQuery, Path]:
        """Start a contender on fresh directories."""
        self._runs += 1
        home = self._root / f"run-{self._runs}"
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        frame = source.option("numPartitions", 2).load().withColumn("at", F.col("value") % rows)
        writer = self._shapes[contender.shape](frame).writeStream.format(contender.format)
        writer = writer.outputMode(contender.mode).option("checkpointLocation", str(home / "location"))
        query = writer.options(**contender.options, **options).start(str(home / "table"))
        return query, home

    def batch_seconds(self, contender: Contender, rows: int, batches: int) -> list[float]:
        """Time spent in the sink's job, batch by batch, after a warm-up."""
        query, _ = self.start(contender, rows)
        events = _wait(query, WARM_UP_BATCHES + batches)
        query.stop()
        return [event["durationMs"]["addBatch"] / 1000 for event in events[WARM_UP_BATCHES:]]

    def by_epoch(self, rows: int, epochs: int) -> tuple[dict[int, float], float]:
        """Batch times around epochs 10, 100 and so on, and all bytes that were written, by changed row."""
        keyed = Contender("keyed", "ckpt-sink", "append", "plain", BY_KEY)
        query, home = self.start(keyed, rows, retain="all")
        events = _wait(query, epochs)
        query.stop()
        seconds = [event["durationMs"]["addBatch"] / 1000 for event in events]
        committed = sum(1 for _ in (home / "table" / "manifests").glob("manifest-??????????.json"))
        written = sum(path.stat().st_size for path in (home / "table").rglob("*") if path.is_file())
        return by_mark(seconds), written / (rows * max(1, committed))


def _wait(query: StreamingQuery, batches: int) -> list[dict[str, Any]]:
    """The progress of the first batches; each event is fetched once, because asking costs time too."""
    seen: dict[int, dict[str, Any]] = {}
    fetched = 0
    while len(seen) < batches:
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        events = query._jsq.recentProgress()
        for number in range(fetched, len(events)):
            event = json.loads(events[number].json())
            if "addBatch" in event["durationMs"]:
                seen[event["batchId"]] = event
        fetched = len(events)
        time.sleep(0.2)
    return [seen[number] for number in sorted(seen)]


def session(jar: Path, partitions: int, delta: str) -> SparkSession:
    """A session with two slots."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("bench-sink")
        .config("spark.driver.extraClassPath", str(jar))
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", partitions)
        .config("spark.sql.streaming.numRecentProgressUpdates", 2000)
        .config("spark.sql.streaming.ui.enabled", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if delta:
        builder = builder.config("spark.jars.packages", delta).config(map={**DELTA_CONFS})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(EmptySink)
    return spark


def open_session(jar: Path, partitions: int, delta: str) -> tuple[SparkSession, list[Contender]]:
    """The session and who takes part; without Delta Lake it says why."""
    coordinates, why_not = (delta, "") if delta else delta_for(pyspark.__version__)
    if coordinates:
        try:
            with_delta = Contender(DELTA, "delta", "append", "plain")
            return session(jar, partitions, coordinates), [*CONTENDERS, with_delta]
        except PySparkException as error:
            why_not = f"Spark could not load {coordinates}: {type(error).__name__}"
    print(f"Delta Lake: not measured: {why_not}", flush=True)
    return session(jar, partitions, ""), list(CONTENDERS)


def measure(
    bench: Bench, contenders: Sequence[Contender], rows: int, rounds: int, batches: int
) -> dict[str, list[float]]:
    """Batch times of every contender, in turns."""
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            seconds = bench.batch_seconds(contender, rows, batches)
            times[contender.name] += seconds
            told = f"  ... {contender.name}: {statistics.median(seconds):.3f} s"
            print(told, file=sys.stderr, flush=True)
    return times


def print_times(times: Times, rows: int) -> None:
    """Times, rows a second and ratios for one number of rows."""
    print(f"\n{rows:,} rows a batch, {max(map(len, times.values()))} batches each")
    print(f"  {'sink':32} {'batch s':>8} {'best':>8} {'rows/s':>12}")
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {name:32} {middle:8.3f} {min(values):8.3f} {rows / middle:12,.0f}")
    for ours, other in SHOWN:
        shown = ratio(times, ours, other)
        if shown is not None:
            best = min(times[ours]) / min(times[other])
            print(f"  {ours} / {other}: {shown:.2f} (best batches {best:.2f})", flush=True)


def arguments() -> argparse.Namespace:
    """What was typed, or is in the environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default=os.environ.get("ROWS", "100000,1000000"))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "2")))
    parser.add_argument("--batches", type=int, default=int(os.environ.get("BATCHES", "5")))
    parser.add_argument("--epochs", type=int, default=int(os.environ.get("EPOCHS", "1000")))
    parser.add_argument("--partitions", type=int, default=int(os.environ.get("PARTITIONS", "2")))
    parser.add_argument("--delta", default=os.environ.get("DELTA", ""))
    return parser.parse_args()


def main() -> None:
    given = arguments()
    times: dict[int, Times] = {}
    marks: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-sink-") as root:
        jar = build_jar(Path(root) / "jar")
        spark, contenders = open_session(jar, given.partitions, given.delta)
        bench = Bench(spark, Path(root), given.partitions)
        for rows in map(int, given.rows.split(",")):
            times[rows] = measure(bench, contenders, rows, given.rounds, given.batches)
            print_times(times[rows], rows)
        if given.epochs:
            marks, size = bench.by_epoch(1000, given.epochs)
            print(f"\nkeyed append, 1,000 rows a batch, {given.epochs} epochs")
            for mark, value in marks.items():
                print(f"  batch at epoch {mark}: {value:.3f} s")
            print(f"  bytes written a changed row, everything included: {size:.1f}")
        spark.stop()
    print("\naims")
    for judged in judge_sink(times, marks):
        print(f"  {aim_line(judged)}")


if __name__ == "__main__":
    main()
