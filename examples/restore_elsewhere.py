"""A query is checkpointed, its checkpoint location is lost, and it continues in another one.

python examples/restore_elsewhere.py
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint import checkpoint, preflight, restore, savepoint

TOTALS: dict[int, int] = {}


def remember(frame: DataFrame, epoch: int) -> None:
    """The sink: how many rows there have been after each batch."""
    TOTALS[epoch] = frame.first()["count"]  # type: ignore[index]
    print(f"  batch {epoch}: {TOTALS[epoch]} rows so far")


def start(spark: SparkSession, location: Path) -> StreamingQuery:
    """Count rows, a hundred a batch."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    writer = rows.groupBy().count().writeStream.outputMode("complete").queryName("counter")
    return writer.option("checkpointLocation", str(location)).foreachBatch(remember).start()


def run_until(query: StreamingQuery, epoch: int) -> None:
    """Let a query run to a batch, and stop it."""
    while epoch not in TOTALS and query.isActive:
        time.sleep(0.1)
    query.stop()


def main() -> None:
    """Run, lose, restore, continue."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as name:
        directory, url = Path(name), f"file://{name}/checkpoints"
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        listener = checkpoint(spark, url)
        print("a query runs, and is checkpointed")
        run_until(start(spark, directory / "here"), 3)
        listener.flush()
        savepoint(url, "before-the-move", query="counter")
        shutil.rmtree(directory / "here")
        report = restore(url, str(directory / "there"), at="before-the-move", query="counter")
        print(f"its location is lost; restored at batch {report.epoch}, {report.files} files")
        for finding in preflight(str(directory / "there"), spark_version=spark.version, sources=1):
            print(finding)
        run_until(start(spark, directory / "there"), report.epoch + 2)
        listener.close()
        spark.stop()
    expected = {epoch: 100 * (epoch + 1) for epoch in TOTALS}
    print("every batch is that of an undisturbed run" if expected == TOTALS else f"wrong: {TOTALS}")
    sys.exit(expected != TOTALS)


if __name__ == "__main__":
    main()
