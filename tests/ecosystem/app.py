"""A driver on Spark 4.1.1: runs pipelines until their input is done, and prints what their outputs have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpoint import checkpoint
from tests.ecosystem.kit import lake_confs


def session(wanted: dict[str, Any]) -> SparkSession:
    """A session with Delta and an Iceberg catalog in a directory."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("ecosystem")
        .config("spark.jars", ",".join(wanted["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
    )
    lakes = lake_confs(str(Path(wanted["directory"]) / "warehouse"))
    for name, value in {**lakes, **wanted["conf"]}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read_output(spark: SparkSession, wanted: dict[str, Any]) -> DataFrame:
    """The output as Spark reads it."""
    if wanted["output"] == "iceberg":
        return spark.table(table_of(wanted))
    kind = "parquet" if wanted["output"] == "file" else "delta"
    return spark.read.format(kind).load(str(Path(wanted["directory"]) / "target"))


def table_of(wanted: dict[str, Any]) -> str:
    """The name of a pipeline's Iceberg table."""
    return f"lake.db.{Path(wanted['directory']).name}"


def run(spark: SparkSession, wanted: dict[str, Any]) -> dict[str, Any]:
    """Let one pipeline process all of its input, and say what its output then has."""
    directory, url = Path(wanted["directory"]), wanted.get("checkpoint_url")
    listener = checkpoint(spark, url, interval_seconds=0.0) if url else None
    files = wanted.get("files_per_trigger", 1)
    reader = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", files)
    rows = reader.json(str(directory / "input"))
    writer = rows.writeStream.queryName("numbers").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(directory / "location"))
    if wanted["output"] == "iceberg":
        table = table_of(wanted)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (n LONG) USING iceberg")
        query = writer.format("iceberg").toTable(table)
    else:
        kind = "parquet" if wanted["output"] == "file" else "delta"
        query = writer.format(kind).start(str(directory / "target"))
    query.awaitTermination()
    progress = json.loads(query.lastProgress.json) if query.lastProgress else {}
    if listener is not None:
        listener.close()
    return {
        "query_id": str(query.id),
        "numbers": sorted(row[0] for row in read_output(spark, wanted).collect()),
        "batch": progress.get("batchId"),
    }


def main() -> None:
    """Read the tables that the first argument names, or run each pipeline that a line of stdin says."""
    wanted = json.loads(sys.argv[1])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    if "read" in wanted:
        tables = {name: [list(row) for row in spark.table(name).collect()] for name in wanted["read"]}
        print(json.dumps(tables))
        return
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
