"""What a day costs: a pure formula."""

from __future__ import annotations

import pytest

from benchmarks.report import DAYS_A_MONTH, GB_MONTH, request_cost, storage_cost


def test_a_day_has_as_many_batches_as_fit_in_it() -> None:
    """10 s batches are 8,640 a day; a write costs five millionths."""
    assert request_cost({"PUT": 10}, 10) == pytest.approx(8640 * 10 * 5.0 / 1e6)


def test_lists_and_copies_cost_as_writes_heads_as_reads_and_deletes_nothing() -> None:
    assert request_cost({"PUT": 1, "LIST": 1, "POST": 1}, 10) == pytest.approx(8640 * 3 * 5.0 / 1e6)
    assert request_cost({"GET": 1, "HEAD": 1}, 10) == pytest.approx(8640 * 2 * 0.4 / 1e6)
    assert request_cost({"DELETE": 7, "DELETES": 7}, 10) == 0


def test_what_is_stored_costs_a_days_share_of_the_month() -> None:
    assert storage_cost(2e9, 0.03) == pytest.approx(2 * 0.03 / DAYS_A_MONTH)
    assert len(GB_MONTH) == 3


def test_a_verb_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(ValueError, match="PATCH"):
        request_cost({"PATCH": 1}, 10)
