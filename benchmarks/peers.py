"""ckpt-sink beside Iceberg and Delta Lake, on the newest Spark that both have connectors for.

One session a case; the sides run in turns, on a local checkpoint location and tables on an S3 server behind
a proxy that delays every request and counts it. noop and a sink of an empty Python function show what Spark
itself takes. Upserts are ``MERGE`` in ``foreachBatch`` for Iceberg and Delta.

Every case is saved by itself, and a case that was saved is not run again unless ``--fresh`` is given.

    python -m benchmarks.peers [--quick] [--fresh] [--cases append-10000-64] [--batches 5] [--rounds 2]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.empty_sink import EMPTY_FORMAT
from benchmarks.frame import Argument, Part, Settings, Side, in_turns, load_runs, tell
from benchmarks.lab import FOREVER, Lab, Pace, Tally, driver_conf, measure, open_lab
from benchmarks.report import main as write_pages
from tests.ecosystem import kit
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.hadoop import s3a_jars
from tests.support.servers.s3 import BUCKET

HADOOP = "3.4.2"
"""The one that Spark 4.1.1 comes with."""
WAREHOUSE = "warehouse"
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
CONFS = {
    "spark.sql.extensions": ",".join(EXTENSIONS),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": f"s3a://{BUCKET}/{WAREHOUSE}",
    "spark.sql.adaptive.enabled": "true",  # as by default: Iceberg's MERGE joins small partitions by it
}
FEW_PARTS = {"spark.databricks.delta.snapshotPartitions": "2"}
MERGE_MODES = "TBLPROPERTIES ('format-version'='2', 'write.merge.mode'='{0}', 'write.update.mode'='{0}')"
OURS, DELTA = "ckpt-sink", "delta"
ICEBERG, COPY_ON_WRITE, MERGE_ON_READ = "iceberg", "iceberg copy-on-write", "iceberg merge-on-read"
SIDES = {
    "append": (OURS, ICEBERG, DELTA, f"{DELTA} in 2 partitions", "noop", EMPTY_FORMAT),
    "upsert": (
        *(OURS, COPY_ON_WRITE, MERGE_ON_READ, DELTA),
        *(f"{DELTA} in 2 partitions", "noop", EMPTY_FORMAT),
    ),
}
QUICK = "append-10000-64"


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


def spec_of(lab: Lab, case: Case, side: str, turn: int) -> QuerySpec:
    """The query of a side; everything that it stores has its name in the path."""
    name = f"{case.kind}_{case.rows}_{case.partitions}_{''.join(filter(str.isalpha, side))}_{turn}"
    sink = side.partition(" ")[0]
    conf = {"spark.sql.shuffle.partitions": str(case.partitions)}
    options = {}
    if sink == OURS:
        keys = {"keyColumns": "key"} if case.kind == "upsert" else {}
        options = {"table": f"s3://{BUCKET}/tables/{name}", **keys, **lab.place.store_options}
    elif sink == ICEBERG:
        mode = "merge-on-read" if side == MERGE_ON_READ else "copy-on-write"
        options = {"table": f"lake.db.{name}", "properties": MERGE_MODES.format(mode)}
    elif sink == DELTA:
        options = {"table": f"delta.`s3a://{BUCKET}/tables/{name}`"}
        conf |= FEW_PARTS if side != DELTA else {}
    location, results = f"file://{lab.place.disk(name)}", str(lab.home / "results" / name)
    return QuerySpec(name, case.kind, location, results, FOREVER, conf, case.rows, 0, sink, options)


def measure_case(lab: Lab, driver: Driver, case: Case, settings: Settings) -> Iterator[Side]:
    """All sides in turns; what was written is read back at once, and must have every row."""
    chosen = settings.names("sides")
    tallies = {side: Tally() for side in SIDES[case.kind] if not chosen or side in chosen}
    reads: dict[tuple[str, str], list[float]] = {}
    pace = Pace(settings.number("batches"), 2, settings.number("longest-seconds"))
    for turn, side in in_turns(tallies, settings.number("rounds")):
        spec = spec_of(lab, case, side, turn)
        lab.delay(settings.number("delay"))
        before = tallies[side].batches
        measure(lab, driver, spec, pace, tallies[side])
        tell(f"{case.where}, {side}: {tallies[side].batch_ms[before:]} ms")
        for key in ("", f"key-{7:012d}") if "table" in spec.options else ():
            for _ in range(2):  # the first one compiles
                took, rows = driver.call("time_read", 600, spec=spec.as_dict(), key=key)
            whole = case.rows if case.kind == "upsert" else case.rows * (rows // case.rows)
            if rows != (1 if key else whole) or not rows:
                raise RuntimeError(f"{spec.name} has {rows} rows{' of a key' if key else ''}")
            reads.setdefault((side, "one key" if key else "whole table"), []).append(took)
    for side, tally in tallies.items():
        asked = {"requests": sum(tally.requests.values()) / tally.batches}
        yield Side(case.where, side, tuple(tally.batch_ms), counts=asked)
    for what in ("whole table", "one key"):
        for side in tallies:
            if taken := reads.get((side, what)):
                yield Side(f"{case.where}: read {what}", side, tuple(round(one, 1) for one in taken))


def measure_all(settings: Settings) -> Iterator[Side]:
    """The case that was asked for, in a session of its own."""
    kit.set_up()
    case = CASES[settings["case"]]
    with open_lab() as lab:
        jars = [*kit.spark_jars(), *s3a_jars(HADOOP), lab.jar]
        conf = {**driver_conf(lab.proxy.endpoint), **CONFS}
        with Driver(
            lab.home / "peers.log",
            conf=conf,
            class_path=jars,
            python=str(kit.PYTHON),
            program="benchmarks.peers_app",
        ) as driver:
            warm = replace(case, rows=1000, partitions=4)
            few = Settings({**settings, "batches": "2", "rounds": "1", "delay": "0"})
            list(measure_case(lab, driver, warm, few))
            yield from measure_case(lab, driver, case, settings)


PART = Part(
    "peers",
    __doc__,
    measure_all,
    (
        Argument("case", QUICK, QUICK, f"one of {', '.join(CASES)}"),
        Argument("sides", "", "", "some of the sides; none: all that fit the case"),
        Argument("batches", "5", "3", "measured batches a turn, after two that warm up"),
        Argument("rounds", "2", "1", "turns of each side"),
        Argument("delay", "20", "20", "milliseconds added to every request"),
        Argument("longest-seconds", "90", "45", "after which a turn ends, if it has done a batch"),
    ),
)


def main() -> int:
    """Run what was not saved yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="one case with few batches")
    parser.add_argument("--fresh", action="store_true", help="run also what was saved")
    parser.add_argument("--cases", default="", help="some of the cases; all by default")
    chosen, others = parser.parse_known_args()
    names = chosen.cases.split(",") if chosen.cases else [QUICK] if chosen.quick else list(CASES)
    saved = {run.label for run in load_runs().of(PART.name) if not run.failed}
    failed = []
    for name in names:
        label = f"{name}-quick" if chosen.quick else name
        if label in saved and not chosen.fresh:
            tell(f"{name} was saved before")
            continue
        quick = ["--quick"] if chosen.quick else []
        try:
            PART.run([*quick, "--case", name, "--label", label, *others])
        except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
            failed.append(f"{name}: {error}")
    write_pages()
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
