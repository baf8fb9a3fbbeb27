"""A driver on Spark 4.1.1: runs one pipeline until its input is done, and prints what its output has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpoint import checkpoint

TABLE = "lake.db.numbers"


def session(wanted: dict[str, Any]) -> SparkSession:
    """A session with Delta and an Iceberg catalog in a directory."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("ecosystem")
        .config("spark.jars", ",".join(wanted["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config(
            "spark.sql.extensions",
            "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", str(Path(wanted["directory"]) / "warehouse"))
    )
    if "classes" in wanted:
        builder = builder.config("spark.driver.extraClassPath", wanted["classes"])
    for name, value in wanted["conf"].items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read_output(spark: SparkSession, wanted: dict[str, Any]) -> DataFrame:
    """The output as Spark reads it."""
    if wanted["output"] == "iceberg":
        return spark.table(TABLE)
    kind = "parquet" if wanted["output"] == "file" else "delta"
    return spark.read.format(kind).load(str(Path(wanted["directory"]) / "target"))


def main() -> None:
    """Run what the first argument says."""
    wanted = json.loads(sys.argv[1])
    directory = Path(wanted["directory"])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    if "read" in wanted:
        print(
            json.dumps(
                {name: [list(row) for row in spark.table(name).collect()] for name in wanted["read"]}
            )
        )
        return
    url = wanted.get("checkpoint_url")
    listener = checkpoint(spark, url, interval_seconds=0.0) if url else None
    files = wanted.get("files_per_trigger", 1)
    reader = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", files)
    rows = reader.json(str(directory / "input"))
    if wanted["output"] == "iceberg":
        spark.sql(f"CREATE TABLE IF NOT EXISTS {TABLE} (n LONG) USING iceberg")
    writer = rows.writeStream.queryName("numbers").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(directory / "location"))
    if wanted["output"] == "iceberg":
        query = writer.format("iceberg").toTable(TABLE)
    else:
        kind = "parquet" if wanted["output"] == "file" else "delta"
        query = writer.format(kind).start(str(directory / "target"))
    query.awaitTermination()
    progress = json.loads(query.lastProgress.json) if query.lastProgress else {}
    answer = {
        "query_id": str(query.id),
        "numbers": sorted(row[0] for row in read_output(spark, wanted).collect()),
        "batch": progress.get("batchId"),
        "sink": progress.get("sink", {}).get("description"),
    }
    if listener is not None:
        listener.close()
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
