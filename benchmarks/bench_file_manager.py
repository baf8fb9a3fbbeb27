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
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.driver import Driver
from tests.harness.queries import HDFS, ROCKSDB_CHANGELOG, QuerySpec
from tests.servers.hadoop import FILE_MANAGER, build_jar, hadoop_cloud_jars, s3a_conf, spark_conf
from tests.servers.launch import seaweedfs
from tests.servers.proxy import FaultProxy, Request

CONF = "spark.sql.streaming.checkpointFileManagerClass"
SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
TUNED = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
TUNED_BUCKET = "ckpt-tuned"
PROVIDERS = {"hdfs": HDFS, "changelog": ROCKSDB_CHANGELOG}
MANAGERS = {"local": SPARK, "stock": SPARK, "tuned": TUNED, "ours": FILE_MANAGER}
ROWS = 100_000
WARM_UP_BATCHES = 2
LONGEST_SECONDS = 120.0


@dataclass(frozen=True)
class Situation:
    """What all managers are compared in."""

    provider: str
    partitions: int
    delay_ms: int


@dataclass
class Cell:
    """What one manager did in one situation, over all rounds."""

    batch_ms: list[int] = field(default_factory=list)
    log_ms: list[int] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    batches: int = 0

    @property
    def p50(self) -> float:
        return statistics.median(self.batch_ms)

    @property
    def p99(self) -> float:
        return sorted(self.batch_ms)[min(len(self.batch_ms) - 1, int(len(self.batch_ms) * 0.99))]

    @property
    def per_batch(self) -> float:
        return self.requests.total() / max(1, self.batches)


Cells = dict[tuple[Situation, str], Cell]


def verb(request: Request) -> str:
    """The verb, with LIST and multi-object delete by their own names."""
    if "list-type" in request.target:
        return "LIST"
    return "DELETES" if request.method == "POST" else request.method


def measure(driver: Driver, spec: QuerySpec, proxy: FaultProxy, batches: int, cell: Cell) -> None:
    """Run a query past its warm-up, then note every batch and the requests meanwhile."""

    def committed() -> int:
        result = driver.call("poll", name=spec.name)
        if not result["active"]:
            raise RuntimeError(f"{spec.name}: {result['error']}")
        return len(result["committed"])

    driver.start(spec)
    deadline = time.monotonic() + LONGEST_SECONDS
    while committed() < WARM_UP_BATCHES:
        time.sleep(0.1)
    proxy.clear()
    begun = committed()
    while (done := committed()) < begun + batches:
        if time.monotonic() > deadline and done > begun:
            break
        time.sleep(0.1)
    requests = proxy.requests
    result: dict[str, Any] = driver.call("stop", 300, name=spec.name)
    cell.batches += done - begun
    cell.requests.update(verb(request) for request in requests)
    cell.batch_ms += result["batch_ms"][begun:done]
    cell.log_ms += [d["walCommit"] + d["commitOffsets"] for d in result["duration_ms"][begun:done]]


def situations(arguments: argparse.Namespace) -> Iterator[Situation]:
    for partitions in map(int, arguments.partitions.split(",")):
        for provider in arguments.providers.split(","):
            for delay_ms in map(int, arguments.delays.split(",")):
                yield Situation(provider, partitions, delay_ms)


def run(driver: Driver, proxy: FaultProxy, arguments: argparse.Namespace, home: Path) -> Cells:
    """Every manager in every situation, in turns; a second round begins with the last one."""
    managers = arguments.managers.split(",")
    cells: Cells = {}
    for number, situation in enumerate(situations(arguments)):
        proxy.delay_seconds = situation.delay_ms / 1000
        for turn in range(arguments.rounds):
            for manager in managers if turn % 2 == 0 else reversed(managers):
                name = f"{manager}-{number}-{turn}"
                spec = QuerySpec(
                    name=name,
                    kind="total",
                    location=location(manager, name, home),
                    results=str(home / "results"),
                    batches=100_000,
                    conf={
                        **PROVIDERS[situation.provider],
                        CONF: MANAGERS[manager],
                        "spark.sql.shuffle.partitions": str(situation.partitions),
                    },
                    rows=ROWS,
                    format="noop",
                )
                cell = cells.setdefault((situation, manager), Cell())
                measure(driver, spec, proxy, arguments.batches, cell)
                print(f"  {situation} {manager}: p50 {cell.p50:.0f} ms", file=sys.stderr)
    return cells


