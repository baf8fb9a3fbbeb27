"""One Spark session with the jar for all tests of the sink that do not kill their driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.sink.lab import Lab
from tests.support.drivers.session import spark_session


@pytest.fixture(scope="session")
def spark(jar: Path) -> Iterator[SparkSession]:
    """A session in which a task may fail three times."""
    conf = {
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    with spark_session("sink", conf, jar=jar, attempts=4) as session:
        yield session


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path) -> Lab:
    """A place for one test's input, table and checkpoint locations."""
    return Lab(spark, tmp_path)
