"""Drivers killed while they are captured, restores killed as they write: no row is lost or duplicated."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import list_queries, root_url
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.store.open import open_object_store
from tests.support.drivers import outcome
from tests.support.drivers.crash import run_with_kills
from tests.support.drivers.driver import ROOT, Driver
from tests.support.drivers.queries import HDFS, ROCKSDB, ROCKSDB_CHANGELOG, ROCKSDB_V2, QuerySpec

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLS = int(os.environ.get("KILLS", "6"))
SEED = int(os.environ.get("SEED", "7"))
PATIENCE_SECONDS = 600 + 40 * KILLS
QUICK = {
    "count-hdfs": ("count", HDFS),
    "total-v2": ("total", ROCKSDB_V2),
    "join-hdfs": ("join", HDFS),
    "sessions-changelog": ("sessions", ROCKSDB_CHANGELOG),
}
WHOLE = {
    **QUICK,
    "total-rocksdb": ("total", ROCKSDB),
    "dedup-v2": ("dedup", ROCKSDB_V2),
    "count-changelog": ("count-append", ROCKSDB_CHANGELOG),
    "processor-changelog": ("processor", ROCKSDB_CHANGELOG),
}


@dataclass
class Disasters:
    """Between two lives every location is lost and restored; one of the restores is killed on its way."""

    specs: list[QuerySpec]
    url: str
    chance: random.Random
    epochs: list[int] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)

    def strike(self) -> None:
        """Lose every location and restore it from the newest checkpoint."""
        unlucky = self.chance.choice(self.specs)
        for spec in self.specs:
            shutil.rmtree(spec.location, ignore_errors=True)
            if not self._has_checkpoint(spec):
                continue
            if spec is unlucky:
                self._kill_a_restore(spec)
            self.epochs.append(restore(self.url, spec.location, query=spec.name).epoch)

    def _has_checkpoint(self, spec: QuerySpec) -> bool:
        for root in list_queries(open_object_store(self.url)):
            if root.name == spec.name:
                return CheckpointStore.open(root_url(self.url, root.query_id)).load_latest() is not None
        return False

    def _kill_a_restore(self, spec: QuerySpec) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.integration.listener.restorer",
            self.url,
            spec.name,
            spec.location,
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = self.chance.randint(1, 6)
            for _ in range(lines):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        if process.returncode == -signal.SIGKILL:
            self.killed.append(lines)
            with pytest.raises(RefusedError, match="interrupted"):
                restore(self.url, spec.location, query=spec.name, clone=True)
            return
        shutil.rmtree(spec.location)  # it was too fast, and is done


def make_specs(queries: dict[str, tuple[str, dict[str, str]]], root: Path, listen: str) -> list[QuerySpec]:
    """The queries, each with enough batches to be killed in."""
    return [
        QuerySpec(
            name,
            kind,
            str(root / "locations" / name),
            str(root / "results" / name),
            max(12, KILLS),
            {**conf, "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3"},
            rows=60,
            listen=listen,
        )
        for name, (kind, conf) in queries.items()
    ]


def check(queries: dict[str, tuple[str, dict[str, str]]], tmp_path: Path) -> None:
    """Kill, lose, restore, go on; then compare every batch with an undisturbed run."""
    undisturbed = make_specs(queries, tmp_path / "expected", "")
    with Driver(tmp_path / "undisturbed.log") as driver:
        driver.run(*undisturbed, timeout_seconds=PATIENCE_SECONDS)
    url = str(tmp_path / "store")
    specs = make_specs(queries, tmp_path / "found", url)
    disasters = Disasters(specs, url, random.Random(SEED))
    conf = {"spark.sql.streaming.stateStore.maintenanceInterval": "1s"}
    report = run_with_kills(
        lambda: Driver(tmp_path / "killed.log", conf=conf),
        specs,
        kills=KILLS,
        seed=SEED,
        settle=disasters.strike,
        timeout_seconds=PATIENCE_SECONDS,
    )
    print(f"seed {SEED}: {report}, restored at {disasters.epochs}, restores killed {disasters.killed}")
    found = [line for pair in zip(undisturbed, specs, strict=True) for line in outcome.differences(*pair)]
    assert found == [], f"seed {SEED}"
    assert max(disasters.epochs) > 1, "no restore was worth the name"
    assert disasters.killed, "no restore was killed"
    for root in list_queries(open_object_store(url)):
        assert list(CheckpointStore.open(root_url(url, root.query_id)).verify()) == []


@pytest.mark.timeout(600 + 200 * KILLS)
def test_killed_drivers_and_killed_restores_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    """SIGKILL at random moments, the location gone each time: every batch is the undisturbed run's."""
    check(QUICK, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1200 + 300 * KILLS)
def test_eight_queries_killed_again_and_again(tmp_path: Path) -> None:
    """Every provider and kind of operator in one driver."""
    check(WHOLE, tmp_path)
