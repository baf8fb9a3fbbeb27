"""Sizes, times and tables as people read them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
RIGHT = ">"
LEFT = "<"
_TURNS = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What ends a line, or turns its direction, and is no control character."""


def printable(line: str) -> str:
    """A line that a terminal only shows: each control character in it is written as its escape.

    Names, messages and paths come from stores that anybody may have written.
    """
    if line.isprintable():
        return line
    return "".join(_escaped(letter) if _is_control(letter) else letter for letter in line)


def printable_json(document: str) -> str:
    """The same for JSON, in which line ends are white space, and escapes are JSON's own."""
    if document.isascii() and "\x7f" not in document:
        return document  # JSON has escaped what is below a space
    return "".join(
        f"\\u{ord(letter):04x}" if letter != "\n" and _is_control(letter) else letter for letter in document
    )


def _is_control(letter: str) -> bool:
    code = ord(letter)
    return code < 0x20 or 0x7F <= code < 0xA0 or letter in _TURNS or 0xD800 <= code < 0xE000


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def size(size_bytes: int) -> str:
    """A number of bytes with three digits that count: ``0 B``, ``999 B``, ``1.23 MB``."""
    if abs(size_bytes) < 1000:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _UNITS:
        value /= 1000
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f} {unit}"
    raise AssertionError("unreachable")


def signed(number: int) -> str:
    """A number that says which way it goes."""
    return f"+{number:,}" if number > 0 else f"{number:,}"


def signed_size(size_bytes: int) -> str:
    """A size that says which way it goes."""
    return f"+{size(size_bytes)}" if size_bytes > 0 else size(size_bytes)


def span(milliseconds: int) -> str:
    """A length of time in its two largest units: ``350 ms``, ``4 s``, ``2 h 5 m``."""
    if milliseconds < 0:
        return f"-{span(-milliseconds)}"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 10_000:
        return f"{milliseconds / 1000:.1f} s"
    rest, parts = milliseconds // 1000, []
    for seconds, unit in _STEPS:
        count, rest = divmod(rest, seconds)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def age(timestamp_ms: int | None, now_ms: int) -> str:
    """How long ago something was; nothing if that is not known."""
    return "" if timestamp_ms is None else span(max(0, now_ms - timestamp_ms))


def moment(timestamp_ms: int | None) -> str:
    """A point in time, in UTC, to the second; as a number where the calendar ends, as watermarks may."""
    if timestamp_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms since 1970"


def short(text: str, width: int) -> str:
    """A text cut to a width, with a mark where something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def plural(count: int, word: str, many: str | None = None) -> str:
    """A count and its noun."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in few words: ``1-4, 7``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table. A head that begins with ``>`` is of a column of numbers, and goes to the right."""
    sides = [RIGHT if head.startswith(RIGHT) else LEFT for head in heads]
    named = [printable(head.removeprefix(RIGHT)) for head in heads]
    cells = [named, *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def pairs(items: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of names and values, the empty ones left out."""
    kept = [(name, value) for name, value in items if value]
    width = max((len(name) for name, _ in kept), default=0)
    return [f"{name:<{width}}  {value}" for name, value in kept]
