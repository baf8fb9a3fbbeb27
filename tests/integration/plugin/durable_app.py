"""An application whose machine is lost at any moment: a query over files, until all of them are read.

Arguments: a directory; and as JSON what ``configure`` is given, how many files a batch reads, and which
query it is: ``stateless`` or ``stateful`` into files, ``table`` into a ckpt-sink, or ``table-alone`` into
one that leaves Spark's state and logs alone. A file ``stop`` in the directory stops the query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_checkpoint import configure

STOP_SECONDS = 1


def main() -> None:
    """Run the query, on what is left of it."""
    home, confs = Path(sys.argv[1]), json.loads(sys.argv[2])
    builder = SparkSession.builder.master("local[2]").appName("durable")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = configure(builder, **confs["configure"]).getOrCreate()
    source = spark.readStream.schema("value string").option("maxFilesPerTrigger", confs["files"])
    rows = source.text(str(home / "input"))
    if confs["query"] == "stateful":
        rows = rows.dropDuplicates(["value"])
    sink = "ckpt-sink" if confs["query"].startswith("table") else "text"
    writer = rows.writeStream.format(sink).queryName("durable")
    writer = writer.option("checkpointLocation", str(home / "location")).trigger(availableNow=True)
    if confs["query"] == "table-alone":
        writer = writer.option("state", "off")
    query = writer.start(str(home / "output"))
    while not query.awaitTermination(STOP_SECONDS):
        if (home / "stop").exists():
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
