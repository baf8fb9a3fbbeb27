"""ckpt-sink beside an empty Python Arrow sink (the floor), Spark's Parquet file sink, and Delta Lake.

One session on one machine; the contenders take turns in rounds. Times are Spark's own ``addBatch``: medians
over all rounds. About a quarter of an hour on two idle cores; the aims come last. Delta Lake is measured if
a release is known to fit this Spark, or its coordinates are given, and Spark can load it.

    python -m benchmarks.bench_sink [--rows 100000,1000000] [--rounds 2] [--batches 5] [--epochs 1000]
        [--partitions 2] [--delta COORDINATES]
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
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

from benchmarks.aims import Judged
from benchmarks.frame import tell, typed_arguments
from benchmarks.lab import local_spark
from tests.support.servers.hadoop import build_jar

WARM_UP_BATCHES = 2
AIMED_ROWS = 1_000_000
MARKS = (10, 100, 1000)
AROUND = 10
MOST_OVER_EMPTY = 1.25
MOST_GROWTH = 1.1
EMPTY, SHUFFLED, GROUPED = "empty", "empty behind the shuffle", "empty behind the aggregation"
APPEND, KEYED, AFTER_GROUPS = "ckpt-sink append", "ckpt-sink keyed append", "ckpt-sink keyed after it"
PARQUET, DELTA = "parquet files", "delta lake"
AIMED = ((APPEND, EMPTY), (KEYED, SHUFFLED), (AFTER_GROUPS, GROUPED))
SHOWN = (*AIMED, (APPEND, PARQUET), (APPEND, DELTA))
DELTA_RELEASE = "4.4.1"
DELTA_SPARKS = ("4.0", "4.1", "4.2")
DELTA_CONFS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
Times = Mapping[str, Sequence[float]]
"""Seconds of each batch, by the name of the sink."""


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


def shaped(frame: DataFrame, shape: str, partitions: int) -> DataFrame:
    """What happens to the rows before a sink: a text key of 16 letters and a number, each key once."""
    if shape == "totals":
        rows = frame.select(F.format_string("key-%012d", F.col("at")).alias("key"), F.col("value"))
        return rows.groupBy("key").agg(F.sum("value").alias("value"))
    key = F.format_string("key-%012d", F.col("value") % 10_000_000).alias("key")
    rows = frame.select(key, F.col("value"))
    return rows.repartition(partitions, "key") if shape == "shuffled" else rows


@dataclass
class Bench:
    """Runs contenders in one session."""

    spark: SparkSession
    root: Path
    partitions: int
    runs: int = 0

    def start(self, contender: Contender, rows: int, **options: str) -> tuple[StreamingQuery, Path]:
        """Start a contender on fresh directories."""
        self.runs += 1
        home = self.root / f"run-{self.runs}"
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        frame = source.option("numPartitions", 2).load().withColumn("at", F.col("value") % rows)
        writer = shaped(frame, contender.shape, self.partitions).writeStream.format(contender.format)
        writer = writer.outputMode(contender.mode).option("checkpointLocation", str(home / "location"))
        return writer.options(**contender.options, **options).start(str(home / "table")), home

    def batch_seconds(self, contender: Contender, rows: int, batches: int) -> list[float]:
        """Time spent in the sink's job, batch by batch, after a warm-up."""
        query, _ = self.start(contender, rows)
        seconds = sink_seconds(query, WARM_UP_BATCHES + batches)
        query.stop()
        return seconds[WARM_UP_BATCHES:]

    def by_epoch(self, rows: int, epochs: int) -> tuple[dict[int, float], float]:
        """Batch times around epochs 10, 100 and so on, and all bytes that were written, by changed row."""
        query, home = self.start(
            Contender("keyed", "ckpt-sink", "append", "plain", BY_KEY), rows, retain="all"
        )
        seconds = sink_seconds(query, epochs)
        query.stop()
        committed = sum(1 for _ in (home / "table" / "manifests").glob("manifest-??????????.json"))
        written = sum(path.stat().st_size for path in (home / "table").rglob("*") if path.is_file())
        return by_mark(seconds), written / (rows * max(1, committed))


