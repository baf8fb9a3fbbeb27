"""Tasks that fail, disks that fill up, stores that go away: the table is whole, before and after."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame

from pyspark_checkpoint import open_object_store
from tests.integration.sink.lab import Lab, rows_of
from tests.support.mounts import need_namespaces
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import Fault, FaultProxy, Rule

ROOT = Path(__file__).resolve().parents[3]


def failing_twice(frame: DataFrame) -> DataFrame:
    """Rows whose task dies after half of them, twice, and then gives all."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if context is not None and context.attemptNumber() < 2:
                raise RuntimeError("this attempt dies on purpose")
            yield batch.slice(half)

    return frame.mapInArrow(rows, frame.schema)


@pytest.mark.parametrize("inline", [{}, {"inlineTaskBytes": "0"}], ids=["inline", "python"])
def test_a_task_that_fails_twice_leaves_no_duplicates(lab: Lab, inline: dict[str, str]) -> None:
    """Without a shuffle the sink's own task dies with them; with one, a task before it does."""
    lab.put(pa.table({"k": list(range(100)), "v": [1] * 100}))
    lab.run(failing_twice, table="append", **inline)
    lab.run(failing_twice, table="keyed", keyColumns="k", **inline)
    assert rows_of(lab.read("append")) == rows_of(lab.input(stream=False))
    assert rows_of(lab.read("keyed")) == rows_of(lab.input(stream=False))


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the S3 server that a test may break."""
    with FaultProxy(s3_server.endpoint) as running:
        yield running


@pytest.mark.timeout(600)
def test_a_store_that_goes_away_for_twenty_seconds(
    lab: Lab, s3_server: S3Server, proxy: FaultProxy
) -> None:
    """The query waits and goes on; nobody restarts it, and nothing is lost or duplicated."""
    path = s3_server.url(f"away-{lab.root.name}")
    options = {**s3_server.options_at(proxy.endpoint), "keyColumns": "k", "path": path}
    lab.put(pa.table({"k": [1, 2], "v": [1, 1]}))
    stream = lab.input().writeStream.format("ckpt-sink").option("checkpointLocation", lab.path("at"))
    query = stream.options(**options).start()
    try:
        query.processAllAvailable()
        proxy.add(Rule(Fault.RESET, times=None))
        threading.Timer(20, proxy.clear).start()
        gone = time.monotonic()
        lab.put(pa.table({"k": [2, 3], "v": [2, 2]}))
        query.processAllAvailable()
        assert time.monotonic() - gone >= 19
        lab.put(pa.table({"k": [3, 4], "v": [3, 3]}))
        query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    reader = lab.spark.read.format("ckpt-sink").options(**s3_server.options)
    assert sorted(map(tuple, reader.load(path).collect())) == [(1, 1), (2, 2), (3, 3), (4, 3)]


_ON_A_SMALL_DISK = """
import os, subprocess, sys
disk = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
from pyspark_checkpoint.errors import StoreError
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.sink_kit import Query, read_pairs
table = disk + "/table"
query = Query(table, options={"maxDeltas": "2", "retrySeconds": "1"})
query.epoch(0, [(1, 1), (2, 2)])
with open(disk + "/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
try:
    query.epoch(1, [(2, 3), (3, 3)])
    raise SystemExit("a full disk was not noticed")
except StoreError as error:
    print("REFUSED", type(error).__name__, error)
assert read_pairs(table) == [(1, 1), (2, 2)]
os.remove(disk + "/filler")
CACHE.forget()
query = Query(table, options={"maxDeltas": "2"})
query.epoch(1, [(2, 3), (3, 3)])
assert read_pairs(table) == [(1, 1), (2, 3), (3, 3)]
print("WHOLE")
"""


@pytest.mark.process
def test_a_full_disk_is_an_error_and_the_table_stays_whole(tmp_path: Path) -> None:
    """What was committed stays readable; with room again, the query goes on from its next start."""
    need_namespaces()
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", _ON_A_SMALL_DISK, str(disk)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "REFUSED" in done.stdout, done.stdout + done.stderr
    assert "WHOLE" in done.stdout, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("inline", "artifacts"), [("1000000", 1), ("0", 2)])
def test_requests_of_a_batch_in_steady_state(
    lab: Lab, s3_server: S3Server, proxy: FaultProxy, inline: str, artifacts: int
) -> None:
    """Planning is one GET, the rows one PUT, or one a task, the commit two PUTs and one GET; no LIST."""
    path = s3_server.url(f"count-{lab.root.name}")
    options = {**s3_server.options_at(proxy.endpoint), "keyColumns": "k", "partitions": "2", "path": path}
    options["inlineTaskBytes"] = inline
    lab.put(pa.table({"k": list(range(20)), "v": [0] * 20}))
    stream = lab.input().writeStream.format("ckpt-sink").option("checkpointLocation", lab.path("at"))
    query = stream.options(**options).start()
    try:
        for number in range(2):
            query.processAllAvailable()
            lab.put(pa.table({"k": list(range(20)), "v": [number] * 20}))
        query.processAllAvailable()
        for number in range(3):
            proxy.clear()
            lab.put(pa.table({"k": list(range(20)), "v": [9 + number] * 20}))
            query.processAllAvailable()
            seen = sorted((r.method, _what(r.target)) for r in proxy.requests)
            assert seen == [
                ("GET", "_control"),
                ("GET", "manifest"),
                ("PUT", "_latest"),
                *[("PUT", "artifact")] * artifacts,
                ("PUT", "manifest"),
            ]
    finally:
        query.stop()
    store = open_object_store(path, s3_server.options, env={})
    assert len(list(store.list("manifests/"))) == 6


def _what(target: str) -> str:
    name = target.split("?", maxsplit=1)[0].rsplit("/", 1)[-1]
    if name.startswith("manifest-"):
        return "manifest"
    return name if name.startswith("_") else "artifact" if "/checkpoints/" in target else f"other {target}"
