"""Real queries to Delta and Iceberg go back whole, with location and history, and catch up exactly."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.ecosystem.kit import run_driver, set_up

pytestmark = pytest.mark.spark
TABLES = ("delta", "iceberg")


def test_a_query_goes_back_and_catches_up(tmp_path: Path) -> None:
    """Stateless and stateful; without the guard the same restore loses rows, so the proof can fail."""
    set_up()
    cases = [
        *product(TABLES, (False, True), ("goes_back",)),
        *product(TABLES, (False,), ("without_guard",)),
        *product(TABLES, (True,), ("old_copy",)),
    ]
    lines = run_driver("tests.ecosystem.rewind_cases", {"directory": str(tmp_path), "cases": cases})
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(answers) == len(cases)
    for answer in answers:
        what = answer["case"].split("_", 2)[2]
        if what == "without_guard":
            assert (answer["exact"], answer["lost"]) == (False, 30), answer
        elif what == "old_copy":
            assert (answer["stopped"], answer["exact"]) == (True, True), answer
        else:
            assert "drop batches 3 to 5" in answer["ahead"], answer
            assert "not of this query" in answer["others"], answer
            assert (answer["is_planned"], answer["back"], answer["exact"]) == (True, True, True), answer
