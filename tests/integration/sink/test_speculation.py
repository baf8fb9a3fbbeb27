"""Speculation, forced: on a small cluster, a task that takes long gets a second attempt beside it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sink.worker_cache import CACHE
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import ROCKSDB_V2, QuerySpec
from tests.support.sink_kit import read_rows

ROWS, BATCHES = 30, 3
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.locality.wait": "0",
}


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def spark_class(log: Path, *arguments: str) -> Iterator[None]:
    """One of Spark's own daemons, ended with the block."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_CLASS), *arguments],
            env={**kept, "SPARK_DAEMON_MEMORY": "256m"},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers on hosts that differ: Spark never speculates on the first attempt's host."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    with contextlib.ExitStack() as stack:
        common = ("--webui-port", "0")
        arguments = (f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port), *common)
        stack.enter_context(spark_class(tmp_path / "master.log", *arguments))
        for host in ("127.0.0.1", "127.0.0.2"):
            place = ("--host", host, "--work-dir", str(tmp_path / "work" / host), *common)
            size = ("--cores", "1", "--memory", "1g", master)
            log = tmp_path / f"worker-{host}.log"
            stack.enter_context(spark_class(log, f"{package}.worker.Worker", *place, *size))
        yield master


@pytest.mark.timeout(600)
@pytest.mark.parametrize("inline", ["1000000", "0"])
def test_speculative_attempts_leave_every_row_once(
    jar: Path, cluster: str, tmp_path: Path, inline: str
) -> None:
    """Both attempts write rows and state; one is committed, and what the other left does no harm."""
    results = tmp_path / "results"
    results.mkdir()
    conf = {**SPECULATION, "spark.master": cluster, "spark.executor.extraClassPath": str(jar)}
    spec = QuerySpec(
        "straggler",
        "straggler",
        f"file://{tmp_path}/location",
        str(results),
        BATCHES,
        ROCKSDB_V2,
        rows=ROWS,
        format="ckpt-sink",
        options={"path": str(tmp_path / "table"), "state": "on", "inlineTaskBytes": inline},
    )
    with Driver(tmp_path / "driver.log", conf=conf, class_path=[jar]) as driver:
        driver.run(spec, timeout_seconds=400)
        kept = driver.call("read", format="statestore", options={"path": spec.location}, conf=spec.conf)
    assert len(kept) == ROWS * BATCHES
    assert len(list(results.glob("attempt-*"))) >= BATCHES
    CACHE.forget()
    values = [row["value"] for row in read_rows(str(tmp_path / "table"), epoch=str(BATCHES - 1))]
    assert sorted(values) == list(range(ROWS * BATCHES))
    history = CheckpointStore.open(str(tmp_path / "table"))
    assert list(history.verify()) == []
    assert any(attempts(history, number) > 1 for number in history.list_ids()), "no loser left its state"


def attempts(history: CheckpointStore, number: int) -> int:
    """Of how many attempts a checkpoint names the newest state of the partition that was slow."""
    manifest = history.load_by_id(number)
    assert manifest is not None
    record = manifest.state
    assert record is not None
    newest = f"state/0/0/{record.batch_id + 1}_"
    return len({path.partition(".")[0] for path in state_refs(manifest) if path.startswith(newest)})
