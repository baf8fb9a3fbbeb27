"""``ckpt list``: the checkpoints of a history, or the queries below a URL."""

from __future__ import annotations

import argparse
from typing import Any

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import ALL, HISTORY, LAST, WINDOW, Address, address_of, last_of
from pyspark_checkpoint.cli.console import Console, error_line
from pyspark_checkpoint.cli.histories import (
    Query,
    checkpoint_cells,
    checkpoint_record,
    find_queries,
    iter_queries,
    open_history,
    output_line,
    output_rows,
    problem_kind,
    problem_record,
)
from pyspark_checkpoint.cli.windows import find_recovery_window, output_lines, window_lines
from pyspark_checkpoint.errors import CheckpointError, FormatError, SettingsError
from pyspark_checkpoint.history.overview import Entry, Overview
from pyspark_checkpoint.inputs.recovery_window import RecoveryWindow
from pyspark_checkpoint.registry.queries import QueryNames

ABOUT = """Show the checkpoints of a history, oldest first, or the queries that have a history below
URL."""
EXAMPLES = """
ckpt list s3://bucket/checkpoints                  the queries below it
ckpt list s3://bucket/checkpoints --query orders   the checkpoints of one of them
ckpt list /data/ckpt --last 5 --json               the newest five, and every savepoint
"""
ARGUMENTS = (*HISTORY, ALL, LAST, *WINDOW)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Print them."""
    last = last_of(args)
    address = address_of(args)
    names = find_queries(address)
    if names is not None:
        if args.window:
            raise SettingsError(f"{address.url} holds several queries", hint="choose one with --query")
        return _show_queries(address, names, console)
    history = open_history(address)
    overview = history.overview(last)
    window = find_recovery_window(history, overview.entries, args)
    if console.as_json:
        console.json([_record(entry, window) for entry in overview.entries])
    else:
        _show_checkpoints(overview, window, console)
    return False


def _record(entry: Entry, window: RecoveryWindow | None) -> dict[str, Any]:
    """A checkpoint; with a window whether its query can go back to it, null if that is not known."""
    asked = {} if window is None else {"recoverable": window.has(entry.number)}
    return checkpoint_record(entry) | asked


def _show_checkpoints(overview: Overview, window: RecoveryWindow | None, console: Console) -> None:
    if not overview.entries:
        console.line("no checkpoint yet")
        return
    now_ms = console.clock.now_ms()
    heads = (">id", ">epoch", ">batch", "kind", "made", ">age", ">size", ">new", ">gen", "savepoints")
    console.table(heads, (checkpoint_cells(heads, entry, now_ms) for entry in overview.entries))
    damaged = [entry for entry in overview.entries if entry.problem is not None]
    for entry in damaged:
        console.line(console.bad(f"checkpoint {entry.number}: {entry.problem}"))
    if overview.floor > 1:
        pinned = sum(1 for entry in overview.entries if entry.number < overview.floor)
        kept = f"; {text.plural(pinned, 'savepoint')} of them kept" if pinned else ""
        console.line(console.dim(f"checkpoints before {overview.floor} are pruned{kept}"))
    for row in output_rows(() if overview.newest is None else overview.newest.sinks):
        console.line(console.dim(f"writes to {output_line(row)}"))
    if window is not None:
        console.lines((*output_lines(window), *window_lines(window)))


def _show_queries(address: Address, names: QueryNames, console: Console) -> bool:
    found = [(query, *_look(address, query)) for query in iter_queries(address, names)]
    wrong = [(query, problem) for query, _, problem in found if problem is not None]
    if console.as_json:
        console.json([_query_record(*one) for one in found])
        return bool(wrong)
    now_ms = console.clock.now_ms()
    heads = ("query", "id", "app", ">newest", ">epoch", ">age", ">size", "savepoints")
    console.table(heads, (_query_row(*one, now_ms) for one in found))
    for query, problem in wrong:
        console.line(console.bad(f"query {query.label}: {error_line(problem)}"))
    console.hints(problem.hint for _, problem in wrong)
    return bool(wrong)


def _look(address: Address, query: Query) -> tuple[Overview, CheckpointError | None]:
    """A query's newest checkpoint; what is wrong with one query does not hide the others."""
    try:
        overview = query.open(address).overview(1)
    except CheckpointError as error:
        return Overview(), error
    lost = overview.lost
    return overview, None if lost is None else FormatError(f"checkpoint {lost.number} {lost.problem}")


def _query_row(
    query: Query, overview: Overview, problem: CheckpointError | None, now_ms: int
) -> tuple[str, ...]:
    root = query.root
    newest = "none" if overview.newest is None else str(overview.newest.number)
    if problem is not None:
        newest = problem_kind(problem)
    cells = checkpoint_cells(("epoch", "age", "size"), overview.newest or Entry(0), now_ms)
    return (root.name, root.query_id, root.app_name, newest, *cells, ", ".join(overview.savepoint_names))


def _query_record(query: Query, overview: Overview, problem: CheckpointError | None) -> dict[str, Any]:
    """A query's newest checkpoint, and whose it is; ``problem`` is what hides that."""
    record = checkpoint_record(overview.newest or Entry(0, kind=None))
    if overview.newest is None:
        record |= {"checkpoint_id": None, "kind": None if problem is None else problem_kind(problem)}
    told = record["problem"] if problem is None else problem.message
    return record | {
        **problem_record(problem),
        "problem": told,
        "query_id": query.root.query_id or None,
        "name": query.root.name,
        "app_name": query.root.app_name,
        "url": query.url or None,
        "savepoints": list(overview.savepoint_names),
    }
