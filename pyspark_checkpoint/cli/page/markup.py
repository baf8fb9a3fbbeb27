"""Small pieces of HTML. Everything that comes from a store is escaped here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is HTML already."""

    html: str


Cell = str | Markup


def rendered(cell: Cell) -> str:
    """HTML as it is, text escaped."""
    return cell.html if isinstance(cell, Markup) else escape(cell)


def tag(text: str, kind: str) -> Markup:
    """A word in a small frame."""
    return Markup(f'<span class="tag {escape(kind)}">{escape(text)}</span>')


def joined(cells: Iterable[Cell]) -> Markup:
    """Several pieces in a row."""
    return Markup(" ".join(rendered(cell) for cell in cells))


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, stack: bool = True) -> str:
    """A table; on a phone each row becomes a small card. A head that begins with ``>`` is of numbers."""
    names = [head.removeprefix(">") for head in heads]
    sides = [' class="n"' if head.startswith(">") else "" for head in heads]
    head = "".join(f"<th{side}>{escape(name)}</th>" for name, side in zip(names, sides, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{side} data-h="{escape(name)}">{rendered(cell)}</td>'
            for name, side, cell in zip(names, sides, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    kind = ' class="stack"' if stack else ""
    return (
        f'<div class="card scroll"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def tile(name: str, value: str, note: str = "", kind: str = "") -> str:
    """A number that stands out."""
    below = f'<span class="soft">{escape(note)}</span>' if note else ""
    return (
        f'<div class="tile {escape(kind)}"><span class="soft">{escape(name)}</span>'
        f"<b>{escape(value)}</b>{below}</div>"
    )
