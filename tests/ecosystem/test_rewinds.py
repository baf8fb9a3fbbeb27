"""Queries go back to random epochs of a long run, killed on the way: then their tables are as if never."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import resolve_root
from tests.ecosystem.kit import (
    FEW_TASKS,
    PYTHON,
    ROOT,
    RUN_SECONDS,
    driver_jars,
    environment,
    run_driver,
    set_up,
)
from tests.ecosystem.matrix import Case, encode_cases

pytestmark = [pytest.mark.spark, pytest.mark.crash]
MORE = 3
QUERIES = tuple(
    Case(output, query, state, "rewind")
    for output, query, state in (
        ("ckpt-sink", "aggregation", "hdfs"),
        ("file", "aggregation", "rocksdb1"),
        ("delta", "join", "hdfs"),
        ("iceberg", "aggregation", "rocksdb2"),
    )
)
CHOSEN_KILLS = (4, 40)
ALL_KILLS = tuple(range(1, 400))


def run(directory: Path, first: int, last: int, files_a_batch: int) -> Mapping[str, dict[str, Any]]:
    """Let every query read the files from ``first`` up to ``last``, with a checkpoint of most batches."""
    wanted = {"directory": str(directory), "conf": FEW_TASKS, "life": "long", "files": [first, last]}
    more = {"cases": encode_cases(QUERIES), "files_a_batch": files_a_batch}
    lines = run_driver("tests.ecosystem.matrix", {**wanted, **more})
    return {answer["name"]: answer for answer in map(json.loads, lines)}


def check(answers: Mapping[str, dict[str, Any]], files: int) -> None:
    """Every table has exactly what was produced."""
    for case in QUERIES:
        answer = answers[case.name]
        assert answer["error"] == "", case.name
        assert answer["rows"] == case.expected(files), case.name


def go_back(case: Case, directory: Path, chance: random.Random, kills: Sequence[int]) -> int:
    """Rewind a query to a random epoch, killed at each of these steps once. Returns how many kills came."""
    url = case.store_url(str(directory))
    query = None if case.output == "ckpt-sink" else case.name
    epochs = sorted({epoch for _, epoch in CheckpointStore.open(resolve_root(url, query, None)).list()})
    arguments: dict[str, Any] = {"epoch": chance.choice(epochs[:-1]), "query": query}
    more: dict[str, Any] = {}
    if case.output == "iceberg":  # its catalog is the session's, which takes ten seconds to begin
        more["session"] = {"directory": str(directory), "conf": {}, "jars": driver_jars()}
        kills = kills[:: max(1, len(kills) // 8)]
    killed = 0
    for kill_at in (*kills, 0):
        wanted = json.dumps({"url": url, "arguments": arguments, "kill_at": kill_at, **more})
        child = subprocess.run(
            [str(PYTHON), "-m", "tests.ecosystem.rewind_child", wanted],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
        if child.returncode == -signal.SIGKILL:
            killed += 1
            continue
        assert child.returncode == 0, (
            f"{case.name} {arguments}, killed {killed} times: {child.stderr[-3000:]}"
        )
        return killed
    raise AssertionError("the last run is not killed")


def play(directory: Path, files: int, rounds: int, kills: Sequence[int]) -> None:
    """A run of so many batches, and rounds of rewinds of all queries, each after a few batches more.

    A query that was taken back cuts its input into other batches than before: whatever a table takes for
    the same by its number alone is lost.
    """
    set_up()
    check(run(directory, 0, files, 1), files)
    chance = random.Random(files)
    for number in range(1, rounds + 1):
        killed = [go_back(case, directory, chance, kills) for case in QUERIES]
        assert all(killed), killed
        upto = files + number * MORE
        check(run(directory, upto - MORE, upto, 1 + number % 3), upto)


def test_rewound_queries_end_where_undisturbed_ones_do(tmp_path: Path) -> None:
    """Killed early and late in the rewind."""
    play(tmp_path, 12, 1, CHOSEN_KILLS)


@pytest.mark.soak
def test_rewinds_of_a_long_run_killed_at_every_step(tmp_path: Path) -> None:
    """``ROUNDS`` epochs of sixty batches; each rewind is killed before each of its changes."""
    rounds = int(os.environ.get("ROUNDS", "20")) // len(QUERIES)
    play(tmp_path, 60, max(1, rounds), ALL_KILLS)
