"""A checkpoint location on S3: tasks and driver read it with the SDK, and the driver asks for little."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.sink.worker_cache import CACHE
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB, QuerySpec, total_after
from tests.support.servers.hadoop import s3a_jars, spark_conf
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import FaultProxy
from tests.support.sink_kit import read_rows

ROWS = 40
FIRST, ALL = 5, 8


def make_spec(name: str, root: Path, location: str, batches: int, options: dict[str, str]) -> QuerySpec:
    """Totals by key, with state of either provider."""
    conf = HDFS if name == "hdfs" else ROCKSDB
    given = {"state": "on", "retain": "all", "keyColumns": "key", "path": str(root / name / "table")}
    return QuerySpec(
        name,
        "total",
        f"{location}/{name}",
        str(root / name),
        batches,
        conf,
        rows=ROWS,
        format="ckpt-sink",
        options={**given, **options},
    )


def listed(proxy: FaultProxy, location: str) -> list[str]:
    """The prefixes below the location that were listed, in order, each page."""
    root = urllib.parse.urlsplit(location).path.lstrip("/")
    found = []
    for request in proxy.requests:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.target).query)
        prefix = query.get("prefix", [""])[0]
        if request.method == "GET" and "list-type" in query and prefix.startswith(root):
            found.append(prefix.removeprefix(f"{root}/"))
    return found


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_location_on_s3_is_listed_once_a_run_and_restored(
    jar: Path, s3_server: S3Server, tmp_path: Path
) -> None:
    """Python comes by the proxy, Spark does not: what is counted is ours alone."""
    location = f"{s3_server.url(tmp_path.name)}/first".replace("s3://", "s3a://")
    fresh = location.replace("/first", "/fresh")
    conf = spark_conf(s3_server.endpoint)
    with (
        FaultProxy(s3_server.endpoint) as proxy,
        Driver(tmp_path / "driver.log", conf=conf, class_path=[jar, *s3a_jars()]) as driver,
    ):
        options = {"endpoint": proxy.endpoint}
        specs = [make_spec(name, tmp_path, location, FIRST, options) for name in ("hdfs", "rocksdb")]
        for spec in specs:
            driver.run(spec, timeout_seconds=300)
            prefixes = listed(proxy, f"{location}/{spec.name}")
            assert prefixes.count("") == 1, "the whole location is listed by the first commit alone"
            assert prefixes.count("sources/") >= FIRST - 1
            assert prefixes.count("state/0/_metadata/") <= 2, "operators are looked up when a run begins"
        later = [make_spec(spec.name, tmp_path, fresh, ALL, options) for spec in specs]
        for spec in later:
            where = f"{fresh}/{spec.name}"
            restore(spec.options["path"], where, options={}, location_options=s3_server.options)
        driver.run(*later, timeout_seconds=300)
    for spec in later:
        CACHE.forget()
        rows = read_rows(spec.options["path"], epoch=str(ALL - 1))
        assert {row["key"]: row["sum"] for row in rows} == total_after(ALL - 1, ROWS)
        assert list(CheckpointStore.open(spec.options["path"]).verify()) == []
