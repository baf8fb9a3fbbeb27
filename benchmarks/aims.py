"""The aims, each as a ratio of two sides of one run, whether it was met, and if not, why. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from benchmarks.frame import Runs, Side
from benchmarks.lab import LATER, LETTERS, LISTENERS

MET, MISSED, NOT_RUN = "met", "missed", "not run"
CAPTURE_REQUESTS = 4
"""What a commit takes by the protocol: data, manifest, a look at the floor, the pointer to the newest."""
Ratio = Callable[[Side, Side], float]


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


def noise(left: Side, right: Side) -> str:
    """What stands beside a ratio that noise may hide; nothing beside one that it cannot."""
    if min(len(left.values), len(right.values)) < 2:
        return "of one batch"
    return "" if told_apart(left.values, right.values) else "within noise"


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def way_name(way: str) -> str:
    return f"{LETTERS[way]} {way}" if way in LETTERS else way


def by_situation(rows: Iterable[Side]) -> dict[str, dict[str, Side]]:
    """What was compared: by situation, then by way."""
    found: dict[str, dict[str, Side]] = {}
    for row in rows:
        found.setdefault(row.where, {})[row.way] = row
    return found


def time_ratio(above: Side, below: Side) -> float:
    return above.p50 / below.p50


def request_ratio(above: Side, below: Side) -> float:
    return above.counts["requests"] / below.counts["requests"]


def _nearer_ratio(above: Side, below: Side) -> float:
    """Of wall time and processor time the ratio that is nearer to the aim."""
    return max(time_ratio(above, below), above.counts.get("cpu ms", 0.0) / below.counts.get("cpu ms", 1.0))


def _own_requests(side: Side, _: Side) -> float:
    """Requests a batch; lists do not count: Spark's maintenance makes them, by its own clock.

    What a batch that was cut by the end of a turn adds is rounded away.
    """
    return float(round(sum(number for verb, number in side.requests.items() if verb != "LIST")))


def _own(count: str) -> Ratio:
    """What a side has counted itself."""
    return lambda side, _: side.counts.get(count, 0.0)


@dataclass(frozen=True)
class Aim:
    """What ``above`` relative to ``below`` must be in every situation that ``where`` matches."""

    part: str
    text: str
    above: str
    below: str
    bound: float
    where: str = "*"
    at_least: bool = False
    ratio: Ratio = time_ratio
    unit: str = "x"
    why: str = ""

    def judge(self, runs: Runs) -> list[Judged]:
        """Every run and situation that has both sides; of more than three the worst alone."""
        found = []
        for ways in (ways for run in runs.of(self.part) for ways in by_situation(run.rows).values()):
            one, two = ways.get(self.above), ways.get(self.below)
            if one is not None and two is not None and fnmatch(one.where, self.where):
                if self.ratio is request_ratio and not two.counts["requests"]:
                    continue  # it has made nothing durable meanwhile: there is nothing to compare
                value, told = (
                    self.ratio(one, two),
                    (self._remark(one, two, ways), self._why(one, two, ways)),
                )
                found.append(self._judged(one.where, value, *told))
        if len(found) > 3:
            reached = sum(one.verdict == MET for one in found)
            worst = sorted(found, key=lambda one: one.value or 0)[0 if self.at_least else -1]
            found = [replace(worst, detail=f"the worst of {len(found)}, of which {reached} reach it")]
        return found or [self._judged(self.where, None)]

    def _judged(self, where: str, value: float | None, remark: str = "", reason: str = "") -> Judged:
        return Judged(self.text, where, self.bound, self.at_least, value, remark, self.unit, reason)

    def _remark(self, above: Side, below: Side, ways: Mapping[str, Side]) -> str:
        """Whether noise may hide a ratio of times, and what it would be if checkpoints cost nothing at all.

        For a ratio of requests, how far behind a listener is for its own.
        """
        if self.ratio is time_ratio:
            words = [noise(above, below)]
            if "alone" in ways and "phase addBatch" in below.details and below is not ways["alone"]:
                words.append(
                    f"{time_ratio(above, ways['alone']):.2f}x over local disk alone in the same run"
                )
            return "; ".join(filter(None, words))
        if "s lag" not in below.counts:
            return ""
        lag = f"durable after {below.counts['s lag']:.2f} s (p50)"
        taken = f"{below.details['captures']:g} captures of {below.details['captured batches']:g} batches"
        return f"{lag}, {taken}, before retention begins"

    def _why(self, above: Side, below: Side, ways: Mapping[str, Side]) -> str:
        """What explains a miss: Spark's phases, the requests by verb, or what all sides took."""
        if self.ratio is request_ratio or self.ratio is _own_requests:
            text = f"a batch of {verbs(above)}" + (f", one of {verbs(below)}" if above is not below else "")
            if below.way in LISTENERS:
                most = times(above.counts["requests"] / CAPTURE_REQUESTS)
                text += (
                    f". A capture takes {CAPTURE_REQUESTS} requests by the protocol: one for every batch "
                )
                text += (
                    f"gives at most {most}; more only if captures take batches together, which costs lag"
                )
            return text
        if phases := [phases_of(side) for side in (above, below) if side.starting("phase ")]:
            return "; ".join(
                filter(None, (self.why, f"medians of Spark's phases in ms: {'; '.join(phases)}"))
            )
        sides = ", ".join(f"{row.way} {row.p50:.4g} {row.unit}" for row in ways.values() if row.values)
        return "; ".join(filter(None, (self.why, sides)))


