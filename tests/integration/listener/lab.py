"""Queries whose every batch is kept, so that two runs can be compared batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.logs import decode_query_id
from tests.support.lab import QUERIES, SparkLab, has_ended


@dataclass
class Lab(SparkLab):
    """Queries that keep what every batch put out, and captures of their locations."""

    def start(self, query: str, location: Path | str, confs: dict[str, str], **options: str) -> Run:
        """Start a query on a checkpoint location; it ends when the input is used up."""
        build, mode = QUERIES[query]
        batches: dict[int, list[str]] = {}

        def keep(frame: DataFrame, batch: int) -> None:
            rows = frame.select(F.to_json(F.struct("*"))).collect()
            batches[batch] = sorted(row[0] for row in rows)

        def begin() -> StreamingQuery:
            self.set_confs(confs)
            writer = build(self).writeStream.outputMode(mode).foreachBatch(keep)
            writer = writer.option("checkpointLocation", str(location)).options(**options)
            return writer.trigger(availableNow=True).start()

        return Run(begin(), batches, begin)

    def run(self, query: str, location: Path | str, confs: dict[str, str]) -> dict[int, list[str]]:
        """Run a query to the end of its input and return what each batch put out."""
        return self.start(query, location, confs).finished()

    def capture(
        self, location: Path | str | LocationSpec, store: Path | str, epochs: Iterable[int]
    ) -> list[int]:
        """Capture these epochs of a location into a store, as the listener would; return their numbers."""
        spec = location if isinstance(location, LocationSpec) else LocationSpec(str(location))
        opened = spec.open()
        info = QueryInfo(id=decode_query_id(opened.read("metadata")), checkpoint_location=spec.url)
        history = CheckpointStore.open(str(store), query=info)
        run = history.writer()
        run.claim()
        capturer = QueryCapture(opened, run, QueryFacts(info, history.run_id, (), "test", "update"))
        numbers = []
        for epoch in epochs:
            manifest = capturer.capture(epoch)
            assert manifest is not None
            numbers.append(manifest.checkpoint_id)
        return numbers


@dataclass
class Run:
    """A running query and what its batches have put out so far."""

    query: StreamingQuery
    batches: dict[int, list[str]]
    begin: Callable[[], StreamingQuery]

    def finished(self) -> dict[int, list[str]]:
        """Wait for the end of the input, and return what each batch put out."""
        for _ in range(5):
            if has_ended(self.query):
                return self.batches
            self.query = self.begin()
        raise AssertionError("Spark's Python process does not start in time")
