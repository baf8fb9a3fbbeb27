"""A streaming query whose checkpoint is on S3, through the file manager.

    JAR=io.github.pyspark-checkpoint:ckpt-spark_2.13:0.1.0
    spark-submit --packages $JAR,org.apache.hadoop:hadoop-aws:3.5.0 \\
        --properties-file conf/s3-file-manager.conf \\
        examples/s3_file_manager.py s3a://bucket/checkpoints/example

Run it, stop it with Ctrl-C, run it again: it continues where it was. Run it twice at the same time: one of
the two stops by itself, and says that several queries use one location. ``--batches N`` ends it after N.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("location", help="a checkpoint location, s3a://bucket/prefix")
    parser.add_argument("--batches", type=int, help="stop after this many")
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("s3-file-manager").getOrCreate()
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    counts = (
        numbers.withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "10 seconds"), (F.col("value") % 10).alias("key"))
        .count()
    )
    query = (
        counts.writeStream.outputMode("update")
        .format("console")
        .option("checkpointLocation", arguments.location)
        .trigger(processingTime="2 seconds")
        .start()
    )
    while query.isActive:
        query.awaitTermination(1)
        progress = query.lastProgress
        if arguments.batches and progress and progress["batchId"] + 1 >= arguments.batches:
            query.stop()


if __name__ == "__main__":
    main()
