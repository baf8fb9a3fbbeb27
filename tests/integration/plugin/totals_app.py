"""An application that knows nothing of checkpoints: two queries in two sessions, until the input is read.

Arguments: a directory for everything, and how long a batch of the first query takes at least.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def totals(session: SparkSession, home: Path) -> DataFrame:
    source = session.readStream.schema("value string").option("maxFilesPerTrigger", 1)
    return source.text(str(home / "input")).groupBy("value").count()


def main() -> None:
    home, pause_seconds = Path(sys.argv[1]), float(sys.argv[2])
    results = home / "results"
    results.mkdir(exist_ok=True)

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(f"{row['value']} {row['count']}" for row in frame.collect())
        temporary = results / f".{batch_id}"
        temporary.write_text("\n".join(rows))
        temporary.replace(results / f"{batch_id:03d}")
        time.sleep(pause_seconds)

    spark = SparkSession.builder.getOrCreate()
    writer = totals(spark.newSession(), home).writeStream.outputMode("update").queryName("totals")
    writer = writer.option("checkpointLocation", str(home / "location" / "totals"))
    first = writer.foreachBatch(keep).trigger(availableNow=True).start()
    queries = [first]
    if len(sys.argv) > 3:
        writer = totals(spark.newSession(), home).writeStream.outputMode("update").queryName("table")
        writer = writer.format("ckpt-sink").option("keyColumns", "value").option("state", sys.argv[3])
        writer = writer.option("checkpointLocation", str(home / "location" / "table"))
        queries.append(writer.trigger(availableNow=True).start(str(home / "table")))
    for query in queries:
        query.awaitTermination()
    if len(queries) > 1:
        rows = spark.read.format("ckpt-sink").load(str(home / "table")).collect()
        (home / "table.txt").write_text("\n".join(sorted(f"{row['value']} {row['count']}" for row in rows)))
    (home / "done").touch()
    while (home / "stay").exists():
        time.sleep(0.1)
    spark.stop()


if __name__ == "__main__":
    main()
