"""A driver for the example with MERGE: restored to an older batch, and once with a fixed id."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_checkpoint import restore
from tests.ecosystem.app import session

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
example: Any = importlib.import_module("merge_into_delta")


class Life:
    """The example's query on one table."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.table, self.location = str(directory / "table"), directory / "location"
        self.url = str(directory / "checkpoints")

    def run(self, *files: int, at_once: int = 1) -> str:
        """Add these files and process them; each has a new value for some keys."""
        source = self.directory / "input"
        source.mkdir(parents=True, exist_ok=True)
        for file in files:
            keys = range(file, file + 4)
            rows = [{"key": f"k{key % 7}", "value": file * 100 + key, "at": file} for key in keys]
            (source / f"{file:05d}.json").write_text("\n".join(map(json.dumps, rows)))
        places = (str(source), self.table, str(self.location), self.url)
        return str(example.run(self.spark, *places, at_once))

    def rows(self) -> list[list[Any]]:
        """The table as Spark reads it."""
        return sorted(list(row) for row in self.spark.read.format("delta").load(self.table).collect())

    def commits(self) -> list[list[Any]]:
        """The application and version of each transaction in the table's log."""
        found = []
        for path in sorted(Path(self.table, "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            found += [[one["txn"]["appId"], one["txn"]["version"]] for one in actions if "txn" in one]
        return found

    def play(self) -> dict[str, Any]:
        """Six batches, back to the third of them, and on with another one."""
        query_id = self.run(0, 1, 2)
        self.run(3, 4, 5)
        self.location = self.directory / "restored"
        restore(self.url, str(self.location), epoch=2)
        self.run(6, at_once=100)
        return {"query_id": query_id, "rows": self.rows(), "commits": self.commits()}


def main() -> None:
    """Play it, and again with the id that a user would choose without us."""
    wanted = json.loads(sys.argv[1])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps(Life(spark, Path(wanted["directory"]) / "ours").play()), flush=True)
    example.idempotent_options = lambda _query_id, batch_id, **_more: {
        "txnAppId": "fixed",
        "txnVersion": str(batch_id),
    }
    print(json.dumps(Life(spark, Path(wanted["directory"]) / "fixed").play()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
