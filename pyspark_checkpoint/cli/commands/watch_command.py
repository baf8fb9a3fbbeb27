"""``ckpt watch``: a history as it grows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import (
    HISTORY,
    WINDOW,
    Address,
    address_of,
    argument,
    parse_span_ms,
    switch,
)
from pyspark_checkpoint.cli.console import Console, error_line
from pyspark_checkpoint.cli.histories import (
    checkpoint_cells,
    checkpoint_record,
    find_names,
    open_history,
    output_line,
    output_rows,
)
from pyspark_checkpoint.cli.windows import find_recovery_window, window_lines
from pyspark_checkpoint.errors import CheckpointError, FormatError, Unavailable
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.control import savepoints
from pyspark_checkpoint.history.head import Head, find_head, lost_problem
from pyspark_checkpoint.history.overview import Entry, entry_of, names_by_number
from pyspark_checkpoint.listener.health import find_health
from pyspark_checkpoint.registry.queries import DamagedName, QueryRoot, history_url
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
Ask = Callable[[CheckpointStore], tuple[str, ...]]
KEPT = 12
"""How many of the newest checkpoints are remembered, and read at most when many came at once."""
ARGUMENTS = (
    *HISTORY,
    argument("--interval", default="2s", metavar="TIME", help="between two looks (2s)"),
    switch("--once", "look once and end"),
    *WINDOW,
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Look until interrupted, or once: then the status says whether something is wrong."""
    seconds = max(0.1, parse_span_ms(args.interval) / 1000)
    watched = _watched(address_of(args), _asker(args) if args.window else None)
    drawn = console.is_terminal and not console.as_json
    try:
        looks = _watch(watched, args, console, seconds, drawn=drawn)
    except KeyboardInterrupt:
        if drawn:
            console.line()
        return False
    return any(look.problem is not None for look in looks)


def _asker(args: argparse.Namespace) -> Ask:
    """What says how far back the query of a history can go."""

    def ask(history: CheckpointStore) -> tuple[str, ...]:
        window = find_recovery_window(history, history.overview().entries, args)
        return () if window is None else tuple(window_lines(window))

    return ask


def _watched(address: Address, ask: Ask | None) -> list[Watched]:
    parent, names = find_names(address)
    if not (names.roots or names.damaged):
        return [Watched("", open_history(address), ask=ask)]
    readable = [_watch_query(address, root, parent, ask) for root in names.roots]
    return readable + [Watched(one.name, partial(_refuse, one)) for one in names.damaged]


def _refuse(damaged: DamagedName) -> NoReturn:
    """A name that cannot be followed is shown among the others, with the reason."""
    raise damaged.error()


def _watch_query(address: Address, root: QueryRoot, parent: ObjectStore, ask: Ask | None) -> Watched:
    def open_query() -> CheckpointStore:
        return CheckpointStore.open(history_url(address.url, root, address.options), address.options)

    if address.query is not None:  # the only one: whatever is wrong with it ends the command
        return Watched("", open_query(), parent, root.query_id, ask)
    return Watched(root.name or root.query_id, open_query, parent, root.query_id, ask)


def _watch(
    watched: Sequence[Watched],
    args: argparse.Namespace,
    console: Console,
    seconds: float,
    *,
    drawn: bool,
) -> list[Look]:
    before: list[Look | None] = [None] * len(watched)
    while True:
        looks = [one.look() for one in watched]
        if drawn:
            foot = () if args.once else (console.dim("Ctrl-C ends"),)
            console.redraw(view_lines(watched, looks, console.clock.now_ms()), foot)
        else:
            for one, then, now in zip(watched, before, looks, strict=True):
                _tell(one.label, then, now, console)
        if args.once:
            return looks
        before = list(looks)
        console.clock.sleep(seconds)


def _tell(label: str, then: Look | None, now: Look, console: Console) -> None:
    for event, what in changes(then, now):
        hint = now.hint if event == "problem" else None
        if console.as_json:
            console.json_line(_record(label, event, what, hint, console.clock.now_ms()))
        else:
            head = f"{label}: " if label else ""
            told = entry_line(what) if isinstance(what, Entry) else what
            when = what.timestamp_ms if isinstance(what, Entry) else console.clock.now_ms()
            console.tell(f"{text.moment(when)}  {head}{told}")
            console.hints([hint])


