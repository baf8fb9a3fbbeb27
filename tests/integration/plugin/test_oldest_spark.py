"""The same jar on the oldest Spark that is supported."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from tests.integration.plugin.lab import Submitter, expected_batches, found_batches, write_input
from tests.integration.plugin.test_applications import start_over_after_a_kill
from tests.support.servers.hadoop import ROOT


@pytest.mark.timeout(1800)
def test_the_plugin_runs_on_the_oldest_spark(submitter: Submitter, home: Path) -> None:
    """Killed, bereft of its location, and submitted again."""
    subprocess.run([ROOT / "tools" / "setup_spark_oldest.sh"], check=True, timeout=1800)
    python = ROOT / ".tools" / "spark-4.1" / "bin" / "python"
    (spark_home,) = (python.parents[1] / "lib").glob("python3*/site-packages/pyspark")
    oldest = dataclasses.replace(submitter, python=python, spark_home=spark_home)
    write_input(home, 8)
    start_over_after_a_kill(oldest, home, oldest.python_app(home, 0.3))
    assert found_batches(home) == expected_batches(home)
