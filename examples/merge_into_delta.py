"""Keep the newest value of each key in a Delta table, from foreachBatch, each batch once.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.2.0 merge_into_delta.py \\
        INPUT TABLE LOCATION [URL]

INPUT is a directory of JSON lines such as {"key": "a", "value": 1, "at": 17}. A batch that Spark repeats
after a crash is dropped by Delta. After a restore to an older batch Spark plans the later batches anew;
idempotent_options gives them another id, and Delta takes them, although it has their numbers already. With
URL the query is checkpointed there.
"""

from __future__ import annotations

import sys
from typing import cast

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpoint import checkpoint, idempotent_options

MERGE = """
    MERGE INTO delta.`{table}` AS kept USING newest ON kept.key = newest.key
    WHEN MATCHED AND newest.at >= kept.at THEN UPDATE SET *
    WHEN NOT MATCHED THEN INSERT *
"""


def write_batch(batch: DataFrame, batch_id: int, table: str) -> None:
    """Merge one batch. In foreachBatch, Spark says in the context of the thread whose batch it is."""
    spark = batch.sparkSession
    query_id = cast(str, spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
    newest = batch.selectExpr("key", "struct(at, value) AS last").groupBy("key").agg({"last": "max"})
    newest = newest.selectExpr("key", "`max(last)`.value AS value", "`max(last)`.at AS at")
    newest.persist()
    newest.count()  # the batch runs, and with it its state, whether or not Delta then drops the write
    newest.createOrReplaceTempView("newest")
    for name, value in idempotent_options(query_id, batch_id, spark=spark).items():
        spark.conf.set(f"spark.databricks.delta.write.{name}", value)
    spark.sql(MERGE.format(table=table))
    newest.unpersist()


def run(
    spark: SparkSession, source: str, table: str, location: str, url: str | None = None, files: int = 1
) -> str:
    """Merge what has come, so many files a batch, and return the query's id."""
    listener = checkpoint(spark, url, interval_seconds=0.0) if url else None
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` (key STRING, value LONG, at LONG) USING delta")
    rows = spark.readStream.schema("key STRING, value LONG, at LONG").option("maxFilesPerTrigger", files)
    query = (
        rows.json(source)
        .writeStream.queryName("newest values")
        .foreachBatch(lambda batch, batch_id: write_batch(batch, batch_id, table))
        .option("checkpointLocation", location)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if listener is not None:
        listener.close()
    return str(query.id)


if __name__ == "__main__":
    session = (
        SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    source, table, location, *url = sys.argv[1:]
    run(session, source, table, location, url[0] if url else None)
