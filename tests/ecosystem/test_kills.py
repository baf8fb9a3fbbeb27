"""Drivers killed at every point of a batch, their disks lost: nothing is lost and nothing is there twice.

The rows are compared with what was produced, never with what Spark or we say of them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.kit import freezing_classes, kill_driver, run_driver, set_up
from tests.ecosystem.matrix import (
    CASES,
    FILES,
    KILLS,
    OUTPUTS,
    STATES,
    Case,
    choices,
    encode_cases,
    go_back,
    random_cases,
)

pytestmark = [pytest.mark.spark, pytest.mark.crash]
CONF = {"spark.databricks.delta.snapshotPartitions": "2"}
FREEZING = {"spark.sql.streaming.checkpointFileManagerClass": "FreezingFileManager"}
IN_A_ROUND = 12


def play(cases: Sequence[Case], directory: Path) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """All cases: one driver that is killed, one restore each, one driver that goes on."""
    root = str(directory)
    wanted = {"directory": root, "conf": CONF, "life": "first"}
    told = {"cases": encode_cases(cases), "conf": {**CONF, **FREEZING}, "classes": freezing_classes()}
    for line in kill_driver("tests.ecosystem.matrix", {**wanted, **told}, until="still"):
        answer = json.loads(line)
        assert "error" not in answer, answer
    refused = {case.name: go_back(case, root) for case in cases if case.output != "iceberg"}
    alive = [case for case in cases if len(refused.get(case.name, ())) < len(choices(case))]
    lines = run_driver("tests.ecosystem.matrix", {**wanted, "life": "second", "cases": encode_cases(alive)})
    answers = {answer["name"]: answer for answer in map(json.loads, lines)}
    refused |= {name: answer["refused"] for name, answer in answers.items() if "refused" in answer}
    return {case.name: (refused[case.name], answers.get(case.name, {})) for case in cases}


def check_exact(case: Case, refused: list[str], answer: dict[str, Any]) -> str:
    """What is wrong with the outcome of a case; empty if nothing is lost or doubled."""
    if len(refused) == len(choices(case)):
        is_named = all("batch" in reason for reason in refused)
        return "" if is_named and case.is_clone else f"refused: {refused}"
    expected = Counter(map(tuple, case.expected(FILES)))
    found = Counter(map(tuple, answer["rows"]))
    lost, doubled = expected - found, found - expected
    if answer["error"] or lost or doubled:
        return f"lost {sorted(lost)}, too many {sorted(doubled)}, refused {refused}, {answer['error']}"
    return ""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """The cases of every run, in two drivers."""
    set_up()
    return play(CASES, tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_query_goes_on_without_loss(
    case: Case, played: dict[str, tuple[list[str], dict[str, Any]]]
) -> None:
    """Or a clone is refused, with the batches that would be lost or doubled."""
    assert check_exact(case, *played[case.name]) == ""


def test_the_cases_have_every_output_state_and_kill() -> None:
    """So that whoever takes one out sees it."""
    assert {case.output for case in CASES} == set(OUTPUTS)
    assert {case.state for case in CASES} == set(STATES)
    assert {case.kill for case in CASES} == set(KILLS)
    assert len(CASES) >= IN_A_ROUND


@pytest.mark.soak
def test_random_cases_of_the_matrix(tmp_path: Path) -> None:
    """``KILLS`` of them; the seed of a round is its number."""
    set_up()
    for number in range(max(1, int(os.environ.get("KILLS", "300")) // IN_A_ROUND)):
        cases, directory = random_cases(number, IN_A_ROUND), tmp_path / str(number)
        directory.mkdir()
        done = play(cases, directory)
        wrong = {case.name: check_exact(case, *done[case.name]) for case in cases}
        assert {name: text for name, text in wrong.items() if text} == {}, f"round {number}"
        shutil.rmtree(directory)
