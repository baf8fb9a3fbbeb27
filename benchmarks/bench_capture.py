"""What checkpoints cost a query, and how fast they come back.

A 100 thousand key aggregation runs with and without the listener, in turns within one session, so that
whatever else the machine does hits both. Restores are timed beside downloads of the same objects into
files, in turns as well: ``benchmarks.restores`` says what is compared with what.

    python -m benchmarks.bench_capture

Environment: KEYS (100000), BATCHES a turn (12), TURNS (4); PARTS (restores,batches); and that of
``benchmarks.restores``.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.restores import measure_restores
from pyspark_checkpoint import CheckpointListener, CheckpointStore, checkpoint
from pyspark_checkpoint.registry.queries import root_url

KEYS = int(os.environ.get("KEYS", "100000"))
BATCHES = int(os.environ.get("BATCHES", "12"))
TURNS = int(os.environ.get("TURNS", "4"))
PARTS = os.environ.get("PARTS", "restores,batches").split(",")
WARM_UP = 3
WATCHED, ALONE, WARMING = "watched", "alone", "warming"


@dataclass
class Timings:
    """What was measured of the batches."""

    batch_ms: dict[str, list[int]] = field(default_factory=lambda: {WATCHED: [], ALONE: [], WARMING: []})
    captures: int = 0
    batches: int = 0


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Two slots, as on the smallest machine."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("bench-capture")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


def run_turn(spark: SparkSession, name: str, location: Path, timings: Timings) -> str:
    """Run one query for some batches, and note how long each took once it was warm."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", KEYS).load()
    frame = source.selectExpr(f"value % {KEYS} as k", "value").groupBy("k").sum("value")
    writer = frame.writeStream.outputMode("update").format("noop").queryName(name)
    query = writer.option("checkpointLocation", str(location)).start()
    while len(query.recentProgress) < BATCHES + WARM_UP and query.isActive:
        time.sleep(0.1)
    query.stop()
    done = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    timings.batch_ms[name] += done[WARM_UP : WARM_UP + BATCHES]
    return str(query.id)


def measure_batches(spark: SparkSession, directory: Path) -> None:
    """With and without the listener, in turns; then what the watched query's history says."""
    url, timings, query_id = str(directory / "store"), Timings(), ""
    listener: CheckpointListener = checkpoint(spark, url, queries=lambda name: name == WATCHED, retain=1000)
    run_turn(spark, WARMING, directory / WARMING, timings)  # the first batches measure the compiler
    for turn in range(TURNS):
        for name in (WATCHED, ALONE) if turn % 2 == 0 else (ALONE, WATCHED):
            found = run_turn(spark, name, directory / name, timings)
            query_id = found if name == WATCHED else query_id
            listener.flush(120)
    listener.close()
    spark.streams.removeListener(listener)
    watched, alone = (statistics.median(timings.batch_ms[name]) for name in (WATCHED, ALONE))
    print(f"batch of {KEYS} keys, p50 of {len(timings.batch_ms[ALONE])}: {alone:.0f} ms alone, ", end="")
    print(f"{watched:.0f} ms with the listener: {watched / alone:.3f}x (aim: 1.03)")
    report_history(url, query_id, directory / WATCHED)


def report_history(url: str, query_id: str, location: Path) -> None:
    """Seconds from a batch's commit to its manifest, and what an epoch costs."""
    history = CheckpointStore.open(root_url(url, query_id))
    delays, puts, sizes = [], [], []
    for number, epoch in history.list():
        manifest = history.load_by_id(number)
        commit = location / "commits" / str(epoch)
        if manifest is None or manifest.kind.value != "epoch" or not commit.exists():
            continue
        delays.append(manifest.timestamp_ms / 1000 - commit.stat().st_mtime)
        puts.append(manifest.requests.puts + 2)
        sizes.append(manifest.requests.bytes)
    batches = len(list((location / "commits").glob("[0-9]*")))
    quantiles = sorted(delays)
    print(
        f"commit to manifest: p50 {statistics.median(delays):.2f} s (aim: 1), "
        f"p90 {quantiles[int(len(quantiles) * 0.9)]:.2f} s; {len(delays)} captures of {batches} batches"
    )
    print(
        f"a capture: {statistics.median(puts):.0f} PUTs with manifest and pointer, "
        f"{statistics.median(sizes) / 1e6:.2f} MB"
    )


def main() -> None:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as name:
        if "restores" in PARTS:
            measure_restores(Path(name))
        if "batches" in PARTS:
            with session() as spark:
                measure_batches(spark, Path(name))


if __name__ == "__main__":
    main()
