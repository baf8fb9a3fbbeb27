"""ckpt-sink beside Iceberg and Delta Lake, on the newest Spark that both have connectors for.

One session a case; the sides run in turns, on a local checkpoint location and tables on an S3 server behind
a proxy that delays every request and counts it. noop and a sink of an empty Python function show what Spark
itself takes. Upserts are ``MERGE`` in ``foreachBatch`` for Iceberg and Delta.

``peer-reads`` reads tables back: whole, one key, a range. Every table is written by four batches of a
stream; another number of rows is an error. Every read is done once before it is timed, in turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.app import EMPTY_FORMAT
from benchmarks.frame import Settings, Side, in_turns
from benchmarks.lab import FOREVER, PACE, Contender, Lab, Pace, open_lab, run_turns, warm_up
from tests.ecosystem import kit
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.hadoop import s3a_jars
from tests.support.servers.s3 import BUCKET

HADOOP = "3.4.2"
"""The one that Spark 4.1.1 comes with."""
CONFS = kit.lake_confs(f"s3a://{BUCKET}/warehouse") | {"spark.sql.adaptive.enabled": "true"}
"""Adaptive as by default: Iceberg's MERGE joins small partitions by it."""
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
TABLE_BATCHES = 4
READ_SIDES = {
    "append": (OURS, ICEBERG, DELTA_IN_2),
    "upsert": (OURS, COPY_ON_WRITE, MERGE_ON_READ, DELTA_IN_2),
}


@dataclass(frozen=True)
class Case:
    """What is written: appended or upserted, so many rows a batch, by so many partitions."""

    kind: str
    rows: int
    partitions: int

    @classmethod
    def of(cls, name: str) -> Case:
        """The case of a name in ``parts.toml``."""
        kind, rows, partitions = name.split("-")
        return cls(kind, int(rows), int(partitions))

    @property
    def where(self) -> str:
        return f"{self.kind}, {self.rows:,} rows, {self.partitions} partitions"


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
        conf |= kit.FEW_TASKS if side == DELTA_IN_2 else {}
    if kind == "append" or not options:  # who merges, or owns keys, shuffles itself
        kind = "shuffled" if kind == "append" else "shuffled upsert"
    location, results = f"file://{lab.place.disk(name)}", lab.place.results(name)
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


def measure_case(
    lab: Lab, driver: Driver, case: Case, paces: Mapping[str, Pace], settings: Settings
) -> Iterator[Side]:
    """All sides in turns, after all have run a small table of that kind; then their first batches."""
    small = replace(case, rows=1000, partitions=4)
    warm_up(lab, [contender(lab, driver, small, side) for side in paces])
    contenders = [contender(lab, driver, case, side, pace) for side, pace in paces.items()]
    found = run_turns(lab, case.where, contenders, settings.number("rounds"), settings.number("delay"))
    yield from (tally.side(case.where, side) for side, tally in found.items())
    yield from (tally.first(case.where, side) for side, tally in found.items())


def measure_all(settings: Settings) -> Iterator[Side]:
    """The case that was asked for, in a session of its own."""
    case = Case.of(settings["case"])
    whole = Pace(settings.number("batches"), 1, PATIENCE_SECONDS)
    others = replace(whole, longest_seconds=settings.number("longest-seconds"))
    asked = settings.names("sides") or SIDES[case.kind]
    paces = {side: whole if side in WHOLE else others for side in SIDES[case.kind] if side in asked}
    with open_peers() as (lab, driver):
        yield from measure_case(lab, driver, case, paces, settings)


def reads_of(case: Case) -> dict[str, tuple[str, int]]:
    """The conditions, and how many rows of a table with four batches meet each. Pure.

    An upserted table has the rows of its last batch, an appended one those of all; values rise from 0.
    """
    all_rows = TABLE_BATCHES * case.rows
    rows = all_rows if case.kind == "append" else case.rows
    above = all_rows - case.rows // 100
    return {
        "whole table": ("", rows),
        "one key": (f"key = 'key-{7:012d}'", 1),
        "range": (f"value >= {above}", case.rows // 100),
    }


def measure_reads(settings: Settings) -> Iterator[Side]:
    """The tables of one case, written without a delay and read with one."""
    case = Case.of(settings["case"])
    with open_peers() as (lab, driver):
        specs = {}
        lab.delay(0)
        for side in READ_SIDES[case.kind]:
            name = f"read_{case.kind}_{case.partitions}_{''.join(filter(str.isalnum, side))}"
            specs[side] = spec_of(lab, case, side, name, TABLE_BATCHES)
            driver.run(specs[side], timeout_seconds=600)
        lab.delay(settings.number("delay"))
        for what, (condition, rows) in reads_of(case).items():
            took: dict[str, list[float]] = {side: [] for side in specs}
            asked = dict.fromkeys(specs, 0)
            for turn, side in in_turns(specs, 1 + settings.number("reads")):
                lab.proxy.clear()
                spec = specs[side].as_dict()
                milliseconds, found = driver.call("time_read", 600, spec=spec, where=condition)
                if found != rows:
                    raise RuntimeError(f"{case.where}, {side}: {found} rows of {what}, not {rows}")
                took[side] += [round(milliseconds, 1)] if turn else []
                asked[side] = len(lab.proxy.requests)
            for side, taken in took.items():
                requests = {"requests": float(asked[side])}
                yield Side(f"{case.where}: {what}", side, tuple(taken), counts=requests)
