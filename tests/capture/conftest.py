"""One Spark session for all tests of captures and restores that do not kill their driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.capture.lab import Lab, write_inputs


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two slots; maintenance runs every second, so that snapshots are made."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    confs = {
        "spark.ui.enabled": "false",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    }
    builder = SparkSession.builder.master("local[2]").appName("capture-tests")
    for name, value in confs.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirteen files, one for each batch: twelve epochs, and one to go on with after the twelfth."""
    directory = tmp_path_factory.mktemp("inputs")
    write_inputs(directory, range(13))
    return directory


@pytest.fixture
def lab(spark: SparkSession, inputs: Path, tmp_path: Path) -> Lab:
    """A place for one test's locations and stores."""
    return Lab(spark, inputs, tmp_path)
