"""A windowed join of two streams of files loses its checkpoint location half way, and nothing else.

    python examples/windowed_join.py DIRECTORY

Rows, the join's state and the offsets of both sources are in one commit of the table.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpoint import configure, restore

SHOWN, CLICKED = "shown_at TIMESTAMP, ad LONG", "clicked_at TIMESTAMP, clicked LONG"


def write_minute(directory: Path, minute: int) -> None:
    """A file of each stream: ads 0 to 59 are shown, every third is clicked a minute later."""
    for name, time, ad, step, later in (
        ("shown", "shown_at", "ad", 1, 0),
        ("clicks", "clicked_at", "clicked", 3, 1),
    ):
        rows = [
            {time: f"2026-01-01 00:{minute + later:02d}:{second:02d}", ad: 60 * minute + second}
            for second in range(0, 60, step)
        ]
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / f"{minute:02d}.json").write_text("\n".join(map(json.dumps, rows)))


def joined(shown: DataFrame, clicks: DataFrame) -> DataFrame:
    """Clicks that follow within two minutes."""
    soon = F.col("clicked_at").between(F.col("shown_at"), F.col("shown_at") + F.expr("INTERVAL 2 MINUTES"))
    return shown.join(clicks, (F.col("ad") == F.col("clicked")) & soon)


def run(spark: SparkSession, directory: Path, location: str) -> None:
    """Join all files that are there, one of each stream a batch."""
    streams = spark.readStream.option("maxFilesPerTrigger", 1)
    shown = streams.schema(SHOWN).json(f"{directory}/shown").withWatermark("shown_at", "3 minutes")
    clicks = streams.schema(CLICKED).json(f"{directory}/clicks").withWatermark("clicked_at", "3 minutes")
    writer = joined(shown, clicks).writeStream.format("ckpt-sink").queryName("join")
    writer = writer.option("checkpointLocation", f"{directory}/{location}").trigger(availableNow=True)
    writer.start(f"{directory}/table").awaitTermination()


def main(directory: Path) -> int:
    """Run, lose the location, restore it elsewhere, continue, and compare with a join of all files."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = configure(builder.config("spark.ui.enabled", "false"), f"{directory}/checkpoints").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for minute in range(2):
        write_minute(directory, minute)
    run(spark, directory, "location")
    shutil.rmtree(directory / "location")
    report = restore(f"{directory}/table", f"{directory}/elsewhere")
    print(f"the location is lost; restored {report.point.value} batch {report.epoch}")
    for minute in range(2, 4):
        write_minute(directory, minute)
    run(spark, directory, "elsewhere")
    found = sorted(row["ad"] for row in spark.read.format("ckpt-sink").load(f"{directory}/table").collect())
    shown = spark.read.schema(SHOWN).json(f"{directory}/shown")
    clicks = spark.read.schema(CLICKED).json(f"{directory}/clicks")
    expected = sorted(row["ad"] for row in joined(shown, clicks).collect())
    print(f"{len(found)} pairs, {len(expected)} expected: {'equal' if found == expected else 'WRONG'}")
    spark.stop()
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
