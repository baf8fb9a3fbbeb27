"""Where a command writes to: results on standard output, everything else on standard error.

Every line passes ``Console``, which lets no control character through but those of its own colours: much of
what is printed was read from a store that somebody else has written.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import orjson

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError

_BOLD, _DIM, _END = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_RED, _YELLOW, _GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"
Progress = Callable[[int, int], None]
_BAR_WIDTH = 24
_EVERY_SECONDS = 0.1
_AFTER_SECONDS = 1.0


class Coloured(str):
    """A line that is printed in a colour as a whole. Put into another text it is that text alone."""

    __slots__ = ("colour",)
    colour: str


class Console:
    """Prints for people, or JSON for programs. Colour and bars only on a terminal."""

    def __init__(self, *, as_json: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        self.as_json = as_json
        self.clock = clock
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.is_terminal = sys.stdout.isatty()
        self._colour = self.is_terminal and not plain
        self._drawn = 0
        self._error_colour = sys.stderr.isatty() and not plain

    def result(self, record: Any, *lines: str) -> None:
        """The whole result: ``record`` for programs, or else the lines."""
        if self.as_json:
            self.json(record)
        else:
            self.lines(lines)

    def line(self, line: str = "") -> None:
        """A line of the result."""
        print(_shown(line))

    def lines(self, lines: Iterable[str]) -> None:
        """Lines of the result."""
        for line in lines:
            self.line(line)

    def tell(self, line: str) -> None:
        """A line of the result that somebody may be waiting for."""
        print(_shown(line), flush=True)

    def redraw(self, lines: Sequence[str], foot: Sequence[str] = ()) -> None:
        """As many lines as the terminal shows, in place of those that were drawn last."""
        columns, rows = shutil.get_terminal_size()
        shown = [*(text.short(text.printable(line), columns - 1) for line in lines[: rows - 2]), *foot]
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        print(back + "\n".join(_shown(line) for line in shown), flush=True)
        self._drawn = len(shown)

    def json(self, value: Any) -> None:
        """The result for programs: one JSON document."""
        document = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
        print(text.printable_json(document))

    def json_line(self, value: Any) -> None:
        """One of many results for programs, a line each, at once."""
        print(text.printable_json(orjson.dumps(value).decode()), flush=True)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table with its heads."""
        head, *body = text.table(heads, rows)
        self.line(self.bold(head))
        self.lines(body)

    def title(self, title: str) -> None:
        """The head of a section."""
        self.line()
        self.line(self.bold(title))

    def section(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table with a title; nothing at all without rows."""
        if rows:
            self.title(title)
            self.lines(text.table(heads, rows))

    def note(self, message: str) -> None:
        """Something to know that is not the result."""
        print(_shown(message), file=sys.stderr)

    def error(self, error: CheckpointError) -> None:
        """What went wrong, with its code, and the cure on a line of its own."""
        line = _shown(error_line(error))
        print(f"{_RED}{line}{_END}" if self._error_colour else line, file=sys.stderr)
        self.hints([error.hint])

    def hints(self, hints: Iterable[str | None]) -> None:
        """What to do about what was told, each cure once."""
        for hint in dict.fromkeys(hints):
            if hint:
                self.note(f"  hint: {hint}")

    def bold(self, line: str) -> str:
        """A line that stands out."""
        return self._coloured(line, _BOLD)

    def dim(self, line: str) -> str:
        """A line that stands back."""
        return self._coloured(line, _DIM)

    def good(self, line: str) -> str:
        """A line that says that all is well."""
        return self._coloured(line, _GREEN)

    def bad(self, line: str) -> str:
        """A line that says that something is wrong."""
        return self._coloured(line, _RED)

    def warn(self, line: str) -> str:
        """A line that says that something may be wrong."""
        return self._coloured(line, _YELLOW)

    def _coloured(self, line: str, colour: str) -> str:
        if not self._colour:
            return line
        coloured = Coloured(line)
        coloured.colour = colour
        return coloured

    @contextmanager
    def bar(self, label: str) -> Iterator[Progress | None]:
        """A progress bar on a terminal; otherwise nothing."""
        if not sys.stderr.isatty():
            yield None
            return
        bar = Bar(label, sys.stderr, self.clock)
        try:
            yield bar.show
        finally:
            bar.clear()


def error_line(error: CheckpointError) -> str:
    """An error in one line, by its stable code and its message; the cure goes beside it."""
    return f"error {error.code}: {error.message}"


def _shown(line: str) -> str:
    """A line as it may go to a terminal."""
    shown = text.printable(str(line))
    return f"{line.colour}{shown}{_END}" if isinstance(line, Coloured) else shown


class Bar:
    """Shows how many bytes are done, how many there are, and how long the rest will take."""

    def __init__(self, label: str, stream: TextIO, clock: Clock) -> None:
        self._label = label
        self._stream = stream
        self._clock = clock
        self._begin = self._last = clock.monotonic_seconds()
        self._lock = threading.Lock()
        self._is_shown = False

    def show(self, done: int, total: int) -> None:
        """Draw it, unless it was drawn a moment ago. Any thread may call this."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            if now - self._last < _EVERY_SECONDS and done < total:
                return
            self._last = now
            line = bar_line(self._label, done, total, now - self._begin)
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{line[:width]}")
            self._stream.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Take it away."""
        with self._lock:
            if self._is_shown:
                self._stream.write("\r\x1b[2K")
                self._stream.flush()


def bar_line(label: str, done: int, total: int, seconds: float) -> str:
    """The bar as a line. Pure."""
    share = 1.0 if total <= 0 else min(1.0, done / total)
    full = int(share * _BAR_WIDTH)
    drawn = "#" * full + "." * (_BAR_WIDTH - full)
    line = f"{label} [{drawn}] {share:4.0%}  {text.size(done)} of {text.size(total)}"
    if seconds > _AFTER_SECONDS and 0 < done < total:
        line += f"  {text.span(int(seconds * (total - done) / done * 1000))} left"
    return line
