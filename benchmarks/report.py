"""RESULTS.md, and its table of all cells, made of what was saved and of nothing else.

python -m benchmarks.report
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.aims import (
    AIMS,
    MISSED,
    PEER_AIMS,
    Judged,
    by_situation,
    judge,
    noise,
    time_ratio,
    times,
    way_name,
)
from benchmarks.frame import LOAD, Cell, Part, Run, Runs, Side, load_runs
from benchmarks.lab import LETTERS, WAYS

RESULTS_PAGE, PEERS_PAGE = (Path(__file__).with_name(name) for name in ("RESULTS.md", "PEERS.md"))
CELL_PARTS = ("side-by-side", "file-manager", "listener-cost", "purging")
SIDES = {
    "two-drivers": "two drivers on one location",
    "restore": "a restore, and downloads of the same bytes",
    "commit": "a commit, partitions x delta",
    "growth": "long run of small batches",
    "by-hand": "copies of running queries, and what queries started on them did",
    "cold-start": "until the first finished batch; a restore counts",
    "durability": "batches that wait for the store, and others",
    "sink": "the sink on disk",
    "coordinated": "state in the commit",
}
"""The parts that time sides, with their titles; of the stores the worst is among the aims."""
PARTS = (*CELL_PARTS, *SIDES, "stores")
PEERS, SINK = "peers", "ckpt-sink"
"""It has a page of its own."""
RATIOS = (
    ("ours", "alone"),
    ("stock", "ours"),
    ("tuned", "ours"),
    ("stock", "listener"),
    ("listener", "disk"),
)
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

INTRODUCTION = """\
# Results

`make bench` measures and writes this page; `make bench-report` writes it again from the rows that were
saved in `benchmarks/results`: every single batch, requests by verb, bytes and Spark's own phases. No figure
is typed.

The sides of a comparison run in turns on one machine against an S3 server (SeaweedFS) on loopback. A proxy
adds a delay to every request and counts it. So what counts are ratios. "Within noise" means that the middle
halves of the two samples overlap; "of one batch" means that one side has a single batch.

Ways: `alone` is local disk with Spark's file manager and no copy anywhere; `disk` is the same with our file
manager. (a) `stock` is S3A with its defaults. (b) `tuned` is S3A with the manager of spark-hadoop-cloud,
all performance flags and no checksum files. (c) `ours` is our file manager on S3A, without checksum files.
(d) `listener` is local disk with our file manager and our listener; `listener-stock` is the same with
Spark's manager. (e) `sink` is ckpt-sink with rows and state in one commit; only this way also writes its
rows, the others use Spark's noop sink.
"""
PEERS_INTRODUCTION = """\
# ckpt-sink beside Iceberg and Delta Lake

`make bench-peers` measures what is missing here, case by case, and writes this page from
`benchmarks/results/peers-*.json`. `benchmarks/peers.py` says how. Spark 4.1.1 is the newest that both
have connectors for: Iceberg 1.11.0, Delta Lake 4.1.0, Hadoop 3.4.2. The sides of a case run in turns in
one session with two slots; tables are on an S3 server behind a proxy that adds 20 ms to every request,
checkpoint locations on disk. Each side has its defaults; Delta also with two partitions for its
snapshots, which is fair on two cores. Iceberg has a hadoop catalog. Upserts replace every key of the
table in every batch. What counts are ratios of one case.
"""
QUERIES = """\
`lag` is the time from Spark's commit until the listener's checkpoint is durable; `PUTs` are those of a
capture. `purging` runs past 100 batches with 10 batches retained by Spark and 20 by ours, and Spark's
maintenance every 5 s, so that every batch purges.
"""
COSTS = """\
One query, a batch every 10 s, 64 partitions, from the requests and bytes counted above. Every batch has a
checkpoint; kept as by default (Spark 100 batches, ours 20). List prices of 2025: $5.00 a million PUT, COPY,
POST and LIST, $0.40 a million GET and HEAD, deletes and traffic within a region free; a GB-month $0.023 (S3
us-east-1), $0.020 (GCS us-central1), $0.018 (Azure East US hot LRS). Requests were counted on S3; the other
columns price the same requests. Not included: snapshots, retention, and Spark's maintenance, which lists
every partition twice a minute.
"""


def render(runs: Runs) -> str:
    """The page of everything beside Spark's own checkpoints."""
    return page(
        INTRODUCTION,
        {
            "Aims": aim_table(judged := judge(runs)),
            "What was run": [*run_table(runs, PARTS), "", machines(runs, PARTS)],
            "Queries, each way: batch p50 in ms / requests a batch": cell_table(runs),
            "Sides in turns: p50, its ratio to the first side, and what was counted": all_sides(runs),
            "What a day costs": costs(runs),
            "Why aims were missed": reasons(judged),
        },
    )


