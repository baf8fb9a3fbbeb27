r"""Kafka to an Iceberg table, each number once, in plain Structured Streaming with state.

    ICEBERG=org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0
    KAFKA=org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1
    spark-submit --packages "$ICEBERG,$KAFKA" \
      --jars "$(ckpt jar)" \
      --conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog \
      --conf spark.sql.catalog.lake.type=hadoop --conf spark.sql.catalog.lake.warehouse=/warehouse \
      --conf spark.plugins=io.github.pysparkcheckpoint.CheckpointPlugin \
      --conf spark.ckpt.url=s3://bucket/checkpoints \
      --conf spark.ckpt.restore=missing --conf spark.ckpt.sink=rollback \
      kafka_to_iceberg.py BROKERS TOPIC lake.db.orders LOCATION

As ``kafka_to_delta.py``, with state: a number that comes twice is dropped the second time.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("table", help="the table's name, with its catalog")
    parser.add_argument("location", help="the checkpoint location")
    parser.add_argument("--until-caught-up", action="store_true", help="end once all records are read")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("kafka-to-iceberg").getOrCreate()
    spark.sql(f"CREATE TABLE IF NOT EXISTS {args.table} (n LONG) USING iceberg")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.brokers)
        .option("subscribe", args.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    numbers = records.select(f.col("value").cast("string").cast("long").alias("n")).dropDuplicates(["n"])
    writer = numbers.writeStream.queryName("orders").option("checkpointLocation", args.location)
    if args.until_caught_up:
        writer = writer.trigger(availableNow=True)
    writer.format("iceberg").toTable(args.table).awaitTermination()


if __name__ == "__main__":
    main()
