"""Arguments that several commands share, and what people may type for times."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpoint.crypto.keyring import KEY_FILE_OPTION
from pyspark_checkpoint.errors import SettingsError

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
Argument = Callable[[argparse._ActionsContainer], object]
"""Adds an argument, or several that belong together, to a parser."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL with its options, which are never printed, and the query below it that is meant."""

    url: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    query: str | None = None


def argument(*names: str, **settings: Any) -> Argument:
    """One argument, as ``add_argument`` of a parser takes it."""
    return lambda parser: parser.add_argument(*names, **settings)


def switch(name: str, told: str) -> Argument:
    """An argument that is there or not."""
    return argument(name, action="store_true", help=told)


def name_values(name: str, told: str) -> Argument:
    """``NAME=VALUE``, as often as needed; ``parse_options`` reads them."""
    return argument(name, action="append", default=[], metavar="NAME=VALUE", help=told)


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    """Arguments of which at most one is given, or exactly one."""

    def add(parser: argparse._ActionsContainer) -> None:
        add_all_to(parser.add_mutually_exclusive_group(required=required), arguments)

    return add


def group(title: str, *arguments: Argument) -> Argument:
    """Arguments that ``--help`` shows together."""
    return lambda parser: add_all_to(parser.add_argument_group(title), arguments)


def add_all_to(parser: argparse._ActionsContainer, arguments: Iterable[Argument]) -> None:
    """Let a parser take these arguments."""
    for add in arguments:
        add(parser)


URL = argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az://, or a directory")
_OPTION = name_values(
    "--option",
    "an option of the store, as often as needed; secrets are better kept in the environment",
)
_KEY_FILE = argument("--key-file", metavar="FILE", help="the key ring of an encrypted store")
_QUERY = argument("--query", metavar="NAME_OR_ID", help="which query's history below URL")
STORE = group("store", _OPTION, _KEY_FILE)
"""What is needed to open a store."""
HISTORY_STORE = group("store", _QUERY, _OPTION, _KEY_FILE)
"""What is needed to open a history."""
HISTORY = (URL, HISTORY_STORE)
ALL = switch("--all", "every query below URL, one line each")
LAST = argument("--last", type=int, metavar="N", help="only the newest N, and every savepoint")
DRY_RUN = switch("--dry-run", "say what would be done; change nothing")
SINK_LOCATION = (
    argument("--sink-location", metavar="PLACE", help="where the output is, if it was moved"),
    name_values("--conf", "start Spark with this conf, for the catalog of an Iceberg table"),
)
"""How the query's output is reached."""
OUTPUT = (
    *SINK_LOCATION,
    switch("--drop-others", "roll an output back although somebody else has committed to it since"),
)
"""The same, and what may go of it."""
WINDOW = (
    switch("--window", "ask inputs and outputs how far back the query can go"),
    *SINK_LOCATION,
    name_values(
        "--source-option",
        "how a source is read, such as kafka.bootstrap.servers; SOURCE:NAME=VALUE is for one of several",
    ),
)
"""Whether inputs and outputs are asked how far back the query can go, and how they are reached."""


def last_of(args: argparse.Namespace) -> int | None:
    """How many of the newest are wanted; None for all."""
    last: int | None = args.last
    if last is not None and last < 1:
        raise SettingsError(f"--last is {last}", hint="give at least 1")
    return last


def address_of(args: argparse.Namespace) -> Address:
    """The address that the arguments name."""
    if getattr(args, "all", False) and getattr(args, "query", None) is not None:
        raise SettingsError("--all and --query say two things", hint="give one of them")
    options = parse_options(args.option)
    if args.key_file is not None:
        options[KEY_FILE_OPTION] = args.key_file
    return Address(args.url, options, getattr(args, "query", None))


def parse_options(typed: list[str]) -> dict[str, str]:
    """Read ``name=value``; a mistake is told without the value, which may be a secret."""
    options: dict[str, str] = {}
    for item in typed:
        name, found, value = item.partition("=")
        if not found or not name.strip():
            raise SettingsError(
                f"option {len(options) + 1} is not NAME=VALUE", hint="for example --option region=eu-west-1"
            )
        known = KEY_FILE_OPTION if name.strip().lower() == KEY_FILE_OPTION.lower() else name.strip()
        options[known] = value
    return options


def parse_span_ms(typed: str) -> int:
    """A length of time: ``30s``, ``15m``, ``24h``, ``7d``; a bare number is seconds."""
    match = _SPAN.fullmatch(typed.strip().lower())
    if match is None:
        raise SettingsError(f"not a length of time: {typed!r}", hint="write 30s, 15m, 24h or 7d")
    return int(float(match[1]) * _MILLISECONDS[match[2] or "s"])
