"""ckpt-sink beside an empty Python Arrow sink (the floor), and beside Spark's Parquet file sink.

One session on one machine; the contenders take turns in rounds, so that both sides of a ratio were
measured in the same minutes. Times are Spark's own ``addBatch``: medians over all rounds.

    python -m benchmarks.bench_sink [--rows 100000,1000000] [--rounds 3] [--batches 5] [--epochs 1000]
        [--partitions 2] [--delta COORDINATES]

The environment variables ROWS, ROUNDS, BATCHES, EPOCHS and PARTITIONS give the defaults. Delta Lake is
measured only if its coordinates are given and Spark can load it; otherwise the report says so.
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers.hadoop import build_jar

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


CONTENDERS = (
    Contender("empty", "empty-arrow", "append", "plain"),
    Contender("ckpt-sink append", "ckpt-sink", "append", "plain"),
    Contender("parquet files", "parquet", "append", "plain"),
    Contender("empty behind the shuffle", "empty-arrow", "append", "shuffled"),
    Contender("ckpt-sink keyed append", "ckpt-sink", "append", "plain", {"keyColumns": "key"}),
    Contender("empty behind the aggregation", "empty-arrow", "complete", "totals"),
    Contender("ckpt-sink keyed after it", "ckpt-sink", "update", "totals", {"keyColumns": "key"}),
)
RATIOS = (
    ("ckpt-sink append", "empty"),
    ("ckpt-sink append", "parquet files"),
    ("ckpt-sink keyed append", "empty behind the shuffle"),
    ("ckpt-sink keyed after it", "empty behind the aggregation"),
)


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
        """Median batch time around epochs 10, 100 and so on, and bytes written a changed row."""
        keyed = Contender("keyed", "ckpt-sink", "append", "plain", {"keyColumns": "key"})
        query, home = self.start(keyed, rows, retain="all")
        events = _wait(query, epochs)
        query.stop()
        seconds = [event["durationMs"]["addBatch"] / 1000 for event in events]
        marks = [mark for mark in (10, 100, 1000) if mark <= epochs]
        found = {mark: statistics.median(seconds[max(0, mark - 10) : mark + 10]) for mark in marks}
        written = sum(p.stat().st_size for p in (home / "table" / "checkpoints").rglob("*") if p.is_file())
        return found, written / (rows * len(events))


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


def session(jar: Path, partitions: int, delta: str | None) -> SparkSession:
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
        builder = builder.config("spark.jars.packages", delta)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(EmptySink)
    return spark


def compare(bench: Bench, contenders: Sequence[Contender], rows: int, rounds: int, batches: int) -> None:
    """Print times, rows a second and ratios for one number of rows."""
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            seconds = bench.batch_seconds(contender, rows, batches)
            times[contender.name] += seconds
            print(
                f"  ... {contender.name}: {statistics.median(seconds):.3f} s", file=sys.stderr, flush=True
            )
    print(f"\n{rows:,} rows a batch, {rounds} rounds of {batches} batches")
    print(f"  {'sink':32} {'batch s':>8} {'best':>8} {'rows/s':>12}")
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"  {name:32} {middle:8.3f} {min(values):8.3f} {rows / middle:12,.0f}")
    for ours, other in RATIOS:
        middle = statistics.median(times[ours]) / statistics.median(times[other])
        best = min(times[ours]) / min(times[other])
        print(f"  {ours} / {other}: {middle:.2f} (best batches {best:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default=os.environ.get("ROWS", "100000,1000000"))
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "3")))
    parser.add_argument("--batches", type=int, default=int(os.environ.get("BATCHES", "5")))
    parser.add_argument("--epochs", type=int, default=int(os.environ.get("EPOCHS", "1000")))
    parser.add_argument("--partitions", type=int, default=int(os.environ.get("PARTITIONS", "2")))
    parser.add_argument("--delta", default=os.environ.get("DELTA", ""))
    given = parser.parse_args()
    contenders = list(CONTENDERS)
    with tempfile.TemporaryDirectory(prefix="bench-sink-") as root:
        spark = session(build_jar(Path(root) / "jar"), given.partitions, given.delta)
        bench = Bench(spark, Path(root), given.partitions)
        if given.delta:
            contenders.append(Contender("delta lake", "delta", "append", "plain"))
        else:
            print("Delta Lake: not measured (give --delta with coordinates that fit this Spark)")
        for rows in map(int, given.rows.split(",")):
            compare(bench, contenders, rows, given.rounds, given.batches)
        if given.epochs:
            seconds, size = bench.by_epoch(1000, given.epochs)
            print(f"\nkeyed append, 1,000 rows a batch, {given.epochs} epochs")
            for mark, value in seconds.items():
                print(f"  batch at epoch {mark}: {value:.3f} s")
            print(f"  bytes written a changed row, everything included: {size:.1f}")
        spark.stop()


if __name__ == "__main__":
    main()
