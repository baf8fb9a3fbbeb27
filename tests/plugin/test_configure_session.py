"""``configure`` in a Python program: what the plugin sets, what it keeps, and that it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.capture.roots import list_queries
from tests.plugin.lab import epoch, write_input
from tests.servers.hadoop import FILE_MANAGER, ROOT, build_jar

LISTENERS = "spark.sql.streaming.streamingQueryListeners"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
OURS = "io.github.pysparkcheckpoint.QueryEvents"
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


@pytest.mark.timeout(600)
def test_what_the_plugin_sets_and_what_it_keeps(home: Path) -> None:
    """File manager alone; off; the user's own; with a URL, checkpoints. One after the other in one JVM."""
    build_jar()
    write_input(home, 2)
    wanted = [
        ({}, {}),
        ({"file_manager": "off"}, {}),
        ({}, {MANAGER: SPARKS_OWN, "spark.ckpt.ulr": "x"}),
        (
            {"url": str(home / "store"), "options": {"secretKey": "hidden", "accessKey": "k"}},
            {LISTENERS: OURS},  # any class that exists stands for the user's own
        ),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.sessions_app", str(home), json.dumps(wanted)],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone, off, own, full = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert (alone[MANAGER], alone[LISTENERS]) == (FILE_MANAGER, None)
    assert off[MANAGER] is None
    assert own[MANAGER] == SPARKS_OWN
    assert full[LISTENERS] == f"{OURS},{OURS}"
    assert full["spark.ckpt.secret.secretKey"] is None, "secrets are taken out of the conf"
    assert "spark.ckpt.url is not set" in done.stderr and "spark.ckpt.ulr" in done.stderr
    assert epoch(home) == 1
    names = [root.name for root in list_queries(open_object_store(str(home / "store")))]
    assert names == ["totals"], "a query with a temporary location is left alone"
