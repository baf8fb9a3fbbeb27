"""A driver whose queries write to Delta in foreachBatch, killed after the commit of a batch, then rewound.

In its first life each query stops for ever before it writes ``commits`` of ``KILLED_IN``, whose rows Delta
has; once all of them stand still, the driver is killed. The second life goes on, and then back to ``STAYS``
and on with another batch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpoint import checkpoint, idempotent_options, open_object_store, rewind, savepoint
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from tests.ecosystem.app import session
from tests.support.waiting import wait_until

KINDS = ("merge", "fixed", "append", "plain")
"""The example; the same with an id that a user would choose without us; appends of a query with state; and
appends without any id."""
KILLED_IN = 3
STAYS = 2
FILES, FILES_IN_THE_END = 6, 7
SECONDS = 600.0


def _load_example() -> Any:
    """The example with MERGE, once more for each user of it."""
    source = Path(__file__).parents[2] / "examples" / "merge_into_delta.py"
    spec = importlib.util.spec_from_file_location("merge_into_delta", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(file: int) -> list[dict[str, Any]]:
    """What is in an input file: a new value for four of seven keys."""
    return [{"key": f"k{key % 7}", "value": file * 100 + key, "at": file} for key in range(file, file + 4)]


class Life:
    """One query and its table."""

    def __init__(self, spark: SparkSession, root: Path, kind: str) -> None:
        self.kind, self.directory = kind, root / kind
        self.spark = spark.newSession()
        self.table, self.location = str(self.directory / "table"), str(self.directory / "location")
        self.url = str(self.directory / "checkpoints")
        self.example = _load_example()
        if kind == "fixed":
            self.example.idempotent_options = lambda _query_id, batch_id, **_more: {
                "txnAppId": "fixed",
                "txnVersion": str(batch_id),
            }

    @property
    def has_state(self) -> bool:
        """Whether it drops what it has seen; the rows of the file before come again with each file."""
        return self.kind in ("append", "plain")

    def run(self, first: int, last: int, at_once: int = 1, *, captures: bool = True) -> str:
        """Add these files, process what is there, and return the query's id."""
        source = self.directory / "input"
        source.mkdir(parents=True, exist_ok=True)
        for file in range(first, last):
            rows = [*rows_of(file), *(rows_of(file - 1) if self.has_state and file else ())]
            (source / f"{file:05d}.json").write_text("\n".join(map(json.dumps, rows)))
        url = self.url if captures else None
        if not self.has_state:
            return str(self.example.run(self.spark, str(source), self.table, self.location, url, at_once))
        listener = checkpoint(self.spark, self.url, interval_seconds=0.0) if captures else None
        reader = self.spark.readStream.schema("key STRING, value LONG, at LONG")
        numbers = reader.option("maxFilesPerTrigger", at_once).json(str(source))
        query = (
            numbers.dropDuplicates(["value"])
            .writeStream.queryName(self.kind)
            .foreachBatch(self.append)
            .option("checkpointLocation", self.location)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if listener is not None:
            listener.close()
        return str(query.id)

    def append(self, batch: DataFrame, batch_id: int) -> None:
        """Write one batch; it runs, and with it its state, whether or not Delta then drops the write."""
        spark = batch.sparkSession
        query_id = cast(str, spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        options = {} if self.kind == "plain" else idempotent_options(query_id, batch_id, spark=spark)
        batch.persist()
        batch.count()
        batch.write.format("delta").mode("append").options(**options).save(self.table)
        batch.unpersist()

    def go_back(self) -> None:
        """Rewind the query; what it has appended goes before, since nobody knows that it is the query's."""
        if self.kind == "append":
            output = DeltaOutput(self.table, open_object_store(self.table))
            plan = output.plan_roll_back(self.query_id, STAYS)
            assert plan is not None
            assert not plan.others
            output.roll_back(plan)
        rewind(self.url, at="good")

    def answer(self) -> dict[str, Any]:
        """The table as Spark reads it, and the application and version of each transaction in its log."""
        rows = sorted(list(row) for row in self.spark.read.format("delta").load(self.table).collect())
        commits = []
        for path in sorted(Path(self.table, "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            commits += [[one["txn"]["appId"], one["txn"]["version"]] for one in actions if "txn" in one]
        return {"rows": rows, "commits": commits}

    def first(self) -> None:
        """Three batches with checkpoints, and one that stops at its end."""
        self.run(0, KILLED_IN)
        savepoint(self.url, "good")
        (self.directory / "freeze").write_text(f"before location/commits/{KILLED_IN}")
        self.run(KILLED_IN, KILLED_IN + 1, captures=False)

    def second(self) -> dict[str, Any]:
        """That batch again, two more, and back."""
        before = self.answer()
        self.query_id = self.run(KILLED_IN + 1, FILES)
        repeated = self.answer()
        if self.kind != "plain":
            self.go_back()
            assert self.run(FILES, FILES_IN_THE_END, at_once=100) == self.query_id
        end = self.answer()
        return {"query_id": self.query_id, "before": before, "repeated": repeated, "end": end}


def play_first(lives: list[Life]) -> None:
    """Until all of them stand still. Never ends by itself."""
    failed = list[str]()

    def play(work: Callable[[], None]) -> None:
        try:
            work()
            failed.append("it did not stop")
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            failed.append(str(error)[:3000])

    for life in lives:
        threading.Thread(target=play, args=(life.first,), daemon=True).start()

    def are_still() -> bool:
        assert not failed, failed
        return all((life.directory / "frozen").exists() for life in lives)

    wait_until(are_still, "the stop of all", SECONDS)
    print("still", flush=True)
    time.sleep(SECONDS)


def main() -> None:
    """Play the life that the first argument says."""
    wanted = json.loads(sys.argv[1])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    lives = [Life(spark, Path(wanted["directory"]), kind) for kind in KINDS]
    if wanted["life"] == "first":
        play_first(lives)
    for life in lives:
        print(json.dumps({"kind": life.kind, **life.second()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
