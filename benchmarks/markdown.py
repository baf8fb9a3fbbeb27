"""Tables and numbers as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; bars in a cell are kept from ending it."""
    lines = [_line(headers), "|" + "---|" * len(headers)]
    return lines + [_line(row) for row in rows]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def measured(value: float, unit: str) -> str:
    """A ratio, or a number of something else."""
    return times(value) if unit == "x" else f"{value:g}{unit}"


def megabytes(value: float) -> str:
    """Bytes as megabytes, to a hundredth."""
    return f"{value / 1e6:.2f} MB"


def dollars(value: float) -> str:
    """Money; what is less than a tenth of a cent is still shown."""
    return f"${value:.2f}" if value >= 0.995 else f"${value:.4f}"


def duration(seconds: float) -> str:
    """Seconds, or minutes from two on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