def render_peers(runs: Runs) -> str:
    """The page of the comparison with Iceberg and Delta Lake."""
    return page(
        PEERS_INTRODUCTION,
        {
            "Aims": aim_table(judged := judge(runs, PEER_AIMS)),
            "Batch p50, its ratio to ckpt-sink, and requests a batch": side_tables(
                runs.rows(PEERS, Side), "case"
            ),
            "Where we lose, and why": [*reasons(judged), *faster_peers(runs)],
            "What was run": [
                *run_table(runs, (PEERS,)),
                "",
                machines(runs, (PEERS,), ("pyspark", "hadoop-aws")),
            ],
        },
    )


def faster_peers(runs: Runs) -> list[str]:
    """Every situation in which Iceberg or Delta Lake took less time, whatever the aims say."""
    found = []
    for where, ways in by_situation(runs.rows(PEERS, Side)).items():
        peers = {way: side for way, side in ways.items() if way.startswith(("iceberg", "delta"))}
        ratios = {way: time_ratio(side, ways[SINK]) for way, side in peers.items() if SINK in ways}
        faster = [f"{way} takes {ratio:.2f}x" for way, ratio in ratios.items() if ratio < 1]
        found += [f"- {where}: {', '.join(faster)} of the time of {SINK}."] if faster else []
    return found


def page(introduction: str, sections: Mapping[str, Sequence[str]]) -> str:
    lines = paragraphs(introduction)
    for title, found in sections.items():
        lines += ["", f"## {title}", "", *(found or ["Nothing."])]
    return "\n".join(lines) + "\n"


def reasons(judged: Iterable[Judged]) -> list[str]:
    """Every aim that was missed, and why."""
    return [
        f"- {one.aim}, {one.situation}: {measured(one)}, not {one.bound:g}{one.unit}; {one.reason}."
        for one in judged
        if one.verdict == MISSED
    ]


def paragraphs(text: str) -> list[str]:
    """A line for each paragraph."""
    return text.strip().replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n").splitlines()


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
            batches = sum(row.batches for row in run.rows if isinstance(row, Cell))
            found = f"{batches} batches" if batches else f"{len(run.rows)} rows"
            found += f"; then it failed: {run.failed}" if run.failed else ""
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


def cell_table(runs: Runs) -> list[str]:
    """Every situation of every run that compares ways, a line each."""
    rows = []
    for run in (run for part in CELL_PARTS for run in runs.of(part)):
        for here in cells_of(run):
            shown = [
                f"{here[way].p50:.0f} / {here[way].per_batch:.1f}" if way in here else "" for way in WAYS
            ]
            ratios = [ratio_text(here.get(above), here.get(below)) for above, below in RATIOS]
            watched = here.get("listener")
            captured = (
                [f"{statistics.median(watched.lag_seconds):.2f}"] if watched and watched.lag_seconds else []
            )
            captured += (
                [f"{statistics.median(watched.capture_puts):g}"] if watched and watched.capture_puts else []
            )
            where = next(iter(here.values())).where
            rows.append([run.name, where, *shown, *ratios, " / ".join(captured)])
    over = [f"{above} over {below}" for above, below in RATIOS]
    headers = [
        "run",
        "query, partitions, state store, delay",
        *map(way_name, WAYS),
        *over,
        "lag p50 s / PUTs",
    ]
    return [*paragraphs(QUERIES), "", *table(headers, rows)] if rows else []


def cells_of(run: Run) -> list[dict[str, Cell]]:
    """The cells of a run by way, a situation each, in their order."""
    found: dict[tuple[str, int, str, int], dict[str, Cell]] = {}
    cells = [row for row in run.rows if isinstance(row, Cell)]
    for cell in sorted(cells, key=lambda cell: (cell.situation, WAYS.index(cell.way))):
        found.setdefault(cell.situation, {})[cell.way] = cell
    return list(found.values())


def ratio_text(above: Cell | None, below: Cell | None) -> str:
    if above is None or below is None:
        return ""
    remark = noise(above.batch_ms, below.batch_ms)
    return times(time_ratio(above, below)) + (f" ({remark})" if remark else "")


