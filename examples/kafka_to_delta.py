r"""Kafka to a Delta table, in plain Structured Streaming. What makes it safe is in the confs alone.

    DELTA=io.delta:delta-spark_4.1_2.13:4.1.0
    KAFKA=org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1
    spark-submit --packages "$DELTA,$KAFKA" \
      --jars "$(ckpt jar)" \
      --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \
      --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \
      --conf spark.plugins=io.github.pysparkcheckpoint.CheckpointPlugin \
      --conf spark.ckpt.url=s3://bucket/checkpoints \
      --conf spark.ckpt.restore=missing --conf spark.ckpt.sink=rollback \
      kafka_to_delta.py BROKERS TOPIC TABLE LOCATION

Killed at any moment, with the disk of its checkpoint location lost, the same command goes on: the table has
every record of the topic once. If the table is a batch ahead of the newest checkpoint, it goes back first.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("table", help="the table's path")
    parser.add_argument("location", help="the checkpoint location")
    parser.add_argument("--until-caught-up", action="store_true", help="end once all records are read")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("kafka-to-delta").getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.brokers)
        .option("subscribe", args.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    orders = records.select(f.col("value").cast("string").cast("long").alias("n"), "partition", "offset")
    writer = orders.writeStream.queryName("orders").option("checkpointLocation", args.location)
    if args.until_caught_up:
        writer = writer.trigger(availableNow=True)
    writer.format("delta").start(args.table).awaitTermination()


if __name__ == "__main__":
    main()
