"""One Spark session with the jar for all tests of the sink that do not kill their driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.servers.hadoop import build_jar
from tests.sink.lab import Lab


@pytest.fixture(scope="session")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar, made from the sources as they are now."""
    return build_jar(tmp_path_factory.mktemp("jar"))


@pytest.fixture(scope="session")
def spark(jar: Path) -> Iterator[SparkSession]:
    """A session with two slots, in which a task may fail three times."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    confs = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": str(jar),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("sink-tests")
    for name, value in confs.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """A place for one test's input, table and checkpoint locations."""
    return Lab(spark, tmp_path)
