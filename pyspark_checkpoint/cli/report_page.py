"""The page that ``ckpt report`` writes: tiles, timeline, charts and tables of one history or several. Pure.

It is HTML that loads nothing and runs no script. First the page and its sections, then the charts, then
the small pieces of HTML, where everything that comes from a store is escaped, and last how it looks. A
chart is an SVG without any text, which may be stretched; what is to be read lies over it as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from statistics import median

from pyspark_checkpoint import __version__
from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.histories import OUTPUT_HEADS, checkpoint_cells, output_rows, source_rows
from pyspark_checkpoint.cli.windows import output_lines, window_lines
from pyspark_checkpoint.format.manifest import ConnectorCheckpoint
from pyspark_checkpoint.history.overview import (
    Entry,
    Gap,
    Overview,
    RunSpan,
    find_gaps,
    find_run_spans,
    gap_limit_ms,
    readable,
    usual_interval_ms,
)
from pyspark_checkpoint.inputs.recovery_window import RecoveryWindow

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_ROWS = 300
_COLUMNS = 600
_OFFSETS = 200
_HEIGHT = 100
_ROOM = 84
"""How much of the height the highest bar takes; above it is its value."""
_LEAST_COLUMNS = 16
_STRIP = 1000
_COLOURS = {"claim": "claim", "rollback": "back", "replacement": "puts", "damaged": "bad"}


@dataclass(frozen=True, slots=True)
class Chapter:
    """One history on the page."""

    title: str
    url: str
    overview: Overview
    sources: Mapping[str, ConnectorCheckpoint] = field(default_factory=dict)
    """Where the sources stand at the newest checkpoint."""
    window: RecoveryWindow | None = None
    """How far back the query can go, if that was asked."""


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
    yield from _sources(chapter)
    yield from _outputs(chapter)
    yield from _savepoints(known, now_ms)
    yield from _gaps(chapter.overview)
    yield from _spans(known)
    yield from _checkpoints(entries, now_ms)


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], note: str = "") -> str:
    told = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<h2>{title}</h2>{told}{html_table(heads, rows)}"


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
    runs = text.plural(len(find_run_spans(known)), "run")
    yield tile("generation", f"{newest.generation}", f"{runs} here")
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
        yield _section("Damaged", (">checkpoint", "problem"), rows)


def _sources(chapter: Chapter) -> Iterator[str]:
    rows = source_rows(chapter.sources, _OFFSETS)
    newest = chapter.overview.newest
    if rows and newest is not None:
        note = f"At checkpoint #{newest.number}: the next batch reads from here."
        watermark_ms = newest.next_watermark_ms or newest.batch_watermark_ms
        if watermark_ms:
            note += f" Watermark {text.moment(watermark_ms)}."
        yield _section("Sources", ("source", "offset", ">at"), rows, note)


def _outputs(chapter: Chapter) -> Iterator[str]:
    newest = chapter.overview.newest
    rows = output_rows(() if newest is None else newest.sinks)
    if rows:
        yield _section("Outputs", OUTPUT_HEADS, rows)
    if chapter.window is not None:
        told = (*output_lines(chapter.window), *window_lines(chapter.window))
        lines = (f"<p>{escape(line)}</p>" for line in told)
        yield f"<h2>Recovery window</h2>{''.join(lines)}"


def _savepoints(known: Sequence[Entry], now_ms: int) -> Iterator[str]:
    told = ("epoch", "made", "age", "size")
    rows = [
        (name, f"#{entry.number}", *checkpoint_cells(told, entry, now_ms))
        for entry in reversed(known)
        for name in entry.savepoints
    ]
    if rows:
        heads = ("savepoint", ">checkpoint", ">epoch", "made", ">age", ">size")
        yield _section("Savepoints", heads, rows)


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
        note = f"Pauses over {text.span(gap_limit_ms(overview.entries))}, and numbers that are gone."
        yield _section("Gaps", ("between", ">apart", "why"), rows, note)


def _spans(known: Sequence[Entry]) -> Iterator[str]:
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
    yield _section("Generations", heads, rows)


def _checkpoints(entries: Sequence[Entry], now_ms: int) -> Iterator[str]:
    shown = list(reversed(entries))[:_ROWS]
    note = "" if len(shown) == len(entries) else f"The newest {_ROWS} of {len(entries)}."
    heads = (">id", ">epoch", "what", "made", ">age", ">size", ">new", ">took", ">requests", ">gen")
    yield _section("Checkpoints", heads, [_row(entry, now_ms) for entry in shown], note)


def _row(entry: Entry, now_ms: int) -> tuple[Cell, ...]:
    if entry.problem is not None:
        return (f"#{entry.number}", "", tag("damaged", "bad"), entry.problem, *[""] * 6)
    kind = "" if entry.kind is None or entry.kind.value == "epoch" else entry.kind.value
    marks = [tag(kind, kind)] if kind else []
    marks += [tag(name, "save") for name in entry.savepoints]
    before = checkpoint_cells(("made", "age", "size", "new", "took"), entry, now_ms)
    requests = f"{entry.requests.puts + entry.requests.gets:,}"
    return f"#{entry.number}", f"{entry.epoch}", joined(marks), *before, requests, f"{entry.generation}"


# --- charts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a bar chart: its name, its CSS colour and its value for each checkpoint."""

    name: str
    colour: str
    values: Sequence[int]


