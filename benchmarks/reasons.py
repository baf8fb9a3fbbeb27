"""For every aim that was missed: the profile that shows why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.aims import MISSED, TOTAL, WINDOWED, Judged
from benchmarks.markdown import measured, times
from benchmarks.records import Cell, Restored, Runs
from benchmarks.tables import phase_table, verbs, way_name
from benchmarks.ways import LISTENERS

CAPTURE_REQUESTS = 4
"""What a commit takes by the protocol: data, manifest, a look at the floor, the pointer to the newest."""


def reasons(runs: Runs, judged: Sequence[Judged]) -> list[str]:
    """A line for each missed aim, then the phases of the batches that took too long."""
    missed = [found for found in judged if found.verdict == MISSED]
    if not missed:
        return []
    lines = ["", "## Why aims were missed", ""]
    for found in missed:
        value = measured(found.value or 0, found.unit)
        text = f"{found.aim}, {found.situation}: {value} instead of {found.bound:g}{found.unit}"
        lines.append(f"- {text}{reason(runs, found)}")
    return [*lines, *missed_phases(runs, missed)]


def reason(runs: Runs, found: Judged) -> str:
    """What the figures say about one missed aim."""
    if found.aim.startswith("restore"):
        return restore_reason(runs.rows("restore", Restored), found.situation)
    if "p50" in found.aim:
        return "; see the phases below."
    if not found.sides:
        return "; see the requests by verb above."
    above, below = found.sides
    shown = [f"{way_name(cell.way)} makes {verbs(cell.requests, cell.batches)}" for cell in (above, below)]
    text = f"; a batch of {', one of '.join(shown)}."
    if below.way in LISTENERS:
        most = times(above.per_batch / CAPTURE_REQUESTS)
        text += (
            f" A capture takes {CAPTURE_REQUESTS} requests by the protocol, so one for every batch gives "
            f"at most {most}; more only if captures take batches together, which costs lag."
        )
    return text


def restore_reason(rows: Sequence[Restored], size: str) -> str:
    """What hashing and waiting for the disk cost the raw download, of the same bytes."""
    same = [row for row in rows if f"{row.size_bytes / 1e6:.0f} MB" == size]
    speeds = [f"{row.how} {row.size_bytes / 1e6 / row.p50:.0f} MB/s" for row in same]
    return f"; a restore hashes every byte and is on the disk when it returns: {', '.join(speeds)}."


def missed_phases(runs: Runs, missed: Sequence[Judged]) -> list[str]:
    """The phases of every way in the situations in which a time was missed."""
    where = {found.situation for found in missed if "p50" in found.aim}
    cells = [
        row
        for part in ("side-by-side", "listener-cost", "file-manager")
        for row in runs.rows(part, Cell)
        if row.query in (WINDOWED, TOTAL)
        and f"{row.provider}, {row.partitions} partitions, {row.delay_ms} ms" in where
    ]
    return ["", *phase_table(cells)] if cells else []
