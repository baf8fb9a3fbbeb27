"""Counts words of a stream of files into a table, with checkpoints of the query beside it.

    python examples/word_count_job.py DIRECTORY

The table is written by ``ckpt-sink``, exactly once; a listener keeps checkpoints of the query itself.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pyspark_checkpoint

JAR = Path(__file__).parents[1] / f"jvm-shim/target/ckpt-spark_2.13-{version('pyspark-checkpoint')}.jar"


def main(directory: str) -> None:
    builder = SparkSession.builder.master("local[2]").appName("word-count")
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.driver.extraClassPath", str(JAR)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    listener = pyspark_checkpoint.checkpoint(spark, f"{directory}/checkpoints", poll_seconds=1)

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{directory}/input")
    words = lines.select(F.explode(F.split("value", " ")).alias("word"))
    query = (
        words.groupBy("word")
        .count()
        .writeStream.format("ckpt-sink")
        .outputMode("update")
        .option("keyColumns", "word")
        .option("checkpointLocation", f"{directory}/location")
        .queryName("word_count")
        .trigger(availableNow=True)
        .start(f"{directory}/table")
    )
    query.awaitTermination()
    listener.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
