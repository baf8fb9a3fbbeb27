"""How a history went: pauses between checkpoints, and which run wrote which part of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pyspark_checkpoint.history.overview import Entry, Overview

GAP_FACTOR = 5
GAP_FLOOR_MS = 60_000


@dataclass(frozen=True, slots=True)
class Gap:
    """A pause between two checkpoints that is far longer than usual, or numbers that are gone."""

    before: int
    after: int
    milliseconds: int
    missing: int
    """How many checkpoints between the two were pruned or deleted; then the pause says nothing."""


@dataclass(frozen=True, slots=True)
class Reign:
    """The part of a history that one run wrote."""

    generation: int
    run_id: str
    first: int
    last: int
    count: int
    begin_ms: int
    end_ms: int


def readable(entries: Iterable[Entry]) -> list[Entry]:
    """The entries whose manifest could be read."""
    return [entry for entry in entries if entry.problem is None and entry.timestamp_ms is not None]


def intervals_ms(entries: Sequence[Entry]) -> list[int]:
    """The pauses between checkpoints that follow each other."""
    known = readable(entries)
    return [
        (later.timestamp_ms or 0) - (earlier.timestamp_ms or 0)
        for earlier, later in pairwise(known)
        if later.number == earlier.number + 1
    ]


def usual_interval_ms(entries: Sequence[Entry]) -> int | None:
    """The median pause; None for less than two checkpoints in a row."""
    found = intervals_ms(entries)
    return int(median(found)) if found else None


def gap_limit_ms(entries: Sequence[Entry]) -> int:
    """From how long on a pause is a gap."""
    return max(GAP_FLOOR_MS, GAP_FACTOR * (usual_interval_ms(entries) or 0))


def find_gaps(overview: Overview) -> list[Gap]:
    """The pauses that are gaps and the places where numbers are gone, oldest first."""
    known, limit = readable(overview.entries), gap_limit_ms(overview.entries)
    found = []
    for earlier, later in pairwise(known):
        between = range(earlier.number + 1, later.number)
        missing = sum(1 for n in between if n < overview.floor or n in overview.deleted)
        pause = (later.timestamp_ms or 0) - (earlier.timestamp_ms or 0)
        if missing or (not between and pause > limit):
            found.append(Gap(earlier.number, later.number, pause, missing))
    return found


def find_reigns(entries: Sequence[Entry]) -> list[Reign]:
    """The runs in the order in which they wrote, each with its part."""
    reigns: list[Reign] = []
    for entry in readable(entries):
        generation, at = entry.generation or 0, entry.timestamp_ms or 0
        if reigns and reigns[-1].generation == generation and reigns[-1].run_id == entry.run_id:
            last = reigns[-1]
            reigns[-1] = Reign(
                generation, last.run_id, last.first, entry.number, last.count + 1, last.begin_ms, at
            )
        else:
            reigns.append(Reign(generation, entry.run_id, entry.number, entry.number, 1, at, at))
    return reigns
