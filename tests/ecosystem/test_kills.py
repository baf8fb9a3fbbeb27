"""Drivers killed at every point of a batch, their disks lost: nothing is lost and nothing is there twice.

The rows are compared with what was produced, never with what Spark or we say of them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.kit import FEW_TASKS, freezing_classes, kill_driver, run_driver, set_up
from tests.ecosystem.matrix import (
    CASES,
    FILES,
    KILLS,
    OUTPUTS,
    QUERIES,
    STATES,
    Case,
    Outcome,
    encode_cases,
    go_back,
    random_cases,
)

pytestmark = [pytest.mark.spark, pytest.mark.crash]
FREEZING = {"spark.sql.streaming.checkpointFileManagerClass": "FreezingFileManager"}
IN_A_ROUND = 20
ANOTHER = "was written by the streaming query"
CLONES = set(product(OUTPUTS, (False, True))) - {("file", False)}


Played = dict[str, tuple[Outcome, dict[str, Any]]]
"""By the name of a case: how its restore went, and what its second life says."""


def play(cases: Sequence[Case], directory: Path) -> Played:
    """All cases: one driver that is killed, one restore each, one driver that goes on."""
    root = str(directory)
    wanted = {"directory": root, "conf": FEW_TASKS, "life": "first"}
    told = {"cases": encode_cases(cases), "conf": {**FEW_TASKS, **FREEZING}, "classes": freezing_classes()}
    for line in kill_driver("tests.ecosystem.matrix", {**wanted, **told}, until="still"):
        answer = json.loads(line)
        assert "error" not in answer, answer
    outcomes = {case.name: go_back(case, root) for case in cases if case.output != "iceberg"}
    dead = {name for name, outcome in outcomes.items() if outcome.done_batch is None}
    alive = [case for case in cases if case.name not in dead]
    lines = run_driver("tests.ecosystem.matrix", {**wanted, "life": "second", "cases": encode_cases(alive)})
    answers = {answer["name"]: answer for answer in map(json.loads, lines)}
    outcomes |= {name: Outcome(**said["outcome"]) for name, said in answers.items() if "outcome" in said}
    return {case.name: (outcomes[case.name], answers.get(case.name, {})) for case in cases}


def check_exact(case: Case, outcome: Outcome, answer: dict[str, Any]) -> str:
    """What is wrong with the outcome of a case; empty if nothing is lost or doubled."""
    if outcome.done_batch is None:
        is_named = all("batch" in reason for reason in outcome.refused)
        return "" if is_named and case.is_clone and not case.is_elsewhere else f"{outcome}"
    expected = Counter(map(tuple, case.expected(FILES)))
    error, written = answer["error"], case.expected_after(case.written_batch)
    if case.output == "ckpt-sink" and case.is_clone and not case.is_elsewhere:
        # the table knows whose it is: it refuses the clone at its first batch, and stays as it is
        error, expected = "" if ANOTHER in error else f"not refused {error}", Counter(map(tuple, written))
    if case.is_elsewhere:
        expected -= Counter(map(tuple, case.expected_after(outcome.done_batch)))
        error = error or ("" if answer["left"] == written else f"its first output has {answer['left']}")
    found = Counter(map(tuple, answer["rows"]))
    lost, doubled = expected - found, found - expected
    if error or lost or doubled:
        return f"lost {sorted(lost)}, too many {sorted(doubled)}, {outcome}, {error}"
    return ""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The cases of every run, in two drivers."""
    set_up()
    return play(CASES, tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_query_goes_on_without_loss(case: Case, played: Played) -> None:
    """Or a clone is refused, with the batches that would be lost or doubled.

    A clone with another target has there what comes after its checkpoint; the first one stays as it is.
    """
    assert check_exact(case, *played[case.name]) == ""


def test_the_cases_have_every_output_state_and_kill() -> None:
    """So that whoever takes one out sees it."""
    assert {case.output for case in CASES} == set(OUTPUTS)
    assert {case.state for case in CASES} == set(STATES)
    assert {case.kill for case in CASES} == set(KILLS)
    assert {(case.output, case.query) for case in CASES} >= set(product(OUTPUTS, QUERIES))
    assert {(case.output, case.is_elsewhere) for case in CASES if case.is_clone} >= CLONES
    assert len(CASES) >= 12


def test_a_soak_may_draw_every_cell_of_the_matrix() -> None:
    """Kept id, clone to the same target and to another one; the newest checkpoint and two older ones."""
    drawn = {
        (case.output, case.query, case.state, case.kill, case.is_clone, case.is_elsewhere, case.back)
        for case in random_cases(0, 3_800)
    }
    assert len(drawn) == len(OUTPUTS) * len(QUERIES) * len(STATES) * len(KILLS) * 3 * 3


@pytest.mark.soak
def test_random_cases_of_the_matrix(tmp_path: Path) -> None:
    """``KILLS`` of them; the seed of a round is its number. Rounds with a wrong case are kept."""
    set_up()
    wrong = dict[str, str]()
    for number in range(max(1, int(os.environ.get("KILLS", "300")) // IN_A_ROUND)):
        cases, directory = random_cases(number, IN_A_ROUND), tmp_path / str(number)
        directory.mkdir()
        done = play(cases, directory)
        found = {case.name: check_exact(case, *done[case.name]) for case in cases}
        found = {f"{directory}/{name}": text for name, text in found.items() if text}
        if not found:
            shutil.rmtree(directory)
        wrong |= found
    assert wrong == {}
