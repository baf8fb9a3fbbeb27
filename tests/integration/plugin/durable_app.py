"""An application whose machine is lost at any moment: a query over files, until all of them are read.

Arguments: a directory, the sink (``files``, ``table`` or ``totals``), and confs of the plugin as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_checkpoint import configure


def main() -> None:
    """Run the query, on what is left of it."""
    home, sink, confs = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    builder = SparkSession.builder.master("local[2]").appName("durable")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    for name, value in confs.get("spark", {}).items():
        builder = builder.config(name, value)
    spark = configure(builder, **confs["configure"]).getOrCreate()
    source = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
    lines = source.text(str(home / "input"))
    if sink == "files":
        writer = lines.writeStream.format("text")
    else:
        totals = lines.groupBy("value").agg(F.count("*").alias("count"))
        writer = totals.writeStream.format("ckpt-sink").outputMode("update").option("keyColumns", "value")
        writer = writer.option("state", "on" if sink == "table" else "off")
    location = confs.get("location", str(home / "location"))
    writer = writer.queryName("durable").option("checkpointLocation", location)
    writer.trigger(availableNow=True).start(str(home / "output")).awaitTermination()
    (home / "done").touch()
    spark.stop()


if __name__ == "__main__":
    main()
