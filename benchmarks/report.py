"""RESULTS.md and PEERS.md, made of their texts in ``pages``, of what was saved, and of nothing else. Pure.

The aims are in ``aims.toml``, each a ratio of two sides of one run. The pages say whether it was met, and
if not, why.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from benchmarks import frame
from benchmarks.frame import LOAD, Part, Run, Runs, Side, load_runs, tell
from benchmarks.lab import LETTERS, LISTENERS

RESULTS_PAGE, SINK_PAGE = (Path(__file__).with_name(name) for name in ("RESULTS.md", "PEERS.md"))
PARTS, SINK_PARTS = (
    {name: said.get("title", "") for name, said in frame.PARTS.items() if said["page"] == page.name}
    for page in (RESULTS_PAGE, SINK_PAGE)
)
"""The parts of each page, with the titles of their tables; of the stores the worst is among the aims."""
OURS = "ckpt-sink"
BASE = "ours"
COST_PARTITIONS = 64
COST_BATCH_SECONDS = 10.0
KEPT_BATCHES = {"stock": 100, "tuned": 100, "ours": 100, "listener": 20, "listener-stock": 20, "sink": 20}
"""What each way keeps by default: Spark's minBatchesToRetain, our ``retain``."""
PRICES = dict.fromkeys(("PUT", "POST", "COPY", "LIST"), 5.00 / 1e6)
PRICES |= {"GET": 0.40 / 1e6, "HEAD": 0.40 / 1e6, "DELETE": 0.0, "DELETES": 0.0}
"""US dollars a request, list prices of 2025; the same at all three clouds."""
GB_MONTH = {"Amazon S3": 0.023, "Google Cloud Storage": 0.020, "Azure Blob": 0.018}
DAYS_A_MONTH = 30.4
MAINTENANCE_LISTS = 2
"""What Spark's maintenance asks for each partition of a state store on S3, once a minute."""
MET, MISSED, NOT_RUN = "met", "missed", "not run"
CAPTURE_REQUESTS = 4
"""What a commit takes by the protocol: data, manifest, a look at the floor, the pointer to the newest."""


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


def _nearer_ratio(above: Side, below: Side) -> float:
    """Of wall time and processor time the ratio that is nearer to the aim."""
    return max(time_ratio(above, below), above.counts.get("cpu ms", 0.0) / below.counts.get("cpu ms", 1.0))


def _own_requests(side: Side, _: Side) -> float:
    """Requests a batch; lists do not count: Spark's maintenance makes them, by its own clock.

    What a batch that was cut by the end of a turn adds is rounded away.
    """
    return float(round(sum(number for verb, number in side.requests.items() if verb != "LIST")))


RATIOS: dict[str, Callable[[Side, Side], float]] = {
    "time": time_ratio,
    "request ratio": lambda above, below: above.counts["requests"] / below.counts["requests"],
    "nearer": _nearer_ratio,
    "own requests": _own_requests,
}


