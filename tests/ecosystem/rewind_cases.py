"""A driver on Spark 4.1.1: queries to Delta and Iceberg go back whole and catch up; JSON, a line a case."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_checkpoint import checkpoint, restore, rewind, savepoint
from pyspark_checkpoint.errors import RefusedError
from tests.ecosystem.app import session

ROWS = 10
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass
class Case:
    """A query from files of numbers to a table, and what it captured."""

    spark: SparkSession
    root: Path
    output: str
    is_stateful: bool
    files: int = 0

    @property
    def name(self) -> str:
        """What the case is called, and its table."""
        return self.root.name

    @property
    def url(self) -> str:
        """Where its checkpoints go."""
        return str(self.root / "store")

    def run(self, files: int, per_trigger: int = 1, sink: str = "fail") -> None:
        """So many files more, as a driver that is started anew."""
        for number in range(self.files, self.files + files):
            source = self.root / "input"
            source.mkdir(parents=True, exist_ok=True)
            part = source / f".{number:05d}.json"
            part.write_text("".join(f'{{"n": {number * ROWS + at}}}\n' for at in range(ROWS)))
            part.rename(source / f"{number:05d}.json")
        self.files += files
        listener = checkpoint(self.spark, self.url, interval_seconds=0.0, sink=sink)
        rows = self.spark.readStream.schema("n LONG").option("maxFilesPerTrigger", per_trigger)
        numbers = rows.json(str(self.root / "input"))
        numbers = numbers.dropDuplicates(["n"]) if self.is_stateful else numbers
        writer = numbers.writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.root / "location"))
        if self.output == "iceberg":
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table} (n LONG) USING iceberg")
            query = writer.format("iceberg").toTable(self.table)
        else:
            query = writer.format("delta").start(str(self.root / "target"))
        query.awaitTermination()
        assert listener.flush()
        listener.close()

    @property
    def table(self) -> str:
        """The table's name in the catalog."""
        return f"lake.db.{self.name}"

    def found(self) -> list[int]:
        """The numbers that the table has."""
        if self.output == "iceberg":
            return sorted(row.n for row in self.spark.table(self.table).collect())
        return sorted(
            row.n for row in self.spark.read.format("delta").load(str(self.root / "target")).collect()
        )

    def expected(self) -> list[int]:
        """The numbers of all files."""
        return list(range(self.files * ROWS))

    def write_as_another(self) -> None:
        """One row of somebody else."""
        row = self.spark.range(-1, 0).selectExpr("id AS n")
        if self.output == "iceberg":
            row.writeTo(self.table).append()
        else:
            row.write.format("delta").mode("append").save(str(self.root / "target"))


def refused(work: Callable[[], object]) -> str:
    """The reason for which something is refused; empty if it is not."""
    try:
        work()
    except RefusedError as error:
        return str(error)
    return ""


def goes_back(case: Case) -> dict[str, Any]:
    """Back to a savepoint in the middle, and on with other cuts; another's commit is named."""
    case.run(3)
    savepoint(case.url, "good")
    case.run(3)
    ahead = refused(lambda: restore(case.url, str(case.root / "fresh"), "good", spark=case.spark))
    case.write_as_another()
    others = refused(lambda: rewind(case.url, at="good", spark=case.spark))
    assert case.found() == [-1, *case.expected()]
    said = rewind(case.url, at="good", spark=case.spark, drop_others=True, dry_run=True)
    done = rewind(case.url, at="good", spark=case.spark, drop_others=True)
    back = case.found() == list(range(3 * ROWS))
    case.run(2, per_trigger=3)
    case.run(1)
    return {
        "ahead": ahead,
        "others": others,
        "is_planned": said.plan == done.plan,
        "back": back,
        "exact": case.found() == case.expected(),
    }


def without_guard(case: Case) -> dict[str, Any]:
    """The restore that asks nobody, and a start that asks nobody: rows are nowhere."""
    case.run(3)
    savepoint(case.url, "good")
    case.run(3)
    restore(case.url, str(case.root / "fresh"), "good", sink="warn", spark=case.spark)
    shutil.rmtree(case.root / "location")
    (case.root / "fresh").rename(case.root / "location")
    case.run(3, per_trigger=3, sink="warn")
    return {"exact": case.found() == case.expected(), "lost": len(case.expected()) - len(case.found())}


def old_copy(case: Case) -> dict[str, Any]:
    """Somebody copied an old location by hand: stopped by the guard, then cured by it."""
    case.run(3)
    shutil.copytree(case.root / "location", case.root / "copy")
    case.run(2)
    shutil.rmtree(case.root / "location")
    (case.root / "copy").rename(case.root / "location")
    shutil.rmtree(case.url)
    case.run(0)
    stopped = not (case.root / "location" / "commits" / "3").exists()
    case.run(1, per_trigger=2, sink="rollback")
    return {"stopped": stopped, "exact": case.found() == case.expected()}


def main() -> None:
    """Every case that the first argument names: output, statefulness and what happens."""
    wanted = json.loads(sys.argv[1])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("OFF")
    happens = {"goes_back": goes_back, "without_guard": without_guard, "old_copy": old_copy}
    for output, is_stateful, what in wanted["cases"]:
        spark.conf.set(PROVIDER, ROCKSDB)
        name = f"{output}_{'stateful' if is_stateful else 'stateless'}_{what}"
        case = Case(spark, Path(wanted["directory"]) / name, output, is_stateful)
        print(json.dumps({"case": name, **happens[what](case)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
