"""One Spark session with the jar for all tests of rows and state together that kill no driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.coordinated.lab import Lab
from tests.servers.hadoop import build_jar


@pytest.fixture(scope="session")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar, made from the sources as they are now."""
    return build_jar(tmp_path_factory.mktemp("jar"))


@pytest.fixture(scope="session")
def spark(jar: Path) -> Iterator[SparkSession]:
    """Two slots, a task may fail three times, and maintenance makes snapshots every second."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    confs = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": str(jar),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("coordinated-tests")
    for name, value in confs.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    # Not above: what a context is started with, a session's streams cannot turn on again.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """A place for one test's input, table and checkpoint locations."""
    (tmp_path / "inputs").mkdir()
    return Lab(spark, tmp_path / "inputs", tmp_path)
