"""Checkpoint locations on S3, as Spark's own file manager writes them, and as ours does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint import CheckpointStore, restore
from pyspark_checkpoint.registry.queries import list_queries, root_url
from pyspark_checkpoint.store.open import open_object_store
from tests.support.drivers import outcome
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG, QuerySpec
from tests.support.servers.hadoop import FILE_MANAGER, build_jar, s3a_conf, s3a_jars, spark_conf
from tests.support.servers.launch import S3Server

pytestmark = pytest.mark.spark

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BATCHES = 12
KINDS = {
    "stock": ("count", HDFS),
    "ours": ("total", {**ROCKSDB_CHANGELOG, MANAGER: FILE_MANAGER}),
}


def specs(root: Path, where: str, *, batches: int, listen: str = "") -> list[QuerySpec]:
    """Both queries in one driver: a session has its own file manager."""
    return [
        QuerySpec(name, kind, f"{where}/{name}", str(root / name), batches, conf, rows=60, listen=listen)
        for name, (kind, conf) in KINDS.items()
    ]


@pytest.mark.timeout(900)
def test_locations_on_s3_are_captured_and_restored_with_either_file_manager(
    s3_server: S3Server, tmp_path: Path
) -> None:
    """The listener reads the bucket with Spark's own settings; what is restored there goes on."""
    conf = spark_conf(s3_server.endpoint, file_manager=None)
    store = str(tmp_path / "store")
    there = s3_server.url("locations").replace("s3://", "s3a://")
    half = specs(tmp_path / "found", f"{there}/lost", batches=BATCHES // 2, listen=store)
    jars = [build_jar(), *s3a_jars()]
    with Driver(tmp_path / "s3.log", conf=conf, class_path=jars, own_file_manager=False) as driver:
        expected = specs(tmp_path / "expected", str(tmp_path / "disk"), batches=BATCHES)
        driver.run(*expected, timeout_seconds=300)
        driver.run(*half, timeout_seconds=300)
        for spec in half:
            driver.flush(spec.name, timeout_seconds=60)
        for spec in half:
            restore(
                store, f"{there}/fresh/{spec.name}", query=spec.name, location_options=s3_server.options
            )
        whole = specs(tmp_path / "found", f"{there}/fresh", batches=BATCHES, listen=store)
        driver.run(*whole, timeout_seconds=300)
        for spec in whole:
            driver.flush(spec.name, timeout_seconds=60)
    assert [line for pair in zip(expected, whole, strict=True) for line in outcome.differences(*pair)] == []
    for query in list_queries(open_object_store(store)):
        history = CheckpointStore.open(root_url(store, query.query_id))
        newest = history.load_latest()
        assert newest is not None
        assert newest.epoch >= BATCHES - 1
        assert list(history.verify()) == []


def test_a_location_is_captured_with_what_the_program_has_set_on_its_session(
    s3_server: S3Server, tmp_path: Path
) -> None:
    """Endpoint and credentials that the application's own confs do not have: Spark and we read the same."""
    store = str(tmp_path / "store")
    there = s3_server.url("session-settings").replace("s3://", "s3a://")
    conf = {**HDFS, **s3a_conf(s3_server.endpoint)}
    spec = QuerySpec("count", "count", f"{there}/count", str(tmp_path), 3, conf, rows=60, listen=store)
    with Driver(tmp_path / "s3.log", conf={}, class_path=[build_jar(), *s3a_jars()]) as driver:
        driver.run(spec, timeout_seconds=300)
        driver.flush(spec.name, timeout_seconds=60)
    (query,) = list_queries(open_object_store(store))
    newest = CheckpointStore.open(root_url(store, query.query_id)).load_latest()
    assert newest is not None and newest.epoch == 2
