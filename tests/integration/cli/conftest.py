"""One Spark session that commands find active."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.cli.conftest import ckpt, parent, table
from tests.support.drivers.session import spark_session

__all__ = ["ckpt", "parent", "table"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that commands find active."""
    with spark_session("cli", {}) as session:
        yield session
