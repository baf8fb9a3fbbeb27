"""What a day costs: a pure formula."""

from __future__ import annotations

import pytest

from benchmarks.bench_coordinated import judge
from benchmarks.costs import DAYS_A_MONTH, LIST_PRICES, Prices, daily_cost

ROUND = Prices("cloud", "region", "class", "then", 5.0, 0.5, 0.03)


def test_a_day_has_as_many_batches_as_fit_in_it() -> None:
    """10 s batches are 8,640 a day; a write costs five millionths."""
    found = daily_cost(ROUND, {"PUT": 10}, batch_seconds=10, stored_bytes=0)
    assert found.requests == pytest.approx(8640 * 10 * 5.0 / 1e6)
    assert found.total == found.requests


def test_lists_and_copies_cost_as_writes_heads_as_reads_and_deletes_nothing() -> None:
    writes = daily_cost(ROUND, {"PUT": 1, "LIST": 1, "POST": 1}, batch_seconds=10, stored_bytes=0)
    reads = daily_cost(ROUND, {"GET": 1, "HEAD": 1}, batch_seconds=10, stored_bytes=0)
    free = daily_cost(ROUND, {"DELETE": 7, "DELETES": 7}, batch_seconds=10, stored_bytes=0)
    assert writes.requests == pytest.approx(8640 * 3 * 5.0 / 1e6)
    assert reads.requests == pytest.approx(8640 * 2 * 0.5 / 1e6)
    assert free.requests == 0


def test_what_is_stored_costs_a_days_share_of_the_month() -> None:
    found = daily_cost(ROUND, {}, batch_seconds=10, stored_bytes=2e9)
    assert found.storage == pytest.approx(2 * 0.03 / DAYS_A_MONTH)


def test_a_verb_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(ValueError, match="PATCH"):
        daily_cost(ROUND, {"PATCH": 1}, batch_seconds=10, stored_bytes=0)


def test_every_cloud_has_a_region_and_a_date() -> None:
    assert len(LIST_PRICES) == 3
    assert all(prices.region and prices.as_of and prices.storage_class for prices in LIST_PRICES)


def test_the_cost_of_state_is_judged_and_its_noise_is_told() -> None:
    """Middle halves that overlap are within noise, whatever the ratio; rounds show how far it strays."""
    calm = judge([[100, 101], [99, 100]], [[120, 121], [119, 122]])
    assert calm[1] == "ratio 1.21, aim at most 1.10: missed; in single rounds 1.20 to 1.21"
    noisy = judge([[90, 110], [130, 95]], [[105, 100], [99, 140]])
    assert "met, within noise" in noisy[1]
    assert noisy[0].endswith("4 batches a side")
