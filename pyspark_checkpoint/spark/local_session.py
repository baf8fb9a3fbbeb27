"""A Spark session for a command that needs one for a moment: on this machine, and quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark_checkpoint.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONFS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def local_session() -> Iterator[SparkSession]:
    """The session that is active in this process, or one of its own that is stopped afterwards."""
    if find_spec("pyspark") is None:
        raise MissingExtra(
            "this needs Spark, and pyspark is not installed", hint="pip install 'pyspark-checkpoint[spark]'"
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the rest of the command line needs no Spark

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("ckpt")
    for name, value in _CONFS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
