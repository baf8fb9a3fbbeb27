"""Drivers killed by SIGKILL: the tables are those of an undisturbed run, on disk and on S3."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.manifest_reader import exists
from pyspark_checkpoint.sink.worker_cache import CACHE
from pyspark_checkpoint.store.base import ObjectStore
from tests.support.drivers.crash import run_with_kills
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec, total_after
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import Fault, FaultProxy, Rule
from tests.support.sink_kit import read_rows
from tests.support.waiting import wait_until

pytestmark = pytest.mark.crash

SOAK_KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "5"))
ROWS = 40
IN_PYTHON = {"inlineTaskBytes": "0"}
"""Each task writes its own rows; else the driver writes those of small tasks."""
QUERIES = {
    "upsert": ("numbers", {"keyColumns": "key", "maxDeltas": "3", "partitions": "3"}),
    "append": ("numbers", {"maxDeltas": "3"}),
    "update": ("count", {"keyColumns": "window,key", "maxDeltas": "2", **IN_PYTHON}),
    "total": ("total", {"keyColumns": "key", **IN_PYTHON}),
    "complete": ("total-complete", {}),
    "dedup": ("dedup", {"keyColumns": "key", "sequenceColumn": "timestamp"}),
    "join": ("join", {**IN_PYTHON}),
    "windows": ("count-append", {"retain": "all"}),
}


def specs(root: Path, batches: int, server: S3Server) -> list[QuerySpec]:
    """Every mode of the sink, eight queries for one driver: by turns a table on disk and one on S3."""
    places: list[tuple[str, dict[str, str]]] = [
        (str(root), {}),
        (server.url(f"{root.parent.name}/{root.name}"), server.options),
    ]
    return [
        QuerySpec(
            name,
            kind,
            f"file://{root}/{name}/location",
            str(root / name),
            batches,
            rows=ROWS,
            format="ckpt-sink",
            options={"retain": "all", **given, "path": f"{tables}/{name}/table", **options},
        )
        for (name, (kind, given)), (tables, options) in zip(QUERIES.items(), places * 4, strict=True)
    ]


def committed(running: Sequence[QuerySpec]) -> int:
    """The batches that Spark has in its own logs."""
    return sum(len(list(Path(spec.results).glob("location/commits/[0-9]*"))) for spec in running)


def content(spec: QuerySpec) -> Counter[str]:
    """The table of a query after its last batch, read without Spark."""
    CACHE.forget()
    options = {k: v for k, v in spec.options.items() if k not in QUERIES[spec.name][1] and k != "retain"}
    path = options.pop("path")
    return Counter(map(repr, read_rows(path, epoch=str(spec.batches - 1), **options)))


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.timeout(1800), id="3-kills"),
        pytest.param(SOAK_KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(14400)], id="many-kills"),
    ],
)
def test_killed_drivers_keep_every_row_once(
    jar: Path, s3_server: S3Server, tmp_path: Path, kills: int
) -> None:
    """SIGKILL at random moments of eight queries; every table equals that of an undisturbed run."""
    batches = max(8, kills)  # with fewer no window is closed, and an empty table proves nothing
    expected = specs(tmp_path / "expected", batches, s3_server)
    with Driver(tmp_path / "undisturbed.log", class_path=[jar]) as driver:
        driver.run(*expected, timeout_seconds=1200)
    killed = specs(tmp_path / "killed", batches, s3_server)
    report = run_with_kills(
        lambda: Driver(tmp_path / "killed.log", class_path=[jar]),
        killed,
        kills=kills,
        seed=SEED,
        done=committed,
        timeout_seconds=1200,
    )
    assert report.kills == kills
    for undisturbed, disturbed in zip(expected, killed, strict=True):
        assert content(undisturbed), undisturbed.name
        assert content(disturbed) == content(undisturbed), f"{disturbed.name}, seed {SEED}"


STEPS: dict[str, tuple[str, Callable[[ObjectStore, int], bool]]] = {
    "the rows have been uploaded": (
        "checkpoints/",
        lambda store, number: bool(list(store.list(f"checkpoints/{number:010d}-"))),
    ),
    "the manifest is there and nobody has been told": (
        "manifests/manifest-",
        lambda store, number: exists(store, manifest_key(number)),
    ),
    "the pointer moves": (
        "_latest",
        lambda store, number: exists(store, manifest_key(number)),
    ),
}


@pytest.mark.parametrize("inline", [{}, IN_PYTHON], ids=["inline", "python"])
def test_killed_at_named_steps_on_s3(
    jar: Path, s3_server: S3Server, tmp_path: Path, inline: dict[str, str]
) -> None:
    """SIGKILL while the answer to one request is held back; the query goes on as if nothing had been."""
    with FaultProxy(s3_server.endpoint) as proxy:
        path = s3_server.url(f"steps-{tmp_path.name}")
        options = {"path": path, "keyColumns": "key", **inline, **s3_server.options_at(proxy.endpoint)}
        store = open_object_store(path, s3_server.options, env={})
        spec = QuerySpec(
            "total",
            "total",
            f"file://{tmp_path}/location",
            str(tmp_path),
            9,
            rows=ROWS,
            format="ckpt-sink",
            options=options,
        )
        for life, (contains, happened) in enumerate(STEPS.values()):
            with Driver(tmp_path / "killed.log", class_path=[jar]) as driver:
                before = find_head(store)
                target = (0 if before is None else before.number) + 3
                driver.start(spec)
                wait_until(lambda: exists(store, manifest_key(target - 1)), f"checkpoint {target - 1}")
                proxy.add(Rule(Fault.STALL, method="PUT", contains=contains, seconds=90))
                head = find_head(store)
                assert head is not None
                with suppress(AssertionError):
                    wait_until(lambda: happened(store, head.number + 1), "the step", 20)
                time.sleep(0.3)
                driver.kill()
            proxy.clear()
            assert find_head(store) is not None, f"life {life}"
        with Driver(tmp_path / "last.log", class_path=[jar]) as driver:
            driver.run(spec)
        CACHE.forget()
        rows = read_rows(path, epoch="8", **s3_server.options)
        assert {row["key"]: row["sum"] for row in rows} == total_after(8, ROWS)
        assert len(rows) == ROWS
