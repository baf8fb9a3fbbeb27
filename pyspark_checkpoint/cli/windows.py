"""The recovery window of a history as commands ask for it, for people and for ``--json``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pyspark_checkpoint.cli.arguments import address_of, parse_options
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Entry
from pyspark_checkpoint.inputs.recovery_window import RecoveryWindow, WindowQuestion, ask_window
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.restorer.api import find_tables
from pyspark_checkpoint.spark.local_session import session_with


def find_recovery_window(
    history: CheckpointStore, entries: Sequence[Entry], args: argparse.Namespace
) -> RecoveryWindow | None:
    """How far back the query of a history can go, if that was asked for."""
    if not args.window:
        return None
    address, sources = address_of(args), parse_options(args.source_option)
    with session_with(args.conf) as spark:
        place, tables = args.sink_location, find_tables(spark)
        outputs = OutputQuestion(address.url, place=place, options=address.options, tables=tables)
        return ask_window(history, entries, WindowQuestion(outputs, sources))


def window_record(window: RecoveryWindow | None) -> dict[str, Any] | None:
    """The same for ``--json``."""
    if window is None:
        return None
    return {
        "oldest": window.oldest,
        "newest": window.newest,
        "pinned": list(window.pinned),
        "limits": list(window.limits),
        "unknown": list(window.unknown),
        "outputs": [asdict(output) for output in window.outputs],
    }


def output_lines(window: RecoveryWindow) -> Iterator[str]:
    """How far the outputs were when they were asked, for people."""
    for output in window.outputs:
        where = f"output {output.kind} {output.target}"
        if output.batch_id is None:
            yield f"{where} has no batch of the query now"
        else:
            version = f", version {output.version}" if output.version else ""
            yield f"{where} has batch {output.batch_id} now{version}"


def window_lines(window: RecoveryWindow) -> Iterator[str]:
    """How far back the query can go, for people."""
    if window.oldest is None:
        yield "no checkpoint can be gone back to with its input and output"
    else:
        pinned = f", and to {', '.join(map(str, window.pinned))}" if window.pinned else ""
        yield f"can go back to every checkpoint from {window.oldest} to {window.newest}{pinned}"
    yield from (f"before that: {limit}" for limit in window.limits)
    yield from (f"not known: {unknown}" for unknown in window.unknown)
