"""The ready conf file and the example, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.hadoop import FILE_MANAGER, ROOT, s3a_conf, s3a_jars
from tests.support.servers.launch import S3Server

pytestmark = pytest.mark.spark

CONF = ROOT / "conf" / "s3-file-manager.conf"


def properties() -> dict[str, str]:
    """The lines of the conf file that are not comments."""
    lines = [line.strip() for line in CONF.read_text().splitlines()]
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {name: value.strip() for name, value in pairs}


def test_the_conf_file_names_the_manager() -> None:
    """The class that it names is the one that the jar has."""
    assert properties()["spark.sql.streaming.checkpointFileManagerClass"] == FILE_MANAGER


def test_the_example_runs_with_the_conf_file_and_resumes(jar: Path, s3_server: S3Server) -> None:
    """spark-submit with the properties file: three batches, then two more from where it was.

    The executor is a JVM of its own that gets the jars from the driver, as on a cluster.
    """
    location = f"s3a://{s3_server.bucket}/example"
    command = [
        *(str(Path(sys.executable).parent / "spark-submit"), "--master", "local-cluster[1,2,1024]"),
        *("--properties-file", str(CONF), "--jars", ",".join(map(str, [jar, *s3a_jars()]))),
    ]
    for name, value in s3a_conf(s3_server.endpoint).items():
        command += ["--conf", f"spark.hadoop.{name}={value}"]
    for name, value in {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}.items():
        command += ["--conf", f"{name}={value}"]
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    for batches in (3, 5):
        done = subprocess.run(
            [*command, str(ROOT / "examples" / "s3_file_manager.py"), location, "--batches", str(batches)],
            capture_output=True,
            text=True,
            env=env,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert "Batch: 0" not in done.stdout
    assert "Batch: 4" in done.stdout
    client = s3_server.client()
    try:
        answer = client.list_objects_v2(Bucket=s3_server.bucket, Prefix="example/")
    finally:
        client.close()
    names = [item["Key"] for item in answer["Contents"]]
    assert "example/commits/4" in names
    assert "example/state/0/0/5.changelog" in names
    assert not any(name.endswith(".crc") for name in names)
