"""The matrix of kills: what is tried, and the driver that tries it on Spark 4.1.1.

One driver plays the first life of many queries. Each stops for ever at a file of its own; once all of them
stand still, the driver is killed. So every kill is at the point that its case names, and one driver serves
a dozen of them. The second life goes on from what was restored, and prints what every output then has. It
reads more files a batch than the first: what it plans anew is not what an output has under the same number.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_checkpoint import checkpoint, restore
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from tests.ecosystem.app import session

ROWS = 10
FIRST_TIME = 1_700_000_000
FIRST_FILES, FILES = 7, 10
LATER_FILES_A_BATCH = 3
WINDOW = 30
SCHEMA = "n LONG, counted LONG, total LONG"
SECONDS = 600.0
AT_ONCE = 3
OUTPUTS = ("ckpt-sink", "file", "delta", "iceberg")
QUERIES = ("stateless", "aggregation", "join")
STATES = ("hdfs", "rocksdb1", "rocksdb2")
KILLS = ("before-sink", "after-sink", "after-commit", "after-capture")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@dataclass(frozen=True)
class Case:
    """One query and its kill.

    Attributes:
        output: What it writes to.
        query: Whether and how it has state.
        state: Where that is.
        kill: Where the driver is killed in ``batch``.
        batch: The batch in which that happens.
        is_clone: Whether the restored query has a new id.
        back: How many checkpoints before the newest it goes on from.
        is_elsewhere: Whether the clone has another target than the query had.
        is_naive: Whether it is restored although its output says that rows would be lost or duplicated.
    """

    output: str
    query: str
    state: str
    kill: str
    batch: int = 4
    is_clone: bool = False
    back: int = 0
    is_elsewhere: bool = False
    is_naive: bool = False

    @property
    def name(self) -> str:
        """A name that Spark and a table can have."""
        goes_on = ("elsewhere" if self.is_elsewhere else "clone") if self.is_clone else "kept"
        words = [self.output, self.query, self.state, self.kill, self.batch, goes_on, self.back]
        words += ["naive"] if self.is_naive else []
        return "_".join(str(word) for word in words).replace("-", "_")

    @property
    def written_batch(self) -> int:
        """The newest batch that the output has when the driver is killed."""
        return self.batch - 1 if self.kill == "before-sink" else self.batch

    @property
    def captured_batch(self) -> int:
        """The newest batch of which there is a checkpoint when the driver is killed."""
        return self.batch if self.kill == "after-capture" else self.batch - 1

    @property
    def freeze(self) -> str:
        """The file at which the query stops."""
        if self.kill == "before-sink":
            return f"after location/offsets/{self.batch}"
        if self.kill == "after-sink":
            return f"before location/commits/{self.batch}"
        return f"before location/offsets/{self.batch + 1}"

    def directory(self, root: str) -> Path:
        """Where everything of this case is."""
        return Path(root) / self.name

    def target(self, root: str) -> str:
        """Where the rows go until the driver is killed."""
        if self.output == "iceberg":
            return str(Path(root) / "warehouse" / "db" / self.name)
        return str(self.directory(root) / "target")

    def second_target(self, root: str) -> str:
        """Where they go afterwards."""
        return f"{self.target(root)}_2" if self.is_elsewhere else self.target(root)

    def store_url(self, root: str) -> str:
        """Where its checkpoints are: a ckpt-sink commits them with its rows."""
        return self.target(root) if self.output == "ckpt-sink" else str(Path(root) / "checkpoints")

    def expected_after(self, batch_id: int) -> list[list[int]]:
        """What the output must have after a batch. It learns that a window is over from the one before."""
        return self.expected(batch_id + (self.query != "aggregation"))

    def expected(self, files: int) -> list[list[int]]:
        """What the output must have once so many files were read, from the input alone."""
        last = files * ROWS
        if self.query == "stateless":
            return [[n, 1, n] for n in range(last)]
        if self.query == "join":
            return [[n, 1, n] for n in range(last - ROWS)]
        return [
            [start, WINDOW, sum(range(start, start + WINDOW))] for start in range(0, last - WINDOW, WINDOW)
        ]


CASES = (
    Case("file", "stateless", "hdfs", "after-sink"),
    Case("file", "aggregation", "rocksdb2", "after-sink"),
    Case("file", "join", "rocksdb1", "after-commit"),
    Case("file", "aggregation", "hdfs", "after-capture", back=2),
    Case("delta", "stateless", "hdfs", "after-capture", is_clone=True),
    Case("delta", "aggregation", "rocksdb2", "after-sink"),
    Case("delta", "join", "hdfs", "before-sink"),
    Case("delta", "aggregation", "rocksdb1", "after-commit", is_clone=True),
    Case("iceberg", "stateless", "hdfs", "after-commit", back=2),
    Case("iceberg", "aggregation", "rocksdb1", "after-sink"),
    Case("iceberg", "join", "rocksdb2", "after-sink"),
    Case("iceberg", "stateless", "hdfs", "after-capture", is_clone=True),
    Case("iceberg", "aggregation", "hdfs", "after-commit", is_clone=True, is_elsewhere=True),
    Case("delta", "join", "rocksdb2", "after-sink", is_clone=True, is_elsewhere=True),
    Case("file", "aggregation", "rocksdb2", "after-commit", is_clone=True, is_elsewhere=True),
    Case("ckpt-sink", "aggregation", "hdfs", "after-sink"),
    Case("ckpt-sink", "join", "rocksdb2", "before-sink"),
    Case("ckpt-sink", "stateless", "hdfs", "after-commit", is_clone=True),
    Case("ckpt-sink", "join", "hdfs", "after-sink", back=1, is_clone=True, is_elsewhere=True),
)
"""Every output, kind of state and point of a kill at least once, and what is known to be hard."""


NAIVE_CASES = (
    Case("file", "stateless", "hdfs", "after-capture", back=2, is_naive=True),
    Case("delta", "stateless", "hdfs", "after-commit", back=1, is_naive=True),
    Case("iceberg", "stateless", "hdfs", "after-capture", back=2, is_naive=True),
    Case("delta", "aggregation", "hdfs", "after-sink", is_clone=True, is_naive=True),
    Case("iceberg", "join", "hdfs", "after-capture", back=1, is_clone=True, is_naive=True),
)
"""Restores that ask nobody: rows are lost, or are there twice."""


def random_cases(seed: int, count: int) -> Sequence[Case]:
    """Other cases of the matrix, each once."""
    chance, found = random.Random(seed), dict[str, Case]()
    while len(found) < count:
        output, query = chance.choice(OUTPUTS), chance.choice(QUERIES)
        state, kill = chance.choice(STATES), chance.choice(KILLS)
        is_clone = chance.random() < 0.3
        case = Case(
            output,
            query,
            state,
            kill,
            batch=chance.randrange(2, FIRST_FILES - 2),
            is_clone=is_clone,
            back=chance.choice((0, 0, 1, 2)),
            is_elsewhere=is_clone and chance.random() < 0.5,
        )
        if case.back <= case.captured_batch:  # there are so many checkpoints
            found[case.name] = case
    return tuple(found.values())


def write_input(directory: Path, files: range) -> None:
    """One file a batch; the second source has each number one batch later."""
    for name, delay in (("input", 0), ("later", 1)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            first = (file - delay) * ROWS
            lines = "".join(f'{{"n": {n}}}\n' for n in range(first, first + ROWS))
            part = directory / name / f".{file:05d}.json"
            part.write_text(lines)
            os.utime(part, (FIRST_TIME + file, FIRST_TIME + file))  # Spark reads files by their times
            part.rename(directory / name / f"{file:05d}.json")


def rows(spark: SparkSession, case: Case, root: str, files_a_batch: int) -> DataFrame:
    """What the query computes."""

    def read(name: str) -> DataFrame:
        reader = spark.readStream.schema("n LONG").option("maxFilesPerTrigger", files_a_batch)
        return reader.json(str(case.directory(root) / name))

    numbers = read("input")
    if case.query == "aggregation":
        timed = numbers.withColumn("t", f.timestamp_seconds("n")).withWatermark("t", "0 seconds")
        counted = timed.groupBy(f.window("t", f"{WINDOW} seconds")).agg(f.count("n"), f.sum("n"))
        return counted.toDF("window", "counted", "total").select(
            f.unix_timestamp("window.start").alias("n"), "counted", "total"
        )
    if case.query == "join":
        numbers = numbers.join(read("later"), "n")
    return numbers.select("n", f.lit(1).cast("long").alias("counted"), f.col("n").alias("total"))


def start(
    spark: SparkSession, case: Case, root: str, target: str, files_a_batch: int = 1
) -> StreamingQuery:
    """Start the query with its kind of state."""
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass", _HDFS if case.state == "hdfs" else _ROCKSDB
    )
    version = "2" if case.state == "rocksdb2" else "1"
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", version)
    computed = rows(spark, case, root, files_a_batch)
    writer = computed.writeStream.queryName(case.name).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(case.directory(root) / "location"))
    if case.output == "iceberg":
        table = f"lake.db.{Path(target).name}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({SCHEMA}) USING iceberg")
        return writer.format("iceberg").toTable(table)
    kind = "parquet" if case.output == "file" else case.output
    return writer.format(kind).start(target)


def read_rows(spark: SparkSession, case: Case, target: str) -> list[list[int]]:
    """What an output has, as Spark reads it; nothing if it was never written to."""
    if not Path(target).exists():
        return []
    if case.output == "iceberg":
        found = spark.table(f"lake.db.{Path(target).name}")
    else:
        found = spark.read.format("parquet" if case.output == "file" else case.output).load(target)
    return sorted([row.n, row.counted, row.total] for row in found.collect())


@dataclass
class Outcome:
    """How a restore went.

    Attributes:
        refused: Why it was refused, each time.
        choice: What was chosen for outputs that are ahead when it was not refused.
        done_batch: The batch after which the query goes on; None if every choice was refused.
    """

    refused: list[str] = field(default_factory=list)
    choice: str = ""
    done_batch: int | None = None


def choices(case: Case) -> tuple[str, ...]:
    """What is tried, one after the other. A clone leaves the outputs as they are."""
    if case.is_naive:
        return ("warn",)
    if case.is_clone:
        return ("fail", "warn") if case.is_elsewhere else ("fail",)
    return ("fail", "rollback")


def go_back(case: Case, root: str, spark: SparkSession | None = None) -> Outcome:
    """Lose the location and restore it, by the default first.

    A table of Iceberg's hadoop catalog goes back by a session that has the catalog, and by nothing else.
    """
    location, url = case.directory(root) / "location", case.store_url(root)
    place = None if spark is None else f"lake.db.{case.name}"
    if case.is_elsewhere and case.output == "file":
        place = case.second_target(root)  # its log must begin there
    shutil.rmtree(location)
    query = None if case.output == "ckpt-sink" else case.name
    newest = CheckpointStore.open(url).list()[-1][1] if query is None else case.captured_batch
    chosen: dict[str, Any] = {"epoch": newest - case.back} if case.back else {}
    outcome = Outcome()
    for choice in choices(case):
        try:
            report = restore(
                url,
                str(location),
                query=query,
                clone=case.is_clone,
                sink=choice,
                sink_location=place,
                spark=spark,
                **chosen,
            )
        except RefusedError as error:
            outcome.refused.append(str(error))
            assert not location.exists(), "a restore that is refused changes nothing"
        else:
            outcome.choice = choice
            outcome.done_batch = report.batch_id - (report.point is RestorePoint.BEFORE)
            break
    return outcome


def hold_captures(cases: Sequence[Case], root: str) -> None:
    """Let no checkpoint be made beyond ``captured_batch``: the capture of that batch is what is lost."""
    capture = QueryCapture.capture

    def held(self: QueryCapture, epoch: int | None = None) -> Any:
        for case in cases:
            location = case.directory(root) / "location"
            if self.location.store.url.endswith(str(location)):
                done = [int(path.name) for path in (location / "commits").glob("[0-9]*")]
                allowed = max((batch for batch in done if batch <= case.captured_batch), default=None)
                return None if allowed is None else capture(self, allowed)
        return capture(self, epoch)

    setattr(QueryCapture, "capture", held)  # noqa: B010 - a method, which mypy wants left alone


def first_life(spark: SparkSession, cases: Sequence[Case], root: str) -> Iterator[dict[str, Any]]:
    """Start each query and wait until it stands still and its checkpoint is made. Never ends by itself."""
    hold_captures(cases, root)

    def play(case: Case) -> dict[str, Any]:
        directory = case.directory(root)
        write_input(directory, range(FIRST_FILES))
        (directory / "freeze").write_text(case.freeze)
        own, newest = spark.newSession(), None
        checkpoint(own, str(Path(root) / "checkpoints"), interval_seconds=0.0)
        query = start(own, case, root, case.target(root))
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and query.isActive:
            if (directory / "frozen").exists():
                if case.output == "ckpt-sink":
                    return {"name": case.name, "captured": None}
                found = CheckpointStore.open(f"{case.store_url(root)}/{query.id}").load_latest()
                newest = None if found is None else found.batch_id
                if newest == case.captured_batch:
                    return {"name": case.name, "captured": newest}
            time.sleep(0.1)
        return {"name": case.name, "error": f"captured {newest}: {query.exception()}"}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(play, cases)


def second_life(
    spark: SparkSession,
    cases: Sequence[Case],
    root: str,
    files: range = range(FIRST_FILES, FILES),
    files_a_batch: int = LATER_FILES_A_BATCH,
    retain: int = 0,
) -> Iterator[dict[str, Any]]:
    """Go on with each query, with these files more, and say what its output has in the end."""
    lost = [] if retain else [case for case in cases if case.output == "iceberg"]
    # here and not in a thread: the JVM's threads of those do not see the classes of spark.jars
    outcomes = {case.name: go_back(case, root, spark) for case in lost}

    def play(case: Case) -> dict[str, Any]:
        directory, own = case.directory(root), spark.newSession()
        (directory / "freeze").unlink(missing_ok=True)
        answer: dict[str, Any] = {"name": case.name}
        if case.name in outcomes:
            answer["outcome"] = asdict(outcomes[case.name])
            if outcomes[case.name].done_batch is None:
                return answer
        write_input(directory, files)
        error, url = "", str(Path(root) / "checkpoints")
        listener = checkpoint(own, url, interval_seconds=0.0, retain=retain) if retain else None
        try:
            start(own, case, root, case.second_target(root), files_a_batch).awaitTermination()
        except Exception as failed:  # noqa: BLE001 - whatever it is, the test looks at it
            error = str(failed)[:3000]
        if listener is not None:
            listener.close()
        try:
            answer["left"] = read_rows(own, case, case.target(root)) if case.is_elsewhere else []
            answer["rows"] = read_rows(own, case, case.second_target(root))
        except Exception as failed:  # noqa: BLE001 - the same, and the other cases go on
            answer["rows"], error = [], error or str(failed)[:3000]
        return {**answer, "error": error}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(play, cases)


def long_life(
    spark: SparkSession, cases: Sequence[Case], root: str, files: range, files_a_batch: int
) -> Iterator[dict[str, Any]]:
    """The same with a checkpoint of most batches."""
    return second_life(spark, cases, root, files, files_a_batch, retain=100)


def main() -> None:
    """Play the life that the first argument says."""
    wanted = json.loads(sys.argv[1])
    cases = [Case(**fields) for fields in wanted["cases"]]
    spark = session(wanted)
    spark.sparkContext.setLogLevel("ERROR")
    play = functools.partial(
        {"first": first_life, "second": second_life}.get(wanted["life"], long_life), spark
    )
    more: dict[str, Any] = {}
    if wanted["life"] == "long":
        more = {"files": range(*wanted["files"]), "files_a_batch": wanted["files_a_batch"]}
    for answer in play(cases, wanted["directory"], **more):
        print(json.dumps(answer), flush=True)
    if wanted["life"] == "first":
        print("still", flush=True)
        time.sleep(SECONDS)


def encode_cases(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Cases as a driver is told them."""
    return [asdict(case) for case in cases]


if __name__ == "__main__":
    main()
