"""The aims, each as a ratio of two sides of one run, whether it was met, and if not, why. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from benchmarks.frame import Cell, Row, Runs, Side
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


def by_situation(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """What was compared: by situation, then by way."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.where, {})[row.way] = row
    return found


def time_ratio(above: Row, below: Row) -> float:
    return above.p50 / below.p50


def _request_ratio(above: Row, below: Row) -> float:
    assert isinstance(above, Cell) and isinstance(below, Cell)
    return above.per_batch / below.per_batch


def _nearer_ratio(above: Row, below: Row) -> float:
    """Of wall time and processor time the ratio that is nearer to the aim."""
    assert isinstance(above, Side) and isinstance(below, Side)
    cpu = above.counts.get("cpu ms", 0.0) / below.counts.get("cpu ms", 1.0)
    return max(time_ratio(above, below), cpu)


def _own_requests(cell: Row, _: Row) -> float:
    """Requests a batch; lists do not count: Spark's maintenance makes them, by its own clock.

    What a batch that was cut by the end of a turn adds is rounded away.
    """
    assert isinstance(cell, Cell)
    counted = sum(number for verb, number in cell.requests.items() if verb != "LIST")
    return float(round(counted / max(1, cell.batches)))


def _own(count: str) -> Callable[[Row, Row], float]:
    """What a side has counted itself."""
    return lambda side, _: side.counts.get(count, 0.0) if isinstance(side, Side) else 0.0


@dataclass(frozen=True)
class Aim:
    """What ``above`` relative to ``below`` must be in every situation that ``where`` matches."""

    part: str
    text: str
    above: str
    below: str
    bound: float
    where: str = "*"
    at_least: bool = True
    ratio: Callable[[Row, Row], float] = time_ratio
    unit: str = "x"
    why: str = ""

    def judge(self, runs: Runs) -> list[Judged]:
        """Every run and situation that has both sides; of more than three the worst alone."""
        found = []
        for ways in (ways for run in runs.of(self.part) for ways in by_situation(run.rows).values()):
            one, two = ways.get(self.above), ways.get(self.below)
            if one is not None and two is not None and fnmatch(one.where, self.where):
                if self.ratio is _request_ratio and isinstance(two, Cell) and not two.requests:
                    continue  # it has made nothing durable meanwhile: there is nothing to compare
                remark, reason = self._explain(one, two, ways)
                value = self.ratio(one, two)
                found.append(self._judged(one.where, value, remark, reason))
        if len(found) > 3:
            reached = sum(one.verdict == MET for one in found)
            worst = sorted(found, key=lambda one: one.value or 0)[0 if self.at_least else -1]
            found = [replace(worst, detail=f"the worst of {len(found)}, of which {reached} reach it")]
        return found or [self._judged(self.where, None)]

    def _judged(self, where: str, value: float | None, remark: str = "", reason: str = "") -> Judged:
        return Judged(self.text, where, self.bound, self.at_least, value, remark, self.unit, reason)

    def _explain(self, above: Row, below: Row, ways: Mapping[str, Row]) -> tuple[str, str]:
        """A remark on a ratio, and the reason if it misses."""
        if isinstance(above, Side) or isinstance(below, Side):
            sides = ", ".join(f"{row.way} {row.p50:.4g} {_unit(row)}" for row in ways.values())
            told = noise(above.values, below.values) if self.ratio is time_ratio else ""
            return told, "; ".join(filter(None, (self.why, sides)))
        if self.ratio is time_ratio:
            return _remark(above, below, ways.get("alone")), _phases(above, below)
        if above is below:
            return "", f"a batch makes {verbs(above.requests, above.batches)}"
        return _lag(below), _verbs(above, below)


def _unit(row: Row) -> str:
    return row.unit if isinstance(row, Side) else "ms"


