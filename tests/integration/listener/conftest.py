"""One Spark session for all tests of captures and restores that do not kill their driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.listener.lab import Lab
from tests.support.drivers.session import QUICK_SNAPSHOTS, spark_session
from tests.support.lab import write_inputs


@pytest.fixture(scope="session")
def spark(jar: Path) -> Iterator[SparkSession]:
    """A session whose maintenance runs every second, so that snapshots are made."""
    conf = {"spark.sql.session.timeZone": "UTC", **QUICK_SNAPSHOTS}
    with spark_session("capture", conf, jar=jar) as session:
        yield session


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
