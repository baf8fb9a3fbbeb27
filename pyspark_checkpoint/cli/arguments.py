"""Arguments that several commands share, and what people may type for times."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import SettingsError

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
KEY_FILE_OPTION = "encryptionKeyFile"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL with its options, which are never printed, and the query below it that is meant."""

    url: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    query: str | None = None


def add_store(parser: argparse.ArgumentParser, *, query: bool = True) -> None:
    """The URL of a history and what is needed to open it."""
    parser.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az://, or a directory")
    add_store_options(parser, query=query)


def add_store_options(parser: argparse.ArgumentParser, *, query: bool = True) -> None:
    """What is needed to open a history."""
    group = parser.add_argument_group("store")
    if query:
        group.add_argument("--query", metavar="NAME_OR_ID", help="which query's history below URL")
    told = "an option of the store, as often as needed; secrets are better kept in the environment"
    add_options(group, "--option", told)
    group.add_argument("--key-file", metavar="FILE", help="the key ring of an encrypted store")


def add_options(parser: argparse._ActionsContainer, name: str, told: str) -> None:
    """``NAME=VALUE``, as often as needed; ``parse_options`` reads them."""
    parser.add_argument(name, action="append", default=[], metavar="NAME=VALUE", help=told)


def add_all(parser: argparse.ArgumentParser) -> None:
    """Whether each query below the URL is meant."""
    parser.add_argument("--all", action="store_true", help="every query below URL, one line each")


def add_last(parser: argparse.ArgumentParser) -> None:
    """How much of a history is looked at; ``last_of`` reads it."""
    parser.add_argument("--last", type=int, metavar="N", help="only the newest N, and every savepoint")


def last_of(args: argparse.Namespace) -> int | None:
    """How many of the newest are wanted; None for all."""
    last: int | None = args.last
    if last is not None and last < 1:
        raise SettingsError(f"--last is {last}", hint="give at least 1")
    return last


def add_sink_location(parser: argparse.ArgumentParser) -> None:
    """How the query's output is reached."""
    parser.add_argument("--sink-location", metavar="PLACE", help="where the output is, if it was moved")
    add_options(parser, "--conf", "start Spark with this conf, for the catalog of an Iceberg table")


def add_window(parser: argparse.ArgumentParser) -> None:
    """Whether inputs and outputs are asked how far back the query can go, and how they are reached."""
    parser.add_argument(
        "--window", action="store_true", help="ask inputs and outputs how far back the query can go"
    )
    add_sink_location(parser)
    add_source_options(parser)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """How the query's inputs are reached."""
    told = "how a source is read, such as kafka.bootstrap.servers; SOURCE:NAME=VALUE is for one of several"
    add_options(parser, "--source-option", told)


def add_output(parser: argparse.ArgumentParser) -> None:
    """How the query's output is reached, and what may go of it."""
    add_sink_location(parser)
    parser.add_argument(
        "--drop-others",
        action="store_true",
        help="roll an output back although somebody else has committed to it since",
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Whether anything is changed."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done; change nothing")


def address_of(args: argparse.Namespace, url: str | None = None) -> Address:
    """The address that the arguments name."""
    if getattr(args, "all", False) and getattr(args, "query", None) is not None:
        raise SettingsError("--all and --query say two things", hint="give one of them")
    options = parse_options(args.option)
    if args.key_file is not None:
        options[KEY_FILE_OPTION] = args.key_file
    return Address(args.url if url is None else url, options, getattr(args, "query", None))


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