def _record(label: str, event: str, what: Entry | str, hint: str | None, now_ms: int) -> dict[str, Any]:
    record: dict[str, Any] = {"event": event, "query": label or None, "seen_ms": now_ms}
    if isinstance(what, Entry):
        return {**record, **checkpoint_record(what)}
    return {**record, "message": what, "hint": hint}


def entry_line(entry: Entry) -> str:
    """A checkpoint in one line."""
    kind = "" if entry.kind is None or entry.kind.value == "epoch" else f" ({entry.kind.value})"
    took = f", {text.span(entry.staged_ms)}" if entry.staged_ms is not None else ""
    return (
        f"checkpoint {entry.number}, epoch {entry.epoch}{kind}: {text.size(entry.total_size_bytes)}, "
        f"{text.size(entry.new_bytes)} new, {text.plural(entry.requests.puts, 'PUT')}{took}, "
        f"generation {entry.generation}"
    )


def view_lines(watched: Sequence[Watched], looks: Sequence[Look], now_ms: int) -> list[str]:
    """The whole view. Pure."""
    if len(looks) == 1:
        return _history_lines(watched[0].label, looks[0], now_ms)
    heads = (">epoch", "kind", ">age", ">size", ">new", ">gen")
    rows = []
    for one, look in zip(watched, looks, strict=True):
        newest = look.newest
        cells = [""] * len(heads) if newest is None else checkpoint_cells(heads, newest, now_ms)
        checkpoint_id = "none" if newest is None else str(newest.number)
        rows.append((one.label, checkpoint_id, *cells, str(len(look.savepoints)), look.problem or ""))
    return text.table(("query", ">newest", *heads, ">savepoints", ""), rows)


def _history_lines(label: str, look: Look, now_ms: int) -> list[str]:
    lines = [label] if label else []
    if look.problem is not None:
        lines += [f"problem: {look.problem}", *([f"  hint: {look.hint}"] if look.hint else [])]
    if look.newest is None:
        return [*lines, "no checkpoint yet"]
    query = look.newest.query
    named = " ".join(part for part in (query.name, query.id) if part)
    lines += text.pairs(
        (
            ("query", named),
            ("run", f"{look.newest.run_id} (generation {look.newest.generation})"),
            (
                "savepoints",
                ", ".join(f"{name} ({checkpoint_id})" for name, checkpoint_id in look.savepoints),
            ),
            *(("output", output_line(row)) for row in output_rows(look.newest.sinks)),
            ("kept from", str(look.floor)),
            *(("recovery", line) for line in look.window),
        )
    )
    heads = (">id", ">epoch", "kind", ">age", ">size", ">new", ">took", ">gen")
    rows = [checkpoint_cells(heads, entry, now_ms) for entry in reversed(look.entries)]
    return [*lines, "", *text.table(heads, rows)]


# --- a history under watch: a look costs a few requests while nothing happens --------------------


@dataclass(frozen=True, slots=True)
class Look:
    """A history at one moment: its newest checkpoints, ascending, and what is kept of the older ones."""

    entries: tuple[Entry, ...] = ()
    savepoints: tuple[tuple[str, int], ...] = ()
    floor: int = 1
    problem: str | None = None
    hint: str | None = None
    """What to do about the problem, if that is known."""
    window: tuple[str, ...] = ()
    """How far back the query can go, if that was asked: at first, and when checkpoints were pruned."""

    @property
    def newest(self) -> Entry | None:
        """The head."""
        return self.entries[-1] if self.entries else None


