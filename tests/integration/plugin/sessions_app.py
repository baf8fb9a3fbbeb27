"""Sessions made with ``configure``, one after the other in one JVM; prints what each was set to, as JSON.

The arguments are a directory and JSON: for each session the arguments of ``configure``, confs of the user's
own, the queries that it runs, and whether the first one's location is set back by one batch before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_checkpoint import configure

NAMES = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.plugins",
    "spark.ckpt.secret.secretKey",
)


def run_query(spark: SparkSession, home: str, name: str) -> None:
    """A query of two batches; the one called passing has no checkpoint location."""
    source = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{home}/input")
    writer = source.groupBy("value").count().writeStream.outputMode("complete").queryName(name)
    if name != "passing":
        writer = writer.option("checkpointLocation", f"{home}/location")
    writer.format("noop").trigger(availableNow=True).start().awaitTermination()


def set_back(location: Path) -> None:
    """Take the last of the two batches out of a location, as an old copy of it lacks it."""
    for path in (
        *location.glob("commits/*1*"),
        *location.glob("offsets/*1*"),
        *location.rglob("*2.delta*"),
    ):
        path.unlink()


def run_session(home: str, step: dict[str, Any]) -> dict[str, object]:
    """Make a session, run its queries, and stop; what it was set to, or why it failed."""
    builder = SparkSession.builder.master("local[2]").appName("sessions")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    for name, value in step.get("confs", {}).items():
        builder = builder.config(name, value)
    try:
        spark = configure(builder, **step["configure"]).getOrCreate()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is asked for
        return {"failed": str(error)}
    found = dict(spark.sparkContext._conf.getAll())  # what the JVM has; getConf adds what was typed
    for name in step.get("queries", ()):
        run_query(spark, home, name)
    spark.stop()
    return {name: found.get(name) for name in NAMES}


def main() -> None:
    """Make the sessions."""
    home, wanted = sys.argv[1], json.loads(sys.argv[2])
    for step in wanted:
        SparkSession.builder._options.clear()
        if step.get("set_back"):
            set_back(Path(home, "location"))
        print(json.dumps(run_session(home, step)), flush=True)


if __name__ == "__main__":
    main()
