"""The aims, each as a ratio of two sides of one run, and whether it was met. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.records import Cell, Restored, Run, Runs

SIDE_BY_SIDE = "side-by-side"
FILE_MANAGER = "file-manager"
LISTENER_COST = "listener-cost"
RESTORE = "restore"
MET, MISSED, NOT_RUN = "met", "missed", "not run"
WINDOWED = "windowed"
TOTAL = "total"


@dataclass(frozen=True)
class Judged:
    """An aim and what was found; ``value`` is None if its part was not run."""

    aim: str
    situation: str
    bound: float
    at_least: bool
    value: float | None
    detail: str = ""
    unit: str = "x"
    sides: tuple[Cell, ...] = ()
    """What the ratio is of: above, below."""

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


def cells_of(run: Run) -> dict[tuple[tuple[str, int, str, int], str], Cell]:
    """The cells of a run by situation and way."""
    return {(row.situation, row.way): row for row in run.rows if isinstance(row, Cell)}


def time_ratio(above: Cell, below: Cell) -> float:
    return above.p50 / below.p50


def request_ratio(above: Cell, below: Cell) -> float:
    return above.per_batch / below.per_batch


def judge(runs: Runs) -> list[Judged]:
    """Every aim of the benchmark, in the order in which they were set."""
    side = SIDE_BY_SIDE
    found = [
        *_ratios(runs, side, "batch p50, stock over (c) our manager", "stock", "ours", 3.0, time_ratio, 4),
        *_ratios(
            runs, side, "batch p50, stock over (d) the listener", "stock", "listener", 3.5, time_ratio, 4
        ),
        *_ratios(runs, side, "batch p50, tuned over (c) our manager", "tuned", "ours", 1.6, time_ratio, 4),
        *_ratios(
            runs, side, "batch p50, tuned over (d) the listener", "tuned", "listener", 1.6, time_ratio, 4
        ),
        *_ratios(runs, side, "requests a batch, stock over (c)", "stock", "ours", 15.0, request_ratio, 64),
        *_ratios(
            runs, side, "requests a batch, stock over (d)", "stock", "listener", 60.0, request_ratio, 4
        ),
    ]
    slowed = "batch p50, with the listener over without"
    found += _ratios(runs, LISTENER_COST, slowed, "listener", "disk", 1.03, time_ratio, 4, at_least=False)
    return found + _restores(runs) + judge_file_manager(runs)


def judge_file_manager(runs: Runs) -> list[Judged]:
    """The aims of our file manager, which has a run of its own."""

    def over(
        above: str, below: str, bound: float, partitions: int, *, at_least: bool = True
    ) -> list[Judged]:
        aim = f"file manager: batch p50, {above} over {below}"
        return _ratios(
            runs,
            FILE_MANAGER,
            aim,
            above,
            below,
            bound,
            time_ratio,
            partitions,
            at_least=at_least,
            query=TOTAL,
        )

    return [
        *over("ours", "alone", 1.25, 4, at_least=False),
        *over("stock", "ours", 3.0, 4),
        *over("tuned", "ours", 1.6, 4),
        *over("stock", "ours", 6.0, 64),
        *_requests(runs),
    ]


def _requests(runs: Runs) -> list[Judged]:
    """Our manager's requests, in every situation: four for the logs, and one for each partition.

    Lists do not count: maintenance makes them, by its own clock. What a batch that was cut by the
    end of a turn adds is rounded away.
    """
    aim = "file manager: requests a batch of ours"
    judged = []
    for cell in runs.rows(FILE_MANAGER, Cell):
        if cell.way == "ours":
            counted = sum(number for verb, number in cell.requests.items() if verb != "LIST")
            value = float(round(counted / max(1, cell.batches)))
            where = f"{cell.provider}, {cell.partitions} partitions, {cell.delay_ms} ms"
            detail = f"{cell.per_batch:.1f} with the lists of maintenance"
            judged.append(Judged(aim, where, 4.0 + cell.partitions, False, value, detail, unit=""))
    return judged or [Judged(aim, "4 partitions", 8.0, False, None, unit="")]


def _ratios(
    runs: Runs,
    part: str,
    aim: str,
    above: str,
    below: str,
    bound: float,
    ratio: Callable[[Cell, Cell], float],
    partitions: int,
    *,
    at_least: bool = True,
    query: str = WINDOWED,
) -> list[Judged]:
    """The aim in every run and provider that has both sides at 20 ms; one query alone counts."""
    judged = []
    for cells in map(cells_of, runs.of(part)):
        for situation, way in cells:
            if way != below or (situation, above) not in cells:
                continue
            found_query, found_partitions, provider, delay_ms = situation
            if found_query != query or found_partitions != partitions or delay_ms != 20:
                continue
            one, two = cells[situation, above], cells[situation, below]
            if ratio is request_ratio and not two.requests:
                continue  # it has made nothing durable meanwhile: there is nothing to compare
            alone = cells.get((situation, "alone"))
            remark = _remark(one, two, alone) if ratio is time_ratio else _lag(two)
            where = f"{provider}, {partitions} partitions, 20 ms"
            judged.append(Judged(aim, where, bound, at_least, ratio(one, two), remark, sides=(one, two)))
    return judged or [Judged(aim, f"{partitions} partitions, 20 ms", bound, at_least, None)]


def _remark(above: Cell, below: Cell, alone: Cell | None) -> str:
    """Whether noise may hide a ratio, and what it would be if checkpoints cost nothing at all."""
    words = [noise(above.batch_ms, below.batch_ms)]
    if alone is not None and below is not alone:
        words.append(f"{time_ratio(above, alone):.2f}x over local disk alone in the same run")
    return "; ".join(filter(None, words))


def _lag(cell: Cell) -> str:
    """How far behind a listener is for its requests."""
    if not cell.lag_seconds:
        return ""
    lag = statistics.median(cell.lag_seconds)
    taken = f"{cell.captures} captures of {cell.watched_batches} batches"
    return f"durable after {lag:.2f} s (p50), {taken}, before retention begins"


def _restores(runs: Runs) -> list[Judged]:
    aim = "restore, as a share of the speed of the raw parallel download"
    rows = runs.rows(RESTORE, Restored)
    judged = []
    for size in sorted({row.size_bytes for row in rows}):
        ours, raw = _restored(rows, "ours", size), _restored(rows, "raw download", size)
        if ours is not None and raw is not None:
            detail = "" if told_apart(ours.seconds, raw.seconds) else "within noise"
            judged.append(Judged(aim, f"{size / 1e6:.0f} MB", 0.8, True, raw.p50 / ours.p50, detail))
    return judged or [Judged(aim, "", 0.8, True, None)]


def _restored(rows: Iterable[Restored], how: str, size: int) -> Restored | None:
    found = [row for row in rows if row.how == how and row.size_bytes == size]
    return found[-1] if found else None
