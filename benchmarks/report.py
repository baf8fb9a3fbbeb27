"""RESULTS.md, and its table of all cells, made of what was saved and of nothing else.

python -m benchmarks.report
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import frame
from benchmarks.aims import MISSED, Judged, cells_of, judge, noise, time_ratio, times, verbs, way_name
from benchmarks.frame import LOAD, RESULTS, Cell, Kind, Run, Runs, load_runs, quantile
from benchmarks.lab import LETTERS, PHASES, WAYS

RESULTS_PAGE, CELLS = Path(__file__).with_name("RESULTS.md"), RESULTS / "cells.csv"
CELL_PARTS = ("side-by-side", "file-manager", "listener-cost", "purging")
PARTS = (*CELL_PARTS, "two-drivers", "restore", "growth", "by-hand", "cold-start", "others")
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
VERDICT = re.compile(r"\baim\b|at (least|most)|last over|best batches")
MAINTENANCE_LISTS = 2
"""What Spark's maintenance asks for each partition of a state store on S3, once a minute."""

INTRODUCTION = """\
# Results

`make bench` measures and writes this page; `make bench-report` writes it again from the rows that were
saved in `benchmarks/results`. No figure is typed. `results/cells.csv` has every cell of the table of
queries with p99, requests by verb, bytes and Spark's own phases; the JSON files have every single batch.

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
QUERIES = """\
`lag` is the time from Spark's commit until the listener's checkpoint is durable. `purging` runs past 100
batches with 10 batches retained by Spark and 20 by ours, and Spark's maintenance every 5 s, so that every
batch purges.
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
    """The whole page."""
    judged = judge(runs)
    sections: dict[str, list[str]] = {
        "Aims": aim_table(judged),
        "What was run": [*run_table(runs), "", machines(runs)],
        "Queries, each way: batch p50 in ms / requests a batch": cell_table(runs),
        "Two drivers on one location, contest by contest": contests(runs),
        "Restores, MB/s (and ours relative to it)": restores(runs),
        "A commit on S3 by number of partitions, 2 KB each on top of nine deltas": commits(runs),
        "Long runs of small batches, batch p50 in ms / requests an epoch": stretches(runs),
        "Copies of running queries, by hand and by the listener": copies(runs),
        "Cold starts: seconds to the first finished batch / requests": starts(runs),
        "Single parts of the project": transcripts(runs),
        "What a day costs": costs(runs),
    }
    lines = INTRODUCTION.splitlines()
    for title, found in sections.items():
        lines += ["", f"## {title}", "", *(found or ["Not run."])]
    missed = [found for found in judged if found.verdict == MISSED]
    lines += ["", "## Why aims were missed", ""] if missed else []
    for one in missed:
        lines.append(
            f"- {one.aim}, {one.situation}: {measured(one)}, not {one.bound:g}{one.unit}; {one.reason}."
        )
    return "\n".join(lines) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table, none without rows; bars in a cell are kept from ending it."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return (
        [f"| {' | '.join(line)} |" for line in [headers, ["---"] * len(headers), *lines]] if lines else []
    )


