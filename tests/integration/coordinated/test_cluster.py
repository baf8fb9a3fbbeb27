"""Executors that die in the middle of a batch: rows and state of the table fit all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB_V2, QuerySpec, total_after
from tests.support.sink_kit import read_rows

pytestmark = pytest.mark.crash

ROWS, BATCHES = 30, 4
CLUSTER = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.executor.memory": "512m",
    "spark.locality.wait": "0",
    "spark.shuffle.registration.timeout": "5000",
    "spark.stage.maxConsecutiveAttempts": "10",
}


def make_spec(name: str, kind: str, conf: dict[str, str], root: Path, **options: str) -> QuerySpec:
    """A query in which executors die; where it keeps its marks, they die once."""
    results = root / name
    results.mkdir()
    return QuerySpec(
        name,
        kind,
        f"file://{root}/{name}/location",
        str(results),
        BATCHES,
        conf,
        rows=ROWS,
        format="ckpt-sink",
        options={"state": "on", "path": str(results / "table"), **options},
    )


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("inline", [{}, {"inlineTaskBytes": "0"}], ids=["inline", "python"])
def test_executors_that_are_lost_before_and_after_their_tasks_ended(
    jar: Path, tmp_path: Path, inline: dict[str, str]
) -> None:
    """One dies when its task has drained its rows; another when its task is done and the batch is not.

    In the one query the state is written by the tasks of the sink, in the other one by a stage before it,
    of which a part runs again.
    """
    specs = [
        make_spec("whole", "dying-complete", HDFS, tmp_path, **inline),
        make_spec("keyed", "dying", ROCKSDB_V2, tmp_path, keyColumns="key", **inline),
    ]
    conf = {**CLUSTER, "spark.executor.extraClassPath": str(jar)}
    with Driver(tmp_path / "driver.log", conf=conf, class_path=[jar]) as driver:
        for spec in specs:
            driver.run(spec, timeout_seconds=240)
        for spec in specs:
            assert {path.name for path in Path(spec.results).glob("died-*")} == {"died-1", "died-2"}
            found = driver.call(
                "read", format="statestore", options={"path": spec.location}, conf=spec.conf
            )
            assert len(found) == ROWS
    for spec in specs:
        CACHE.forget()
        history = CheckpointStore.open(spec.options["path"])
        assert list(history.verify()) == []
        for epoch in range(BATCHES):
            rows = read_rows(spec.options["path"], epoch=str(epoch))
            assert {row["key"]: row["sum"] for row in rows} == total_after(epoch, ROWS), spec.name
