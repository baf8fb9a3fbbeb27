"""Sessions made with ``configure``, one after the other in one JVM; prints what each was set to, as JSON.

The arguments are JSON: for each session the arguments of ``configure`` and confs of the user's own.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from pyspark_checkpoint import configure

NAMES = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.plugins",
    "spark.ckpt.secret.secretKey",
)


def run_query(spark: SparkSession, home: str) -> None:
    """A query of two batches."""
    source = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{home}/input")
    writer = source.groupBy("value").count().writeStream.outputMode("complete").queryName("totals")
    writer = writer.format("noop").option("checkpointLocation", f"{home}/location")
    writer.trigger(availableNow=True).start().awaitTermination()
    passing = source.writeStream.format("noop").queryName("passing").trigger(availableNow=True)
    passing.start().awaitTermination()


def main() -> None:
    """Make the sessions."""
    home, wanted = sys.argv[1], json.loads(sys.argv[2])
    for arguments, confs in wanted:
        builder = SparkSession.builder.master("local[2]").appName("sessions")
        builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        for name, value in confs.items():
            builder = builder.config(name, value)
        spark = configure(builder, **arguments).getOrCreate()
        found = dict(spark.sparkContext.getConf().getAll())
        print(json.dumps({name: found.get(name) for name in NAMES}), flush=True)
        if "url" in arguments:
            run_query(spark, home)
        spark.stop()


if __name__ == "__main__":
    main()
