"""Stateful queries into a ckpt-sink: input in files, one a batch; table and state out, to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.lab import QUERIES, SparkLab, has_ended
from tests.support.lab import Counter as Processor
from tests.support.sink_kit import read_rows

KEYS = {
    "aggregation": "window,k",
    "grouped-state": "k",
    "shuffled": "k",
    "gathered": "k",
}
"""What tells the rows of a table apart; the others only add rows, or replace all."""


def events(lab: SparkLab) -> DataFrame:
    """The input, one file a batch."""
    stream = lab.spark.readStream.schema("id long, k long, ts long").option("maxFilesPerTrigger", 1)
    return stream.json(str(lab.inputs))


def _totals(lab: SparkLab) -> DataFrame:
    return events(lab).groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("s"))


def _two_branches(lab: SparkLab) -> DataFrame:
    """Two aggregations in one query: four sink partitions, two of each operator."""
    return _totals(lab).unionByName(_totals(lab).withColumn("k", F.col("k") + 1000))


def _three_branches(lab: SparkLab) -> DataFrame:
    """Three operators and no sink partition that is a state partition: a shuffle, a coalesce, one alone."""
    alone = events(lab).groupBy().agg(F.count("*").alias("n"), F.sum("id").alias("s"))
    gathered = _totals(lab).withColumn("k", F.col("k") + 1000).coalesce(1)
    branches = _totals(lab).repartition(3).unionByName(gathered)
    return branches.unionByName(alone.withColumn("k", F.lit(-1).cast("long")))


def _limited(lab: SparkLab) -> DataFrame:
    """An operator that keeps its state in one partition, beside rows that need no state."""
    return events(lab).limit(70).select("id").unionByName(events(lab).select("id"))


def _processor(lab: SparkLab) -> DataFrame:
    """Values, lists, maps and timers; a key whose timer ends has a second row in that batch."""
    late = events(lab).withColumn("t", F.timestamp_seconds("ts"))
    grouped = late.withWatermark("t", "20 seconds").groupBy("k")
    return grouped.transformWithStateInPandas(
        Processor(), "k long, n long, total long, times long", "append", "eventTime"
    )


def _grouped_state(lab: SparkLab) -> DataFrame:
    """Spark cannot shuffle the rows of this operator as they come out of it; a projection helps."""
    build, _ = QUERIES["grouped-state"]
    return build(lab).select("n", "k")


SHAPES: dict[str, tuple[Callable[[SparkLab], DataFrame], str]] = {
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


class Lab(SparkLab):
    """Queries into tables, and what tables and locations have."""

    def lose(self, location: str) -> None:
        """Take a location away at once: Spark's maintenance may still write into what it was."""
        Path(location).rename(f"{location}.lost")

    def start(
        self, query: str, name: str, confs: dict[str, str], location: str = "", **options: str
    ) -> StreamingQuery:
        """Start a query that writes to table ``name`` and ends when the input is used up."""
        self.set_confs(confs)
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
            again = [name for name, running in begun.items() if not has_ended(running)]
            if not again:
                return
            begun = {name: self.start(query, name, confs, locations[name], **options) for name in again}
        raise AssertionError("Spark's Python process does not start in time")

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