def verbs(side: Side) -> str:
    """Requests a batch by verb, the most frequent first."""
    ordered = sorted(side.requests.items(), key=lambda pair: (-pair[1], pair[0]))
    return f"{way_name(side.way)} makes {', '.join(f'{n:.1f} {verb}' for verb, n in ordered) or 'none'}"


def phases_of(side: Side) -> str:
    """Where Spark itself says that the time goes."""
    shown = (
        f"{phase} {value:.0f}" for phase, value in sorted(side.starting("phase ").items()) if value >= 10
    )
    return f"{way_name(side.way)} {', '.join(shown)}"


def _aims(part: str, bound: float, where: str, *pairs: tuple[str, str], why: str = "") -> list[Aim]:
    """One bound for the time of several pairs of sides."""
    return [
        Aim(part, f"batch p50, {one} over {two}", one, two, bound, where, why=why) for one, two in pairs
    ]


SMALL, LARGE = "windowed, 4, *, 20 ms", "windowed, 64, *, 20 ms"
TOTAL, TOTAL_LARGE = "total, 4, *, 20 ms", "total, 64, *, 20 ms"
SIDES, FILES, ALONE = "side-by-side", "file-manager", "file manager: batch p50,"
FEWER, OWN = "requests a batch, stock over", "file manager: requests a batch of ours"
HASHES = "a restore hashes every byte and is on the disk when it returns"
RESTORES = "speed of a restore over a raw parallel download"
SMALL_TASKS = "*, 10,000 rows, [26]* partitions"
AIMS = (
    Aim(SIDES, "batch p50, stock over (c) our manager", "stock", "ours", 3.0, SMALL, True),
    Aim(SIDES, "batch p50, stock over (d) the listener", "stock", "listener", 3.5, SMALL, True),
    Aim(SIDES, "batch p50, tuned over (c) our manager", "tuned", "ours", 1.6, SMALL, True),
    Aim(SIDES, "batch p50, tuned over (d) the listener", "tuned", "listener", 1.6, SMALL, True),
    Aim(SIDES, f"{FEWER} (c)", "stock", "ours", 15.0, LARGE, True, request_ratio),
    Aim(SIDES, f"{FEWER} (d)", "stock", "listener", 60.0, SMALL, True, request_ratio),
    Aim("listener-cost", "batch p50, with the listener over without", "listener", "disk", 1.03, SMALL),
    Aim("restore", RESTORES, "raw download", "restore", 0.8, "*, s3", True, why=HASHES),
    Aim(FILES, f"{ALONE} ours over alone", "ours", "alone", 1.25, TOTAL),
    Aim(FILES, f"{ALONE} stock over ours", "stock", "ours", 3.0, TOTAL, True),
    Aim(FILES, f"{ALONE} tuned over ours", "tuned", "ours", 1.6, TOTAL, True),
    Aim(FILES, f"{ALONE} stock over ours", "stock", "ours", 6.0, TOTAL_LARGE, True),
    Aim(FILES, OWN, "ours", "ours", 8.0, "total, 4, *", ratio=_own_requests, unit=""),
    Aim(FILES, OWN, "ours", "ours", 68.0, "total, 64, *", ratio=_own_requests, unit=""),
    Aim("stores", "speed of a store over its bare SDK", "bare SDK", "ours", 0.9, "*", True, _nearer_ratio),
    Aim("commit", "PUTs of a commit", "plain", "plain", 4.0, "400 x 2 KB*", ratio=_own("PUT"), unit=""),
    Aim("growth", "batch p50, late batches over early ones", "late", "early", 1.1),
    Aim("durability", "batch p50, durable over no capture", "batch", "no capture", 1.25, "20 ms"),
    *_aims("coordinated", 1.1, "*", ("sink", "rows only")),
    *_aims("coordinated", 1.15, "windowed, 64, changelog, 20 ms", ("sink", "disk")),
)