def bars(
    title: str, numbers: Sequence[int], series: Sequence[Series], told: Callable[[int], str], *, stack: bool
) -> str:
    """A bar for each checkpoint; several series stand on each other, or before each other."""
    tops = [(sum if stack else max)(one.values[at] for one in series) for at in range(len(numbers))]
    highest = max(tops, default=0) or 1
    columns = max(len(numbers), _LEAST_COLUMNS)
    drawn = []
    for at, checkpoint_id in enumerate(numbers):
        label = ", ".join(f"{one.name} {told(one.values[at])}" for one in series)
        floor = 0.0
        shapes = []
        for one in series:
            height = one.values[at] / highest * _ROOM
            shapes.append(_rect(at + 0.1, _HEIGHT - floor - height, 0.8, height, one.colour))
            floor += height if stack else 0.0
        drawn.append(
            f"<g><title>{escape(f'checkpoint {checkpoint_id}: {label}')}</title>{''.join(shapes)}</g>"
        )
    keys = [(one.name, one.colour) for one in series]
    svg = _svg(columns, "".join(drawn), title)
    ends = (f"#{numbers[0]}", f"#{numbers[-1]}") if numbers else ()
    top = f'<span class="top">{escape(told(highest))}</span>'
    return _figure(title, keys, top + svg, ends, share=len(numbers) / columns)


def strip(entries: Sequence[Entry], gaps: Sequence[Gap], spans: Sequence[RunSpan], now_ms: int) -> str:
    """All checkpoints on one line of real time: kinds, savepoints, gaps and whose they are."""
    begin = min(entry.timestamp_ms or now_ms for entry in entries)
    newest = max(entry.timestamp_ms or begin for entry in entries)
    # A history that ended long ago is not squeezed into a corner by the time since then.
    end = now_ms if now_ms - newest <= newest - begin else newest
    length = max(1, end - begin)

    def place(timestamp_ms: int | None) -> float:
        return ((timestamp_ms or begin) - begin) / length * _STRIP

    drawn, labels = _bands(spans, place)
    at = {entry.number: entry.timestamp_ms for entry in entries}
    for gap in gaps:
        left, right = place(at[gap.before]), place(at[gap.after])
        what = f"{gap.missing} removed" if gap.missing else f"nothing for {text.span(gap.milliseconds)}"
        drawn.append(
            f"<g><title>{escape(f'{gap.before} to {gap.after}: {what}')}</title>"
            f"{_rect(left, 62, right - left, 38, 'wait' if gap.missing else 'gap', opacity=0.25)}</g>"
        )
    drawn += [_tick(entry, place(entry.timestamp_ms)) for entry in entries]
    keys = [
        ("checkpoint", "new"),
        ("savepoint", "save"),
        ("claim", "claim"),
        ("rollback", "back"),
        ("gap", "gap"),
        ("removed", "wait"),
    ]
    svg = _svg(_STRIP, "".join(drawn), "timeline")
    middle = begin + length // 2
    ends = (text.moment(begin), text.moment(middle), "now" if end == now_ms else text.moment(end))
    return _figure("Timeline", keys, svg + "".join(labels), ends, kind="chart wide strip")