SMALL, LARGE = "windowed, 4, *, 20 ms", "windowed, 64, *, 20 ms"
TOTAL, TOTAL_LARGE = "total, 4, *, 20 ms", "total, 64, *, 20 ms"
FASTER, FEWER, ALONE = "batch p50,", "requests a batch, stock over", "file manager: batch p50,"
OWN = "file manager: requests a batch of ours"
HASHES = "a restore hashes every byte and is on the disk when it returns"
_SIDES, _FILES = "side-by-side", "file-manager"
FILE_MANAGER_AIMS = (
    Aim(_FILES, f"{ALONE} ours over alone", "ours", "alone", 1.25, TOTAL, at_least=False),
    Aim(_FILES, f"{ALONE} stock over ours", "stock", "ours", 3.0, TOTAL),
    Aim(_FILES, f"{ALONE} tuned over ours", "tuned", "ours", 1.6, TOTAL),
    Aim(_FILES, f"{ALONE} stock over ours", "stock", "ours", 6.0, TOTAL_LARGE),
    Aim(_FILES, OWN, "ours", "ours", 8.0, "total, 4, *", at_least=False, ratio=_own_requests, unit=""),
    Aim(_FILES, OWN, "ours", "ours", 68.0, "total, 64, *", at_least=False, ratio=_own_requests, unit=""),
)
AIMS = (
    Aim(_SIDES, f"{FASTER} stock over (c) our manager", "stock", "ours", 3.0, SMALL),
    Aim(_SIDES, f"{FASTER} stock over (d) the listener", "stock", "listener", 3.5, SMALL),
    Aim(_SIDES, f"{FASTER} tuned over (c) our manager", "tuned", "ours", 1.6, SMALL),
    Aim(_SIDES, f"{FASTER} tuned over (d) the listener", "tuned", "listener", 1.6, SMALL),
    Aim(_SIDES, f"{FEWER} (c)", "stock", "ours", 15.0, LARGE, ratio=_request_ratio),
    Aim(_SIDES, f"{FEWER} (d)", "stock", "listener", 60.0, SMALL, ratio=_request_ratio),
    Aim(
        "listener-cost", f"{FASTER} with the listener over without", "listener", "disk", 1.03, SMALL, False
    ),
    Aim(
        "restore",
        "speed of a restore over a raw parallel download",
        "raw download",
        "restore",
        0.8,
        "*, s3",
        why=HASHES,
    ),
    *FILE_MANAGER_AIMS,
    Aim("stores", "speed of a store over its bare SDK", "bare SDK", "ours", 0.9, ratio=_nearer_ratio),
    Aim("commit", "PUTs of a commit", "plain", "plain", 4.0, "400 x 2 KB*", False, _own("PUT"), ""),
    Aim(
        "growth", "batch p50, last epochs over the second tenth", "tenth 10", "tenth 2", 1.1, at_least=False
    ),
    *(
        Aim("sink", f"batch p50, {ours} over {empty}", ours, empty, 1.25, "1,000,000 rows", at_least=False)
        for ours, empty in (
            ("ckpt-sink append", "empty"),
            ("ckpt-sink keyed append", "empty behind the shuffle"),
            ("ckpt-sink keyed after it", "empty behind the aggregation"),
        )
    ),
    Aim("durability", f"{FASTER} durable over no capture", "batch", "no capture", 1.25, "20 ms", False),
    Aim("coordinated", "batch p50, state=on over state=off", "state=on", "state=off", 1.1, at_least=False),
)


TASKS = "every task that runs Python costs processor time before it has a row (empty-arrow beside noop)"
FEW, MANY = "*, 10,000 rows, * partitions", "append, 1,000,000 rows, * partitions"
PEER_AIMS = (
    *(
        Aim("peers", f"batch p50, ckpt-sink over {peer}", "ckpt-sink", peer, bound, where, False, why=TASKS)
        for peer, bound, where in (
            ("iceberg", 0.5, FEW),
            ("iceberg copy-on-write", 0.5, FEW),
            ("iceberg merge-on-read", 0.5, FEW),
            ("delta", 0.25, FEW),
            ("delta in 2 partitions", 0.25, FEW),
            ("empty-arrow", 0.5, "*, 10,000 rows, 64 partitions"),
            ("empty-arrow", 0.5, "*, 10,000 rows, 200 partitions"),
            ("iceberg", 0.75, MANY),
        )
    ),
    Aim("peers", "requests a batch", "ckpt-sink", "ckpt-sink", 8, FEW, False, _own("requests"), ""),
    *(
        Aim("peers", f"{what}, ckpt-sink over {peer}", "ckpt-sink", peer, bound, f"{case}*: {what}", False)
        for what, bound, case, peers in (
            ("read whole table", 1.0, "", ("iceberg", "iceberg copy-on-write", "iceberg merge-on-read")),
            ("read one key", 0.5, "upsert", ("iceberg copy-on-write", "iceberg merge-on-read")),
        )
        for peer in peers
    ),
)


def judge(runs: Runs, aims: Iterable[Aim] = AIMS) -> list[Judged]:
    """Every aim of the benchmark, in the order in which they were set."""
    return [judged for aim in aims for judged in aim.judge(runs)]


def _remark(above: Cell, below: Cell, alone: Row | None) -> str:
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
