"""Drivers killed at every point of a batch, their disks lost: nothing is lost and nothing is there twice.

The rows are compared with what was produced, never with what Spark or we say of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.kit import FEW_TASKS, freezing_classes, kill_driver, run_driver, set_up
from tests.ecosystem.matrix import (
    CASES,
    FILES,
    KILLS,
    NAIVE_CASES,
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
SEED = int(os.environ.get("SEED", "0"))
ANOTHER = "was written by the streaming query"
AHEAD = re.compile(r"has batch (\d+) of query \S+, and a clone would go on")
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


def is_refused_rightly(case: Case, outcome: Outcome) -> bool:
    """Whether a clone would have lost or duplicated rows of its target, and is told from which batch on.

    The output may have nothing of its newest batches, which had no rows.
    """
    if not case.is_clone or case.is_elsewhere or not outcome.refused:
        return False
    named = [int(found[1]) for reason in outcome.refused if (found := AHEAD.search(reason))]
    done = case.captured_batch - case.back
    return len(named) == len(outcome.refused) and all(done < batch <= case.written_batch for batch in named)


def check_exact(case: Case, outcome: Outcome, answer: dict[str, Any]) -> str:
    """What is wrong with the outcome of a case; empty if nothing is lost or duplicated."""
    if outcome.done_batch is None:
        return "" if is_refused_rightly(case, outcome) else f"{outcome}"
    expected = Counter(map(tuple, case.expected(FILES)))
    error, written = answer["error"], case.expected_after(case.written_batch)
    if case.output == "ckpt-sink" and case.is_clone and not case.is_elsewhere:
        # the table knows whose it is: it refuses the clone at its first batch, and stays as it is
        error, expected = "" if ANOTHER in error else f"not refused {error}", Counter(map(tuple, written))
    if case.is_elsewhere:
        expected -= Counter(map(tuple, case.expected_after(outcome.done_batch)))
        error = error or ("" if answer["left"] == written else f"its first output has {answer['left']}")
    found = Counter(map(tuple, answer["rows"]))
    lost, duplicated = expected - found, found - expected
    if error or lost or duplicated:
        return f"lost {sorted(lost)}, too many {sorted(duplicated)}, {outcome}, {error}"
    return ""


def name_outcome(case: Case, outcome: Outcome, answer: dict[str, Any]) -> str:
    """How a case went, in the words of the count that a soak prints."""
    if check_exact(case, outcome, answer):
        return "wrong"
    if outcome.done_batch is None:
        return "refused: clone, and its target is ahead"
    if answer["error"]:
        return "refused: clone, and its target is another query's"
    return f"exact, sink={outcome.choice}" + (", elsewhere" if case.is_elsewhere else "")


def test_the_check_finds_lost_and_duplicated_rows_and_needless_refusals() -> None:
    """So that whoever weakens it sees it."""
    kept, clone = (
        Case("delta", "stateless", "hdfs", "after-sink"),
        Case("delta", "join", "hdfs", "after-sink"),
    )
    clone = replace(clone, is_clone=True)
    done, rows = Outcome(choice="fail", done_batch=3), kept.expected(FILES)
    assert check_exact(kept, done, {"rows": rows, "error": ""}) == ""
    assert "lost [(7, 1, 7)], too many []" in check_exact(
        kept, done, {"rows": rows[:7] + rows[8:], "error": ""}
    )
    assert "lost [], too many [(99, 1, 99)]" in check_exact(
        kept, done, {"rows": [*rows, rows[-1]], "error": ""}
    )
    assert "died" in check_exact(kept, done, {"rows": rows, "error": "died"})
    ahead = "the output has batch 4 of query q, and a clone would go on after batch 3"
    assert check_exact(clone, Outcome([ahead]), {}) == ""
    assert check_exact(kept, Outcome([ahead]), {}) != ""
    assert check_exact(clone, Outcome([ahead, "no checkpoint of batch 3"]), {}) != ""
    assert check_exact(replace(clone, kill="after-capture"), Outcome([ahead]), {}) != "", "it is not ahead"
    assert check_exact(replace(clone, is_elsewhere=True), Outcome([ahead]), {}) != ""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The cases of every run, in two drivers."""
    set_up()
    return play([*CASES, *NAIVE_CASES], tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_query_goes_on_without_loss(case: Case, played: Played) -> None:
    """Or a clone is refused, with the batches that would be lost or duplicated.

    A clone with another target has there what comes after its checkpoint; the first one stays as it is.
    """
    assert check_exact(case, *played[case.name]) == ""


@pytest.mark.parametrize("case", NAIVE_CASES, ids=lambda case: case.name)
def test_without_the_refusal_rows_are_lost_or_duplicated(case: Case, played: Played) -> None:
    """The same lives and the same check: so the proof can fail, and does not refuse for nothing."""
    outcome, answer = played[case.name]
    expected, found = Counter(map(tuple, case.expected(FILES))), Counter(map(tuple, answer["rows"]))
    assert answer["error"] == ""
    assert found - expected if case.is_clone else expected - found, answer
    assert check_exact(case, outcome, answer) != ""


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
        for case in random_cases(0, 3_560)
    }
    assert len(drawn) == len(OUTPUTS) * len(QUERIES) * len(STATES) * len(KILLS) * 3 * 3


@pytest.mark.soak
def test_random_cases_of_the_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``KILLS`` of them; a round has the seed ``SEED`` plus its number. Rounds with a wrong case are kept.

    Prints how many were exact and how many were refused, and why: a proof by refusals is none.
    """
    set_up()
    wrong, counts, drawn = dict[str, str](), Counter[tuple[str, str]](), set[str]()
    for seed in range(SEED, SEED + max(1, int(os.environ.get("KILLS", "300")) // IN_A_ROUND)):
        cases, directory, begun = random_cases(seed, IN_A_ROUND), tmp_path / str(seed), time.monotonic()
        directory.mkdir()
        done = play(cases, directory)
        found = {case.name: check_exact(case, *done[case.name]) for case in cases}
        found = {f"{directory}/{name}": text for name, text in found.items() if text}
        if not found:
            shutil.rmtree(directory)
        wrong |= found
        named = Counter((case.output, name_outcome(case, *done[case.name])) for case in cases)
        counts, drawn = counts + named, drawn | {case.name for case in cases}
        with capsys.disabled():
            print(f"\nseed {seed}, {(time.monotonic() - begun) / 60:.1f} minutes: {encode_counts(named)}")
            for name, text in found.items():
                print(f"WRONG {name}: {text}")
    with capsys.disabled():
        print(f"\n{counts.total()} cases, {len(drawn)} of them different: {encode_counts(counts)}")
    assert wrong == {}
    exact = sum(count for (_, how), count in counts.items() if how.startswith("exact"))
    assert exact > counts.total() / 2, "most are refused"


def encode_counts(counts: Mapping[tuple[str, str], int]) -> str:
    """Counts in one line of JSON, by output."""
    outputs = sorted({output for output, _ in counts})
    return json.dumps(
        {
            of: {how: count for (output, how), count in sorted(counts.items()) if output == of}
            for of in outputs
        }
    )
