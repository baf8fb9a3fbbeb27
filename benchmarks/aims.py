"""The aims, each as a ratio of two sides of one run, whether it was met, and if not, why. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.frame import Cell, Restored, Run, Runs
from benchmarks.lab import LETTERS, LISTENERS

MET, MISSED, NOT_RUN = "met", "missed", "not run"
CAPTURE_REQUESTS = 4
"""What a commit takes by the protocol: data, manifest, a look at the floor, the pointer to the newest."""


@dataclass(frozen=True)
class Judged:
    """An aim and what was found; ``value`` is None if its part was not run, ``reason`` explains a miss."""

    aim: str
    situation: str
    bound: float
    at_least: bool
    value: float | None
    detail: str = ""
    unit: str = "x"
    reason: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return NOT_RUN
        reached = self.value >= self.bound if self.at_least else self.value <= self.bound
        return MET if reached else MISSED


def told_apart(left: Sequence[float], right: Sequence[float]) -> bool:
    """Whether the middle halves of two samples lie apart; if not, noise may hide the difference.

    Of fewer than four values all must lie apart; one value says nothing.
    """
    if min(len(left), len(right)) < 2:
        return False
    low, high = sorted((_middle_half(left), _middle_half(right)))
    return low[1] < high[0]


def noise(left: Sequence[float], right: Sequence[float]) -> str:
    """What stands beside a ratio that noise may hide; nothing beside one that it cannot."""
    if min(len(left), len(right)) < 2:
        return "of one batch"
    return "" if told_apart(left, right) else "within noise"


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def way_name(way: str) -> str:
    return f"{LETTERS[way]} {way}" if way in LETTERS else way


def verbs(requests: Mapping[str, int], batches: int) -> str:
    """Requests a batch by verb, the most frequent first."""
    ordered = sorted(requests.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{number / max(1, batches):.1f} {verb}" for verb, number in ordered) or "none"


def cells_of(run: Run) -> dict[tuple[tuple[str, int, str, int], str], Cell]:
    """The cells of a run by situation and way."""
    return {(row.situation, row.way): row for row in run.rows if isinstance(row, Cell)}


def time_ratio(above: Cell, below: Cell) -> float:
    return above.p50 / below.p50


def request_ratio(above: Cell, below: Cell) -> float:
    return above.per_batch / below.per_batch


def judge(runs: Runs) -> list[Judged]:
    """Every aim of the benchmark, in the order in which they were set."""
    found = []
    for above, below, name, bound in (
        ("stock", "ours", "(c) our manager", 3.0),
        ("stock", "listener", "(d) the listener", 3.5),
        ("tuned", "ours", "(c) our manager", 1.6),
        ("tuned", "listener", "(d) the listener", 1.6),
    ):
        found += _ratios(runs, "side-by-side", f"batch p50, {above} over {name}", above, below, bound)
    requests = "requests a batch, stock over"
    found += _ratios(runs, "side-by-side", f"{requests} (c)", "stock", "ours", 15.0, request_ratio, 64)
    found += _ratios(runs, "side-by-side", f"{requests} (d)", "stock", "listener", 60.0, request_ratio)
    slowed = "batch p50, with the listener over without"
    found += _ratios(runs, "listener-cost", slowed, "listener", "disk", 1.03, at_least=False)
    return found + _restores(runs) + judge_file_manager(runs)


def judge_file_manager(runs: Runs) -> list[Judged]:
    """The aims of our file manager, which has a run of its own."""
    part, aim, found = "file-manager", "file manager: batch p50,", []
    beside = f"{aim} ours over alone"
    found += _ratios(runs, part, beside, "ours", "alone", 1.25, query="total", at_least=False)
    for above, bound, partitions in (("stock", 3.0, 4), ("tuned", 1.6, 4), ("stock", 6.0, 64)):
        over = f"{aim} {above} over ours"
        found += _ratios(runs, part, over, above, "ours", bound, time_ratio, partitions, "total")
    return found + _requests(runs)


def _requests(runs: Runs) -> list[Judged]:
    """Our manager's requests, the most of all situations: four for the logs, and one for each partition.

    Lists do not count: maintenance makes them, by its own clock. What a batch that was cut by the end of a
    turn adds is rounded away.
    """
    aim = "file manager: requests a batch of ours"
    most: dict[int, list[Judged]] = {}
    for cell in runs.rows("file-manager", Cell):
        if cell.way == "ours":
            counted = sum(number for verb, number in cell.requests.items() if verb != "LIST")
            value = float(round(counted / max(1, cell.batches)))
            where = f"{cell.provider}, {cell.partitions} partitions, {cell.delay_ms} ms"
            reason = f"a batch makes {verbs(cell.requests, cell.batches)}"
            judged = Judged(aim, where, 4.0 + cell.partitions, False, value, unit="", reason=reason)
            most.setdefault(cell.partitions, []).append(judged)
    worst = [max(found, key=lambda one: one.value or 0) for found in most.values()]
    shown = [f"the most of {len(found)} situations" for found in most.values()]
    found = [replace(one, detail=detail) for one, detail in zip(worst, shown, strict=True)]
    return found or [Judged(aim, "4 partitions", 8.0, False, None, unit="")]


def _ratios(
    runs: Runs,
    part: str,
    aim: str,
    above: str,
    below: str,
    bound: float,
    ratio: Callable[[Cell, Cell], float] = time_ratio,
    partitions: int = 4,
    query: str = "windowed",
    *,
    at_least: bool = True,
) -> list[Judged]:
    """The aim in every run and provider that has both sides at 20 ms; one query alone counts."""
    judged = []
    for cells in map(cells_of, runs.of(part)):
        for situation, way in cells:
            if way != below or (situation, above) not in cells:
                continue
            if situation != (query, partitions, situation[2], 20):
                continue
            one, two = cells[situation, above], cells[situation, below]
            if ratio is request_ratio and not two.requests:
                continue  # it has made nothing durable meanwhile: there is nothing to compare
            if ratio is time_ratio:
                remark, reason = _remark(one, two, cells.get((situation, "alone"))), _phases(one, two)
            else:
                remark, reason = _lag(two), _verbs(one, two)
            where = f"{situation[2]}, {partitions} partitions, 20 ms"
            judged.append(Judged(aim, where, bound, at_least, ratio(one, two), remark, reason=reason))
    return judged or [Judged(aim, f"{partitions} partitions, 20 ms", bound, at_least, None)]


def _remark(above: Cell, below: Cell, alone: Cell | None) -> str:
    """Whether noise may hide a ratio, and what it would be if checkpoints cost nothing at all."""
    words = [noise(above.batch_ms, below.batch_ms)]
    if alone is not None and below is not alone:
        words.append(f"{time_ratio(above, alone):.2f}x over local disk alone in the same run")
    return "; ".join(filter(None, words))


def _phases(*cells: Cell) -> str:
    """Where Spark itself says that the time of both sides goes."""
    shown = []
    for cell in cells:
        phases = (f"{phase} {value:.0f}" for phase, value in cell.phases_ms.items() if value >= 10)
        shown.append(f"{way_name(cell.way)} {', '.join(phases)}")
    return f"medians of Spark's phases in ms: {'; '.join(shown)}"


def _verbs(above: Cell, below: Cell) -> str:
    shown = [f"{way_name(cell.way)} makes {verbs(cell.requests, cell.batches)}" for cell in (above, below)]
    text = f"a batch of {', one of '.join(shown)}"
    if below.way in LISTENERS:
        most = times(above.per_batch / CAPTURE_REQUESTS)
        text += f". A capture takes {CAPTURE_REQUESTS} requests by the protocol: one for every batch gives "
        text += f"at most {most}; more only if captures take batches together, which costs lag"
    return text


def _lag(cell: Cell) -> str:
    """How far behind a listener is for its requests."""
    if not cell.lag_seconds:
        return ""
    lag, taken = statistics.median(cell.lag_seconds), f"{cell.captures} captures of {cell.watched_batches}"
    return f"durable after {lag:.2f} s (p50), {taken} batches, before retention begins"


def _restores(runs: Runs) -> list[Judged]:
    aim = "restore, as a share of the speed of the raw parallel download"
    rows = [row for row in runs.rows("restore", Restored) if row.store == "s3"]
    judged = []
    for size in sorted({row.size_bytes for row in rows}):
        same = {row.how: row for row in rows if row.size_bytes == size}
        if {"ours", "raw download"} <= {*same}:
            ours, raw = same["ours"], same["raw download"]
            detail = "" if told_apart(ours.seconds, raw.seconds) else "within noise"
            speeds = ", ".join(f"{row.how} {size / 1e6 / row.p50:.0f} MB/s" for row in same.values())
            reason = f"a restore hashes every byte and is on the disk when it returns: {speeds}"
            share, where = raw.p50 / ours.p50, f"{size / 1e6:.0f} MB"
            judged.append(Judged(aim, where, 0.8, True, share, detail, reason=reason))
    return judged or [Judged(aim, "", 0.8, True, None)]
