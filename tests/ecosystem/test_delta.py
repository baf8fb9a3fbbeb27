"""Real Delta tables go back to a batch, and their query goes on; the rows against what was produced."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.ecosystem.delta_cases import CASES, FEATURES, STAYS, Case, rows_of
from tests.ecosystem.kit import run_driver, set_up

pytestmark = pytest.mark.spark
FILES = 8
FAST = {"spark.databricks.delta.snapshotPartitions": "2"}
"""Delta reads the log of a small table in fifty tasks otherwise."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, in one driver."""
    set_up()
    lines = run_driver(
        "tests.ecosystem.delta_cases", {"directory": str(tmp_path_factory.mktemp("delta")), "conf": FAST}
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


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The example with ``idempotent_options``, and with a fixed id."""
    set_up()
    lines = run_driver(
        "tests.ecosystem.merge_cases", {"directory": str(tmp_path_factory.mktemp("merge")), "conf": FAST}
    )
    return [json.loads(line) for line in lines]


def newest_values(files: int) -> list[list[Any]]:
    """What the merged table must have: of each key the value of the newest file that has it."""
    newest = {
        f"k{key % 7}": (file * 100 + key, file) for file in range(files) for key in range(file, file + 4)
    }
    return sorted([key, value, at] for key, (value, at) in newest.items())


def test_a_merge_takes_what_is_planned_anew_after_a_restore(
    merged: list[dict[str, Any]],
) -> None:
    """Under another id, so that Delta takes a batch whose number it has already."""
    ours, query_id = merged[0], merged[0]["query_id"]
    assert ours["rows"] == newest_values(7)
    assert ours["commits"][:6] == [[query_id, batch_id] for batch_id in range(6)]
    (anew,) = ours["commits"][6:]
    assert anew[0].startswith(f"{query_id}:")
    assert anew[1] == 3


def test_a_fixed_id_loses_rows_after_a_restore(merged: list[dict[str, Any]]) -> None:
    """So that the test above can fail: Delta has batch 3 already, of other rows."""
    fixed = merged[1]
    assert fixed["rows"] == newest_values(6)
    assert fixed["commits"] == [["fixed", batch_id] for batch_id in range(6)]