@dataclass(frozen=True)
class Aim:
    """What ``above`` relative to ``below`` must be in every situation that ``where`` matches.

    What ``judge`` makes of it has one situation there, or ``value`` None if its part was not run; noise
    and such in ``detail``; and what explains a miss in ``reason``.
    """

    part: str
    text: str
    above: str
    below: str
    bound: float
    where: str = "*"
    at_least: bool = False
    ratio: str = "time"
    unit: str = "x"
    why: str = ""
    value: float | None = None
    detail: str = ""
    reason: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return NOT_RUN
        reached = self.value >= self.bound if self.at_least else self.value <= self.bound
        return MET if reached else MISSED

    def judge(self, runs: Runs) -> list[Aim]:
        """Every run and situation that has both sides; of more than three the worst alone."""
        ratio = RATIOS.get(self.ratio, self._own)
        found = []
        for ways in (ways for run in runs.of(self.part) for ways in by_situation(run.rows).values()):
            one, two = ways.get(self.above), ways.get(self.below)
            if one is None or two is None or not fnmatch(one.where, self.where):
                continue
            needed = [two.counts["requests"]] if self.ratio == "request ratio" else [one.values, two.values]
            if not all(needed):
                continue  # nothing was made durable meanwhile, or no batch was of that kind
            detail, reason = self._remark(one, two, ways), self._why(one, two, ways)
            value = ratio(one, two)
            found.append(replace(self, where=one.where, value=value, detail=detail, reason=reason))
        if len(found) > 3:
            reached = sum(one.verdict == MET for one in found)
            worst = sorted(found, key=lambda one: one.value or 0)[0 if self.at_least else -1]
            found = [replace(worst, detail=f"the worst of {len(found)}, of which {reached} reach it")]
        return found or [self]

    def _own(self, side: Side, _: Side) -> float:
        """What a side has counted itself."""
        return side.counts.get(self.ratio, 0.0)

    def _remark(self, above: Side, below: Side, ways: Mapping[str, Side]) -> str:
        """Whether noise may hide a ratio of times, and what it would be if checkpoints cost nothing at all.

        For a ratio of requests, how far behind a listener is for its own.
        """
        if self.ratio == "time":
            words = [noise(above, below)]
            if "alone" in ways and "phase addBatch" in below.details and below is not ways["alone"]:
                beside = time_ratio(above, ways["alone"])
                words.append(f"{beside:.2f}x over local disk alone in the same run")
            return "; ".join(filter(None, words))
        if "s lag" not in below.counts:
            return ""
        lag = f"durable after {below.counts['s lag']:.2f} s (p50)"
        taken = f"{below.details['captures']:g} captures of {below.details['captured batches']:g} batches"
        return f"{lag}, {taken}, before retention begins"

    def _why(self, above: Side, below: Side, ways: Mapping[str, Side]) -> str:
        """What explains a miss: Spark's phases, the requests by verb, or what all sides took."""
        if self.ratio in ("request ratio", "own requests"):
            text = f"a batch of {verbs(above)}" + (f", one of {verbs(below)}" if above is not below else "")
            if below.way in LISTENERS:
                most = times(above.counts["requests"] / CAPTURE_REQUESTS)
                text += f". A capture takes {CAPTURE_REQUESTS} requests by the protocol: one for every"
                text += f" batch gives at most {most}; more only if captures take batches together, which"
                text += " costs lag"
            return text
        sides = ", ".join(f"{row.way} {row.p50:.4g} {row.unit}" for row in ways.values() if row.values)
        if phases := [phases_of(side) for side in (above, below) if side.starting("phase ")]:
            sides = f"medians of Spark's phases in ms: {'; '.join(phases)}"
        return "; ".join(filter(None, (self.why, sides)))


def verbs(side: Side) -> str:
    """Requests a batch by verb, the most frequent first."""
    ordered = sorted(side.requests.items(), key=lambda pair: (-pair[1], pair[0]))
    return f"{way_name(side.way)} makes {', '.join(f'{n:.1f} {verb}' for verb, n in ordered) or 'none'}"


def phases_of(side: Side) -> str:
    """Where Spark itself says that the time goes."""
    phases = sorted(side.starting("phase ").items())
    return f"{way_name(side.way)} {', '.join(f'{phase} {ms:.0f}' for phase, ms in phases if ms >= 10)}"


def read_aims() -> Iterator[Aim]:
    """Every aim of ``aims.toml``, in the order in which they were set."""
    for said in tomllib.loads(Path(__file__).with_name("aims.toml").read_text())["aim"]:
        at_least = "at_least" in said
        bound = said.pop("at_least" if at_least else "at_most")
        for above, below in said.pop("pairs"):
            text = said.get("text", f"batch p50, {above} over {below}")
            yield Aim(**{**said, "text": text}, above=above, below=below, bound=bound, at_least=at_least)


def judge(runs: Runs, parts: Container[str]) -> list[Aim]:
    """Every aim of these parts."""
    return [judged for aim in read_aims() if aim.part in parts for judged in aim.judge(runs)]


def render(runs: Runs) -> str:
    """The page of everything beside Spark's own checkpoints."""
    maintenance = dollars(request_cost({"LIST": MAINTENANCE_LISTS * COST_PARTITIONS}, 60))
    costs = cost_table(cost_sides(runs.of("side-by-side"), COST_PARTITIONS), COST_BATCH_SECONDS)
    return fill(RESULTS_PAGE, runs, PARTS, maintenance=[maintenance], costs=costs)


def render_sink(runs: Runs) -> str:
    """The page of the comparison with Iceberg and Delta Lake, and of what else the sink costs."""
    return fill(SINK_PAGE, runs, SINK_PARTS, ("pyspark", "hadoop-aws"))