class Watched:
    """One history under watch."""

    def __init__(
        self,
        label: str,
        history: CheckpointStore | Callable[[], CheckpointStore],
        parent: ObjectStore | None = None,
        query_id: str = "",
        ask: Ask | None = None,
    ) -> None:
        """``parent`` is the store that queries share, where it is told if captures of ``query_id`` fail.

        A history that is not open yet is opened by the first look that can, and all that is wrong with it
        is a problem, since it is one of several. One that is open is watched alone.
        """
        self.label = label
        self._parent = parent
        self._query_id = query_id
        self._history = history
        self._ask = ask
        self._window: tuple[int, tuple[str, ...]] = (-1, ())
        self._is_alone = isinstance(history, CheckpointStore)
        self._head: Head | None = None
        self._entries: dict[int, Entry] = {}

    def look(self) -> Look:
        """Look once. A store that does not answer and a damaged head are problems, not errors.

        Raises everything else of a history that is watched alone: another look would find the same.
        """
        try:
            if not isinstance(self._history, CheckpointStore):
                self._history = self._history()
            history = self._history
            head = find_head(history.store, cached=self._head, mac=history.authenticator())
            problem = self._failing_captures()
            if head is None:
                return Look(problem=problem)
            self._read_new(history, head)
            if self._ask is not None and self._window[0] != head.control.floor:
                self._window = head.control.floor, self._ask(history)
        except CheckpointError as error:
            if self._is_alone and not isinstance(error, FormatError | Unavailable):
                raise
            return Look(tuple(self._entries.values()), problem=error_line(error), hint=error.hint)
        self._head = head
        if head.lost is not None:
            problem = f"checkpoint {head.lost} {lost_problem(head.lost, head.number)}"
        return replace(self._seen(head.control), problem=problem, window=self._window[1])

    def _failing_captures(self) -> str | None:
        found = find_health(self._parent, self._query_id) if self._parent is not None else None
        return (
            None if found is None else f"captures fail since {text.moment(found.since_ms)}: {found.message}"
        )

    def _read_new(self, history: CheckpointStore, head: Head) -> None:
        last = self._head.number if self._head is not None else 0
        first = max(last + 1, head.control.floor, head.number - KEPT + 1)
        for checkpoint_id in range(first, head.number):
            found = history.load_by_id(checkpoint_id)
            if found is not None:
                self._entries[checkpoint_id] = entry_of(found)
        self._entries[head.number] = entry_of(head.manifest)
        for checkpoint_id in sorted(self._entries)[:-KEPT]:
            del self._entries[checkpoint_id]

    def _seen(self, control: Control) -> Look:
        names = names_by_number(control)
        entries = tuple(
            replace(entry, savepoints=names.get(checkpoint_id, ()))
            for checkpoint_id, entry in sorted(self._entries.items())
            if checkpoint_id >= control.floor or checkpoint_id in names
        )
        pins = tuple((name, pin.number) for name, pin in savepoints(control).items())
        return Look(entries, pins, control.floor)


def changes(before: Look | None, after: Look) -> Iterator[tuple[str, Entry | str]]:
    """What is new since the look before, and of what kind it is. Pure."""
    if before is None:
        if after.newest is not None:
            yield "checkpoint", after.newest
        if after.problem is not None:
            yield "problem", after.problem
        yield from _window_changes(Look(), after)
        return
    last = before.newest.number if before.newest is not None else 0
    for entry in after.entries:
        if entry.number > last:
            yield "checkpoint", entry
    if after.problem is not None and after.problem != before.problem:
        yield "problem", after.problem
    if after.problem is not None:
        return
    if before.problem is not None:
        yield "well", "all is well again"
        return
    for name, checkpoint_id in sorted(set(after.savepoints) - set(before.savepoints)):
        yield "savepoint", f"{name} keeps checkpoint {checkpoint_id}"
    for name, checkpoint_id in sorted(set(before.savepoints) - set(after.savepoints)):
        yield "savepoint", f"{name} no longer keeps checkpoint {checkpoint_id}"
    if after.floor > before.floor:
        yield "pruned", f"checkpoints before {after.floor} are pruned"
    yield from _window_changes(before, after)


def _window_changes(before: Look, after: Look) -> Iterator[tuple[str, str]]:
    if after.window != before.window:
        yield from (("window", line) for line in after.window)
