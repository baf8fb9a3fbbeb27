"""Where a command writes to: results on standard output, everything else on standard error."""

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
        print(line)

    def lines(self, lines: Iterable[str]) -> None:
        """Lines of the result."""
        for line in lines:
            print(line)

    def json(self, value: Any) -> None:
        """The result for programs: one JSON document."""
        print(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())

    def json_line(self, value: Any) -> None:
        """One of many results for programs, a line each, at once."""
        print(orjson.dumps(value).decode(), flush=True)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table with its heads."""
        head, *body = text.table(heads, rows)
        print(self.bold(head))
        self.lines(body)

    def title(self, title: str) -> None:
        """The head of a section."""
        print()
        print(self.bold(title))

    def note(self, message: str) -> None:
        """Something to know that is not the result."""
        print(message, file=sys.stderr)

    def error(self, error: CheckpointError) -> None:
        """What went wrong, and the cure on a line of its own."""
        mark = f"{_RED}error:{_END}" if self._error_colour else "error:"
        print(f"{mark} {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)

    def bold(self, line: str) -> str:
        """A line that stands out."""
        return f"{_BOLD}{line}{_END}" if self._colour else line

    def dim(self, line: str) -> str:
        """A line that stands back."""
        return f"{_DIM}{line}{_END}" if self._colour else line

    def good(self, line: str) -> str:
        """A line that says that all is well."""
        return f"{_GREEN}{line}{_END}" if self._colour else line

    def bad(self, line: str) -> str:
        """A line that says that something is wrong."""
        return f"{_RED}{line}{_END}" if self._colour else line

    def warn(self, line: str) -> str:
        """A line that says that something may be wrong."""
        return f"{_YELLOW}{line}{_END}" if self._colour else line

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