def fill(
    page: Path, runs: Runs, titles: Mapping[str, str], left_out: Sequence[str] = (), **more: Sequence[str]
) -> str:
    """The text of a page, in ``pages``, with what was found."""
    judged = judge(runs, titles)
    lines = {
        **more,
        "aims": aim_table(judged),
        "runs": run_table(runs, titles),
        "machines": [machines(runs, titles, left_out)],
        "tables": all_tables(runs, titles),
        "reasons": [*reasons(judged), *faster_peers(runs, titles)],
    }
    text = (page.parent / "pages" / page.name).read_text()
    return text.format(**{name: "\n".join(found) or "Nothing." for name, found in lines.items()})


def faster_peers(runs: Runs, parts: Iterable[str]) -> list[str]:
    """Every situation in which Iceberg or Delta Lake took less time, whatever the aims say."""
    found = []
    for where, ways in by_situation(row for part in parts for row in runs.rows(part)).items():
        peers = {way: side for way, side in ways.items() if way.startswith(("iceberg", "delta"))}
        ratios = {way: time_ratio(side, ways[OURS]) for way, side in peers.items() if OURS in ways}
        faster = [f"{way} takes {ratio:.2f}x" for way, ratio in ratios.items() if ratio < 1]
        found += [f"- {where}: {', '.join(faster)} of the time of {OURS}."] if faster else []
    return found


def reasons(judged: Iterable[Aim]) -> list[str]:
    """Every aim that was missed, and why."""
    return [
        f"- {one.text}, {one.where}: {measured(one)}, not {one.bound:g}{one.unit}; {one.reason}."
        for one in judged
        if one.verdict == MISSED
    ]


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table, none without rows; bars in a cell are kept from ending it."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    whole = [headers, ["---"] * len(headers), *lines] if lines else []
    return [f"| {' | '.join(line)} |" for line in whole]


def measured(found: Aim) -> str:
    if found.value is None:
        return "-"
    return times(found.value) if found.unit == "x" else f"{found.value:g}{found.unit}"


def aim_table(judged: Sequence[Aim]) -> list[str]:
    """Every aim, and whether it was met."""
    rows = []
    for one in judged:
        bound = f"{'at least' if one.at_least else 'at most'} {one.bound:g}{one.unit}"
        rows.append([one.text, one.where, bound, measured(one), one.verdict, one.detail or "-"])
    return table(["aim", "where", "bound", "found", "verdict", "remark"], rows)


def run_table(runs: Runs, parts: Iterable[str]) -> list[str]:
    """Every run with its command, and every part that was not run."""
    rows = []
    for part in parts:
        for run in runs.of(part):
            found = f"{len(run.rows)} rows" + (f"; then it failed: {run.failed}" if run.failed else "")
            took = f"{run.seconds:.0f} s" if run.seconds < 120 else f"{run.seconds / 60:.0f} min"
            load = run.machine.get(LOAD, "?")
            rows.append([run.name, f"`{run.command}`", run.started, took, load, found])
        if not runs.of(part):
            rows.append([part, "not run", "-", "-", "-", "-"])
    return table(["part", "command", "began", "took", LOAD, "measured"], rows)


def machines(runs: Runs, parts: Iterable[str], left_out: Sequence[str]) -> str:
    """Facts about the machine; what differs between runs is given for each value once."""
    values: dict[str, dict[str, None]] = {}
    for run in sorted((run for part in parts for run in runs.of(part)), key=lambda run: run.started):
        for name, value in run.machine.items():
            values.setdefault(name, {})[value] = None
    return "; ".join(
        f"{name} {' or '.join(found)}" for name, found in values.items() if name not in (LOAD, *left_out)
    )


def all_tables(runs: Runs, titles: Mapping[str, str]) -> list[str]:
    """The tables of some parts; parts with one title share a table."""
    lines = []
    for title in filter(None, dict.fromkeys(titles.values())):
        parts = [part for part in titles if titles[part] == title]
        named = ((f"{part}: " if len(parts) > 1 else "", row) for part in parts for row in runs.rows(part))
        rows = [replace(row, where=f"{name}{row.where}") for name, row in named]
        lines += ["", *side_tables(rows, title)] if rows else []
    return lines[1:]


