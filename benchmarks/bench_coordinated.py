"""What it costs to commit Spark's state with the rows: batch time of state=on against state=off.

One session on one machine; both take turns in rounds, after a run that warms the JVM up and is not counted.
Times are Spark's own ``triggerExecution``: medians over all rounds. Every batch updates every key.

    python -m benchmarks.bench_coordinated [--keys 100000] [--rounds 5] [--batches 6] [--partitions 4]
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.aims import Judged, told_apart
from benchmarks.frame import in_turns, typed_arguments
from benchmarks.lab import local_spark
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from tests.support.servers.hadoop import build_jar

AIM = 1.10
WARM_UP_BATCHES = 2


def run(spark: SparkSession, home: Path, state: str, keys: int, batches: int) -> list[int]:
    """The milliseconds of each batch after the first ones, on fresh directories."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", keys)
    totals = source.load().groupBy((F.col("value") % keys).alias("key")).agg(F.sum("value").alias("sum"))
    options = {"keyColumns": "key", "checkpointLocation": str(home / "location"), "state": state}
    writer = totals.writeStream.format("ckpt-sink").outputMode("update").options(**options)
    query = writer.start(str(home / "table"))
    wanted = WARM_UP_BATCHES + batches
    while query.isActive and len(query.recentProgress) < wanted:
        time.sleep(0.05)
    failure = query.exception()
    if failure is not None:
        raise failure
    found = [event["durationMs"]["triggerExecution"] for event in query.recentProgress[:wanted]]
    query.stop()
    return found[WARM_UP_BATCHES:]


def report_sizes(home: Path) -> str:
    """What the newest checkpoint of a run with state cost."""
    newest = CheckpointStore.open(str(home / "table")).load_latest()
    if newest is None:
        return "no checkpoint"
    manifest = next(iter((home / "table" / "manifests").glob(f"manifest-{newest.checkpoint_id:010d}.json")))
    cost = newest.requests
    return f"{cost.puts} PUTs, {cost.bytes / 1e6:.2f} MB, manifest {manifest.stat().st_size / 1e3:.1f} kB"


def judge(off: Sequence[Sequence[int]], on: Sequence[Sequence[int]]) -> list[str]:
    """What the rounds of both sides say: medians, their ratio by the aim, and how sure that is."""
    every = [[time for found in side for time in found] for side in (off, on)]
    without, with_state = (statistics.median(side) for side in every)
    detail = "" if told_apart(*every) else ", within noise"
    judged = Judged("batch time", "state=on", AIM, False, with_state / without)
    rounds = [statistics.median(b) / statistics.median(a) for a, b in zip(off, on, strict=True)]
    return [
        f"state=off {without:.0f} ms, state=on {with_state:.0f} ms, {len(every[1])} batches a side",
        f"ratio {judged.value:.2f}, aim at most {AIM:.2f}: {judged.verdict}{detail}; "
        f"in single rounds {min(rounds):.2f} to {max(rounds):.2f}",
    ]


def main() -> None:
    """Measure and print the ratio."""
    chosen = typed_arguments(__doc__, keys=100_000, rounds=5, batches=6, partitions=4)
    confs = {
        "spark.driver.extraClassPath": str(build_jar()),
        "spark.sql.shuffle.partitions": str(chosen.partitions),
    }
    spark = local_spark("bench-coordinated", **confs)
    times: dict[str, list[list[int]]] = {"off": [], "on": []}
    sizes = ""
    with tempfile.TemporaryDirectory() as root:
        run(spark, Path(root) / "warm-up", "on", chosen.keys, chosen.batches)
        for turn, state in in_turns(times, chosen.rounds):
            home = Path(root) / f"{turn}-{state}"
            times[state].append(run(spark, home, state, chosen.keys, chosen.batches))
            sizes = report_sizes(home) if state == "on" else sizes
    spark.stop()
    print(f"{chosen.keys} keys, {chosen.partitions} partitions, load {os.getloadavg()[0]:.1f}")
    print("\n".join([*judge(times["off"], times["on"]), f"a batch with state: {sizes}"]))


if __name__ == "__main__":
    main()
