"""Batch time and requests against delay, each way a line, as an SVG without any library. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.records import Cell
from benchmarks.ways import LETTERS, WAYS

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 40
LEGEND = 34
LEGEND_STEP = 115
COLOURS = {
    "alone": "#7f7f7f",
    "disk": "#17becf",
    "stock": "#d62728",
    "tuned": "#ff7f0e",
    "ours": "#1f77b4",
    "listener": "#2ca02c",
    "listener-stock": "#98df8a",
    "sink": "#9467bd",
}


@dataclass(frozen=True)
class Panel:
    """One diagram: points of each way, the vertical axis by powers of ten."""

    title: str
    unit: str
    lines: dict[str, list[tuple[int, float]]]

    @property
    def delays(self) -> list[int]:
        return sorted({delay for points in self.lines.values() for delay, _ in points})

    @property
    def bounds(self) -> tuple[float, float]:
        """The powers of ten, or halves of them, around all values."""
        values = [value for points in self.lines.values() for _, value in points if value > 0]
        low, high = math.log10(min(values)), math.log10(max(values))
        low, high = math.floor(low * 2) / 2, math.ceil(high * 2) / 2
        return (low, high) if high > low else (low, low + 0.5)


def panels(cells: Sequence[Cell]) -> list[Panel]:
    """Two diagrams for each query, number of partitions and state store; of equal cells the last counts."""
    newest = {(cell.situation, cell.way): cell for cell in cells}
    groups = sorted({situation[:3] for situation, _ in newest})
    found = []
    for group in groups:
        name = f"{group[0]}, {group[1]} partitions, {group[2]}"
        chosen = [cell for (situation, _), cell in newest.items() if situation[:3] == group]
        found.append(Panel(f"{name}: batch p50", "ms", _lines(chosen, lambda cell: cell.p50)))
        requests = _lines(chosen, lambda cell: cell.per_batch)
        if requests:
            found.append(Panel(f"{name}: requests a batch", "requests", requests))
    return [panel for panel in found if panel.lines]


def _lines(cells: Sequence[Cell], value: Callable[[Cell], float]) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for way in WAYS:
        points = sorted(
            (cell.delay_ms, value(cell)) for cell in cells if cell.way == way and value(cell) > 0
        )
        if points:
            lines[way] = points
    return lines


def draw(cells: Sequence[Cell]) -> str:
    """The whole picture."""
    found = panels(cells)
    rows = max(1, math.ceil(len(found) / 2))
    width, height = 2 * WIDTH, LEGEND + rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(found),
    ]
    for number, panel in enumerate(found):
        x, y = (number % 2) * WIDTH, LEGEND + (number // 2) * HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *_panel(panel), "</g>"]
    if not found:
        parts.append('<text x="20" y="20">nothing was measured</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(found: Sequence[Panel]) -> list[str]:
    ways = [way for way in WAYS if any(way in panel.lines for panel in found)]
    parts = []
    for number, way in enumerate(ways):
        x = LEFT + number * LEGEND_STEP
        parts.append(
            f'<line x1="{x}" y1="16" x2="{x + 20}" y2="16" stroke="{COLOURS[way]}" stroke-width="2"/>'
        )
        name = escape(f"{LETTERS.get(way, '')} {way}".strip())
        parts.append(f'<text x="{x + 25}" y="20">{name}</text>')
    return parts


def _rounded(value: float) -> str:
    """Two digits that count, written out: 32,000 and 3.2."""
    return f"{float(f'{value:.2g}'):,g}"


def _panel(panel: Panel) -> list[str]:
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    low, high = panel.bounds
    longest = max(panel.delays[-1], 1)

    def x_of(delay: float) -> float:
        return LEFT + delay / longest * across

    def y_of(value: float) -> float:
        return TOP + (high - math.log10(value)) / (high - low) * down

    parts = [
        f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">{escape(panel.title)}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{across}" height="{down}" fill="none" stroke="#999"/>',
        f'<text x="{LEFT + across / 2}" y="{HEIGHT - 8}" text-anchor="middle">delay, ms</text>',
    ]
    for delay in panel.delays:
        x = x_of(delay)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="middle">{delay}</text>')
    for step in range(round((high - low) * 2) + 1):
        value = 10 ** (low + step / 2)
        y = y_of(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + across}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_rounded(value)}</text>')
    for way, points in panel.lines.items():
        places = [(x_of(delay), y_of(value)) for delay, value in points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{COLOURS[way]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[way]}"/>' for x, y in places]
    return parts
