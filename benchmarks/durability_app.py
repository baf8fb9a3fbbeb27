"""One application of ``benchmarks.durability``: runs the query when it is told to, and prints its batches.

Standard input has the settings as JSON, and then a line for each query, which is its name.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from pyspark_checkpoint import configure

WARM_UP = 4


def main() -> None:
    """Run queries until the input ends."""
    given = json.loads(sys.stdin.readline())
    builder = SparkSession.builder.master("local[2]").appName("durability")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = configure(builder, **given["configure"]).getOrCreate()
    for line in sys.stdin:
        name, wanted = line.strip(), WARM_UP + given["batches"]
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", given["keys"]).load()
        counts = source.groupBy((source.value % given["keys"]).alias("key")).count()
        writer = counts.writeStream.format("noop").outputMode("update").queryName(name)
        query = writer.option("checkpointLocation", f"{given['home']}/{name}").start()
        while len(query.recentProgress) < wanted and query.isActive:
            time.sleep(0.05)
        taken = [one.durationMs["triggerExecution"] for one in query.recentProgress[WARM_UP:wanted]]
        query.stop()
        print(json.dumps(taken), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
