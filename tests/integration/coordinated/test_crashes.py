"""Drivers killed by SIGKILL and their locations lost: table and state are those of an undisturbed run."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.manifest_reader import exists
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.drivers.crash import run_with_kills
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import (
    HDFS,
    ROCKSDB,
    ROCKSDB_CHANGELOG,
    ROCKSDB_V2,
    QuerySpec,
    total_after,
)
from tests.support.servers.faults import Fault, Rule
from tests.support.servers.proxy import FaultProxy
from tests.support.servers.s3 import S3Server
from tests.support.sink_kit import read_rows
from tests.support.waiting import wait_until

pytestmark = pytest.mark.crash

SOAK_KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "11"))
ROWS = 40
SNAPSHOTS = {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "3"}
MAINTENANCE = {"spark.sql.streaming.stateStore.maintenanceInterval": "1s"}
Variant = tuple[str, dict[str, str], dict[str, str]]
QUICK: dict[str, Variant] = {
    "count-hdfs": ("count", HDFS, {"keyColumns": "window,key"}),
    "total-v2": ("total", ROCKSDB_V2, {"keyColumns": "key"}),
    "join-hdfs": ("join", HDFS, {}),
    "total-rocksdb": ("total-complete", ROCKSDB, {}),
}
WHOLE: dict[str, Variant] = {
    **QUICK,
    "dedup-changelog": ("dedup", ROCKSDB_CHANGELOG, {}),
    "sessions-v2": ("sessions", ROCKSDB_V2, {}),
    "windows-hdfs": ("count-append", HDFS, {}),
    "processor-changelog": ("processor", ROCKSDB_CHANGELOG, {"keyColumns": "key"}),
}
STATE_OPTIONS: dict[str, dict[str, str]] = {
    "join-hdfs": {"storeName": "left-keyWithIndexToValue"},
    "processor-changelog": {"stateVarName": "total"},
}


def make_specs(
    variants: dict[str, Variant],
    root: Path,
    batches: int,
    tables: str = "",
    options: dict[str, str] | None = None,
) -> list[QuerySpec]:
    """Eight queries at most, for one driver."""
    return [
        QuerySpec(
            name,
            kind,
            str(root / name / "location"),
            str(root / name),
            batches,
            {**conf, **SNAPSHOTS},
            rows=ROWS,
            format="ckpt-sink",
            options={
                "state": "on",
                "retain": "all",
                **given,
                "path": f"{tables or root}/{name}/table",
                **(options or {}),
            },
        )
        for name, (kind, conf, given) in variants.items()
    ]


@dataclass
class Disaster:
    """Between two lives every location is lost, and restored from the newest checkpoint of its table."""

    specs: list[QuerySpec]
    options: dict[str, str] = field(default_factory=dict)
    points: Counter[str] = field(default_factory=Counter)

    def strike(self) -> None:
        """Lose everything but the tables."""
        for spec in self.specs:
            shutil.rmtree(spec.location, ignore_errors=True)
            store = open_object_store(spec.options["path"], self.options, env={})
            if find_head(store) is not None:
                report = restore(
                    spec.options["path"], spec.location, options=self.options, location_options={}
                )
                self.points[report.point.value] += 1


def committed(specs: Sequence[QuerySpec], options: dict[str, str]) -> int:
    """The batches of all tables, whatever became of the locations."""
    heads = (CheckpointStore.open(spec.options["path"], options).load_latest() for spec in specs)
    return sum(head.epoch + 1 for head in heads if head is not None)


def reached(spec: QuerySpec) -> int:
    """The last batch that a query has finished: while others were waited for, it may have gone further."""
    return max(int(path.name) for path in (Path(spec.location) / "commits").glob("[0-9]*"))


def table(spec: QuerySpec, batch: int, options: dict[str, str] | None = None) -> Counter[str]:
    """The table of a query after a batch, read without Spark."""
    CACHE.forget()
    rows = read_rows(spec.options["path"], epoch=str(batch), **(options or {}))
    return Counter(map(repr, rows))


def state(driver: Driver, spec: QuerySpec, batch: int) -> list[str]:
    """The state of a query after a batch, as Spark's own reader shows it."""
    given = STATE_OPTIONS.get(spec.name, {})
    options = {"path": spec.location, "batchId": str(batch), **given}
    found: list[str] = driver.call("read", format="statestore", options=options, conf=spec.conf)
    return found


