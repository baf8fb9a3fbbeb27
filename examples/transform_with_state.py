"""State of your own (transformWithState) goes back to a savepoint, and so does the table.

    python examples/transform_with_state.py DIRECTORY

A running maximum for each sensor. A file with a broken sensor's values is taken back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from pyspark_checkpoint import configure, restore, savepoint

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Maximum(StatefulProcessor):
    """Remembers the greatest value of each sensor."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._greatest = handle.getValueState("greatest", "value LONG")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: ARG002 - the name that Spark gives it
    ) -> Iterator[Row]:
        """Take the values of a batch in."""
        before = self._greatest.get() or ()
        greatest = max([*before, *(row.value for row in rows)])
        self._greatest.update((greatest,))
        yield Row(sensor=key[0], greatest=greatest)

    def close(self) -> None:
        """Nothing is open."""


def run(spark: SparkSession, directory: Path, location: str) -> None:
    """Take in all files that are there, one a batch."""
    values = spark.readStream.option("maxFilesPerTrigger", 1).schema("sensor STRING, value LONG")
    greatest = (
        values.csv(f"{directory}/input")
        .groupBy("sensor")
        .transformWithState(Maximum(), "sensor STRING, greatest LONG", "Update", "None")
    )
    writer = greatest.writeStream.format("ckpt-sink").outputMode("update").option("keyColumns", "sensor")
    writer = writer.option("checkpointLocation", f"{directory}/{location}").trigger(availableNow=True)
    writer.start(f"{directory}/table").awaitTermination()


def table(spark: SparkSession, directory: Path) -> dict[str, int]:
    """What the table says now."""
    rows = spark.read.format("ckpt-sink").load(f"{directory}/table").collect()
    return {row["sensor"]: row["greatest"] for row in rows}


def main(directory: Path) -> int:
    """Run, save, read bad input, go back, continue."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1")
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark = configure(builder.config("spark.ui.enabled", "false")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = directory / "input"
    source.mkdir(parents=True)
    (source / "1.csv").write_text("a,3\nb,5\n")
    run(spark, directory, "location")
    savepoint(f"{directory}/table", "good")
    (source / "2.csv").write_text("a,999999\n")
    run(spark, directory, "location")
    print("with the broken sensor:", table(spark, directory))
    (source / "2.csv").unlink()
    (source / "3.csv").write_text("a,4\nb,1\n")
    restore(f"{directory}/table", f"{directory}/repaired", at="good")
    run(spark, directory, "repaired")
    found = table(spark, directory)
    print("without it:", found)
    spark.stop()
    return int(found != {"a": 4, "b": 5})


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
