"""The aims of the sink's benchmark: pure functions of its times."""

from __future__ import annotations

from benchmarks.aims import MET, MISSED, NOT_RUN
from benchmarks.bench_sink import (
    AFTER_GROUPS,
    APPEND,
    EMPTY,
    GROUPED,
    KEYED,
    SHUFFLED,
    aim_line,
    by_mark,
    delta_for,
    judge_sink,
)


def test_every_aim_has_a_verdict() -> None:
    """Those whose rows, or epochs, were not run say so."""
    fast = {EMPTY: [1.0], APPEND: [1.2], SHUFFLED: [2.0], KEYED: [2.9], GROUPED: [4.0]}
    found = judge_sink(
        {1_000_000: fast, 1000: {**fast, AFTER_GROUPS: [9.0]}}, {10: 0.4, 100: 0.3, 1000: 0.31}
    )
    assert [judged.verdict for judged in found] == [MET, MISSED, NOT_RUN, MET]
    assert aim_line(found[1]).endswith("1.45x, aim at most 1.25x: missed")
    assert [judged.verdict for judged in judge_sink({}, {10: 0.4})] == [NOT_RUN] * 4


def test_batches_around_an_epoch_stand_for_it() -> None:
    """One slow batch says nothing; an epoch that the run did not reach has no time."""
    seconds = [1.0] * 20 + [9.0] + [2.0] * 100
    assert by_mark(seconds) == {10: 1.0, 100: 2.0}


def test_delta_lake_is_measured_where_a_release_fits() -> None:
    """Otherwise the reason is told."""
    assert delta_for("4.1.2") == ("io.delta:delta-spark_4.1_2.13:4.4.1", "")
    assert delta_for("4.3.0") == (
        "",
        "release 4.4.1, the newest known here, is for Spark 4.0 to 4.2, and this is 4.3.0",
    )
