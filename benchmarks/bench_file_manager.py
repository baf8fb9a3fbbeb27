"""Spark's own checkpoint: local disk, S3 with Spark's manager, with the tuned one, and with ours.

One driver on one machine runs the same query (a keyed sum, 100,000 rows and keys a batch, noop sink)
with each manager in turns, on an S3 server behind a proxy that adds a delay to every request and counts
them. What counts are the ratios, since both sides of each were run in the same minutes.

    python -m benchmarks.bench_file_manager [--delays 0,20,50] [--partitions 4,64]
        [--providers hdfs,changelog] [--managers local,stock,tuned,ours] [--batches 12] [--rounds 2]

The environment variables DELAYS, PARTITIONS, PROVIDERS, MANAGERS, BATCHES and ROUNDS give the defaults.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from benchmarks.lab import Lab, Pace, open_lab, warm_up
from benchmarks.records import Cell
from benchmarks.side_by_side import Situation, measure_situation
from benchmarks.tables import verbs
from benchmarks.ways import KEYS, Load

WAYS = {"local": "alone", "stock": "stock", "tuned": "tuned", "ours": "ours"}
"""What the managers are called elsewhere."""
QUERY = "total"


def situations(arguments: argparse.Namespace) -> Iterator[Situation]:
    """Every combination."""
    for partitions in map(int, arguments.partitions.split(",")):
        for provider in arguments.providers.split(","):
            for delay_ms in map(int, arguments.delays.split(",")):
                load = Load(QUERY, provider, partitions, KEYS, KEYS)
                yield Situation(load, delay_ms, Pace(arguments.batches), arguments.rounds)


def run(lab: Lab, arguments: argparse.Namespace) -> list[Cell]:
    """Every manager in every situation, in turns."""
    ways = [WAYS[manager] for manager in arguments.managers.split(",")]
    cells = []
    with lab.driver() as driver:
        spark, hadoop = driver.versions["spark"], driver.versions["hadoop"]
        print(f"Spark {spark}, Hadoop {hadoop}, {os.cpu_count()} cores\n")
        warm_up(lab, driver, ways, Load(QUERY))
        for number, situation in enumerate(situations(arguments)):
            cells += measure_situation(lab, driver, situation, ways, f"s{number}")
    return cells


def print_table(cells: Sequence[Cell]) -> None:
    print("| provider | partitions | delay ms | manager | batches | p50 ms | p99 ms | logs ms | requests |")
    print("|---|---|---|---|---|---|---|---|---|")
    for cell in cells:
        logs = cell.phases_ms["walCommit"] + cell.phases_ms["commitOffsets"]
        print(
            f"| {cell.provider} | {cell.partitions} | {cell.delay_ms} | {cell.way} "
            f"| {len(cell.batch_ms)} | {cell.p50:.0f} | {cell.p99:.0f} | {logs:.0f} "
            f"| {cell.per_batch:.1f}: {verbs(cell.requests, cell.batches)} |"
        )


def print_aims(cells: Sequence[Cell]) -> None:
    """The ratios in each situation, and whether those that have an aim reach it."""
    print(
        "\n| provider | partitions | delay ms | ours/local | stock/ours | tuned/ours | requests of ours |"
    )
    print("|---|---|---|---|---|---|---|")
    for situation in dict.fromkeys(cell.situation for cell in cells):
        found = {cell.way: cell for cell in cells if cell.situation == situation}
        ours = found.get("ours")
        if ours is None:
            continue
        _, partitions, provider, delay_ms = situation
        at_20, small = delay_ms == 20, partitions <= 4
        row = [
            ratio(ours, found.get("alone"), at_most=1.25 if at_20 and small else None),
            ratio(found.get("stock"), ours, at_least=(3.0 if small else 6.0) if at_20 else None),
            ratio(found.get("tuned"), ours, at_least=1.6 if at_20 and small else None),
            judged(ours.per_batch, at_most=4.0 + partitions + 0.5),
        ]
        print(f"| {provider} | {partitions} | {delay_ms} | {' | '.join(row)} |")


def ratio(
    above: Cell | None, below: Cell | None, *, at_most: float | None = None, at_least: float | None = None
) -> str:
    if above is None or below is None:
        return "-"
    return judged(above.p50 / below.p50, at_most=at_most, at_least=at_least)


def judged(value: float, *, at_most: float | None = None, at_least: float | None = None) -> str:
    if at_most is None and at_least is None:
        return f"{value:.2f}"
    reached = value <= at_most if at_most is not None else value >= (at_least or 0)
    aim = f"<= {at_most}" if at_most is not None else f">= {at_least}"
    return f"{value:.2f} (aim {aim}: {'reached' if reached else 'missed'})"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "delays": "0,20,50",
        "partitions": "4,64",
        "providers": "hdfs,changelog",
        "managers": ",".join(WAYS),
    }.items():
        parser.add_argument(f"--{name}", default=os.environ.get(name.upper(), default))
    for name, number in {"batches": 12, "rounds": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=int(os.environ.get(name.upper(), number)))
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse(sys.argv[1:])
    with open_lab() as lab:
        cells = run(lab, arguments)
    print_table(cells)
    print_aims(cells)


if __name__ == "__main__":
    main()
