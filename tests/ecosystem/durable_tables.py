"""An application on Spark 4.1.1 whose machine is lost: queries to real tables, without state and with it.

All read the same files. Each file has numbers of its own, and all those of the file before: who loses its
state writes them a second time. Prints what every output has when all files are read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.ecosystem.app import session

QUERIES = ("delta_stateless", "delta_stateful", "iceberg_stateless", "iceberg_stateful")
ROWS = 10
FIRST_TIME = 1_700_000_000


def numbers_of(file: int) -> range:
    """What one file has: its own numbers, and those of the file before it."""
    return range(max(0, file - 1) * ROWS, (file + 1) * ROWS)


def expected(query: str, files: int) -> Counter[int]:
    """What the output of a query must have, from the input alone."""
    every = Counter(n for file in range(files) for n in numbers_of(file))
    return Counter(set(every)) if query.endswith("stateful") else every


def table_of(query: str) -> str:
    """The table that an Iceberg query writes to."""
    return f"lake.db.{query}"


def start(spark: SparkSession, home: Path, query: str, files: int) -> StreamingQuery:
    """Start one query, which reads so many files a batch."""
    output, _, kind = query.partition("_")
    reader = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", files)
    rows = reader.json(str(home / "input"))
    if kind == "stateful":
        rows = rows.dropDuplicates(["n"])
    writer = rows.writeStream.queryName(query).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(home / "locations" / query))
    if output == "iceberg":
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table_of(query)} (n LONG) USING iceberg")
        return writer.format("iceberg").toTable(table_of(query))
    return writer.format(output).start(str(home / "outputs" / query))


def read_rows(spark: SparkSession, home: Path, query: str) -> list[int]:
    """What an output has, as Spark reads it."""
    if query.startswith("iceberg"):
        found = spark.table(table_of(query))
    else:
        found = spark.read.format("delta").load(str(home / "outputs" / query))
    return sorted(row.n for row in found.collect())


def main() -> None:
    """Run all queries, on what is left of them."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    home, spark = Path(wanted["directory"]), session(wanted)
    spark.sparkContext.setLogLevel("WARN")
    running = {query: start(spark, home, query, wanted["files"]) for query in wanted["queries"]}
    for query, stream in running.items():
        error = ""
        try:
            stream.awaitTermination()
        except Exception as failed:  # noqa: BLE001 - whatever it is, the test looks at it
            error = str(failed)[:3000]
        answer = {"query": query, "error": error, "rows": read_rows(spark, home, query)}
        print("ANSWER", json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
