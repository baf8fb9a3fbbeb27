"""The pictures of the page: bars that stretch with the screen, labels that do not. Pure.

The drawing is an SVG without any text, which may be stretched; what is to be read lies over it as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.history.overview import Entry, Gap, RunSpan

_HEIGHT = 100
_ROOM = 84
"""How much of the height the highest bar takes; above it is its value."""
_LEAST_COLUMNS = 16
_STRIP = 1000
_COLOURS = {"claim": "claim", "rollback": "back", "replacement": "puts", "damaged": "bad"}


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
    for at, number in enumerate(numbers):
        label = ", ".join(f"{one.name} {told(one.values[at])}" for one in series)
        floor = 0.0
        shapes = []
        for one in series:
            height = one.values[at] / highest * _ROOM
            shapes.append(_rect(at + 0.1, _HEIGHT - floor - height, 0.8, height, one.colour))
            floor += height if stack else 0.0
        drawn.append(f"<g><title>{escape(f'checkpoint {number}: {label}')}</title>{''.join(shapes)}</g>")
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
