"""The oldest Spark that is supported, with the Hadoop that it comes with: the same jar, the same rules."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.filemanager.test_queries import assert_totals, total
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB_V2
from tests.support.servers.hadoop import ROOT, s3a_jars, spark_conf
from tests.support.servers.proxy import Fault, FaultProxy, Rule

WITHOUT_CHECKSUMS = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}


@pytest.fixture(scope="module")
def oldest(jar: Path, _proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver on Spark 4.1 with S3A 3.4.2."""
    subprocess.run([ROOT / "tools" / "setup_spark_oldest.sh"], check=True, timeout=1800)
    log = tmp_path_factory.mktemp("oldest") / "driver.log"
    python = str(ROOT / ".tools" / "spark-4.1" / "bin" / "python")
    conf = spark_conf(_proxy.endpoint)
    with Driver(log, conf=conf, class_path=[jar, *s3a_jars("3.4.2")], python=python) as driver:
        yield driver


@pytest.mark.timeout(1800)
def test_the_jar_runs_on_the_oldest_spark(
    oldest: Driver, s3_root: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Both providers, restart, lost answers, conflicts in flight, and the number of requests."""
    assert oldest.versions == {"spark": "4.1.3", "hadoop": "3.4.2"}
    for name in ("old-hdfs/offsets/1", "old-hdfs/commits/2"):
        proxy.add(Rule(Fault.LOSE_RESPONSE, method="PUT", contains=name))
    proxy.add(Rule(Fault.ERROR_409, method="PUT", contains="old-hdfs/commits/3", times=2))
    for batches in (4, 8):
        hdfs = total("old-hdfs", s3_root, tmp_path, batches, {**HDFS, **WITHOUT_CHECKSUMS})
        rocksdb = total("old-v2", s3_root, tmp_path, batches, ROCKSDB_V2)
        oldest.run(hdfs, rocksdb)
    assert_totals(hdfs)
    assert_totals(rocksdb)
    faults = [request.fault for request in proxy.requests if request.fault is not None]
    assert sorted(map(str, faults)) == sorted(map(str, [Fault.LOSE_RESPONSE, Fault.ERROR_409] * 2))
    of_batch = [
        r for r in proxy.requests if "old-hdfs" in r.target and r.target.endswith(("/7", "7.delta"))
    ]
    assert sorted(r.method for r in of_batch) == ["HEAD", "HEAD", "PUT", "PUT", "PUT", "PUT"]