def location(manager: str, name: str, home: Path) -> str:
    if manager == "local":
        return f"file://{home}/{name}"
    bucket = TUNED_BUCKET if manager == "tuned" else "ckpt-test"
    return f"s3a://{bucket}/{name}"


def print_table(cells: Cells) -> None:
    print("| provider | partitions | delay ms | manager | batches | p50 ms | p99 ms | logs ms | requests |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (situation, manager), cell in cells.items():
        verbs = ", ".join(f"{n / cell.batches:.1f} {v}" for v, n in cell.requests.most_common())
        logs = statistics.median(cell.log_ms)
        print(
            f"| {situation.provider} | {situation.partitions} | {situation.delay_ms} | {manager} "
            f"| {len(cell.batch_ms)} | {cell.p50:.0f} | {cell.p99:.0f} | {logs:.0f} "
            f"| {cell.per_batch:.1f}: {verbs} |"
        )


def print_aims(cells: Cells) -> None:
    """The ratios in each situation, and whether those that have an aim reach it."""
    print(
        "\n| provider | partitions | delay ms | ours/local | stock/ours | tuned/ours | requests of ours |"
    )
    print("|---|---|---|---|---|---|---|")
    for situation in dict.fromkeys(situation for situation, _ in cells):
        found = {name: cells[situation, name] for s, name in cells if s == situation}
        ours = found.get("ours")
        if ours is None:
            continue
        at_20 = situation.delay_ms == 20
        small = situation.partitions <= 4
        row = [
            ratio(ours, found.get("local"), at_most=1.25 if at_20 and small else None),
            ratio(found.get("stock"), ours, at_least=(3.0 if small else 6.0) if at_20 else None),
            ratio(found.get("tuned"), ours, at_least=1.6 if at_20 and small else None),
            judged(ours.per_batch, at_most=4.0 + situation.partitions + 0.5),
        ]
        print(
            f"| {situation.provider} | {situation.partitions} | {situation.delay_ms} | {' | '.join(row)} |"
        )


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
        "managers": "local,stock,tuned,ours",
    }.items():
        parser.add_argument(f"--{name}", default=os.environ.get(name.upper(), default))
    for name, number in {"batches": 12, "rounds": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=int(os.environ.get(name.upper(), number)))
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse(sys.argv[1:])
    with (
        tempfile.TemporaryDirectory(prefix="ckpt-bench-") as directory,
        seaweedfs() as server,
        FaultProxy(server.endpoint) as proxy,
    ):
        home = Path(directory)
        jar = build_jar(home / "jar")
        client = server.client()
        client.create_bucket(Bucket=TUNED_BUCKET)
        client.close()
        tuned = s3a_conf(proxy.endpoint, bucket=TUNED_BUCKET)
        tuned[f"fs.s3a.bucket.{TUNED_BUCKET}.performance.flags"] = "*"
        conf = {
            **spark_conf(proxy.endpoint),
            **{f"spark.hadoop.{name}": value for name, value in tuned.items()},
            "spark.driver.memory": "3g",
            "spark.sql.codegen.wholeStage": "true",
        }
        with Driver(home / "driver.log", conf=conf, class_path=[jar, *hadoop_cloud_jars()]) as driver:
            spark, hadoop = driver.versions["spark"], driver.versions["hadoop"]
            print(f"Spark {spark}, Hadoop {hadoop}, {os.cpu_count()} cores\n")
            warm_up(driver, proxy, home)
            cells = run(driver, proxy, arguments, home)
    print_table(cells)
    print_aims(cells)


def warm_up(driver: Driver, proxy: FaultProxy, home: Path) -> None:
    """Let the JVM compile what every manager needs; the first batches of a driver measure the compiler."""
    for manager, class_name in MANAGERS.items():
        name = f"warm-up-{manager}"
        conf = {**HDFS, CONF: class_name, "spark.sql.shuffle.partitions": "4"}
        spec = QuerySpec(
            name, "total", location(manager, name, home), str(home), 10**6, conf, ROWS, format="noop"
        )
        measure(driver, spec, proxy, 3, Cell())


if __name__ == "__main__":
    main()
