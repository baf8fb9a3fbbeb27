"""What a store says is printed for people: no byte of it moves their cursor, or writes their lines."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator

import orjson
import pytest

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.main import warnings_shown
from pyspark_checkpoint.errors import RefusedError

HOSTILE = "orders\x1b]0;owned\x07\x1b[2J\r\nerror: \x9b31m\x7f\u202eend\tç"
SHOWN = r"orders\x1b]0;owned\x07\x1b[2J\r\nerror: \x9b31m\x7f\u202eend\tç"
"""The same, with every control character as its name."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A console that believes to be on a terminal with colours."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    yield Console()


def test_control_characters_are_shown_by_their_names() -> None:
    """Escapes, line ends, the C1 set, and what turns the direction of a line."""
    assert text.printable(HOSTILE) == SHOWN
    assert text.printable(SHOWN) == SHOWN
    assert text.printable("naïve 値 😀") == "naïve 値 😀"


@pytest.mark.parametrize("way", ["line", "lines", "note", "title", "table", "error", "bad"])
def test_nothing_that_is_printed_has_an_escape_of_its_own(
    terminal: Console, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """Only the colours of the console itself are left."""
    if way == "lines":
        terminal.lines([HOSTILE, HOSTILE])
    elif way == "table":
        terminal.table(("name", ">n"), [(HOSTILE, "1")])
    elif way == "error":
        terminal.error(RefusedError(HOSTILE, hint=HOSTILE))
    elif way == "bad":
        terminal.line(terminal.bad(HOSTILE))
    else:
        getattr(terminal, way)(HOSTILE)
    out, err = capsys.readouterr()
    shown = out + err
    for colour in ("\x1b[1m", "\x1b[31m", "\x1b[0m"):
        shown = shown.replace(colour, "")
    assert SHOWN in shown
    assert not [letter for letter in shown if letter != "\n" and text.printable(letter) != letter]


def test_a_foreign_colour_is_no_colour(terminal: Console, capsys: pytest.CaptureFixture[str]) -> None:
    """A record cannot dress up as a message that all is well."""
    terminal.line("\x1b[32mall good\x1b[0m")
    terminal.line(terminal.good("really"))
    assert capsys.readouterr().out == "\\x1b[32mall good\\x1b[0m\n\x1b[32mreally\x1b[0m\n"


def test_json_has_no_control_character_either(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lets some through; they are written as escapes of JSON, and mean the same."""
    Console().json({HOSTILE: HOSTILE})
    Console().json_line([HOSTILE])
    shown = capsys.readouterr().out
    assert not [letter for letter in shown if letter != "\n" and text.printable(letter) != letter]
    first, second = shown.rstrip("\n").rsplit("\n", 1)
    assert orjson.loads(first) == {HOSTILE: HOSTILE}
    assert orjson.loads(second) == [HOSTILE]


def test_a_watched_history_and_warnings_print_no_escapes(
    terminal: Console, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view moves the cursor by itself; what it shows does not."""
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: (200, 50))
    terminal.redraw([HOSTILE])
    with warnings_shown():
        logging.getLogger("pyspark_checkpoint.history").warning("of %s", HOSTILE)
    out, err = capsys.readouterr()
    assert out.startswith(f"{SHOWN}\n")
    assert err == f"warning: of {SHOWN}\n"
