"""One Spark session with the jar for all tests of rows and state together that kill no driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.coordinated.lab import Lab
from tests.support.drivers.session import QUICK_SNAPSHOTS, spark_session


@pytest.fixture(scope="session")
def spark(jar: Path) -> Iterator[SparkSession]:
    """A session in which a task may fail three times, and maintenance makes snapshots every second."""
    conf = {"spark.sql.session.timeZone": "UTC", **QUICK_SNAPSHOTS}
    with spark_session("coordinated", conf, jar=jar, attempts=4) as session:
        # Not above: what a context is started with, a session's streams cannot turn on again.
        session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        yield session


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """A place for one test's input, table and checkpoint locations."""
    (tmp_path / "inputs").mkdir()
    return Lab(spark, tmp_path / "inputs", tmp_path)
