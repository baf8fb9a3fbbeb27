"""A driver on Spark 4.1.1 that takes Iceberg tables back in many ways, and prints what each then has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_checkpoint import checkpoint, restore, rewind
from pyspark_checkpoint.errors import CheckpointError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.spark.jvm import JvmIcebergTable
from tests.ecosystem.app import session

ROWS = 5
JDBC = "books"
BEGAN_SECONDS = 1_700_000_000


class Case:
    """One query into one table of its own."""

    def __init__(
        self,
        spark: SparkSession,
        home: Path,
        name: str,
        catalog: str = "lake",
        *,
        is_stateful: bool = False,
    ) -> None:
        self.spark = spark
        self.home = home / name
        self.table = f"{catalog}.db.{name}"
        self.is_stateful = is_stateful
        self.location = self.home / "location"
        self.query_id = ""
        self.files = 0
        (self.home / "input").mkdir(parents=True)
        spark.sql(f"CREATE TABLE {self.table} (n LONG) USING iceberg")

    @property
    def output(self) -> IcebergOutput:
        """The table, as a restore with this session finds it."""
        return IcebergOutput(self.table, table=JvmIcebergTable(self.spark, self.table))

    @property
    def position(self) -> int | None:
        """The newest batch that it has."""
        return self.output.position(self.query_id).batch_id

    def feed(self, files: int) -> None:
        """Files of numbers that no other has; each says those of the file before once more."""
        for at in range(self.files, self.files + files):
            numbers = range(max(0, at - 1) * ROWS if self.is_stateful else at * ROWS, (at + 1) * ROWS)
            part = self.home / "input" / f".{at:05d}.json"
            part.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
            os.utime(part, (BEGAN_SECONDS + at,) * 2)  # Spark reads the oldest first
            part.rename(self.home / "input" / f"{at:05d}.json")
        self.files += files

    def run(self, files: int, per_batch: int = 1) -> None:
        """So many more files, so many in each batch."""
        self.feed(files)
        rows = self.spark.readStream.schema("n LONG").option("maxFilesPerTrigger", per_batch)
        frame = rows.json(str(self.home / "input"))
        if self.is_stateful:
            frame = frame.dropDuplicates(["n"])
        writer = frame.writeStream.queryName(self.home.name).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.location)).toTable(self.table)
        query.awaitTermination()
        self.query_id = str(query.id)

    def keep_location(self) -> None:
        """Remember the checkpoint location as it is."""
        shutil.copytree(self.location, self.home / "kept")

    def put_location_back(self) -> None:
        """Take it back to what was remembered."""
        shutil.rmtree(self.location)
        shutil.copytree(self.home / "kept", self.location)

    def go_back(self, batch_id: int) -> RollBackPlan:
        """Plan and carry out, twice."""
        plan = self.output.plan_roll_back(self.query_id, batch_id)
        assert plan is not None
        self.output.roll_back(plan)
        self.output.roll_back(plan)
        assert self.output.plan_roll_back(self.query_id, batch_id) is None
        return plan

    def answer(self, **more: Any) -> dict[str, Any]:
        """What the table has, and what it should."""
        found = sorted(row[0] for row in self.spark.table(self.table).collect())
        return {"found": found, "wanted": list(range(self.files * ROWS)), "position": self.position, **more}


def goes_back(case: Case, between: Callable[[Case], object] = lambda _: None) -> dict[str, Any]:
    """Three batches, three more that go, and then two that are cut otherwise."""
    case.run(3)
    case.keep_location()
    case.run(3)
    between(case)
    plan = case.go_back(2)
    after = case.position
    rows = case.spark.table(case.table).count()
    case.put_location_back()
    case.run(2, per_batch=4)
    return case.answer(after=after, rows=rows, dropped=plan.dropped, others=plan.others)


def rewrite(case: Case) -> None:
    """A compaction, and one more batch upon it."""
    name = case.table.partition(".")[2]
    case.spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    ).collect()
    case.run(1)


def expire(case: Case) -> None:
    """All snapshots that may go."""
    name = case.table.partition(".")[2]
    case.spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
    ).collect()


def refused(work: Callable[[], object]) -> str:
    """The code of the error."""
    try:
        work()
    except CheckpointError as error:
        return f"{error.code}: {error.message}"
    return "nothing was refused"


def by_tag(case: Case) -> dict[str, Any]:
    """Expired but for the tag of a savepoint, from which the query catches up."""
    case.run(3)
    case.keep_location()
    pin = case.output.pin("daily", case.query_id, 2)
    assert pin is not None
    case.run(3)
    expire(case)
    untagged = refused(lambda: case.output.plan_roll_back(case.query_id, 1))
    plan = case.go_back(2)
    case.output.unpin("daily")
    case.put_location_back()
    case.run(2, per_batch=4)
    refs = [row["name"] for row in case.spark.table(f"{case.table}.refs").collect()]
    return case.answer(kept=pin.is_kept, untagged=untagged, others=plan.others, refs=refs)


def foreign(case: Case) -> dict[str, Any]:
    """Another writer's rows: named beforehand; with a new commit since the plan nothing is undone."""
    case.run(2)
    case.spark.sql(f"INSERT INTO {case.table} VALUES (1000)")
    plan = case.output.plan_roll_back(case.query_id, 0)
    assert plan is not None
    case.spark.sql(f"INSERT INTO {case.table} VALUES (1001)")
    stale = refused(lambda: case.output.roll_back(plan))
    table = JvmIcebergTable(case.spark, case.table)
    late = refused(lambda: table.set_reference("main", int(plan.to_version), int(plan.from_version)))
    kept = case.spark.table(case.table).count()
    again = case.go_back(0)
    return case.answer(stale=stale, late=late, kept=kept, others=again.others)


