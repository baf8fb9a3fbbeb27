"""RESULTS.md, made of what was saved and of nothing else. Pure, except ``main``.

python -m benchmarks.report
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.aims import Judged, judge
from benchmarks.costs import LIST_PRICES, maintenance_cost
from benchmarks.growth import LONG_PARTITIONS
from benchmarks.machine import LOAD
from benchmarks.markdown import dollars, duration, measured, table
from benchmarks.other_tables import (
    commit_table,
    contest_table,
    copied_table,
    restored_table,
    started_table,
    stretch_table,
)
from benchmarks.plot import draw
from benchmarks.reasons import reasons
from benchmarks.records import (
    Cell,
    CommitSize,
    Contest,
    Copied,
    Restored,
    Run,
    Runs,
    Started,
    Stretch,
    Transcript,
    load_runs,
)
from benchmarks.tables import (
    compared,
    cost_cells,
    cost_table,
    lag_table,
    manager_table,
    phase_table,
    price_table,
)

HERE = Path(__file__).parent
RESULTS_PAGE = HERE / "RESULTS.md"
PLOT = HERE / "side-by-side.svg"
NOT_RUN = ["Not run."]
COST_PARTITIONS = 64
COST_BATCH_SECONDS = 10.0

PARTS = {
    "side-by-side": "Spark's checkpoints on S3 and ours, side by side",
    "file-manager": "Our file manager alone",
    "listener-cost": "A query with the listener and without any capture",
    "purging": "Batches that purge",
    "two-drivers": "Two drivers on one location",
    "restore": "Restores",
    "growth": "Growth",
    "by-hand": "Copies by hand",
    "cold-start": "Cold starts",
    "others": "The other benchmarks",
}

INTRODUCTION = """\
# Results

Made by `make bench` (or its parts, one after the other) from what they saved in
`benchmarks/results`; no figure here is typed. The sides of a comparison ran in turns on one
machine (each once with 64 partitions, for the join, in long runs and in copies by hand), against an
S3 server (SeaweedFS) on loopback behind a proxy in Python that adds a delay to every request and
counts it. So what counts are ratios. "Within noise" means that the middle halves of the two samples
overlap, "of one batch" that a batch took so long that one side has no other. With fewer than 100
batches p99 is the slowest one.

