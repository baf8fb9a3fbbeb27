"""The confs of every Spark of the tests, and the session of suites that do not kill their driver."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.jvms import OWN_FILE_MANAGER, behind_spark

SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.python.authenticate.socketTimeout": "120s",
}
"""What every Spark of the tests has, in this process or another: few partitions, nothing unneeded."""

# Maintenance every second and a snapshot of three deltas: chains as a long run has them, in seconds.
QUICK_SNAPSHOTS = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
}


@contextlib.contextmanager
def spark_session(
    name: str,
    conf: Mapping[str, str],
    *,
    jar: Path | None = None,
    more_jars: Sequence[Path] = (),
    attempts: int = 1,
) -> Iterator[SparkSession]:
    """A session with two slots, in which a task has ``attempts``; it ends with the block.

    The first session of a process decides on the class path of all: with ``jar`` and our file manager, and
    with ``more_jars``.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[2,{attempts}]").appName(f"{name}-tests")
    os.environ.update(behind_spark([*([] if jar is None else [jar]), *more_jars]))
    with_jar = {} if jar is None else OWN_FILE_MANAGER
    for key, value in {**SPARK_CONF, **with_jar, **conf}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
