"""Iceberg tables through the catalogs that a Spark session has, and those that pyiceberg knows besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_checkpoint.errors import NotFound, Unsupported
from pyspark_checkpoint.outputs.iceberg_table import IcebergTable
from pyspark_checkpoint.outputs.pyiceberg_table import find_pyiceberg_table
from pyspark_checkpoint.spark.hadoop_store import HadoopStore
from pyspark_checkpoint.spark.jvm import HadoopFiles, JvmIcebergTable
from pyspark_checkpoint.store.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionTables:
    """Finds tables in any catalog of a session, also one of files (``hadoop``), and by pyiceberg."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, name: str) -> IcebergTable | None:
        """A catalog's table by its name."""
        try:
            return JvmIcebergTable(self._spark, name)
        except (NotFound, Unsupported):
            return find_pyiceberg_table(name)

    def open_store(self, url: str) -> ObjectStore:
        """The files at a place that only Hadoop reaches."""
        return HadoopStore(HadoopFiles(self._spark), url)