def grouped(rows: Iterable[Kind], key: Callable[[Kind], object]) -> list[list[Kind]]:
    groups: dict[object, list[Kind]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


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


def run_table(runs: Runs) -> list[str]:
    """Every run with its command, and every part that was not run."""
    rows = []
    for part in PARTS:
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


def machines(runs: Runs) -> str:
    """Facts about the machine; what differs between runs is given for each value once."""
    values: dict[str, dict[str, None]] = {}
    for run in sorted(runs.all, key=lambda run: run.started):
        for name, value in run.machine.items():
            values.setdefault(name, {})[value] = None
    return "; ".join(f"{name} {' or '.join(found)}" for name, found in values.items() if name != LOAD)


def cell_table(runs: Runs) -> list[str]:
    """Every situation of every run that compares ways, a line each."""
    rows = []
    for run in (run for part in CELL_PARTS for run in runs.of(part)):
        cells = cells_of(run)
        for situation in sorted({situation for situation, _ in cells}):
            query, partitions, provider, delay_ms = situation
            here = {way: cells[situation, way] for way in WAYS if (situation, way) in cells}
            shown = [
                f"{here[way].p50:.0f} / {here[way].per_batch:.1f}" if way in here else "" for way in WAYS
            ]
            ratios = [ratio_text(here.get(above), here.get(below)) for above, below in RATIOS]
            lags = here["listener"].lag_seconds if "listener" in here else ()
            lag = f"{statistics.median(lags):.2f}" if lags else ""
            where = f"{query}, {partitions}, {provider}, {delay_ms} ms"
            rows.append([run.name, where, *shown, *ratios, lag])
    over = [f"{above} over {below}" for above, below in RATIOS]
    headers = ["run", "query, partitions, state store, delay", *map(way_name, WAYS), *over, "lag p50 s"]
    return [*QUERIES.splitlines(), "", *table(headers, rows)] if rows else []


def ratio_text(above: Cell | None, below: Cell | None) -> str:
    if above is None or below is None:
        return ""
    remark = noise(above.batch_ms, below.batch_ms)
    return times(time_ratio(above, below)) + (f" ({remark})" if remark else "")


def encode_cells(runs: Runs) -> str:
    """All cells as CSV: what the page has no room for."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = "run query partitions state_store delay_ms way batches p50_ms p99_ms requests_a_batch by_verb"
    more = "lag_p50_s lag_p99_s captures watched_batches"
    writer.writerow([*names.split(), "bytes_out_a_batch", "bytes_in_a_batch", *PHASES, *more.split()])
    for run in (run for part in CELL_PARTS for run in runs.of(part)):
        for cell in sorted(cells_of(run).values(), key=lambda cell: cell.situation):
            each, lags = max(1, cell.batches), cell.lag_seconds
            row = [run.name, *cell.situation, cell.way, len(cell.batch_ms), cell.p50]
            row += [
                quantile(cell.batch_ms, 0.99),
                f"{cell.per_batch:.2f}",
                verbs(cell.requests, cell.batches),
            ]
            row += [cell.bytes_out // each, cell.bytes_in // each]
            row += [cell.phases_ms.get(phase, "") for phase in PHASES]
            row += [quantile(lags, share) if lags else "" for share in (0.5, 0.99)]
            writer.writerow([*row, cell.captures, cell.watched_batches])
    return out.getvalue()


def contests(runs: Runs) -> list[str]:
    rows = []
    for group in grouped(runs.rows("two-drivers", frame.Contest), lambda row: row.way):
        numbers = [
            (len(row.run_by_both), len(row.committed_by_both), row.stopped, row.wrong_batches)
            for row in group
        ]
        each = [", ".join(map(str, column)) for column in zip(*numbers, strict=True)]
        errors = "; ".join(error for row in group for error in row.other_errors) or "-"
        rows.append([way_name(group[0].way), *each, errors])
    headers = ["way", "batches run by both", "committed by both", "drivers stopped", "wrong batches"]
    return table([*headers, "other ends"], rows)


def restores(runs: Runs) -> list[str]:
    found = runs.rows("restore", frame.Restored)
    hows = [*dict.fromkeys(row.how for row in found)]
    rows = []
    for group in grouped(found, lambda row: (row.store, row.size_bytes)):
        speeds = {row.how: row.size_bytes / 1e6 / row.p50 for row in group}
        ours = speeds.get("ours", 0)
        shown = [f"{speeds[how]:.0f} ({ours / speeds[how]:.2f}x)" if how in speeds else "" for how in hows]
        rows.append([f"{group[0].size_bytes / 1e6:.0f} MB, {group[0].store}", *shown])
    return table(["state", *hows], rows)


def commits(runs: Runs) -> list[str]:
    rows = [
        [
            f"{row.partitions:,}",
            f"{row.manifest_bytes:,}",
            f"{row.commit_ms:.1f}",
            f"{row.bare_ms:.1f}",
            row.puts,
        ]
        for row in runs.rows("growth", frame.CommitSize)
    ]
    return table(["partitions", "manifest bytes", "p50 ms", "the same requests, bare, ms", "PUTs"], rows)


def stretches(runs: Runs) -> list[str]:
    """The first, the middle and the last stretch of each long run."""
    rows = []
    for group in grouped(runs.rows("growth", frame.Stretch), lambda row: row.way):
        chosen = [group[round(share * (len(group) - 1))] for share in (0, 0.5, 1)]
        shown = [
            f"{row.batch_ms:.0f} / {row.requests_per_epoch:.1f} ({row.first_epoch} to {row.last_epoch})"
            for row in chosen
        ]
        rows.append([way_name(group[0].way), *shown])
    return table(["way", "first epochs", "middle", "last"], rows)


def copies(runs: Runs) -> list[str]:
    """Copies of running queries, by how they were made, and what became of queries started on them."""
    rows = []
    for group in grouped(runs.rows("by-hand", frame.Copied), lambda row: row.how):
        sizes = zip(
            *((row.seconds, row.requests, row.objects, row.size_bytes / 1e6) for row in group), strict=True
        )
        shown = [f"{statistics.median(column):.4g}" for column in sizes]
        outcomes = Counter(row.outcome for row in group).most_common()
        became = ", ".join(f"{number} of {len(group)} {what}" for what, number in outcomes)
        causes = "; ".join(sorted({row.detail for row in group if row.detail})) or "-"
        rows.append([group[0].how, *shown, became, causes])
    return table(
        ["how", "seconds", "requests", "files", "MB", "a query started on the copy", "why not"], rows
    )


def starts(runs: Runs) -> list[str]:
    """A line a state store and delay; a restore before the start counts."""
    found = runs.rows("cold-start", frame.Started)
    ways = [*dict.fromkeys(row.way for row in found)]
    rows = []
    for group in grouped(found, lambda row: (row.provider, row.delay_ms)):
        shown = dict.fromkeys(ways, "")
        for row in group:
            seconds = row.restore_seconds + statistics.median(row.seconds)
            restore = f" ({row.restore_seconds:.2f} s restore)" if row.restore_seconds else ""
            shown[row.way] = f"{seconds:.2f} / {row.requests}{restore}"
        rows.append([f"{group[0].provider}, {group[0].delay_ms} ms", *shown.values()])
    return table(["state store, delay", *map(way_name, ways)], rows)


def transcripts(runs: Runs) -> list[str]:
    """The verdicts that these benchmarks print; ``results/others.json`` has all of it."""
    lines = []
    for row in runs.rows("others", frame.Transcript):
        lines.append(f"- `{row.name}`")
        told = (line for line in row.text.splitlines() if VERDICT.search(line))
        lines += [f"  - {' '.join(line.split())}" for line in told]
    return lines


def cost_cells(runs: Sequence[Run], partitions: int) -> list[Cell]:
    """The cells of one situation of one run of the aggregation: the one in which most ways were run."""
    candidates: list[list[Cell]] = [[]]
    for cells in map(cells_of, runs):
        here = dict.fromkeys(found for found, _ in cells if found[:2] == ("windowed", partitions))
        candidates += [[cells[one, way] for way in LETTERS if (one, way) in cells] for one in here]

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
    return [*COSTS.splitlines(), more, "", *cost_table(cells, COST_BATCH_SECONDS)]


def made_files(runs: Runs) -> dict[Path, str]:
    """Every file that is made of the rows."""
    return {RESULTS_PAGE: render(runs), CELLS: encode_cells(runs)}


def main() -> None:
    """Write the page and the cells."""
    runs = load_runs()
    for path, text in made_files(runs).items():
        path.write_text(text)
    print(f"{RESULTS_PAGE.name} and {CELLS.name}: {len(runs.all)} runs")


if __name__ == "__main__":
    main()
