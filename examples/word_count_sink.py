"""Word counts as a table: written by a stream, read as a table, at an earlier epoch, and as changes.

    python examples/word_count_sink.py [directory]

Run it with the Python that has pyspark and pyspark-checkpoint. The jar is built by ``make jar``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_checkpoint import __version__
from pyspark_checkpoint.jar import find_jar

JAR = find_jar(__version__)
LINES = ("to be or not to be", "that is the question", "to sleep perchance to dream")


def main(directory: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", str(JAR))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    lines, table = Path(directory, "lines"), str(Path(directory, "words"))
    lines.mkdir(parents=True)
    for number, line in enumerate(LINES):
        (lines / f"{number}.txt").write_text(line + "\n")

    text = spark.readStream.option("maxFilesPerTrigger", 1).text(str(lines))
    words = text.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()
    query = (
        words.writeStream.format("ckpt-sink")
        .outputMode("update")
        .option("keyColumns", "word")
        .option("checkpointLocation", str(Path(directory, "location")))
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination()

    print("now:")
    spark.read.format("ckpt-sink").load(table).orderBy("word").show()
    print("after the first line:")
    spark.read.format("ckpt-sink").option("epoch", 0).load(table).orderBy("word").show()
    print("what changed:")
    changes = spark.readStream.format("ckpt-sink").option("startingEpoch", 0).load(table)
    shown = changes.writeStream.format("console").trigger(availableNow=True)
    shown.option("checkpointLocation", str(Path(directory, "consumer"))).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
