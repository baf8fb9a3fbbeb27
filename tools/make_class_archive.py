"""Archive Spark's loaded classes, so that the JVMs of tests start in half of the time.

    python tools/make_class_archive.py ARCHIVE

Runs a small streaming job with the pyspark of this Python, and has the JVM write the classes that it
loaded to ARCHIVE (Java's application class data sharing). A JVM of the same version takes them from there
when its class path begins with Spark's jars; any other ignores the archive. Made once; an archive that is
there already is kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_BATCHES = 4


def main() -> None:
    """Write the archive that is named on the command line."""
    archive = Path(sys.argv[1]).resolve()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made = Path(scratch) / archive.name
        _run_jobs(
            Path(scratch), f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={made}"
        )
        made.replace(archive)
    print(f"class archive: {archive.stat().st_size // 1_000_000} MB")


def _run_jobs(scratch: Path, java_options: str) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.pop("SPARK_SUBMIT_OPTS", None)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.driver.extraJavaOptions", f"{java_options} -Xlog:cds=off -Xlog:cds+dynamic=off")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    warnings.simplefilter("ignore")
    for provider in ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"):
        session.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDERS + provider)
        _stream(session, scratch / provider)
    jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    session.stop()
    jvm.stdin.close()  # the JVM ends with its input, and writes the archive at its end
    jvm.wait(timeout=120)


def _stream(session: SparkSession, directory: Path) -> None:
    """Totals of a file source, written batch by batch by Python, as many tests do."""
    rows = session.range(20).select("id", F.current_timestamp().alias("time"))
    for _ in range(_BATCHES):
        rows.write.mode("append").parquet(str(directory / "input"))

    def keep(frame: DataFrame, _batch_id: int) -> None:
        frame.toJSON().collect()

    source = session.readStream.schema(rows.schema).option("maxFilesPerTrigger", 2)
    late = source.parquet(str(directory / "input")).withWatermark("time", "1 minute")
    totals = late.groupBy(F.window("time", "1 minute"), "id").count()
    writer = totals.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(directory / "location")).start().awaitTermination()


if __name__ == "__main__":
    main()
