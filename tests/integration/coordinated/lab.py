"""Stateful queries into a ckpt-sink: input in files, one a batch; table and state out, to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.integration.listener.lab import QUERIES, write_inputs
from tests.integration.listener.lab import Counter as Processor
from tests.support.sink_kit import read_rows

KEYS = {
    "aggregation": "window,k",
    "grouped-state": "k",
    "shuffled": "k",
    "gathered": "k",
}
"""What tells the rows of a table apart; the others only add rows, or replace all."""


def events(lab: Lab) -> DataFrame:
    """The input, one file a batch."""
    stream = lab.spark.readStream.schema("id long, k long, ts long").option("maxFilesPerTrigger", 1)
    return stream.json(str(lab.inputs))


def _totals(lab: Lab) -> DataFrame:
    return events(lab).groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("s"))


def _two_branches(lab: Lab) -> DataFrame:
    """Two aggregations in one query: four sink partitions, two of each operator."""
    return _totals(lab).unionByName(_totals(lab).withColumn("k", F.col("k") + 1000))


def _three_branches(lab: Lab) -> DataFrame:
    """Three operators and no sink partition that is a state partition: a shuffle, a coalesce, one alone."""
    alone = events(lab).groupBy().agg(F.count("*").alias("n"), F.sum("id").alias("s"))
    gathered = _totals(lab).withColumn("k", F.col("k") + 1000).coalesce(1)
    branches = _totals(lab).repartition(3).unionByName(gathered)
    return branches.unionByName(alone.withColumn("k", F.lit(-1).cast("long")))


def _limited(lab: Lab) -> DataFrame:
    """An operator that keeps its state in one partition, beside rows that need no state."""
    return events(lab).limit(70).select("id").unionByName(events(lab).select("id"))


def _processor(lab: Lab) -> DataFrame:
    """Values, lists, maps and timers; a key whose timer ends has a second row in that batch."""
    late = events(lab).withColumn("t", F.timestamp_seconds("ts"))
    grouped = late.withWatermark("t", "20 seconds").groupBy("k")
    return grouped.transformWithStateInPandas(
        Processor(), "k long, n long, total long, times long", "append", "eventTime"
    )


def _grouped_state(lab: Lab) -> DataFrame:
    """Spark cannot shuffle the rows of this operator as they come out of it; a projection helps."""
    build, _ = QUERIES["grouped-state"]
    return build(lab).select("n", "k")


SHAPES: dict[str, tuple[Callable[[Lab], DataFrame], str]] = {
    **QUERIES,
    "grouped-state": (_grouped_state, "update"),
    "transform-with-state": (_processor, "append"),
    "shuffled": (lambda lab: _totals(lab).repartition(3), "update"),
    "gathered": (lambda lab: _totals(lab).coalesce(1), "update"),
    "union": (_two_branches, "complete"),
    "branches": (_three_branches, "complete"),
    "limited": (_limited, "append"),
}
STORES: dict[str, list[dict[str, str]]] = {
    "join": [
        {"storeName": f"{side}-{store}"}
        for side in ("left", "right")
        for store in ("keyToNumValues", "keyWithIndexToValue")
    ],
    "two-operators": [{"operatorId": "0"}, {"operatorId": "1"}],
    "union": [{"operatorId": "0"}, {"operatorId": "1"}],
    "branches": [{"operatorId": "0"}, {"operatorId": "1"}, {"operatorId": "2"}],
    "transform-with-state": [
        {"stateVarName": "count"},
        {"stateVarName": "seen"},
        {"stateVarName": "byTs"},
    ],
    "stateless": [],
}
"""How Spark's own reader is told what to read of a query's state."""


@dataclass
class Lab:
    """A session, its input, and the directories of one test."""

    spark: SparkSession
    inputs: Path
    directory: Path

    def put(self, *numbers: int) -> None:
        """Add files to the input: each is a batch."""
        write_inputs(self.inputs, numbers)

    def path(self, name: str) -> str:
        """A directory of this test."""
        return str(self.directory / name)

    def lose(self, location: str) -> None:
        """Take a location away at once: Spark's maintenance may still write into what it was."""
        Path(location).rename(f"{location}.lost")

    def start(
        self, query: str, name: str, confs: dict[str, str], location: str = "", **options: str
    ) -> StreamingQuery:
        """Start a query that writes to table ``name`` and ends when the input is used up."""
        for conf, value in confs.items():
            self.spark.conf.set(conf, value)
        build, mode = SHAPES[query]
        writer = build(self).writeStream.outputMode(mode).format("ckpt-sink").queryName(f"{name}-{query}")
        writer = writer.option("checkpointLocation", location or self.path(f"{name}-location"))
        keys = {"keyColumns": KEYS[query]} if query in KEYS else {}
        writer = writer.options(**{"state": "on", "retain": "all", **keys, **options})
        return writer.trigger(availableNow=True).start(self.path(name))

    def run(self, query: str, name: str, confs: dict[str, str], location: str = "", **options: str) -> None:
        """The same, and wait for its end."""
        self.run_all(query, confs, {name: location}, **options)

    def run_all(self, query: str, confs: dict[str, str], locations: dict[str, str], **options: str) -> None:
        """Run a query for several tables at once. Started again if only the machine was too busy for it."""
        begun = {name: self.start(query, name, confs, at, **options) for name, at in locations.items()}
        for _ in range(5):
            again = [name for name, running in begun.items() if not self._ended(running)]
            if not again:
                return
            begun = {name: self.start(query, name, confs, locations[name], **options) for name in again}
        raise AssertionError("Spark's Python process does not start in time")

    @staticmethod
    def _ended(running: StreamingQuery) -> bool:
        """Wait for the end of a query; False if Spark's Python process did not come up for it."""
        try:
            assert running.awaitTermination(240), "the query has not ended in time"
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
            return False
        return True

    def history(self, name: str) -> CheckpointStore:
        """The history of a table."""
        return CheckpointStore.open(self.path(name))

    def table(self, name: str, **options: str) -> Counter[str]:
        """The rows of a table."""
        found = self.spark.read.format("ckpt-sink").options(**options).load(self.path(name))
        return Counter(row[0] for row in found.select(F.to_json(F.struct("*"))).collect())

    def rows(self, name: str, epoch: int) -> Counter[str]:
        """The rows of a table at an epoch, read without Spark, which takes a second for it."""
        CACHE.forget()
        return Counter(map(repr, read_rows(self.path(name), epoch=str(epoch))))

    def state(self, query: str, location: str) -> list[Counter[str]]:
        """The state of a location after its newest batch, as Spark's own reader shows it."""
        return [
            Counter(
                row[0]
                for row in self.spark.read.format("statestore")
                .options(**{"path": location, **given})
                .load()
                .drop("partition_id")
                .select(F.to_json(F.struct("*")))
                .collect()
            )
            for given in STORES.get(query, [{}])
        ]