def sink_seconds(query: StreamingQuery, batches: int) -> list[float]:
    """``addBatch`` of the first batches; each event is fetched once, because asking costs time too."""
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
    return [seen[number]["durationMs"]["addBatch"] / 1000 for number in sorted(seen)]


def ratio(times: Times, ours: str, other: str) -> float | None:
    """Median over median, None if one of the two did not run."""
    if not times.get(ours) or not times.get(other):
        return None
    return statistics.median(times[ours]) / statistics.median(times[other])


def by_mark(seconds: Sequence[float]) -> dict[int, float]:
    """The median batch time around epochs 10, 100 and 1,000, as far as the run came."""
    marks = (mark for mark in MARKS if mark <= len(seconds))
    return {mark: statistics.median(seconds[max(0, mark - AROUND) : mark + AROUND]) for mark in marks}


def judge_sink(times: Mapping[int, Times], marks: Mapping[int, float]) -> list[Judged]:
    """Every aim; ``times`` by rows a batch, ``marks`` are batch times by epoch."""
    aimed = times.get(AIMED_ROWS, {})
    where = f"{AIMED_ROWS:,} rows"
    found = [
        Judged(f"batch p50, {ours} over {other}", where, MOST_OVER_EMPTY, False, ratio(aimed, ours, other))
        for ours, other in AIMED
    ]
    growth = marks[1000] / marks[100] if 1000 in marks else None
    aim = "no growth: batch at epoch 1,000 over epoch 100"
    return [*found, Judged(aim, "1,000 rows", MOST_GROWTH, False, growth)]


def aim_line(judged: Judged) -> str:
    """An aim as one line of the report."""
    value = "-" if judged.value is None else f"{judged.value:.2f}x"
    return f"{judged.aim} ({judged.situation}): {value}, aim at most {judged.bound:.2f}x: {judged.verdict}"


def delta_for(spark_version: str) -> tuple[str, str]:
    """The coordinates of Delta Lake for a Spark, and why there are none if so."""
    minor = ".".join(spark_version.split(".")[:2])
    if minor in DELTA_SPARKS:
        return f"io.delta:delta-spark_{minor}_2.13:{DELTA_RELEASE}", ""
    fits = f"{DELTA_SPARKS[0]} to {DELTA_SPARKS[-1]}"
    known = f"release {DELTA_RELEASE}, the newest known here, is for Spark {fits}"
    return "", f"{known}, and this is {spark_version}"


def open_session(jar: Path, partitions: int, delta: str) -> tuple[SparkSession, list[Contender]]:
    """The session and who takes part; without Delta Lake it says why."""
    confs: dict[str, str | int] = {
        "spark.driver.extraClassPath": str(jar),
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.streaming.numRecentProgressUpdates": 2000,
    }
    contenders = list(CONTENDERS)
    coordinates, why_not = (delta, "") if delta else delta_for(pyspark.__version__)
    spark = None
    if coordinates:
        try:
            spark = local_spark(
                "bench-sink", **confs, **DELTA_CONFS, **{"spark.jars.packages": coordinates}
            )
            contenders.append(Contender(DELTA, "delta", "append", "plain"))
        except PySparkException as error:
            why_not = f"Spark could not load {coordinates}: {type(error).__name__}"
    if why_not:
        print(f"Delta Lake: not measured: {why_not}", flush=True)
    spark = spark or local_spark("bench-sink", **confs)
    spark.dataSource.register(EmptySink)
    return spark, contenders


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


def main() -> None:
    defaults: dict[str, int | str] = {"rows": "100000,1000000", "rounds": 2, "batches": 5, "epochs": 1000}
    given = typed_arguments(__doc__, **defaults, partitions=2, delta="")
    times: dict[int, Times] = {}
    marks: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-sink-") as root:
        jar = build_jar(Path(root) / "jar")
        spark, contenders = open_session(jar, given.partitions, given.delta)
        bench = Bench(spark, Path(root), given.partitions)
        for rows in map(int, given.rows.split(",")):
            found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
            for contender in given.rounds * contenders:
                found[contender.name] += bench.batch_seconds(contender, rows, given.batches)
                tell(f"{contender.name}: {statistics.median(found[contender.name]):.3f} s")
            times[rows] = found
            print_times(found, rows)
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
