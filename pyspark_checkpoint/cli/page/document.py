"""The whole page: tiles, timeline, charts and tables, of one history or of several. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median

from pyspark_checkpoint import __version__
from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.page.charts import Series, bars, strip
from pyspark_checkpoint.cli.page.markup import Cell, joined, table, tag, tile
from pyspark_checkpoint.cli.page.style import CSS
from pyspark_checkpoint.history.overview import (
    Entry,
    Overview,
    find_gaps,
    find_run_spans,
    gap_limit_ms,
    readable,
    usual_interval_ms,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_ROWS = 300
_COLUMNS = 600


@dataclass(frozen=True, slots=True)
class Chapter:
    """One history on the page."""

    title: str
    url: str
    overview: Overview


def page(chapters: Sequence[Chapter], now_ms: int) -> str:
    """The page. It loads nothing and runs nothing."""
    title = chapters[0].title if len(chapters) == 1 else f"{len(chapters)} queries"
    body = "".join(f"<article>{''.join(_chapter(chapter, now_ms))}</article>" for chapter in chapters)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}: checkpoints</title><style>{CSS}</style></head><body><main>{body}"
        f'<p class="soft" style="margin-top:32px">written {text.moment(now_ms)} by ckpt {__version__}; '
        "times are UTC</p></main></body></html>\n"
    )


def _chapter(chapter: Chapter, now_ms: int) -> Iterator[str]:
    entries = chapter.overview.entries
    yield f'<h1>{escape(chapter.title)}</h1><p class="soft">{escape(_about(chapter))}</p>'
    known = readable(entries)
    if not known:
        yield "<p>There is no checkpoint yet.</p>" if not entries else "<p>No checkpoint can be read.</p>"
        yield from _damage(entries)
        return
    yield f'<div class="tiles">{"".join(_tiles(chapter.overview, known, now_ms))}</div>'
    yield from _damage(entries)
    yield f'<div class="charts">{"".join(_charts(chapter.overview, known, now_ms))}</div>'
    yield from _savepoints(known, now_ms)
    yield from _gaps(chapter.overview)
    yield from _reigns(known)
    yield from _checkpoints(entries, now_ms)


def _about(chapter: Chapter) -> str:
    newest = chapter.overview.newest
    if newest is None:
        return chapter.url
    query = newest.query
    parts = (
        chapter.url,
        query.id and f"query {query.id}",
        query.app_name and f"app {query.app_name}",
        query.spark_version and f"Spark {query.spark_version}",
    )
    return " · ".join(part for part in parts if part)


def _tiles(overview: Overview, known: Sequence[Entry], now_ms: int) -> Iterator[str]:
    newest = known[-1]
    age_ms = now_ms - (newest.timestamp_ms or now_ms)
    usual = usual_interval_ms(known)
    late = usual is not None and age_ms > gap_limit_ms(known)
    took = [entry.staged_ms for entry in known if entry.staged_ms is not None]
    damaged = len(overview.entries) - len(known)
    yield tile("newest", f"#{newest.number}", f"epoch {newest.epoch}")
    yield tile(
        "age", text.span(max(0, age_ms)), "longer than usual" if late else "", "warn" if late else ""
    )
    yield tile("every", "" if usual is None else text.span(usual), "median pause")
    yield tile("checkpoints", f"{len(overview.entries):,}", f"from #{overview.entries[0].number}")
    yield tile("size", text.size(newest.total_size_bytes), "of the newest")
    yield tile("stored", text.size(sum(entry.new_bytes for entry in known)), "by all of them")
    yield tile("took", text.span(int(median(took))) if took else "", "median, staging to commit")
    puts = sum(entry.requests.puts for entry in known)
    gets = sum(entry.requests.gets for entry in known)
    yield tile("requests", f"{puts + gets:,}", f"{puts:,} PUT, {gets:,} GET")
    yield tile("savepoints", f"{len(overview.savepoint_names):,}")
    yield tile(
        "generation", f"{newest.generation}", f"{text.plural(len(find_run_spans(known)), 'run')} here"
    )
    if damaged:
        yield tile("damaged", f"{damaged:,}", "ckpt verify says more", "bad")


def _charts(overview: Overview, known: Sequence[Entry], now_ms: int) -> Iterator[str]:
    yield strip(known, find_gaps(overview), find_run_spans(known), now_ms)
    shown = known[-_COLUMNS:]
    numbers = [entry.number for entry in shown]
    sizes = [entry.total_size_bytes for entry in shown]
    new = [entry.new_bytes for entry in shown]
    took = [entry.staged_ms or 0 for entry in shown]
    pauses = [0, *_pauses(shown)]
    requests = (
        Series("PUT", "puts", [entry.requests.puts for entry in shown]),
        Series("GET", "gets", [entry.requests.gets for entry in shown]),
    )
    sized = (Series("all of it", "total", sizes), Series("new", "new", new))
    yield bars("Size", numbers, sized, text.size, stack=False)
    yield bars("Duration", numbers, (Series("staging to commit", "took", took),), text.span, stack=False)
    yield bars("Requests", numbers, requests, lambda count: f"{count:,}", stack=True)
    yield bars("Pause before it", numbers, (Series("pause", "wait", pauses),), text.span, stack=False)


def _pauses(entries: Sequence[Entry]) -> Iterator[int]:
    for earlier, later in pairwise(entries):
        yield max(0, (later.timestamp_ms or 0) - (earlier.timestamp_ms or 0))


def _damage(entries: Sequence[Entry]) -> Iterator[str]:
    damaged = [entry for entry in entries if entry.problem is not None]
    if damaged:
        rows = [(f"#{entry.number}", entry.problem or "") for entry in damaged]
        yield "<h2>Damaged</h2>" + table((">checkpoint", "problem"), rows)


def _savepoints(known: Sequence[Entry], now_ms: int) -> Iterator[str]:
    rows = [
        (
            name,
            f"#{entry.number}",
            f"{entry.epoch}",
            text.moment(entry.timestamp_ms),
            text.age(entry.timestamp_ms, now_ms),
            text.size(entry.total_size_bytes),
        )
        for entry in reversed(known)
        for name in entry.savepoints
    ]
    if rows:
        heads = ("savepoint", ">checkpoint", ">epoch", "made", ">age", ">size")
        yield "<h2>Savepoints</h2>" + table(heads, rows)


def _gaps(overview: Overview) -> Iterator[str]:
    rows = [
        (
            f"#{gap.before} to #{gap.after}",
            text.span(gap.milliseconds),
            f"{text.plural(gap.missing, 'checkpoint')} removed" if gap.missing else "nothing was committed",
        )
        for gap in reversed(find_gaps(overview))
    ]
    if rows:
        limit = text.span(gap_limit_ms(overview.entries))
        note = f'<p class="soft">Pauses over {limit}, and numbers that are gone.</p>'
        yield f"<h2>Gaps</h2>{note}" + table(("between", ">apart", "why"), rows)


def _reigns(known: Sequence[Entry]) -> Iterator[str]:
    rows = [
        (
            f"{span.generation}",
            span.run_id,
            f"#{span.first} to #{span.last}",
            f"{span.count:,}",
            text.moment(span.begin_ms),
            text.moment(span.end_ms),
        )
        for span in reversed(find_run_spans(known))
    ]
    heads = (">generation", "run", "checkpoints", ">count", "first", "last")
    yield "<h2>Generations</h2>" + table(heads, rows)


def _checkpoints(entries: Sequence[Entry], now_ms: int) -> Iterator[str]:
    shown = list(reversed(entries))[:_ROWS]
    note = (
        "" if len(shown) == len(entries) else f'<p class="soft">The newest {_ROWS} of {len(entries)}.</p>'
    )
    heads = (">id", ">epoch", "what", "made", ">age", ">size", ">new", ">took", ">requests", ">gen")
    yield f"<h2>Checkpoints</h2>{note}" + table(heads, [_row(entry, now_ms) for entry in shown])


def _row(entry: Entry, now_ms: int) -> tuple[Cell, ...]:
    if entry.problem is not None:
        return (f"#{entry.number}", "", tag("damaged", "bad"), entry.problem, *[""] * 6)
    kind = "" if entry.kind is None or entry.kind.value == "epoch" else entry.kind.value
    marks = [tag(kind, kind)] if kind else []
    marks += [tag(name, "save") for name in entry.savepoints]
    return (
        f"#{entry.number}",
        f"{entry.epoch}",
        joined(marks),
        text.moment(entry.timestamp_ms),
        text.age(entry.timestamp_ms, now_ms),
        text.size(entry.total_size_bytes),
        text.size(entry.new_bytes),
        "" if entry.staged_ms is None else text.span(entry.staged_ms),
        f"{entry.requests.puts + entry.requests.gets:,}",
        f"{entry.generation}",
    )
