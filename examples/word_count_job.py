"""Counts words of a stream of files into a table. Nothing in it knows of checkpoints in a store.

    spark-submit ... examples/word_count_job.py DIRECTORY

``examples/demo.py`` submits it under the plugin, kills it, and submits it again.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main(directory: str) -> None:
    """Count all words of ``DIRECTORY/input``, one file a batch."""
    spark = SparkSession.builder.appName("word-count").getOrCreate()
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
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
