"""A driver with real Delta tables: each goes back to a batch, and its query goes on. One session for all.

Prints a line of JSON for each case: what was planned, and the rows that the table then has.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.store.open import open_object_store
from tests.ecosystem.app import session

ROWS = 10
STAYS = 2
"""The batch to which the tables go back."""
APP_ID = "an-application"
FEATURES = {
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "2",
}


@dataclass(frozen=True)
class Case:
    """One table.

    Attributes:
        kind: ``append``, ``dedup`` and ``count`` (stateful), or ``foreach``.
        properties: Of the table, which is made beforehand if there are any.
        before: SQL after the batch that stays, before the next one.
        between: SQL between two batches that go.
        batch_id: The batch that stays; -1: none.
    """

    name: str
    kind: str = "append"
    properties: tuple[tuple[str, str], ...] = ()
    is_partitioned: bool = False
    before: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    batch_id: int = STAYS


OPTIMIZE, DELETE, INSERT = (
    "OPTIMIZE {t}",
    "DELETE FROM {t} WHERE n = {n}",
    "INSERT INTO {t} VALUES (-5, 'x')",
)
CASES = (
    Case("stateless"),
    Case("deduplication", "dedup"),
    Case("aggregation", "count"),
    Case("nothing_stays", "dedup", batch_id=-1),
    Case("foreach_batch", "foreach"),
    Case("compacted", "dedup", (("delta.checkpointInterval", "2"),), between=(OPTIMIZE,)),
    Case("partitioned", is_partitioned=True, before=(OPTIMIZE,), between=(OPTIMIZE,)),
    Case(
        "deletion_vectors",
        "append",
        (("delta.enableDeletionVectors", "true"),),
        before=(DELETE.replace("{n}", "1"),),
        between=(DELETE.replace("{n}", "2"), INSERT),
    ),
    Case(
        "features",
        "dedup",
        tuple(FEATURES.items()),
        is_partitioned=True,
        before=(DELETE.replace("{n}", "1"),),
        between=(OPTIMIZE, DELETE.replace("{n}", "2"), OPTIMIZE),
    ),
)


def rows_of(file: int) -> list[tuple[int, str]]:
    """What is in an input file: ten numbers, and those of the file before again, which only state knows."""
    return [(n, f"p {n % 2}") for n in range(max(0, (file - 1) * ROWS), (file + 1) * ROWS)]


class Run:
    """A query and its table, below one directory."""

    def __init__(self, spark: SparkSession, case: Case, root: Path) -> None:
        self.spark, self.case = spark, case
        self.directory = root / case.name
        self.location, self.path = self.directory / "location", self.directory / "table"
        self.sql_name = f"delta.`{self.path}`"
        self.query_id = ""

    def add_input(self, *files: int) -> None:
        """Files of these numbers."""
        source = self.directory / "input"
        source.mkdir(parents=True, exist_ok=True)
        for file in files:
            lines = [json.dumps({"n": n, "part": part}) for n, part in rows_of(file)]
            (source / f"{file:05d}.json").write_text("\n".join(lines))

    def process(self, files_per_trigger: int = 1) -> None:
        """All input that is there."""
        reader = self.spark.readStream.schema("n LONG, part STRING")
        rows = reader.option("maxFilesPerTrigger", files_per_trigger).json(str(self.directory / "input"))
        if self.case.kind == "dedup":
            rows = rows.dropDuplicates(["n"])
        elif self.case.kind == "count":
            rows = rows.selectExpr("n % 3 AS n", "part").groupBy("n", "part").count()
        writer = rows.writeStream.trigger(availableNow=True).option(
            "checkpointLocation", str(self.location)
        )
        writer = writer.outputMode("complete" if self.case.kind == "count" else "append")
        if self.case.kind == "foreach":
            query = writer.foreachBatch(self._write).start()
        else:
            writer = writer.partitionBy("part") if self.case.is_partitioned else writer
            query = writer.format("delta").start(str(self.path))
        query.awaitTermination()
        self.query_id = str(query.id)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", APP_ID).option("txnVersion", batch_id).save(str(self.path))

    def sql(self, statements: tuple[str, ...]) -> None:
        """What somebody else does to the table."""
        for statement in statements:
            self.spark.sql(statement.replace("{t}", self.sql_name))

    def create(self) -> None:
        """The table, if it is there before its query."""
        if self.case.properties:
            properties = ", ".join(f"'{name}' = '{value}'" for name, value in self.case.properties)
            parts = "PARTITIONED BY (part)" if self.case.is_partitioned else ""
            self.spark.sql(
                f"CREATE TABLE {self.sql_name} (n LONG, part STRING) USING delta {parts} "
                f"TBLPROPERTIES ({properties})"
            )

    def play(self) -> dict[str, Any]:
        """Batches 0 to 5, back, and on with two more files."""
        self.create()
        self.add_input(0, 1, 2)
        self.process()
        saved = self.directory / "saved"
        shutil.copytree(self.location, saved)
        if self.case.batch_id < 0:
            for path in saved.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
        self.sql(self.case.before)
        self.add_input(3)
        if self.case.between:
            self.process()
        self.sql(self.case.between)
        self.add_input(4, 5)
        self.process()
        query_id = APP_ID if self.case.kind == "foreach" else self.query_id
        output = DeltaOutput(str(self.path), open_object_store(str(self.path)))
        newest = output.position(query_id).batch_id
        plan = output.plan_roll_back(query_id, self.case.batch_id)
        assert plan is not None
        output.roll_back(plan)
        went_back = output.position(query_id).batch_id
        at_once = self.rows()
        shutil.rmtree(self.location)
        shutil.copytree(saved, self.location)
        first_id = self.query_id
        self.add_input(6, 7)
        self.process(files_per_trigger=3)
        history = self.spark.sql(f"DESCRIBE HISTORY {self.sql_name}").collect()
        return {
            "name": self.case.name,
            "is_kept_id": self.query_id == first_id,
            "newest": newest,
            "went_back": went_back,
            "dropped": plan.dropped,
            "others": plan.others,
            "at_once": at_once,
            "rows": self.rows(),
            "operations": [row["operation"] for row in history],
            "times_fall": all(a["timestamp"] >= b["timestamp"] for a, b in pairwise(history)),
        }

    def rows(self) -> list[list[Any]]:
        """The table as Spark reads it."""
        return sorted(list(row) for row in self.spark.read.format("delta").load(str(self.path)).collect())


def main() -> None:
    """Play every case."""
    wanted = json.loads(sys.argv[1])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    for case in CASES:
        print(json.dumps(Run(spark, case, Path(wanted["directory"])).play()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
