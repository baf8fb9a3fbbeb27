"""Writing a large restore from the executors: one Spark job, a group of state files a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import SparkSession

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.restorer.execute import write_plain
from pyspark_checkpoint.restorer.plan import RestoredFile
from pyspark_checkpoint.spark_files.inventory import NODES_HINT
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.open import open_object_store

JOB_DESCRIPTION = "checkpoint restore"


class ExecutorRestore:
    """Writes groups of state files in tasks of a Spark job. A task that runs twice does no harm."""

    def __init__(
        self, spark: SparkSession, url: str, options: Mapping[str, str], location: LocationSpec
    ) -> None:
        """``url`` is the query's own store."""
        self._spark = spark
        self._url = url
        self._options = options
        self._location = location

    def __call__(self, groups: Sequence[Sequence[RestoredFile]]) -> Iterator[int]:
        """Write every group. A task verifies every byte; the driver, that all files are here."""
        url, options = self._url, dict(self._options)
        location = LocationSpec(self._location.url, dict(self._location.options), self._location.becomes)

        def work(group: Sequence[RestoredFile]) -> int | str:
            try:
                return write_plain(open_object_store(url, options), location.open(), group)
            except FormatError as error:
                return str(error)

        context = self._spark.sparkContext
        context.setJobDescription(JOB_DESCRIPTION)
        sent = [tuple(group) for group in groups]
        answers = context.parallelize(sent, len(sent)).map(work).collect()
        for answer in answers:
            if isinstance(answer, str):
                raise FormatError(answer)
            yield answer
        self._check(sent)

    def _check(self, groups: Sequence[Sequence[RestoredFile]]) -> None:
        """Executors may have written to disks of their own."""
        found = {info.key: info.size_bytes for info in self._location.open().store.list("state/")}
        for group in groups:
            for file in group:
                if found.get(file.path) != file.ref.size_bytes:
                    raise RefusedError(
                        f"an executor has written {file.path}, and it is not here", hint=NODES_HINT
                    )