def check(
    jar: Path,
    root: Path,
    variants: dict[str, Variant],
    kills: int,
    tables: str = "",
    options: dict[str, str] | None = None,
) -> None:
    """Run, kill, lose, restore, go on; then compare with a run that nothing happened to.

    ``tables`` is where the tables of the killed queries are, if not on the disk, and ``options`` of those.
    """
    options = options or {}
    batches = max(kills + 3, 9 if variants is WHOLE else 0)
    conf = {**MAINTENANCE}
    killed = make_specs(variants, root / "killed", batches, tables, options)
    disaster = Disaster(killed, options)
    report = run_with_kills(
        lambda: Driver(root / "killed.log", conf=conf, class_path=[jar]),
        killed,
        kills=kills,
        seed=SEED,
        settle=disaster.strike,
        done=lambda specs: committed(specs, options),
        timeout_seconds=1200,
    )
    print(f"seed {SEED}: {report}, restored {dict(disaster.points)}")
    last = {spec.name: reached(spec) for spec in killed}
    undisturbed = make_specs(variants, root / "expected", batches)
    undisturbed = [replace(spec, batches=last[spec.name] + 1) for spec in undisturbed]
    with Driver(root / "undisturbed.log", conf=conf, class_path=[jar]) as driver:
        driver.run(*undisturbed, timeout_seconds=1200)
        for expected, found in zip(undisturbed, killed, strict=True):
            told, batch = f"{found.name}, batch {last[found.name]}, seed {SEED}", last[found.name]
            assert table(expected, batch), told
            assert table(found, batch, options) == table(expected, batch), told
            assert state(driver, found, batch) == state(driver, expected, batch), told
            assert list(CheckpointStore.open(found.options["path"], options).verify()) == []
    assert sum(disaster.points.values()) > 0, "no location was restored"


@pytest.mark.timeout(1800)
def test_killed_drivers_and_lost_locations_keep_every_row_once(jar: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, every location gone each time."""
    check(jar, tmp_path, QUICK, 2)


@pytest.mark.soak
@pytest.mark.timeout(1200 + 300 * SOAK_KILLS)
@pytest.mark.parametrize("where", ["disk", "s3"])
def test_eight_queries_killed_repeatedly(
    jar: Path, s3_server: S3Server, tmp_path: Path, where: str
) -> None:
    """Every provider and kind of operator in one driver, with tables on disk and on the S3 server."""
    if where == "disk":
        check(jar, tmp_path, WHOLE, SOAK_KILLS)
    else:
        check(jar, tmp_path, WHOLE, SOAK_KILLS, s3_server.url(tmp_path.name), dict(s3_server.options))


STEPS: dict[str, tuple[str, Fault]] = {
    "the rows are drained, and nothing is uploaded": (".pack", Fault.RESET),
    "rows and state are uploaded, and there is no manifest": ("manifests/manifest-", Fault.RESET),
    "the manifest is there, and nobody has been told": ("manifests/manifest-", Fault.STALL),
    "the pointer moves, and commits/N is not written": ("_latest", Fault.STALL),
}
_NUMBERED = re.compile(r"/(?:manifests/manifest-|checkpoints/)(\d{10})")


class Trap:
    """Catches a PUT of checkpoint ``number`` or a later one, before the server gets it, or after."""

    def __init__(self, proxy: FaultProxy, contains: str, fault: Fault, number: int) -> None:
        self._proxy = proxy
        self._contains = contains
        self._fault = fault
        self._wanted = number
        self._released = threading.Event()
        self.number = 0
        self.target = ""
        self.caught = threading.Event()

    def __call__(self, method: str, target: str) -> None:
        found = _NUMBERED.search(target)
        if method != "PUT" or self.caught.is_set():
            return
        self.number = max(self.number, int(found[1]) if found else 0)
        if self.number < self._wanted or self._contains not in target:
            return
        self.target = target
        self._proxy.add(Rule(self._fault, method="PUT", contains=target, seconds=90))
        self.caught.set()
        if self._fault is Fault.RESET:
            self._released.wait(60)

    def release(self) -> None:
        """Let the request go, of which the server sees nothing."""
        self._released.set()


@pytest.mark.timeout(1800)
def test_killed_at_named_steps_on_s3(jar: Path, s3_server: S3Server, tmp_path: Path) -> None:
    """SIGKILL while one request, or the answer to it, is held back; the location is lost, too."""
    with FaultProxy(s3_server.endpoint) as proxy:
        options = s3_server.options_at(proxy.endpoint)
        variants = {"total-hdfs": ("total", HDFS, {"keyColumns": "key"})}
        tables = s3_server.url(f"steps-{tmp_path.name}")
        [spec] = make_specs(variants, tmp_path, 7, tables, options)
        store = open_object_store(spec.options["path"], s3_server.options, env={})
        disaster = Disaster([spec], dict(s3_server.options))
        for contains, fault in STEPS.values():
            before = find_head(store)
            trap = Trap(proxy, contains, fault, (0 if before is None else before.number) + 3)
            proxy.before = trap
            with Driver(tmp_path / "killed.log", class_path=[jar]) as driver:
                driver.start(spec)
                assert trap.caught.wait(120), f"no PUT of {contains}"
                is_made = contains != ".pack" and fault is Fault.STALL
                wait_until(lambda: exists(store, manifest_key(trap.number)) or not is_made)
                driver.kill()
            trap.release()
            proxy.clear()
            assert exists(store, manifest_key(trap.number)) is is_made
            disaster.strike()
        proxy.before = None
        with Driver(tmp_path / "last.log", class_path=[jar]) as driver:
            driver.run(spec)
        CACHE.forget()
        rows = read_rows(spec.options["path"], epoch="6", **s3_server.options)
        assert {row["key"]: row["sum"] for row in rows} == total_after(6, ROWS)
        assert len(rows) == ROWS
        history = CheckpointStore.open(spec.options["path"], s3_server.options)
        assert list(history.verify()) == []
