"""What it costs to commit Spark's state with the rows: batch time of state=on against state=off.

One session on one machine; both take turns in rounds, after a run that warms the JVM up and is not counted.
Times are Spark's own ``triggerExecution``. Every batch updates every key.

    python -m benchmarks.coordinated [--quick] [--keys 100000] [--rounds 5] [--batches 6] [--partitions 4]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.frame import Argument, Part, Settings, Side, in_turns, tell
from benchmarks.lab import AFTER_DATA, batch_times, local_spark
from benchmarks.report import run_and_show
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from tests.support.servers.hadoop import build_jar

WARM_UP_BATCHES = 2


def run(spark: SparkSession, home: Path, state: str, keys: int, batches: int) -> list[int]:
    """The milliseconds of each batch after the first ones, on fresh directories."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", keys)
    totals = source.load().groupBy((F.col("value") % keys).alias("key")).agg(F.sum("value").alias("sum"))
    options = {"keyColumns": "key", "checkpointLocation": str(home / "location"), "state": state}
    writer = totals.writeStream.format("ckpt-sink").outputMode("update").options(**options)
    query = writer.start(str(home / "table"))
    try:
        return batch_times(query, WARM_UP_BATCHES + batches, "triggerExecution")[WARM_UP_BATCHES:]
    finally:
        query.stop()


def cost(home: Path) -> dict[str, float]:
    """What the newest checkpoint of a run has cost."""
    newest = CheckpointStore.open(str(home / "table")).load_latest()
    assert newest is not None
    manifest = next(iter((home / "table" / "manifests").glob(f"manifest-{newest.checkpoint_id:010d}.json")))
    puts, sizes = newest.requests.puts + AFTER_DATA, (newest.requests.bytes, manifest.stat().st_size)
    return {"PUT": puts, "bytes out": sizes[0], "manifest bytes": sizes[1]}


def measure_all(settings: Settings) -> Iterator[Side]:
    """Both sides in turns."""
    keys, partitions, batches = (settings.number(name) for name in ("keys", "partitions", "batches"))
    confs: dict[str, str | int] = {
        "spark.driver.extraClassPath": str(build_jar()),
        "spark.sql.shuffle.partitions": partitions,
    }
    spark = local_spark("bench-coordinated", **confs)
    times: dict[str, list[float]] = {"off": [], "on": []}
    asked: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as root:
        run(spark, Path(root) / "warm-up", "on", keys, batches)
        for turn, state in in_turns(times, settings.number("rounds")):
            home = Path(root) / f"{turn}-{state}"
            times[state] += run(spark, home, state, keys, batches)
            asked[state] = cost(home)
            tell(f"state={state}: {times[state][-batches:]} ms")
    spark.stop()
    for state, taken in times.items():
        where = f"{keys:,} keys, {partitions} partitions"
        yield Side(where, f"state={state}", tuple(taken), counts=asked[state])


PART = Part(
    "coordinated",
    __doc__,
    measure_all,
    (
        Argument("keys", "100000", "100000", "keys, all updated by every batch"),
        Argument("rounds", "5", "1", "rounds"),
        Argument("batches", "6", "4", "measured batches a round"),
        Argument("partitions", "4", "4", "shuffle partitions"),
    ),
)

if __name__ == "__main__":
    run_and_show(PART)