TASKS = "every task that runs Python costs processor time before it has a row (empty-arrow beside noop)"
OURS, ICEBERGS = "ckpt-sink", ("iceberg", "iceberg copy-on-write", "iceberg merge-on-read")
FEW, MANY = "*, 10,000 rows, * partitions", "append, 1,000,000 rows, * partitions"
SINK_AIMS = (
    *_aims("peers", 0.5, FEW, *((OURS, peer) for peer in ICEBERGS), why=TASKS),
    *_aims("peers", 0.25, FEW, (OURS, "delta"), (OURS, "delta in 2 partitions"), why=TASKS),
    *_aims("peers", 0.5, SMALL_TASKS, (OURS, "empty-arrow"), why=TASKS),
    *_aims("peers", 0.75, MANY, (OURS, "iceberg"), why=TASKS),
    Aim("peers", "requests a batch", OURS, OURS, 8, FEW, ratio=_own("requests"), unit=""),
    Aim("peers", "first batch over a later one", OURS, OURS, 2.0, "*: first batch", ratio=_own(LATER)),
    *(
        Aim("peer-reads", f"{what}, {OURS} over {peer}", OURS, peer, bound, f"{case}*: {what}")
        for what, bound, case, first in (("whole table", 1.0, "", 0), ("one key", 0.5, "upsert", 1))
        for peer in ICEBERGS[first:]
    ),
    Aim("peer-growth", "batch p50, late batches over early ones", "late", "early", 1.1),
    *_aims("sink", 1.25, "1,000,000 rows", ("ckpt-sink append", "empty")),
    *_aims("sink", 1.25, "1,000,000 rows", ("ckpt-sink keyed append", "empty behind the shuffle")),
    *_aims("sink", 1.25, "1,000,000 rows", ("ckpt-sink keyed after it", "empty behind the aggregation")),
    *_aims("sink", 0.5, SMALL_TASKS, (OURS, "empty-arrow"), why=TASKS),
    Aim("sink", "first batch over a later one", OURS, OURS, 2.0, "*: first*", ratio=_own(LATER)),
    Aim("compaction", "batch p50, with compaction over without", "with compaction", "without", 1.5),
)


def judge(runs: Runs, aims: Iterable[Aim] = AIMS) -> list[Judged]:
    """Every aim of the benchmark, in the order in which they were set."""
    return [judged for aim in aims for judged in aim.judge(runs)]
