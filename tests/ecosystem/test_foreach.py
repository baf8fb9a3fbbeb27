"""Batches that foreachBatch writes to Delta: repeated after a kill, and planned anew after a rewind.

The driver is killed when Delta has the rows of a batch and Spark does not know it yet.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ecosystem.foreach_cases import FILES, FILES_IN_THE_END, KILLED_IN, STAYS, rows_of
from tests.ecosystem.kit import FEW_TASKS, freezing_classes, kill_driver, run_driver, set_up

pytestmark = [pytest.mark.spark, pytest.mark.crash]
FREEZING = {"spark.sql.streaming.checkpointFileManagerClass": "FreezingFileManager"}
FIRST_BATCHES = list(range(KILLED_IN + 1))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every kind of writing, in two drivers."""
    set_up()
    wanted = {"directory": str(tmp_path_factory.mktemp("foreach")), "conf": FEW_TASKS, "life": "first"}
    told = {"conf": {**FEW_TASKS, **FREEZING}, "classes": freezing_classes()}
    kill_driver("tests.ecosystem.foreach_cases", {**wanted, **told}, until="still")
    lines = run_driver("tests.ecosystem.foreach_cases", {**wanted, "life": "second"})
    return {answer["kind"]: answer for answer in map(json.loads, lines)}


def merged(files: int) -> list[list[Any]]:
    """What the merged table must have: of each key the value of the newest file that has it."""
    newest = {row["key"]: list(row.values()) for file in range(files) for row in rows_of(file)}
    return sorted(newest.values())


def appended(*files: int) -> list[list[Any]]:
    """What a table of appends must have: every row once."""
    return sorted(list(row.values()) for file in files for row in rows_of(file))


def test_a_merge_that_is_repeated_after_a_kill_is_dropped(played: dict[str, dict[str, Any]]) -> None:
    """Delta had the batch, under the id that it gets again: there is one transaction of each batch."""
    merge, query_id = played["merge"], played["merge"]["query_id"]
    assert merge["before"]["commits"] == [[query_id, batch_id] for batch_id in FIRST_BATCHES]
    assert merge["repeated"]["commits"] == [[query_id, batch_id] for batch_id in range(FILES)]
    assert merge["repeated"]["rows"] == merged(FILES)


def test_an_append_that_is_repeated_after_a_kill_is_dropped(played: dict[str, dict[str, Any]]) -> None:
    """Every row is there once, though the state of the query has run the batch twice."""
    append, query_id = played["append"], played["append"]["query_id"]
    assert append["before"]["rows"] == appended(*FIRST_BATCHES)
    assert append["repeated"]["rows"] == appended(*range(FILES))
    assert append["repeated"]["commits"] == [[query_id, batch_id] for batch_id in range(FILES)]


def test_an_append_without_an_id_is_there_twice_after_a_kill(played: dict[str, dict[str, Any]]) -> None:
    """So that the test above can fail: Spark did repeat the batch."""
    assert played["plain"]["repeated"]["rows"] == appended(*range(FILES), KILLED_IN)


def test_a_merge_takes_what_is_planned_anew_after_a_rewind(played: dict[str, dict[str, Any]]) -> None:
    """Under another id, so that Delta takes a batch whose number it has already."""
    merge, query_id = played["merge"], played["merge"]["query_id"]
    assert merge["end"]["rows"] == merged(FILES_IN_THE_END)
    (anew,) = merge["end"]["commits"][FILES:]
    assert anew[0].startswith(f"{query_id}:")
    assert anew[1] == STAYS + 1


def test_appends_go_back_by_the_querys_id_and_are_written_anew(played: dict[str, dict[str, Any]]) -> None:
    """The way of docs/outputs.md: the table first, then the query; every row is there once."""
    append, query_id = played["append"], played["append"]["query_id"]
    assert append["end"]["rows"] == appended(*range(FILES_IN_THE_END))
    assert append["end"]["commits"][-1][0].startswith(f"{query_id}:")
    assert append["end"]["commits"][-1][1] == STAYS + 1


def test_a_fixed_id_loses_rows_after_a_rewind(played: dict[str, dict[str, Any]]) -> None:
    """So that the test with MERGE can fail: Delta has batch 3 already, of other rows."""
    fixed = played["fixed"]
    assert fixed["repeated"]["rows"] == merged(FILES)
    assert fixed["end"]["rows"] == merged(FILES)
    assert fixed["end"]["commits"] == [["fixed", batch_id] for batch_id in range(FILES)]
