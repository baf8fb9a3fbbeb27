"""Spark's own daemon with our end of a task: every Python worker of an application is settled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.drivers.session import SPARK_CONF
from tests.support.jvms import behind_spark

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for pair in sys.argv[1:]:
    builder = builder.config(*pair.split("=", 1))
spark = builder.getOrCreate()


def look(numbers):
    import gc, os, sys, zipimport
    import numpy, pyarrow
    zips = sum(isinstance(one, zipimport.zipimporter) for one in sys.path_importer_cache.values())
    yield os.getpid(), gc.get_freeze_count() > 10_000, "pyarrow" in sys.modules, sum(numbers), zips


for _ in range(3):
    [found] = spark.sparkContext.parallelize(range(10), 1).mapPartitions(look).collect()
    print("found", *found)
frame = spark.range(5).mapInPandas(lambda parts: (part + 1 for part in parts), "id long")
print("sum", sum(row.id for row in frame.collect()))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "not chosen"])
def test_a_worker_is_settled_after_its_first_task(tmp_path: Path, chosen: bool) -> None:
    """Also for code that has nothing to do with ckpt-sink; without the conf Spark's daemon is as it is."""
    conf = dict(SPARK_CONF)
    if chosen:
        conf["spark.python.daemon.module"] = "pyspark_checkpoint.spark.worker_daemon"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), *(f"{name}={value}" for name, value in conf.items())],
        env={**environment(), **behind_spark([])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    found = [line[1:] for line in lines if line[:1] == ["found"]]
    assert len(found) == 3, done.stderr
    assert len({pid for pid, *_ in found}) == 1, "the worker is used again"
    assert [frozen for _, frozen, *_ in found] == ["False", str(chosen), str(chosen)]
    assert {total for *_, total, _ in found} == {"45"}
    assert ["sum", "15"] in lines


def environment() -> dict[str, str]:
    """Where Spark finds this Python and this package."""
    root = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": root,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
