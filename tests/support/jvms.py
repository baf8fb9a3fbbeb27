"""How the JVMs of tests start quickly: a simple compiler, a simple collector, classes from an archive.

A test's JVM lives for seconds, and spends most of them loading and compiling classes that it hardly runs.
``make`` writes an archive of Spark's classes once (``tools/make_class_archive.py``). A JVM takes classes
from it only if its class path begins with Spark's jars, so the jars under test come behind them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / ".tools" / "classes" / "spark.jsa"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OWN_FILE_MANAGER = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager"
    )
}
"""On a local disk it writes a file without the process that Hadoop starts for each; needs the jar."""
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_options(archive: Path = ARCHIVE) -> str:
    """What a JVM is told of the archive; it goes on without one that is missing or of another Spark."""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def set_environment() -> None:
    """Let every JVM that this process starts from now on start quickly."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", archive_options())


def without_spark(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a new driver: nothing of this process's Spark but how its JVM starts."""
    return {
        name: value
        for name, value in environment.items()
        if name == "SPARK_SUBMIT_OPTS" or not name.startswith(("SPARK_", "PYSPARK_"))
    }


def behind_spark(jars: Sequence[Path]) -> dict[str, str]:
    """The environment that puts ``jars`` on a driver's class path, behind Spark's own."""
    return {"SPARK_DIST_CLASSPATH": os.pathsep.join(map(str, jars))}
