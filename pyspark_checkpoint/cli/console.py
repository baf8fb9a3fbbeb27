"""Where a command writes to: results on standard output, everything else on standard error.

Every line passes ``Console``, which lets no control character through but those of its own colours: much of
what is printed was read from a store that somebody else has written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.progress import Bar
from pyspark_checkpoint.clock import SYSTEM_CLOCK, Clock
from pyspark_checkpoint.errors import CheckpointError

_BOLD, _DIM, _RED, _YELLOW, _GREEN, _END = (
    "\x1b[1m",
    "\x1b[2m",
    "\x1b[31m",
    "\x1b[33m",
    "\x1b[32m",
    "\x1b[0m",
)
Progress = Callable[[int, int], None]


class Coloured(str):
    """A line that is printed in a colour as a whole. Put into another text it is that text alone."""

    __slots__ = ("colour",)
    colour: str


class Console:
    """Prints for people, or JSON for programs. Colour and bars only on a terminal."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.is_terminal = sys.stdout.isatty()
        self._colour = self.is_terminal and not plain
        self._error_colour = sys.stderr.isatty() and not plain

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

    def redraw(self, lines: Sequence[str], height: int) -> None:
        """Lines on a terminal in place of the ``height`` lines that were drawn last."""
        back = f"\x1b[{height}F\x1b[J" if height else ""
        print(back + "\n".join(_shown(line) for line in lines), flush=True)

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

    def note(self, message: str) -> None:
        """Something to know that is not the result."""
        print(_shown(message), file=sys.stderr)

    def error(self, error: CheckpointError) -> None:
        """What went wrong, and the cure on a line of its own."""
        mark = f"{_RED}error:{_END}" if self._error_colour else "error:"
        print(f"{mark} {_shown(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {_shown(error.hint)}", file=sys.stderr)

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


def _shown(line: str) -> str:
    """A line as it may go to a terminal."""
    shown = text.printable(str(line))
    return f"{line.colour}{shown}{_END}" if isinstance(line, Coloured) else shown
