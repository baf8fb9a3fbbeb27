"""RESULTS.md and PEERS.md, made of their texts in ``pages``, of what was saved, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.aims import (
    AIMS,
    MISSED,
    OURS,
    SINK_AIMS,
    Judged,
    by_situation,
    judge,
    time_ratio,
    times,
    way_name,
)
from benchmarks.frame import LOAD, Part, Run, Runs, Side, load_runs, tell

RESULTS_PAGE, SINK_PAGE = (Path(__file__).with_name(name) for name in ("RESULTS.md", "PEERS.md"))
WHERE = "query, partitions, state store, delay"
PARTS = {
    **dict.fromkeys(("side-by-side", "file-manager", "listener-cost", "purging", "coordinated"), WHERE),
    "two-drivers": "two drivers on one location",
    "restore": "a restore, and downloads of the same bytes",
    "commit": "a commit, partitions x delta",
    "growth": "long run of small batches",
    "by-hand": "copies of running queries, and what queries started on them did",
    "cold-start": "until the first finished batch; a restore counts",
    "durability": "batches that wait for the store, and others",
    "stores": "",
}
"""All parts, with the titles of their tables; of the stores the worst is among the aims."""
SINK_PARTS = {
    "peers": "case",
    "peer-reads": "table",
    "peer-growth": "long run of small batches",
    "sink": "Spark 4.3",
    "compaction": "Spark 4.3, a batch",
}
"""They have a page of their own."""
BASE = "ours"
COST_PARTITIONS = 64
COST_BATCH_SECONDS = 10.0
KEPT_BATCHES = {"stock": 100, "tuned": 100, "ours": 100, "listener": 20, "listener-stock": 20, "sink": 20}
"""What each way keeps by default: Spark's minBatchesToRetain, our ``retain``."""
PRICES = {
    **dict.fromkeys(("PUT", "POST", "COPY", "LIST"), 5.00 / 1e6),
    **dict.fromkeys(("GET", "HEAD"), 0.40 / 1e6),
    **dict.fromkeys(("DELETE", "DELETES"), 0.0),
}
"""US dollars a request, list prices of 2025; the same at all three clouds."""
GB_MONTH = {"Amazon S3": 0.023, "Google Cloud Storage": 0.020, "Azure Blob": 0.018}
DAYS_A_MONTH = 30.4
MAINTENANCE_LISTS = 2
"""What Spark's maintenance asks for each partition of a state store on S3, once a minute."""


def render(runs: Runs) -> str:
    """The page of everything beside Spark's own checkpoints."""
    judged = judge(runs)
    return fill(
        RESULTS_PAGE,
        aims=aim_table(judged),
        runs=run_table(runs, PARTS),
        machines=[machines(runs, PARTS)],
        tables=all_tables(runs, PARTS),
        maintenance=[dollars(request_cost({"LIST": MAINTENANCE_LISTS * COST_PARTITIONS}, 60))],
        costs=cost_table(cost_sides(runs.of("side-by-side"), COST_PARTITIONS), COST_BATCH_SECONDS),
        reasons=reasons(judged),
    )


def render_sink(runs: Runs) -> str:
    """The page of the comparison with Iceberg and Delta Lake, and of what else the sink costs."""
    judged = judge(runs, SINK_AIMS)
    return fill(
        SINK_PAGE,
        aims=aim_table(judged),
        runs=run_table(runs, SINK_PARTS),
        machines=[machines(runs, SINK_PARTS, ("pyspark", "hadoop-aws"))],
        tables=all_tables(runs, SINK_PARTS),
        reasons=[*reasons(judged), *faster_peers(runs)],
    )


def fill(page: Path, **lines: Sequence[str]) -> str:
    """The text of a page, in ``pages``, with what was found."""
    text = (page.parent / "pages" / page.name).read_text()
    return text.format(**{name: "\n".join(found) or "Nothing." for name, found in lines.items()})


def faster_peers(runs: Runs) -> list[str]:
    """Every situation in which Iceberg or Delta Lake took less time, whatever the aims say."""
    found = []
    for where, ways in by_situation(row for part in SINK_PARTS for row in runs.rows(part)).items():
        peers = {way: side for way, side in ways.items() if way.startswith(("iceberg", "delta"))}
        ratios = {way: time_ratio(side, ways[OURS]) for way, side in peers.items() if OURS in ways}
        faster = [f"{way} takes {ratio:.2f}x" for way, ratio in ratios.items() if ratio < 1]
        found += [f"- {where}: {', '.join(faster)} of the time of {OURS}."] if faster else []
    return found


def reasons(judged: Iterable[Judged]) -> list[str]:
    """Every aim that was missed, and why."""
    return [
        f"- {one.aim}, {one.situation}: {measured(one)}, not {one.bound:g}{one.unit}; {one.reason}."
        for one in judged
        if one.verdict == MISSED
    ]


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table, none without rows; bars in a cell are kept from ending it."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return (
        [f"| {' | '.join(line)} |" for line in [headers, ["---"] * len(headers), *lines]] if lines else []
    )


def measured(found: Judged) -> str:
    if found.value is None:
        return "-"
    return times(found.value) if found.unit == "x" else f"{found.value:g}{found.unit}"


def aim_table(judged: Sequence[Judged]) -> list[str]:
    """Every aim, and whether it was met."""
    rows = []
    for one in judged:
        bound = f"{'at least' if one.at_least else 'at most'} {one.bound:g}{one.unit}"
        rows.append([one.aim, one.situation, bound, measured(one), one.verdict, one.detail or "-"])
    return table(["aim", "where", "bound", "found", "verdict", "remark"], rows)


def run_table(runs: Runs, parts: Iterable[str]) -> list[str]:
    """Every run with its command, and every part that was not run."""
    rows = []
    for part in parts:
        for run in runs.of(part):
            found = f"{len(run.rows)} rows" + (f"; then it failed: {run.failed}" if run.failed else "")
            took = f"{run.seconds:.0f} s" if run.seconds < 120 else f"{run.seconds / 60:.0f} min"
            rows.append(
                [run.name, f"`{run.command}`", run.started, took, run.machine.get(LOAD, "?"), found]
            )
        if not runs.of(part):
            rows.append([part, "not run", "-", "-", "-", "-"])
    return table(["part", "command", "began", "took", LOAD, "measured"], rows)


def machines(runs: Runs, parts: Iterable[str], left_out: Sequence[str] = ()) -> str:
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
    beside = "" if side is base else f" ({time_ratio(side, base):.2f}x)"
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
    return (
        86_400 / batch_seconds * sum(number * PRICES[verb] for verb, number in requests_per_batch.items())
    )


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
        rows.append(
            [way_name(side.way), f"{sum(requests.values()):.1f}", f"{stored / 1e6:.2f} MB", *totals]
        )
    return table(["way", "requests a batch", "kept", *(f"{cloud}, a day" for cloud in GB_MONTH)], rows)


def show(part: Part, runs: Runs) -> str:
    """What runs of one part found, and which of its aims they met."""
    aims = judge(runs, (aim for aim in (*AIMS, *SINK_AIMS) if aim.part == part.name))
    return "\n".join([*side_tables(runs.rows(part.name), part.name), "", *aim_table(aims)])


def write_pages() -> None:
    """Write both pages from what was saved."""
    runs = load_runs()
    RESULTS_PAGE.write_text(render(runs))
    SINK_PAGE.write_text(render_sink(runs))
    tell(f"{RESULTS_PAGE.name}, {SINK_PAGE.name}: {len(runs.all)} runs")
