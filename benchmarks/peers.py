"""ckpt-sink beside Iceberg and Delta Lake, on the newest Spark that both have connectors for.

One session a case; the sides run in turns, on a local checkpoint location and tables on an S3 server behind
a proxy that delays every request and counts it. noop and a sink of an empty Python function show what Spark
itself takes. Upserts are ``MERGE`` in ``foreachBatch`` for Iceberg and Delta.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.app import EMPTY_FORMAT
from benchmarks.frame import Argument, Part, Settings, Side
from benchmarks.lab import FOREVER, PACE, Contender, Lab, Pace, open_lab, run_turns, warm_up
from tests.ecosystem import kit
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.hadoop import s3a_jars
from tests.support.servers.s3 import BUCKET

HADOOP = "3.4.2"
"""The one that Spark 4.1.1 comes with."""
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
CONFS = {
    "spark.sql.extensions": ",".join(EXTENSIONS),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": f"s3a://{BUCKET}/warehouse",
    "spark.sql.adaptive.enabled": "true",  # as by default: Iceberg's MERGE joins small partitions by it
}
FEW_PARTS = {"spark.databricks.delta.snapshotPartitions": "2"}
MERGE_MODES = "TBLPROPERTIES ('format-version'='2', 'write.merge.mode'='{0}', 'write.update.mode'='{0}')"
OURS, DELTA, DELTA_IN_2 = "ckpt-sink", "delta", "delta in 2 partitions"
ICEBERG, COPY_ON_WRITE, MERGE_ON_READ = "iceberg", "iceberg copy-on-write", "iceberg merge-on-read"
SIDES = {
    "append": (OURS, ICEBERG, DELTA, DELTA_IN_2, "noop", EMPTY_FORMAT),
    "upsert": (OURS, COPY_ON_WRITE, MERGE_ON_READ, DELTA, DELTA_IN_2, "noop", EMPTY_FORMAT),
}
WHOLE = (OURS, ICEBERG, COPY_ON_WRITE)
"""They are measured for all batches of a turn; the others for as many as a turn has time for."""
PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class Case:
    """What is written: appended or upserted, so many rows a batch, by so many partitions."""

    kind: str
    rows: int
    partitions: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.rows}-{self.partitions}"

    @property
    def where(self) -> str:
        return f"{self.kind}, {self.rows:,} rows, {self.partitions} partitions"


CASES = {
    case.name: case
    for case in (
        *(Case(kind, 10_000, partitions) for kind in SIDES for partitions in (4, 64, 200)),
        *(Case("append", 1_000_000, partitions) for partitions in (4, 64)),
    )
}


def spec_of(lab: Lab, case: Case, side: str, name: str, batches: int = FOREVER) -> QuerySpec:
    """The query of a side; everything that it stores has its name in the path."""
    sink = side.partition(" ")[0]
    kind, options = case.kind, {}
    conf = {"spark.sql.shuffle.partitions": str(case.partitions), "spark.sql.adaptive.enabled": "true"}
    if sink == OURS:
        keys = {"keyColumns": "key"} if kind == "upsert" else {}
        options = {"table": f"s3://{BUCKET}/tables/{name}", **keys, **lab.place.store_options}
    elif sink == ICEBERG:
        mode = "merge-on-read" if side == MERGE_ON_READ else "copy-on-write"
        options = {"table": f"lake.db.{name}", "properties": MERGE_MODES.format(mode)}
    elif sink == DELTA:
        options = {"table": f"delta.`s3a://{BUCKET}/tables/{name}`"}
        conf |= FEW_PARTS if side == DELTA_IN_2 else {}
    if kind == "append" or not options:  # who merges, or owns keys, shuffles itself
        kind = "shuffled" if kind == "append" else "shuffled upsert"
    location, results = f"file://{lab.place.disk(name)}", str(lab.home / "results" / name)
    return QuerySpec(name, kind, location, results, batches, conf, case.rows, 0, sink, options)


def contender(lab: Lab, driver: Driver, case: Case, side: str, pace: Pace = PACE) -> Contender:
    """A side of a case."""
    return Contender(side, driver, lambda name: spec_of(lab, case, side, name), pace)


@contextlib.contextmanager
def open_peers() -> Iterator[tuple[Lab, Driver]]:
    """A lab, and a driver of Spark 4.1.1 with both connectors."""
    kit.set_up()
    jars = [*kit.spark_jars(), *s3a_jars(HADOOP)]
    with open_lab() as lab, lab.driver("peers", CONFS, jars, python=str(kit.PYTHON)) as driver:
        yield lab, driver


def measure_case(lab: Lab, driver: Driver, case: Case, settings: Settings) -> Iterator[Side]:
    """All sides in turns, after all of them have run a small table of that kind."""
    sides = [side for side in SIDES[case.kind] if side in (settings.names("sides") or SIDES[case.kind])]
    small = replace(case, rows=1000, partitions=4)
    warm_up(lab, [contender(lab, driver, small, side) for side in sides])
    whole = Pace(settings.number("batches"), 1, PATIENCE_SECONDS)
    others = replace(whole, longest_seconds=settings.number("longest-seconds"))
    contenders = [contender(lab, driver, case, side, whole if side in WHOLE else others) for side in sides]
    found = run_turns(lab, case.where, contenders, settings.number("rounds"), settings.number("delay"))
    yield from (tally.side(case.where, side) for side, tally in found.items())
    yield from (tally.first(case.where, side) for side, tally in found.items())


def measure_all(settings: Settings) -> Iterator[Side]:
    """The case that was asked for, in a session of its own."""
    with open_peers() as (lab, driver):
        yield from measure_case(lab, driver, CASES[settings["case"]], settings)


PART = Part(
    "peers",
    __doc__,
    measure_all,
    (
        Argument("sides", "", "", "some of the sides; none: all that fit the case"),
        Argument("batches", "3", "2", "measured batches a turn, after the first one"),
        Argument("rounds", "2", "1", "turns of each side"),
        Argument("delay", "20", "20", "milliseconds added to every request"),
        Argument(
            "longest-seconds", "8", "8", "after which a turn of the others ends, if it has done a batch"
        ),
    ),
    cases=tuple(CASES),
    quick_cases=("append-10000-64",),
)