def from_nothing(case: Case) -> dict[str, Any]:
    """All batches go; the query begins again at a new location, with another id."""
    case.run(3)
    case.go_back(-1)
    empty = case.spark.table(case.table).count()
    shutil.rmtree(case.location)
    case.run(1, per_batch=3)
    return case.answer(empty=empty)


def rewound(case: Case) -> dict[str, Any]:
    """The whole way: captured, refused, rewound with the session, caught up."""
    url = str(case.home / "checkpoints")
    listener = checkpoint(case.spark, url, interval_seconds=0.0)
    for _ in range(4):
        case.run(1)
        assert listener.flush(60.0)
    store = CheckpointStore.open(f"{url}/{case.query_id}")
    newest = store.load_latest()
    assert newest is not None
    sink = newest.sinks[0]
    listener.close()
    name = case.home.name
    fresh = str(case.home / "fresh")
    blocked = refused(lambda: restore(url, fresh, query=name, epoch=1, spark=case.spark))
    nowhere = refused(lambda: rewind(url, query=name, epoch=1))
    done = rewind(url, query=name, epoch=1, spark=case.spark)
    assert done.restored is not None
    after = case.position
    case.run(2, per_batch=3)
    return case.answer(
        after=after,
        kind=sink.kind,
        target=sink.target,
        place=sink.location,
        blocked=blocked,
        nowhere=nowhere,
        rolled_back=[list(plan.dropped) for plan in done.restored.rolled_back],
    )


def in_a_thread(case: Case) -> dict[str, Any]:
    """A new thread, without an active session, asks by a session that has not used its catalog yet."""
    case.run(2)
    own = case.spark.newSession()

    def ask() -> tuple[int | None, bool]:
        table = JvmIcebergTable(own, case.table)
        position = IcebergOutput(case.table, table=table).position(case.query_id)
        return position.batch_id, SparkSession.getActiveSession() is None

    with ThreadPoolExecutor(1) as pool:
        asked, is_left = pool.submit(ask).result()
    return case.answer(asked=asked, is_left=is_left)


def lost(case: Case) -> dict[str, Any]:
    """The machine is lost: before an application starts nobody has the catalog. Then the command has it."""
    url = str(case.home / "checkpoints")
    with checkpoint(case.spark, url, interval_seconds=0.0) as listener:
        case.run(2)
        assert listener.flush(60.0)
    case.run(2)
    shutil.rmtree(case.location)
    given = {"app": "ecosystem", "spark.ckpt.url": url, "spark.ckpt.restore": "missing"}
    told = subprocess.run(
        [sys.executable, "-c", "from pyspark_checkpoint.plugin.auto_restore import main; main()"],
        input=json.dumps({**given, "spark.ckpt.sink": "rollback"}),
        capture_output=True,
        text=True,
        check=False,
    ).stderr.strip()
    is_unchanged = case.position == 3 and not case.location.exists()
    found = re.search(r"ckpt (restore .*) --conf NAME=VALUE", told)
    assert found is not None, told
    conf = case.spark.sparkContext.getConf()
    names = ["spark.jars", *(f"spark.sql.catalog.lake{end}" for end in ("", ".type", ".warehouse"))]
    said = [part for name in names for part in ("--conf", f"{name}={conf.get(name)}")]
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_checkpoint", *found[1].split(), *said],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    case.spark.catalog.refreshTable(case.table)
    after = case.position
    case.run(1, per_batch=3)
    return case.answer(told=told, is_unchanged=is_unchanged, after=after)


def main() -> None:
    """All cases, in one session."""
    wanted = json.loads(sys.argv[1])
    home = Path(wanted["directory"])
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "stateless": lambda: goes_back(Case(spark, home, "stateless")),
        "stateful": lambda: goes_back(Case(spark, home, "stateful", is_stateful=True)),
        "jdbc": lambda: goes_back(Case(spark, home, "jdbc", JDBC)),
        "rewritten": lambda: goes_back(Case(spark, home, "rewritten", is_stateful=True), rewrite),
        "tagged": lambda: by_tag(Case(spark, home, "tagged")),
        "foreign": lambda: foreign(Case(spark, home, "foreign")),
        "from_nothing": lambda: from_nothing(Case(spark, home, "from_nothing")),
        "in_a_thread": lambda: in_a_thread(Case(spark, home, "in_a_thread")),
        "lost": lambda: lost(Case(spark, home, "lost", is_stateful=True)),
        "rewound": lambda: rewound(Case(spark, home, "rewound", is_stateful=True)),
    }
    answers = {name: work() for name, work in cases.items() if name in wanted.get("cases", cases)}
    absent = refused(lambda: JvmIcebergTable(spark, "lake.db.absent"))
    unknown = refused(lambda: JvmIcebergTable(spark, "nowhere.db.absent"))
    print(json.dumps({**answers, "absent": {"lake": absent, "nowhere": unknown}}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