Ways: `alone` is local disk as Spark comes, with no copy anywhere; `disk` the same with our file
manager. (a) `stock`: S3A as it comes. (b) `tuned`: S3A with the manager of spark-hadoop-cloud, all
performance flags, no checksum files. (c) `ours`: our file manager on S3A, no checksum files. (d)
`listener`: local disk with our file manager, as the plugin sets it, and our listener to the same
server, as it comes: a capture takes the batches of one second together; `listener-stock`: the same
with Spark's own manager. (e) `sink`: ckpt-sink with rows and state in one commit, on our manager
too; it is the only one that also writes its rows, the others have Spark's empty sink.
"""


LAG = [
    "Of every batch, to the first checkpoint of it or of a later one; to the time in the manifest, which",
    "is one PUT before its end.",
]


def render(runs: Runs) -> str:
    """The whole page."""
    judged = judge(runs)
    lines = [*INTRODUCTION.splitlines(), "", "## Aims", "", *aim_table(judged)]
    lines += ["", "## What was run", "", *run_table(runs), "", *machines(runs)]
    for part, title in PARTS.items():
        lines += ["", f"## {title}", "", *SECTIONS[part](runs)]
    lines += ["", "## What a day costs", "", *costs(runs), *reasons(runs, judged)]
    return "\n".join(lines) + "\n"


def aim_table(judged: Sequence[Judged]) -> list[str]:
    """Every aim, and whether it was met."""
    rows = []
    for found in judged:
        sign = "at least" if found.at_least else "at most"
        value = "-" if found.value is None else measured(found.value, found.unit)
        rows.append(
            [
                found.aim,
                found.situation,
                f"{sign} {found.bound:g}{found.unit}",
                value,
                found.verdict,
                found.detail or "-",
            ]
        )
    return table(["aim", "where", "aim", "found", "verdict", "remark"], rows)


def run_table(runs: Runs) -> list[str]:
    """Every run with its command, and every part that was not run."""
    rows = []
    for part in PARTS:
        for run in runs.of(part):
            batches = sum(row.batches for row in run.rows if isinstance(row, Cell))
            measured = f"{batches} batches" if batches else f"{len(run.rows)} rows"
            load = run.machine.get(LOAD, "?")
            took = duration(run.seconds)
            if run.failed:
                measured += f"; then it failed: {run.failed}"
            rows.append([run.name, f"`{run.command}`", run.started, took, load, measured])
        if not runs.of(part):
            rows.append([part, "not run", "-", "-", "-", "-"])
    return table(["part", "command", "began", "took", LOAD, "measured"], rows)


def machines(runs: Runs) -> list[str]:
    """Facts about the machine; what differs between runs is given for each value once."""
    values: dict[str, list[str]] = {}
    for run in sorted(runs.all, key=lambda run: run.started):
        for name, value in run.machine.items():
            if name != LOAD and value not in values.setdefault(name, []):
                values[name].append(value)
    return table(["", "machine and versions"], [[name, ", ".join(found)] for name, found in values.items()])


def side_by_side(runs: Runs) -> list[str]:
    """All runs of the comparison, then lag and phases."""
    found = runs.of("side-by-side")
    if not found:
        return NOT_RUN
    lines = [f"![Batch time and requests against delay]({PLOT.name})"]
    for run in found:
        lines += ["", f"`{run.command}`", "", *compared(_cells(run))]
    cells = all_cells(runs)
    lines += ["", "### Lag of the listener: from Spark's commit until durable", ""]
    lines += [*LAG, "", *lag_table(cells)]
    lines += ["", "### Where a batch's time goes: medians of Spark's own phases, ms", ""]
    return [*lines, *phase_table(cells)]


def all_cells(runs: Runs) -> list[Cell]:
    """The cells of all runs of the comparison, oldest first."""
    return [cell for run in runs.of("side-by-side") for cell in _cells(run)]


def _cells(run: Run) -> list[Cell]:
    return [row for row in run.rows if isinstance(row, Cell)]


def file_manager(runs: Runs) -> list[str]:
    """The managers beside each other and beside local disk, with the least query that has state."""
    lines: list[str] = []
    for run in runs.of("file-manager"):
        cells = _cells(run)
        lines += [f"`{run.command}`", "", *compared(cells), "", *manager_table(cells), ""]
        lines += [*phase_table(cells), ""]
    return lines[:-1] or NOT_RUN


def listener_cost(runs: Runs) -> list[str]:
    lines: list[str] = []
    for run in runs.of("listener-cost"):
        lines += [f"`{run.command}`", "", *compared(_cells(run)), "", *lag_table(_cells(run)), ""]
    return lines[:-1] or NOT_RUN


def purging(runs: Runs) -> list[str]:
    lines: list[str] = []
    for run in runs.of("purging"):
        before, rows = run.settings.get("before", "?"), run.settings.get("rows", "?")
        lines += [
            f"After {before} batches of {rows} rows, with 10 batches retained by Spark and 20 by ours:",
            "every batch purges. Spark's maintenance runs every 5 s instead of every minute, so that it is",
            "in here: it goes by the clock, and slow ways have more of it in a batch.",
            "",
        ]
        lines += [*compared(_cells(run)), ""]
    return lines[:-1] or NOT_RUN


def restores(runs: Runs) -> list[str]:
    rows = runs.rows("restore", Restored)
    return restored_table(rows) if rows else NOT_RUN


def growth(runs: Runs) -> list[str]:
    commits, long = runs.rows("growth", CommitSize), runs.rows("growth", Stretch)
    lines = ["A commit on S3 by number of partitions, 2 KB each on top of nine deltas:", ""]
    lines += commit_table(commits) if commits else NOT_RUN
    sizes = sorted({run.settings["rows"] for run in runs.of("growth") if "rows" in run.settings})
    small = f"{' or '.join(sizes) or 'few'} rows, {LONG_PARTITIONS} partitions, no delay"
    lines += ["", f"Long runs of small batches ({small}):", ""]
    return lines + (stretch_table(long) if long else NOT_RUN)


def others(runs: Runs) -> list[str]:
    """What the older benchmarks print, as they print it, with short settings."""
    lines: list[str] = []
    for row in runs.rows("others", Transcript):
        lines += [f"### `{row.name}`", "", "```", *row.text.rstrip().splitlines(), "```", ""]
    return lines[:-1] or NOT_RUN


def by_hand(runs: Runs) -> list[str]:
    rows = runs.rows("by-hand", Copied)
    return copied_table(rows) if rows else NOT_RUN


def cold_starts(runs: Runs) -> list[str]:
    rows = runs.rows("cold-start", Started)
    return started_table(rows) if rows else NOT_RUN


def two_drivers(runs: Runs) -> list[str]:
    rows = runs.rows("two-drivers", Contest)
    if not rows:
        return NOT_RUN
    lines = contest_table(rows)
    ours = [row for row in rows if row.way == "ours"]
    if ours and not any(row.committed_by_both for row in ours):
        lines += [
            "",
            "With ours one batch may be run by both, and is committed by one: that which was in the air",
            "when the second driver read the logs.",
        ]
    return lines


SECTIONS: dict[str, Callable[[Runs], list[str]]] = {
    "side-by-side": side_by_side,
    "file-manager": file_manager,
    "listener-cost": listener_cost,
    "purging": purging,
    "two-drivers": two_drivers,
    "restore": restores,
    "growth": growth,
    "by-hand": by_hand,
    "cold-start": cold_starts,
    "others": others,
}


def costs(runs: Runs) -> list[str]:
    """One query with 10 s batches and 64 partitions, each way."""
    cells = cost_cells(runs.of("side-by-side"), COST_PARTITIONS)
    maintenance = maintenance_cost(LIST_PRICES[0], COST_PARTITIONS)
    if not cells:
        return [f"Not run: it needs the side by side with {COST_PARTITIONS} partitions."]
    return [
        "One query, a batch every 10 s, 64 partitions, from the requests and bytes counted above;",
        "every batch has a checkpoint; kept as by default (Spark 100 batches, ours 20). Deletes are",
        "free, traffic within a region too. Requests were counted on S3; the connectors of the",
        "other clouds make others, so their columns price the same requests. They are those of a query's",
        "first batches: snapshots and what retention asks for are not in them, nor Spark's maintenance,",
        "which lists every partition twice a minute:",
        f"{dollars(maintenance)} a day more on S3 in (a), (b) and (c).",
        "",
        *cost_table(cells, COST_BATCH_SECONDS),
        "",
        *price_table(),
    ]


def main() -> None:
    """Write the page and the plot."""
    runs = load_runs()
    RESULTS_PAGE.write_text(render(runs))
    PLOT.write_text(draw(all_cells(runs)))
    print(f"{RESULTS_PAGE.name} and {PLOT.name}: {len(runs.all)} runs")


if __name__ == "__main__":
    main()
