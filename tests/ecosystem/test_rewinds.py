"""Queries go back to random epochs of a long run, killed on the way: then their tables are as if never."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import resolve_root
from tests.ecosystem.kit import FEW_TASKS, RUN_SECONDS, Driver, run_driver, serving_driver, set_up
from tests.ecosystem.matrix import Case, encode_cases

pytestmark = [pytest.mark.spark, pytest.mark.crash]
MORE = 3
SEED = int(os.environ.get("SEED", "0"))
ROUND_SECONDS = 4 * RUN_SECONDS
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
ALL_KILLS = tuple(range(1, 2000))


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


def go_back(
    case: Case, directory: Path, epoch: int, kills: Sequence[int], driver: Driver
) -> dict[str, Any]:
    """Rewind a query to an epoch, killed at each of these steps once. Returns how many kills came."""
    wanted = {"url": case.store_url(str(directory)), "needs_catalog": case.output == "iceberg"}
    arguments = {"epoch": epoch, "query": history(case)}
    for killed, kill_at in enumerate((*kills, 0)):
        answer = driver.ask({**wanted, "arguments": arguments, "kill_at": kill_at})
        if "killed" not in answer:
            assert "error" not in answer, f"{case.name} {arguments}, killed {killed} times: {answer}"
            return {"output": case.output, "epoch": epoch, "kills": killed, **answer}
    raise AssertionError("the last run is not killed")


def history(case: Case) -> str | None:
    """Its name below a URL that several queries share."""
    return None if case.output == "ckpt-sink" else case.name


def choose_epoch(case: Case, directory: Path, chance: random.Random) -> int:
    """One that is not the newest."""
    url = resolve_root(case.store_url(str(directory)), history(case), None)
    return chance.choice(sorted({epoch for _, epoch in CheckpointStore.open(url).list()})[:-1])


def play(directory: Path, files: int, rounds: int, kills: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A run of so many batches, and rounds of rewinds of all queries, each after a few batches more.

    A query that was taken back cuts its input into other batches than before: whatever a table takes for
    the same by its number alone is lost.
    """
    set_up()
    check(run(directory, 0, files, 1), files)
    chance = random.Random(files + SEED)
    for number in range(1, rounds + 1):
        with serving_driver(directory, "tests.ecosystem.rewind_child", ROUND_SECONDS) as driver:
            for case in QUERIES:
                done = go_back(case, directory, choose_epoch(case, directory, chance), kills, driver)
                assert done["kills"], done
                yield done
        upto = files + number * MORE
        check(run(directory, upto - MORE, upto, 1 + number % 3), upto)


def test_rewound_queries_end_where_undisturbed_ones_do(tmp_path: Path) -> None:
    """Killed early and late in the rewind."""
    done = list(play(tmp_path, 12, 1, CHOSEN_KILLS))
    assert [rewound["output"] for rewound in done] == [case.output for case in QUERIES]


@pytest.mark.soak
def test_rewinds_of_a_long_run_killed_at_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``ROUNDS`` epochs of sixty batches, by ``SEED``; each rewind is killed before each of its changes."""
    rounds = int(os.environ.get("ROUNDS", "20")) // len(QUERIES)
    for done in play(tmp_path, 60, max(1, rounds), ALL_KILLS):
        assert done["kills"] < len(ALL_KILLS), "it has more steps than that"
        with capsys.disabled():
            print(f"\n{json.dumps(done)}")
