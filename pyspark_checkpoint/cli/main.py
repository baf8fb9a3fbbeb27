"""``ckpt``: finding the command that was typed, running it, and saying how it ended.

Only the module of that command is imported, so that each starts as fast as it can.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from pyspark_checkpoint import __version__
from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import Argument, add_all_to
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.errors import CheckpointError, SettingsError

COMMANDS = {
    "list": "show the checkpoints of a history, or the queries below a URL",
    "show": "show one checkpoint: sources, operators, sinks, cost",
    "diff": "show what changed from one checkpoint to another",
    "watch": "look at a history, or at all below a URL, as it grows",
    "report": "write a history as one HTML page",
    "verify": "prove every record and every byte of a history",
    "restore": "rebuild a query's checkpoint location from a checkpoint",
    "rewind": "take a query back to a checkpoint: history, outputs and location",
    "preflight": "say whether a query will start from a location or a checkpoint",
    "rollback": "make an earlier checkpoint the newest one",
    "savepoint": "keep a checkpoint under a name; list and remove such names",
    "prune": "remove old checkpoints",
    "gc": "remove objects that no checkpoint needs",
    "copy": "copy a history, or some of it, to another store",
    "rekey": "wrap the data keys of an encrypted history with another master key",
    "read": "read rows: a table at a checkpoint, or a query's state (needs Spark)",
    "probe": "find out what a store can promise",
    "jar": "print the path of the jar for Spark",
}
"""Every command and what it does, in the order of ``ckpt --help``."""


class Command(Protocol):
    """What a module of ``cli.commands`` has."""

    ABOUT: str
    EXAMPLES: str
    ARGUMENTS: Sequence[Argument]

    def run(self, args: argparse.Namespace, console: Console) -> bool | None:
        """Do it; True if it is done and something is wrong. An error says all else."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    typed = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(typed)
    except SystemExit as ended:  # argparse, after --help or a mistake
        return ended.code if isinstance(ended.code, int) else exits.USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough. What is still buffered must not fail at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.PIPE_CLOSED


def _main(typed: list[str]) -> int:
    if not typed or typed[0] in ("-h", "--help", "help"):
        if len(typed) > 1 and typed[1] in COMMANDS:
            return _main([typed[1], "--help"])
        print(overview())
        return exits.DONE if typed else exits.USAGE
    if typed[0] == "--version":
        print(f"ckpt {__version__}")
        return exits.DONE
    if typed[0] not in COMMANDS:
        return _unknown(typed[0])
    return run_command(typed[0], typed[1:])


def run_command(name: str, typed: Sequence[str]) -> int:
    """Run the command ``name``; an error of ours is told with its cure, without a traceback."""
    command = load_command(name)
    args = parser_of(name, command).parse_intermixed_args(typed)
    console = Console(as_json=args.json)
    with warnings_shown():
        try:
            found = command.run(args, console)
        except CheckpointError as error:
            return fail(error, console)
    sys.stdout.flush()
    return exits.FOUND if found else exits.DONE


def fail(error: CheckpointError, console: Console) -> int:
    """Tell an error: for people on standard error, for programs as the result; the exit status."""
    status = exits.status_of(error)
    if console.as_json:
        told = {"code": error.code, "message": error.message, "hint": error.hint, "status": status}
        console.json_line({"error": told})
    sys.stdout.flush()
    console.error(error)
    return status


def load_command(name: str) -> Command:
    """The module of a command."""
    return cast(Command, importlib.import_module(f"pyspark_checkpoint.cli.commands.{name}_command"))


def parser_of(name: str, command: Command) -> argparse.ArgumentParser:
    """What a command takes, with its examples."""
    parser = argparse.ArgumentParser(
        prog=f"ckpt {name}",
        description=command.ABOUT,
        epilog=f"examples:\n{_indented(command.EXAMPLES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_all_to(parser, command.ARGUMENTS)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser


def overview() -> str:
    """The text of ``ckpt --help``."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    statuses = "\n".join(f"  {status:<3}  {meaning}" for status, meaning in exits.MEANINGS.items())
    return (
        "usage: ckpt COMMAND URL [options]\n\n"
        "Checkpoints of Spark Structured Streaming: look at them, prove them, restore them, keep them.\n\n"
        f"commands:\n{commands}\n\n"
        "ckpt COMMAND --help says what a command takes, with examples; ckpt --version is the version.\n\n"
        f"exit status:\n{statuses}"
    )


def _unknown(typed: str) -> int:
    near = difflib.get_close_matches(typed, COMMANDS, n=1)
    cure = f"did you mean ckpt {near[0]}?" if near else "ckpt --help lists the commands"
    return fail(SettingsError(f"there is no command {typed[:80]!r}", hint=cure), Console())


def _indented(lines: str) -> str:
    return "\n".join(f"  {line}" for line in lines.strip().splitlines())


class _Plain(logging.Formatter):
    """Lets no control character of a message reach the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return text.printable(super().format(record))


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Warnings of the package go to standard error, in one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain("warning: %(message)s"))
    logger = logging.getLogger("pyspark_checkpoint")
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
