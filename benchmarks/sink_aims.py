"""What the sink is to reach beside an empty one, judged by one run; which Delta Lake fits. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.aims import Judged

AIMED_ROWS = 1_000_000
MARKS = (10, 100, 1000)
AROUND = 10
MOST_OVER_EMPTY = 1.25
MOST_GROWTH = 1.1
EMPTY, SHUFFLED, GROUPED = "empty", "empty behind the shuffle", "empty behind the aggregation"
APPEND, KEYED, AFTER_GROUPS = "ckpt-sink append", "ckpt-sink keyed append", "ckpt-sink keyed after it"
PARQUET, DELTA = "parquet files", "delta lake"
AIMED = ((APPEND, EMPTY), (KEYED, SHUFFLED), (AFTER_GROUPS, GROUPED))
SHOWN = (*AIMED, (APPEND, PARQUET), (APPEND, DELTA))

DELTA_RELEASE = "4.4.1"
DELTA_SPARKS = ("4.0", "4.1", "4.2")

Times = Mapping[str, Sequence[float]]
"""Seconds of each batch, by the name of the sink."""


def ratio(times: Times, ours: str, other: str) -> float | None:
    """Median over median, None if one of the two did not run."""
    if not times.get(ours) or not times.get(other):
        return None
    return statistics.median(times[ours]) / statistics.median(times[other])


def by_mark(seconds: Sequence[float]) -> dict[int, float]:
    """The median batch time around epochs 10, 100 and 1,000, as far as the run came."""
    return {
        mark: statistics.median(seconds[max(0, mark - AROUND) : mark + AROUND])
        for mark in MARKS
        if mark <= len(seconds)
    }


def judge_sink(times: Mapping[int, Times], marks: Mapping[int, float]) -> list[Judged]:
    """Every aim; ``times`` by rows a batch, ``marks`` are batch times by epoch."""
    found = [
        Judged(
            f"batch p50, {ours} over {other}",
            f"{AIMED_ROWS:,} rows",
            MOST_OVER_EMPTY,
            False,
            ratio(times.get(AIMED_ROWS, {}), ours, other),
        )
        for ours, other in AIMED
    ]
    last, before = MARKS[-1], MARKS[-2]
    growth = marks[last] / marks[before] if last in marks else None
    aim = f"no growth: batch at epoch {last:,} over epoch {before}"
    return [*found, Judged(aim, "1,000 rows", MOST_GROWTH, False, growth)]


def aim_line(judged: Judged) -> str:
    """An aim as one line of the report."""
    value = "-" if judged.value is None else f"{judged.value:.2f}x"
    return f"{judged.aim} ({judged.situation}): {value}, aim at most {judged.bound:.2f}x: {judged.verdict}"


def delta_for(spark_version: str) -> tuple[str, str]:
    """The coordinates of Delta Lake for a Spark, and why there are none if so."""
    minor = ".".join(spark_version.split(".")[:2])
    if minor in DELTA_SPARKS:
        return f"io.delta:delta-spark_{minor}_2.13:{DELTA_RELEASE}", ""
    fits = f"{DELTA_SPARKS[0]} to {DELTA_SPARKS[-1]}"
    return (
        "",
        f"release {DELTA_RELEASE}, the newest known here, is for Spark {fits}, and this is {spark_version}",
    )