def _bands(spans: Sequence[RunSpan], place: Callable[[int | None], float]) -> tuple[list[str], list[str]]:
    drawn, labels = [], []
    for at, span in enumerate(spans):
        left = place(span.begin_ms)
        right = place(spans[at + 1].begin_ms) if at + 1 < len(spans) else float(_STRIP)
        if at % 2 == 0:
            drawn.append(_rect(left, 0, right - left, _HEIGHT, "band"))
        if right - left > _STRIP * 0.08:
            where = f"left:{left / _STRIP:.2%};width:{(right - left) / _STRIP:.2%}"
            labels.append(f'<span class="lane" style="{where}">gen {span.generation}</span>')
    return drawn, labels


def _tick(entry: Entry, left: float) -> str:
    kind = "damaged" if entry.kind is None else entry.kind.value
    colour = "save" if entry.savepoints else _COLOURS.get(kind, "new")
    high = 30 if entry.savepoints else 62
    names = f", {', '.join(entry.savepoints)}" if entry.savepoints else ""
    told = (
        f"checkpoint {entry.number}, epoch {entry.epoch} ({kind}{names}), {text.moment(entry.timestamp_ms)}"
    )
    return (
        f"<g><title>{escape(told)}</title>"
        f'<line x1="{left:.2f}" x2="{left:.2f}" y1="{high}" y2="{_HEIGHT}" stroke="var(--{colour})" '
        f'stroke-width="{3 if entry.savepoints else 2}" vector-effect="non-scaling-stroke"/></g>'
    )


def _rect(
    left: float, top: float, width: float, height: float, colour: str, *, opacity: float = 1.0
) -> str:
    shade = "" if opacity == 1.0 else f' opacity="{opacity}"'
    return (
        f'<rect x="{left:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}" '
        f'fill="var(--{colour})"{shade}/>'
    )


def _svg(width: int, content: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{content}</svg>'
    )


def _figure(
    title: str,
    keys: Sequence[tuple[str, str]],
    plot: str,
    ends: Sequence[str],
    *,
    kind: str = "chart",
    share: float = 1.0,
) -> str:
    """``share`` of the width is drawn on; the ends of the axis are named there."""
    legend = "".join(
        f'<span class="soft key" style="--c:var(--{colour})">{escape(name)}</span>' for name, colour in keys
    )
    axis = "".join(f"<span>{escape(end)}</span>" for end in ends)
    return (
        f'<figure class="{kind}"><figcaption><b>{escape(title)}</b>{legend}</figcaption>'
        f'<div class="plot">{plot}</div>'
        f'<div class="axis" style="width:max({share:.1%},5rem)">{axis}</div></figure>'
    )


# --- pieces of HTML ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is HTML already."""

    html: str


Cell = str | Markup


def _rendered(cell: Cell) -> str:
    """HTML as it is, text escaped."""
    return cell.html if isinstance(cell, Markup) else escape(cell)


def tag(text: str, kind: str) -> Markup:
    """A word in a small frame."""
    return Markup(f'<span class="tag {escape(kind)}">{escape(text)}</span>')