def side_tables(rows: Iterable[Side], title: str) -> list[str]:
    """The sides of every situation: p50, its ratio to the first side, and what was counted."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for ways in by_situation(rows).values():
        base, *_ = sides = [row for row in ways.values() if isinstance(row, Side)]
        where = f"{base.where}, {base.unit}" if base.values else base.where
        tables.setdefault(tuple(ways), []).append([where, *(side_text(side, base) for side in sides)])
    shown = [["", *table([title, *map(way_name, names)], lines)] for names, lines in tables.items()]
    return [line for lines in shown for line in lines][1:]


def number_text(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def side_text(side: Side, base: Side) -> str:
    counted = [f"{number_text(number)} {what}" for what, number in side.counts.items()]
    if not side.values:
        return "; ".join(counted)
    beside = "" if side is base else f" ({side.p50 / base.p50:.2f}x)"
    return "; ".join([f"{number_text(side.p50)}{beside}", *counted])


def all_sides(runs: Runs) -> list[str]:
    """The tables of every part that times sides."""
    shown = [["", *side_tables(runs.rows(part, Side), title)] for part, title in SIDES.items()]
    return [line for lines in shown if len(lines) > 1 for line in lines][1:]


def cost_cells(runs: Sequence[Run], partitions: int) -> list[Cell]:
    """The cells of one situation of one run of the aggregation: the one in which most ways were run."""
    candidates: list[list[Cell]] = [[]]
    for ways in (ways for run in runs for ways in cells_of(run)):
        if next(iter(ways.values())).situation[:2] == ("windowed", partitions):
            candidates += [[ways[way] for way in LETTERS if way in ways]]

    def rank(cells: list[Cell]) -> tuple[int, list[bool], int]:
        return len(cells), [cell.provider == "hdfs" for cell in cells], sum(cell.batches for cell in cells)

    return max(candidates, key=rank)


def requests_if_all_captured(cell: Cell) -> dict[str, float]:
    """Requests a batch; where captures took several batches together, as if each had its own."""
    share = cell.watched_batches / cell.captures if cell.captures else 1.0
    return {verb: share * number / cell.batches for verb, number in cell.requests.items()}


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


def cost_table(cells: Sequence[Cell], batch_seconds: float) -> list[str]:
    """What a day costs each way."""
    rows = []
    for cell in cells:
        requests = requests_if_all_captured(cell)
        stored = KEPT_BATCHES[cell.way] * cell.bytes_out / cell.batches
        asked = request_cost(requests, batch_seconds)
        totals = [dollars(asked + storage_cost(stored, price)) for price in GB_MONTH.values()]
        rows.append(
            [way_name(cell.way), f"{sum(requests.values()):.1f}", f"{stored / 1e6:.2f} MB", *totals]
        )
    return table(["way", "requests a batch", "kept", *(f"{cloud}, a day" for cloud in GB_MONTH)], rows)


def costs(runs: Runs) -> list[str]:
    """One query with 10 s batches and 64 partitions, each way."""
    cells = cost_cells(runs.of("side-by-side"), COST_PARTITIONS)
    if not cells:
        return [f"Not run: it needs the side by side with {COST_PARTITIONS} partitions."]
    maintenance = dollars(request_cost({"LIST": MAINTENANCE_LISTS * COST_PARTITIONS}, 60))
    more = f"Maintenance costs {maintenance} a day more on S3 in (a), (b) and (c)."
    return [*paragraphs(COSTS), more, "", *cost_table(cells, COST_BATCH_SECONDS)]


def run_and_show(part: Part) -> None:
    """Run a part alone, and print what it found and which of its aims it met."""
    runs = Runs((part.run(sys.argv[1:]),))
    aims = judge(runs, (aim for aim in AIMS if aim.part == part.name))
    sections = cell_table(runs), side_tables(runs.rows(part.name, Side), part.name), aim_table(aims)
    print("\n\n".join("\n".join(lines) for lines in sections if lines))


def main() -> None:
    """Write the pages."""
    runs = load_runs()
    RESULTS_PAGE.write_text(render(runs))
    PEERS_PAGE.write_text(render_peers(runs))
    print(f"{RESULTS_PAGE.name}, {PEERS_PAGE.name}: {len(runs.all)} runs")


if __name__ == "__main__":
    main()
