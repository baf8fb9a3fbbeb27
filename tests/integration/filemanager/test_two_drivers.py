"""Two real drivers on one checkpoint location: exactly one goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.filemanager.test_queries import OURS, STOCK, assert_totals
from tests.support.drivers import outcome
from tests.support.drivers.contention import CONCURRENT, contend, run_by_both
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, QuerySpec
from tests.support.servers.hadoop import s3a_jars, spark_conf
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import FaultProxy

pytestmark = pytest.mark.crash

SOAK_ROUNDS = int(os.environ.get("ROUNDS", "20"))
SEED = int(os.environ.get("SEED", "6"))
INTERVAL_MS = 3000


@pytest.fixture(scope="module")
def drivers(jar: Path, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two drivers that know nothing of each other; every request of theirs takes 50 ms."""
    logs = tmp_path_factory.mktemp("two-drivers")
    with FaultProxy(s3_server.endpoint, delay_seconds=0.05) as proxy:
        conf = spark_conf(proxy.endpoint)
        pair = [
            Driver(logs / f"{name}.log", conf=conf, class_path=[jar, *s3a_jars()])
            for name in ("first", "second")
        ]
        try:
            yield [driver.wait_ready() for driver in pair]
        finally:
            for driver in pair:
                driver.kill()


def query(name: str, s3_server: S3Server, tmp_path: Path, manager: dict[str, str]) -> QuerySpec:
    """A query that goes on until it is stopped."""
    return QuerySpec(
        name=name,
        kind="total",
        location=f"s3a://{s3_server.bucket}/two-drivers/{name}",
        results=str(tmp_path / name),
        batches=10_000,
        conf={**HDFS, **manager},
        rows=20,
        interval_ms=INTERVAL_MS,
    )


def first_batch_of(driver: Driver, spec: QuerySpec) -> int | None:
    """The first batch for which a driver ran the sink."""
    ran = [batch_id for batch_id, pids in outcome.runs(spec).items() if driver.pid in pids]
    return min(ran, default=None)


@pytest.mark.parametrize(
    ("rounds", "longest_wait_seconds"),
    [
        pytest.param(1, 0.2, marks=[pytest.mark.promise, pytest.mark.timeout(900)], id="1-round"),
        pytest.param(3, 0.2, marks=pytest.mark.timeout(900), id="3-rounds"),
        pytest.param(SOAK_ROUNDS, INTERVAL_MS / 1000, marks=pytest.mark.soak, id="many-rounds"),
    ],
)
def test_of_two_drivers_exactly_one_goes_on(
    drivers: list[Driver], s3_server: S3Server, tmp_path: Path, rounds: int, longest_wait_seconds: float
) -> None:
    """The other one stops by itself; no batch is committed by both, and none is run by both.

    With one exception that no file manager can close: a batch that was in the air when the second
    driver read the logs. That driver cannot know that the first one lives, and runs the batch again,
    as after any crash; then only one of them can commit it.
    """
    chance = random.Random(SEED)
    for number in range(rounds):
        spec = query(f"round-{number}-of-{rounds}", s3_server, tmp_path, OURS)
        results = contend(drivers, spec, chance.random() * longest_wait_seconds)
        errors = [result["error"] for result in results]
        assert sum(error is None for error in errors) == 1, errors
        assert sum(CONCURRENT in (error or "") for error in errors) == 1, errors
        both = set(results[0]["committed"]) & set(results[1]["committed"])
        assert both == set(), f"seed {SEED}, round {number}: committed by both"
        assert set(run_by_both(spec)) <= {first_batch_of(drivers[1], spec)}, f"seed {SEED}, round {number}"
        done = 1 + max(results[0]["committed"] + results[1]["committed"])
        assert_totals(QuerySpec(**{**spec.as_dict(), "batches": done}))


def test_what_the_stock_manager_does_is_printed(
    drivers: list[Driver], s3_server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own manager in the same situation: run once, for the record; nothing is demanded of it."""
    spec = query("stock", s3_server, tmp_path, STOCK)
    results = contend(drivers, spec, 0.2)
    both = sorted(set(results[0]["committed"]) & set(results[1]["committed"]))
    stopped = sum(CONCURRENT in (result["error"] or "") for result in results)
    found = (
        f"stock manager, two drivers on one S3 location: {len(both)} batches committed by both {both}, "
        f"sink run by both for {len(run_by_both(spec))}, drivers that were stopped: {stopped}"
    )
    with capsys.disabled():
        print(f"\n{found}")
    assert results[0]["committed"]