def joined(cells: Iterable[Cell]) -> Markup:
    """Several pieces in a row."""
    return Markup(" ".join(_rendered(cell) for cell in cells))


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table; on a phone each row becomes a small card. A head that begins with ``>`` is of numbers."""
    names = [head.removeprefix(">") for head in heads]
    sides = [' class="n"' if head.startswith(">") else "" for head in heads]
    head = "".join(f"<th{side}>{escape(name)}</th>" for name, side in zip(names, sides, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{side} data-h="{escape(name)}">{_rendered(cell)}</td>'
            for name, side, cell in zip(names, sides, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="card scroll"><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def tile(name: str, value: str, note: str = "", kind: str = "") -> str:
    """A number that stands out."""
    below = f'<span class="soft">{escape(note)}</span>' if note else ""
    return (
        f'<div class="tile {escape(kind)}"><span class="soft">{escape(name)}</span>'
        f"<b>{escape(value)}</b>{below}</div>"
    )


# --- how it looks --------------------------------------------------------------------------------

CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6470;--line:#dfe3e8;
--total:#b9d2f5;--new:#2563c9;--took:#0f8a7e;--puts:#7a4fd0;--gets:#c9b5f0;--wait:#8a94a1;--gap:#d9480f;
--save:#1a7f37;--bad:#c62828;--band:#edf1f6;--claim:#9a7b00;--back:#b35c00}
@media(prefers-color-scheme:dark){:root{--bg:#101317;--card:#181c22;--ink:#e8ebef;--soft:#9aa5b1;--line:#2b323b;
--total:#2c4a75;--new:#6ea8ff;--took:#3fc1b2;--puts:#b394f5;--gets:#4d3d75;--wait:#74808d;--gap:#ff8a4c;
--save:#4cc36a;--bad:#ff6b6b;--band:#20262e;--claim:#d9b44a;--back:#f0a35e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.45 system-ui,-apple-system,"Segoe UI",
Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
main{max-width:1080px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.5rem;margin:0 0 2px;line-height:1.2}
h2{font-size:1.05rem;margin:28px 0 8px}
p{margin:0 0 8px}
.soft{color:var(--soft);font-size:.875rem}
.card,.tile,.chart{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tiles{display:grid;grid-template-columns:repeat(2,1fr);gap:10px;margin:16px 0}
.tile{padding:10px 12px}
.tile b{display:block;font-size:1.3rem;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.tile.warn b{color:var(--gap)}
.tile.bad b{color:var(--bad)}
.charts{display:grid;grid-template-columns:1fr;gap:10px}
.chart{margin:0;padding:12px}
.wide{grid-column:1/-1}
@media(min-width:760px){.charts{grid-template-columns:1fr 1fr}.tiles{grid-template-columns:repeat(5,1fr)}}
figcaption{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline;margin-bottom:8px}
figcaption b{font-weight:600}
.key::before{content:"";display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;
background:var(--c)}
.plot{position:relative;height:150px;border-bottom:1px solid var(--line)}
.strip .plot{height:96px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;display:block;overflow:visible}
.top{position:absolute;top:0;left:0;font-size:.75rem;color:var(--soft);background:var(--card);
padding:0 4px 0 0;z-index:1;border-radius:3px}
.lane{position:absolute;top:2px;font-size:.75rem;color:var(--soft);padding-left:5px;white-space:nowrap;
overflow:hidden;text-overflow:ellipsis}
.axis{display:flex;justify-content:space-between;font-size:.75rem;color:var(--soft);margin-top:4px;gap:8px}
.axis span:nth-child(2):not(:last-child){text-align:center}
.axis span:last-child{text-align:right}
.scroll{overflow-x:auto}
.card{padding:4px 0}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{text-align:left;padding:6px 12px;border-bottom:1px solid var(--line);white-space:nowrap}
tr:last-child td{border-bottom:0}
th{font-weight:600;color:var(--soft)}
.n{text-align:right;font-variant-numeric:tabular-nums}
.tag{display:inline-block;border-radius:999px;padding:0 8px;font-size:.75rem;border:1px solid currentColor}
.tag.save{color:var(--save)}
.tag.bad{color:var(--bad)}
.tag.rollback{color:var(--back)}
.tag.claim,.tag.replacement{color:var(--claim)}
@media(max-width:640px){
.stack thead{display:none}
.stack tr{display:grid;grid-template-columns:1fr 1fr;padding:8px 12px;border-bottom:1px solid var(--line)}
.stack tr:last-child{border-bottom:0}
.stack td{border:0;padding:1px 0;white-space:normal;text-align:left}
.stack td:empty{display:none}
.stack td::before{content:attr(data-h) " ";color:var(--soft);font-size:.75rem}
.stack td:first-child{font-weight:600}
}
article+article{margin-top:40px;border-top:1px solid var(--line);padding-top:28px}
""".strip()
