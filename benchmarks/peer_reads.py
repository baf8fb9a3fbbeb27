"""What it takes to read tables of ckpt-sink, Iceberg and Delta Lake back: whole, one key, a range.

Every table is written by four batches of a stream, the same rows in each; another number of rows is an
error. Every read is done once before it is timed; then the sides are read in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.frame import Argument, Part, Settings, Side, in_turns
from benchmarks.peers import (
    CASES,
    COPY_ON_WRITE,
    DELTA_IN_2,
    ICEBERG,
    MERGE_ON_READ,
    OURS,
    Case,
    open_peers,
    spec_of,
)

BATCHES = 4
SIDES = {
    "append": (OURS, ICEBERG, DELTA_IN_2),
    "upsert": (OURS, COPY_ON_WRITE, MERGE_ON_READ, DELTA_IN_2),
}
READ_CASES = ("append-10000-64", "upsert-10000-4", "upsert-10000-64", "append-1000000-4")


def reads_of(case: Case) -> dict[str, tuple[str, int]]:
    """The conditions, and how many rows of a table with four batches meet each. Pure.

    An upserted table has the rows of its last batch, an appended one those of all; values rise from 0.
    """
    all_rows = BATCHES * case.rows
    rows = all_rows if case.kind == "append" else case.rows
    above = all_rows - case.rows // 100
    return {
        "whole table": ("", rows),
        "one key": (f"key = 'key-{7:012d}'", 1),
        "range": (f"value >= {above}", case.rows // 100),
    }


def measure_all(settings: Settings) -> Iterator[Side]:
    """The tables of one case, written without a delay and read with one."""
    case = CASES[settings["case"]]
    with open_peers() as (lab, driver):
        specs = {}
        lab.delay(0)
        for side in SIDES[case.kind]:
            name = f"read_{case.kind}_{case.partitions}_{''.join(filter(str.isalnum, side))}"
            specs[side] = spec_of(lab, case, side, name, BATCHES)
            driver.run(specs[side], timeout_seconds=600)
        lab.delay(settings.number("delay"))
        for what, (condition, rows) in reads_of(case).items():
            took: dict[str, list[float]] = {side: [] for side in specs}
            asked = dict.fromkeys(specs, 0)
            for turn, side in in_turns(specs, 1 + settings.number("reads")):
                lab.proxy.clear()
                milliseconds, found = driver.call(
                    "time_read", 600, spec=specs[side].as_dict(), where=condition
                )
                if found != rows:
                    raise RuntimeError(f"{case.name}, {side}: {found} rows of {what}, not {rows}")
                took[side] += [round(milliseconds, 1)] if turn else []
                asked[side] = len(lab.proxy.requests)
            for side, taken in took.items():
                row = Side(f"{case.where}: {what}", side, tuple(taken))
                yield replace(row, counts={"requests": asked[side]})


PART = Part(
    "peer-reads",
    __doc__,
    measure_all,
    (
        Argument("reads", "5", "3", "timed reads of each kind, after one that warms up"),
        Argument("delay", "20", "20", "milliseconds added to every request"),
    ),
    cases=READ_CASES,
    quick_cases=READ_CASES[:1],
)