def side_tables(rows: Iterable[Side], title: str) -> list[str]:
    """The sides of every situation: p50, its ratio to the base, and what was counted.

    The base is ``ours`` where it is one of the sides, else the first. Situations that have other sides are
    another table, unless all of theirs are among those of one.
    """
    tables: dict[tuple[str, ...], list[dict[str, Side]]] = {}
    for ways in sorted(by_situation(rows).values(), key=len, reverse=True):
        names = next((names for names in tables if {*ways} <= {*names}), tuple(ways))
        tables.setdefault(names, []).append(ways)
    lines = []
    for names, found in tables.items():
        shown = []
        for ways in found:
            base = ways.get(BASE, next(iter(ways.values())))
            where = f"{base.where}, {base.unit}" if base.values else base.where
            shown.append([where, *(side_text(ways[way], base) if way in ways else "" for way in names)])
        lines += ["", *table([title, *map(way_name, names)], shown)]
    return lines[1:]


def number_text(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def side_text(side: Side, base: Side) -> str:
    counted = [f"{number_text(number)} {what}" for what, number in side.counts.items()]
    if not side.values:
        return "; ".join(counted)
    beside = "" if side is base or not base.values else f" ({time_ratio(side, base):.2f}x)"
    return "; ".join([f"{number_text(side.p50)}{beside}", *counted])


def cost_sides(runs: Sequence[Run], partitions: int) -> list[Side]:
    """The sides of one situation of one run of the aggregation: the one in which most ways were run."""
    candidates: list[list[Side]] = [[]]
    for where, ways in (pair for run in runs for pair in by_situation(run.rows).items()):
        if where.startswith(f"windowed, {partitions}, "):
            candidates += [[ways[way] for way in KEPT_BATCHES if way in ways]]

    def rank(sides: list[Side]) -> tuple[int, list[bool], int]:
        return len(sides), ["hdfs" in side.where for side in sides], sum(len(side.values) for side in sides)

    return max(candidates, key=rank)


def requests_if_all_captured(side: Side) -> dict[str, float]:
    """Requests a batch; where captures took several batches together, as if each had its own."""
    captures = side.details.get("captures", 0)
    share = side.details["captured batches"] / captures if captures else 1.0
    return {verb: share * number for verb, number in side.requests.items()}


def request_cost(requests_per_batch: Mapping[str, float], batch_seconds: float) -> float:
    """Dollars for the requests of a day. A verb without a price is an error, never free."""
    unknown = set(requests_per_batch) - set(PRICES)
    if unknown:
        raise ValueError(f"no price for {', '.join(sorted(unknown))}")
    batch = sum(number * PRICES[verb] for verb, number in requests_per_batch.items())
    return 86_400 / batch_seconds * batch


def storage_cost(stored_bytes: float, gb_month: float) -> float:
    """Dollars for a day of storage."""
    return stored_bytes / 1e9 * gb_month / DAYS_A_MONTH


def dollars(value: float) -> str:
    """Money; what is less than a tenth of a cent is still shown."""
    return f"${value:.2f}" if value >= 0.995 else f"${value:.4f}"


def cost_table(sides: Sequence[Side], batch_seconds: float) -> list[str]:
    """What a day costs each way."""
    rows = []
    for side in sides:
        requests = requests_if_all_captured(side)
        stored = KEPT_BATCHES[side.way] * side.details["bytes out"]
        asked = request_cost(requests, batch_seconds)
        totals = [dollars(asked + storage_cost(stored, price)) for price in GB_MONTH.values()]
        kept = f"{stored / 1e6:.2f} MB"
        rows.append([way_name(side.way), f"{sum(requests.values()):.1f}", kept, *totals])
    return table(["way", "requests a batch", "kept", *(f"{cloud}, a day" for cloud in GB_MONTH)], rows)


def show(part: Part, runs: Runs) -> str:
    """What runs of one part found, and which of its aims they met."""
    aims = aim_table(judge(runs, [part.name]))
    return "\n".join([*side_tables(runs.rows(part.name), part.name), "", *aims])


def write_pages() -> None:
    """Write both pages from what was saved."""
    runs = load_runs()
    RESULTS_PAGE.write_text(render(runs))
    SINK_PAGE.write_text(render_sink(runs))
    tell(f"{RESULTS_PAGE.name}, {SINK_PAGE.name}: {len(runs.all)} runs")
