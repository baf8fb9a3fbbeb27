"""Real Delta tables go back to a batch, and their query goes on; the rows against what was produced."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.ecosystem.delta_cases import CASES, FEATURES, STAYS, Case, rows_of
from tests.ecosystem.kit import FEW_TASKS, run_driver, set_up

pytestmark = pytest.mark.spark
FILES = 8


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, in one driver."""
    set_up()
    lines = run_driver(
        "tests.ecosystem.delta_cases",
        {"directory": str(tmp_path_factory.mktemp("delta")), "conf": FEW_TASKS},
    )
    return {answer["name"]: answer for answer in map(json.loads, lines)}


def produced(case: Case, files: int) -> list[list[Any]]:
    """What the table must have when these many files were processed."""
    rows = [row for file in range(files) for row in rows_of(file)]
    if case.kind == "count":
        return sorted([*key, count] for key, count in Counter((n % 3, part) for n, part in rows).items())
    rows = sorted(set(rows)) if case.kind == "dedup" else rows
    gone = [1] if any("n = 1" in statement for statement in case.before) else []
    return sorted(list(row) for row in rows if row[0] not in gone)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_table_goes_back_and_its_query_goes_on(case: Case, played: dict[str, dict[str, Any]]) -> None:
    """No row is lost, none is there twice, and what was another writer's is named."""
    answer = played[case.name]
    assert answer["is_kept_id"]
    assert answer["newest"] == 5
    assert answer["went_back"] == (STAYS if case.batch_id >= 0 else None)
    assert answer["at_once"] == (produced(case, case.batch_id + 1) if case.batch_id >= 0 else [])
    assert answer["rows"] == produced(case, FILES)
    assert answer["operations"].count("RESTORE") == 1
    assert answer["times_fall"]
    others = [statement for statement in case.between if not statement.startswith("OPTIMIZE")]
    assert len(answer["others"]) == len(others)
    assert sum("batch" in line for line in answer["dropped"]) == 5 - case.batch_id


def test_the_case_of_many_features_has_them(played: dict[str, dict[str, Any]]) -> None:
    """Deletion vectors with column mapping, row ids, times in commits, sidecars."""
    assert len(FEATURES) == 7
    assert "DELETE" in played["features"]["operations"]
    assert any("OPTIMIZE" in line for line in played["features"]["dropped"])
