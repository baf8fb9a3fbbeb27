"""The rule by which a query goes on while its output is ahead, against a model of query and output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest

from pyspark_checkpoint.outputs.decide import (
    FAIL,
    OUTPUT_CHOICES,
    ROLLBACK,
    WARN,
    OutputVerdict,
    Resumption,
    decide,
)
from pyspark_checkpoint.outputs.output import OutputPosition

DONE = 4
FLAGS = (False, True)
CASES = [
    (Resumption("q", DONE, planned, stateful, has_state, state_format), newest, runs)
    for planned, stateful, has_state, state_format, newest, runs in product(
        FLAGS, FLAGS, FLAGS, (1, 2), (None, *range(DONE - 1, DONE + 4)), FLAGS
    )
]
"""Everything that the rule looks at. The state of the next batch is there only if that was planned."""


def test_a_clone_repeats_nothing() -> None:
    """No output knows its id, so that even the one batch whose offsets are known comes twice."""
    exact = Resumption("q", DONE, is_planned=True)
    for resumption, expected in (
        (exact, OutputVerdict.GO_ON),
        (replace(exact, is_clone=True), OutputVerdict.REFUSE),
    ):
        found = decide(resumption, OutputPosition(DONE + 1), runs_skipped_batches=True, choice=FAIL)
        assert found is expected


def test_numbers_of_a_lineage_that_was_left_mean_nothing() -> None:
    """The output has others under them, or none: going back further would not bring the rows."""
    left = Resumption("q", DONE, is_planned=True, left_at=DONE - 2)
    for newest in (DONE - 2, DONE, DONE + 5):
        for choice, expected in (
            (FAIL, OutputVerdict.REFUSE),
            (ROLLBACK, OutputVerdict.REFUSE),
            (WARN, OutputVerdict.WARN),
        ):
            found = decide(left, OutputPosition(newest), runs_skipped_batches=True, choice=choice)
            assert found is expected
    back = replace(left, left_at=DONE)
    found = decide(back, OutputPosition(DONE), runs_skipped_batches=True, choice=FAIL)
    assert found is OutputVerdict.GO_ON


@dataclass
class Model:
    """A query that reads two rows a batch, and an output that drops batches by their numbers."""

    resumption: Resumption
    newest: int
    runs_skipped_batches: bool

    def is_exact(self) -> bool:
        """Go on, over three rows that have come since: whether each row is written once, and counted."""
        rows = [row for batch in range(self.newest + 1) for row in (2 * batch, 2 * batch + 1)]
        end, begin, counted = 2 * (self.newest + 1) + 3, 2 * (self.resumption.done_batch + 1), 0
        counted, batch = begin, self.resumption.done_batch + 1
        while begin < end:
            is_planned = self.resumption.is_planned and batch == self.resumption.done_batch + 1
            until = begin + 2 if is_planned else end
            if batch > self.newest:
                rows += range(begin, until)
                counted += until - begin
            elif self.runs_skipped_batches:
                counted += until - begin
            elif self.resumption.is_stateful:
                if not (
                    is_planned and self.resumption.has_next_state and self.resumption.state_format == 1
                ):
                    return False  # Spark finds no state, and dies
                counted += until - begin
            begin, batch = until, batch + 1
        is_counted = not self.resumption.is_stateful or counted == end
        return rows == list(range(end)) and is_counted


@pytest.mark.parametrize("choice", OUTPUT_CHOICES)
def test_a_query_goes_on_just_where_nothing_is_lost_or_duplicated(choice: str) -> None:
    """Exhaustively. Otherwise the choice decides, and only it."""
    otherwise = {FAIL: OutputVerdict.REFUSE, ROLLBACK: OutputVerdict.ROLL_BACK, WARN: OutputVerdict.WARN}
    for resumption, newest, runs in CASES:
        found = decide(resumption, OutputPosition(newest), runs_skipped_batches=runs, choice=choice)
        is_behind = newest is None or newest <= DONE
        is_exact = newest is None or is_behind or Model(resumption, newest, runs).is_exact()
        expected = OutputVerdict.GO_ON if is_exact else otherwise[choice]
        assert found is expected, (resumption, newest, runs)


def test_without_the_rule_rows_are_lost() -> None:
    """The model can fail: to go on without a look loses rows wherever the output is further."""
    lost = [
        case for case in CASES if case[1] is not None and case[1] > DONE and not Model(*case).is_exact()
    ]
    assert len(lost) > len(CASES) / 4
    assert not Model(Resumption("q", DONE), DONE + 1, runs_skipped_batches=False).is_exact()
    assert not Model(Resumption("q", DONE, is_planned=True), DONE + 2, runs_skipped_batches=True).is_exact()


def test_who_goes_back_on_purpose_wants_the_next_batch_gone() -> None:
    """Its rows may be the reason for going back. Without permission to roll back, repeating it is exact."""
    chosen = Resumption("q", DONE, is_planned=True, goes_back=True)
    position = OutputPosition(DONE + 1)
    assert decide(chosen, position, runs_skipped_batches=True, choice=ROLLBACK) is OutputVerdict.ROLL_BACK
    assert decide(chosen, position, runs_skipped_batches=True, choice=FAIL) is OutputVerdict.GO_ON
    newest = replace(chosen, goes_back=False)
    assert decide(newest, position, runs_skipped_batches=True, choice=ROLLBACK) is OutputVerdict.GO_ON


def test_what_is_not_known_is_not_none() -> None:
    """An Iceberg table whose snapshots have expired is not an empty one."""
    for choice in OUTPUT_CHOICES:
        position = OutputPosition(None, is_known=False)
        found = decide(Resumption("q", DONE), position, runs_skipped_batches=True, choice=choice)
        assert found is OutputVerdict.UNKNOWN
