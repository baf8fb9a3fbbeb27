"""Drivers killed at random, with checkpoints on S3 and on disk: the results are an undisturbed run's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.drivers import outcome
from tests.support.drivers.crash import run_with_kills
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB, ROCKSDB_CHANGELOG, ROCKSDB_V2, QuerySpec
from tests.support.servers.hadoop import s3a_jars, spark_conf
from tests.support.servers.launch import S3Server

pytestmark = pytest.mark.crash

SOAK_KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "6"))

QUERIES = {
    "count-hdfs": ("count", HDFS),
    "total-rocksdb": ("total", ROCKSDB),
    "count-changelog": ("count-append", ROCKSDB_CHANGELOG),
    "total-v2": ("total", ROCKSDB_V2),
    "join-hdfs": ("join", HDFS),
    "dedup-v2": ("dedup", ROCKSDB_V2),
    "sessions-changelog": ("sessions", ROCKSDB_CHANGELOG),
    "processor-changelog": ("processor", ROCKSDB_CHANGELOG),
}
ON_DISK = ("count-hdfs", "count-changelog", "dedup-v2")
"""Their locations are on a local disk, also when they are killed."""
QUICK = tuple(name for name in QUERIES if name not in ("dedup-v2", "processor-changelog"))
"""Every state store, on both kinds of place, for few kills."""


def specs(names: Sequence[str], disk: Path, root: str, results: Path, batches: int) -> list[QuerySpec]:
    """Queries for one driver."""
    roots = {name: f"file://{disk}" if name in ON_DISK else root for name in QUERIES}
    return [
        QuerySpec(name, kind, f"{roots[name]}/{name}", str(results / name), batches, conf, rows=60)
        for name, (kind, conf) in QUERIES.items()
        if name in names
    ]


@pytest.mark.parametrize(
    ("kills", "names"),
    [
        pytest.param(3, QUICK, marks=pytest.mark.timeout(1800), id="3-kills"),
        pytest.param(SOAK_KILLS, tuple(QUERIES), marks=pytest.mark.soak, id="many-kills"),
    ],
)
def test_killed_drivers_lose_and_duplicate_nothing(
    jar: Path, s3_server: S3Server, tmp_path: Path, kills: int, names: Sequence[str]
) -> None:
    """SIGKILL at random moments; every batch of every query equals that of an undisturbed run."""
    batches = max(8, kills)
    alone = tmp_path / "alone"
    undisturbed = specs(names, alone, f"file://{alone}", tmp_path / "expected", batches)
    with Driver(tmp_path / "undisturbed.log") as driver:
        driver.run(*undisturbed, timeout_seconds=900)
    root = f"s3a://{s3_server.bucket}/crashes-{kills}"
    killed = specs(names, tmp_path / "locations", root, tmp_path / "found", batches)

    def start() -> Driver:
        return Driver(
            tmp_path / "killed.log",
            conf=spark_conf(s3_server.endpoint),
            class_path=[jar, *s3a_jars()],
        )

    report = run_with_kills(start, killed, kills=kills, seed=SEED, timeout_seconds=600)
    print(f"seed {SEED}: {report}")
    assert report.batches_at_kill[-1] < batches * len(killed), "killed only when all was done"
    found = [line for pair in zip(undisturbed, killed, strict=True) for line in outcome.differences(*pair)]
    assert found == [], f"seed {SEED}"
