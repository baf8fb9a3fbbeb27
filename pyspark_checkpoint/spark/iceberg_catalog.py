"""Iceberg tables through the catalogs that a Spark session has, and those that pyiceberg knows besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_checkpoint.errors import NotFound, Unsupported
from pyspark_checkpoint.outputs.iceberg_table import FindTable, IcebergTable
from pyspark_checkpoint.outputs.pyiceberg_table import find_pyiceberg_table
from pyspark_checkpoint.spark.jvm import JvmIcebergTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_tables(spark: SparkSession) -> FindTable:
    """How outputs find tables with a session: any catalog of its confs, also one of files (``hadoop``)."""

    def find(name: str) -> IcebergTable | None:
        try:
            return JvmIcebergTable(spark, name)
        except (NotFound, Unsupported):
            return find_pyiceberg_table(name)

    return find
