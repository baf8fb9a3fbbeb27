"""``ckpt watch``: a history as it grows."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from typing import Any

from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import Place, add_json, add_store, parse_span_ms, place_of
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.records import checkpoint_record
from pyspark_checkpoint.cli.target import find_names, open_history
from pyspark_checkpoint.cli.watching import Look, Unreadable, Watched, changes
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Entry
from pyspark_checkpoint.registry.queries import QueryRoot, history_url
from pyspark_checkpoint.store.base import ObjectStore

ABOUT = """Look at a history, or at those of all queries below URL, as they grow. On a terminal the
view is drawn in place; otherwise there is a line for each change. Ctrl-C ends it. Few
requests a look while nothing happens."""
EXAMPLES = """
ckpt watch s3://bucket/checkpoints                  all queries below it
ckpt watch s3://bucket/tables/wc --interval 10s
ckpt watch /data/ckpt --json                        one JSON object for each change
ckpt watch /data/ckpt --once                        one look, for scripts
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_store(parser)
    parser.add_argument("--interval", default="2s", metavar="TIME", help="between two looks (2s)")
    parser.add_argument("--once", action="store_true", help="look once and end")
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Look until interrupted, or once: then the status says whether something is wrong."""
    seconds = max(0.1, parse_span_ms(args.interval) / 1000)
    watched = _watched(place_of(args))
    drawn = console.is_terminal and not args.json
    try:
        looks = _watch(watched, args, console, seconds, View(console) if drawn else None)
    except KeyboardInterrupt:
        if drawn:
            console.line()
        return exits.DONE
    return exits.FOUND if any(look.problem is not None for look in looks) else exits.DONE


def _watched(place: Place) -> list[Watched | Unreadable]:
    parent, names = find_names(place)
    if not (names.roots or names.damaged):
        return [Watched("", open_history(place))]
    readable: list[Watched | Unreadable] = [_watch_query(place, root, parent) for root in names.roots]
    return readable + [Unreadable(one.name, one.problem) for one in names.damaged]


def _watch_query(place: Place, root: QueryRoot, parent: ObjectStore) -> Watched:
    def open_query() -> CheckpointStore:
        return CheckpointStore.open(history_url(place.url, root, place.options), place.options)

    if place.query is not None:  # the only one: whatever is wrong with it ends the command
        return Watched("", open_query(), parent, root.query_id)
    return Watched(root.name or root.query_id, open_query, parent, root.query_id)


def _watch(
    watched: Sequence[Watched | Unreadable],
    args: argparse.Namespace,
    console: Console,
    seconds: float,
    view: View | None,
) -> list[Look]:
    before: list[Look | None] = [None] * len(watched)
    while True:
        looks = [one.look() for one in watched]
        if view is not None:
            view.draw(view_lines(watched, looks, console.clock.now_ms()), final=args.once)
        else:
            for one, then, now in zip(watched, before, looks, strict=True):
                _tell(one.label, then, now, console, as_json=args.json)
        if args.once:
            return looks
        before = list(looks)
        console.clock.sleep(seconds)


def _tell(label: str, then: Look | None, now: Look, console: Console, *, as_json: bool) -> None:
    for event, what in changes(then, now):
        if as_json:
            console.json_line(_record(label, event, what, console.clock.now_ms()))
        else:
            head = f"{label}: " if label else ""
            told = entry_line(what) if isinstance(what, Entry) else what
            when = what.timestamp_ms if isinstance(what, Entry) else console.clock.now_ms()
            console.tell(f"{text.moment(when)}  {head}{told}")


def _record(label: str, event: str, what: Entry | str, now_ms: int) -> dict[str, Any]:
    record: dict[str, Any] = {"event": event, "query": label or None, "seen_ms": now_ms}
    if isinstance(what, Entry):
        return {**record, **checkpoint_record(what)}
    return {**record, "message": what}


def entry_line(entry: Entry) -> str:
    """A checkpoint in one line."""
    kind = "" if entry.kind is None or entry.kind.value == "epoch" else f" ({entry.kind.value})"
    took = f", {text.span(entry.staged_ms)}" if entry.staged_ms is not None else ""
    return (
        f"checkpoint {entry.number}, epoch {entry.epoch}{kind}: {text.size(entry.total_size_bytes)}, "
        f"{text.size(entry.new_bytes)} new, {text.plural(entry.requests.puts, 'PUT')}{took}, "
        f"generation {entry.generation}"
    )


def view_lines(watched: Sequence[Watched | Unreadable], looks: Sequence[Look], now_ms: int) -> list[str]:
    """The whole view. Pure."""
    if len(looks) == 1:
        return _history_lines(watched[0].label, looks[0], now_ms)
    heads = ("query", ">newest", ">epoch", "kind", ">age", ">size", ">new", ">gen", ">savepoints", "")
    rows = []
    for one, look in zip(watched, looks, strict=True):
        cells = _cells(look.newest, now_ms) if look.newest is not None else ("none",) + ("",) * 7
        number, epoch, kind, age, size, new, _, generation = cells
        row = (one.label, number, epoch, kind, age, size, new, generation)
        rows.append((*row, str(len(look.savepoints)), look.problem or ""))
    return text.table(heads, rows)


def _history_lines(label: str, look: Look, now_ms: int) -> list[str]:
    lines = [label] if label else []
    if look.problem is not None:
        lines.append(f"problem: {look.problem}")
    if look.newest is None:
        return [*lines, "no checkpoint yet"]
    query = look.newest.query
    named = " ".join(part for part in (query.name, query.id) if part)
    lines += text.pairs(
        (
            ("query", named),
            ("run", f"{look.newest.run_id} (generation {look.newest.generation})"),
            ("savepoints", ", ".join(f"{name} ({number})" for name, number in look.savepoints)),
            ("kept from", str(look.floor)),
        )
    )
    heads = (">id", ">epoch", "kind", ">age", ">size", ">new", ">took", ">gen")
    return [*lines, "", *text.table(heads, [_cells(entry, now_ms) for entry in reversed(look.entries)])]


def _cells(entry: Entry, now_ms: int) -> tuple[str, ...]:
    return (
        str(entry.number),
        str(entry.epoch),
        "" if entry.kind is None else entry.kind.value,
        text.age(entry.timestamp_ms, now_ms),
        text.size(entry.total_size_bytes),
        text.size(entry.new_bytes),
        "" if entry.staged_ms is None else text.span(entry.staged_ms),
        str(entry.generation),
    )


class View:
    """Lines on a terminal that are drawn over the ones before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._height = 0

    def draw(self, lines: Sequence[str], *, final: bool = False) -> None:
        """Draw these lines in place of those before."""
        columns, rows = shutil.get_terminal_size()
        foot = [] if final else [self._console.dim("Ctrl-C ends")]
        shown = [text.short(text.printable(line), columns - 1) for line in lines[: rows - 2]] + foot
        self._console.redraw(shown, self._height)
        self._height = len(shown)
