"""ckpt-sink beside an empty Python Arrow sink (the floor) and Spark's Parquet file sink, on local disk.

One session on one machine; the contenders take turns in rounds. Times are Spark's own ``addBatch``.
``benchmarks.peers`` has Iceberg and Delta Lake, ``benchmarks.growth`` what many epochs cost.

    python -m benchmarks.sink [--quick] [--rows 100000,1000000] [--rounds 2] [--batches 5] [--partitions 2]
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.empty_sink import EMPTY_FORMAT, EmptySink
from benchmarks.frame import Argument, Part, Settings, Side, in_turns, tell
from benchmarks.lab import batch_times, local_spark
from benchmarks.report import run_and_show
from tests.support.servers.hadoop import build_jar

WARM_UP_BATCHES = 2


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
    Contender("empty", EMPTY_FORMAT, "append", "plain"),
    Contender("ckpt-sink append", "ckpt-sink", "append", "plain"),
    Contender("parquet files", "parquet", "append", "plain"),
    Contender("empty behind the shuffle", EMPTY_FORMAT, "append", "shuffled"),
    Contender("ckpt-sink keyed append", "ckpt-sink", "append", "plain", BY_KEY),
    Contender("empty behind the aggregation", EMPTY_FORMAT, "complete", "totals"),
    Contender("ckpt-sink keyed after it", "ckpt-sink", "update", "totals", BY_KEY),
)


def shaped(frame: DataFrame, shape: str, partitions: int) -> DataFrame:
    """What happens to the rows before a sink: a text key of 16 letters and a number, each key once."""
    if shape == "totals":
        rows = frame.select(F.format_string("key-%012d", F.col("at")).alias("key"), F.col("value"))
        return rows.groupBy("key").agg(F.sum("value").alias("value"))
    key = F.format_string("key-%012d", F.col("value") % 10_000_000).alias("key")
    rows = frame.select(key, F.col("value"))
    return rows.repartition(partitions, "key") if shape == "shuffled" else rows


def batch_ms(
    spark: SparkSession, home: Path, contender: Contender, rows: int, partitions: int, batches: int
) -> list[int]:
    """Time spent in the sink's job, batch by batch, after a warm-up, on fresh directories."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    frame = source.option("numPartitions", 2).load().withColumn("at", F.col("value") % rows)
    writer = shaped(frame, contender.shape, partitions).writeStream.format(contender.format)
    writer = writer.outputMode(contender.mode).option("checkpointLocation", str(home / "location"))
    query = writer.options(**contender.options).start(str(home / "table"))
    try:
        return batch_times(query, WARM_UP_BATCHES + batches, "addBatch")[WARM_UP_BATCHES:]
    finally:
        query.stop()


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every number of rows, the contenders in turns."""
    partitions, runs = settings.number("partitions"), itertools.count()
    with tempfile.TemporaryDirectory(prefix="bench-sink-") as root:
        confs: dict[str, str | int] = {
            "spark.driver.extraClassPath": str(build_jar(Path(root) / "jar")),
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": partitions,
            "spark.sql.streaming.numRecentProgressUpdates": 2000,
        }
        spark = local_spark("bench-sink", **confs)
        spark.dataSource.register(EmptySink)
        for rows in settings.numbers("rows"):
            found: dict[str, list[float]] = {contender.name: [] for contender in CONTENDERS}
            for _, one in in_turns(CONTENDERS, settings.number("rounds")):
                home = Path(root) / f"run-{next(runs)}"
                found[one.name] += batch_ms(spark, home, one, rows, partitions, settings.number("batches"))
                tell(f"{rows:,} rows, {one.name}: {found[one.name]} ms")
            for name, taken in found.items():
                yield Side(f"{rows:,} rows", name, tuple(taken))
        spark.stop()


PART = Part(
    "sink",
    __doc__,
    measure_all,
    (
        Argument("rows", "100000,1000000", "100000", "rows a batch"),
        Argument("rounds", "2", "1", "rounds"),
        Argument("batches", "5", "4", "measured batches a round"),
        Argument("partitions", "2", "2", "shuffle partitions"),
    ),
)

if __name__ == "__main__":
    run_and_show(PART)
