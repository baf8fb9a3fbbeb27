"""Looking at a history again and again, at the cost of a few requests while nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.errors import CheckpointError, FormatError, Unavailable
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.control import savepoints
from pyspark_checkpoint.history.head import Head, find_head, lost_problem
from pyspark_checkpoint.history.overview import Entry, entry_of, names_by_number
from pyspark_checkpoint.listener.health import find_health
from pyspark_checkpoint.store.base import ObjectStore

KEPT = 12
"""How many of the newest checkpoints are remembered, and read at most when many came at once."""


@dataclass(frozen=True, slots=True)
class Look:
    """A history at one moment: its newest checkpoints, ascending, and what is kept of the older ones."""

    entries: tuple[Entry, ...] = ()
    savepoints: tuple[tuple[str, int], ...] = ()
    floor: int = 1
    problem: str | None = None

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
    ) -> None:
        """``parent`` is the store that queries share, where it is told if captures of ``query_id`` fail.

        A history that is not open yet is opened by the first look that can, and all that is wrong with it
        is a problem, since it is one of several. One that is open is watched alone.
        """
        self.label = label
        self._parent = parent
        self._query_id = query_id
        self._history = history
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
            problem = self._find_capture_problem()
            if head is None:
                return Look(problem=problem)
            self._read_new(history, head)
        except CheckpointError as error:
            if self._is_alone and not isinstance(error, FormatError | Unavailable):
                raise
            return Look(tuple(self._entries.values()), problem=error.message)
        self._head = head
        if head.lost is not None:
            problem = f"checkpoint {head.lost} {lost_problem(head.lost, head.number)}"
        return replace(self._seen(head.control), problem=problem)

    def _find_capture_problem(self) -> str | None:
        found = find_health(self._parent, self._query_id) if self._parent is not None else None
        return (
            None if found is None else f"captures fail since {text.moment(found.since_ms)}: {found.message}"
        )

    def _read_new(self, history: CheckpointStore, head: Head) -> None:
        last = self._head.number if self._head is not None else 0
        first = max(last + 1, head.control.floor, head.number - KEPT + 1)
        for number in range(first, head.number):
            found = history.load_by_id(number)
            if found is not None:
                self._entries[number] = entry_of(found)
        self._entries[head.number] = entry_of(head.manifest)
        for number in sorted(self._entries)[:-KEPT]:
            del self._entries[number]

    def _seen(self, control: Control) -> Look:
        names = names_by_number(control)
        entries = tuple(
            replace(entry, savepoints=names.get(number, ()))
            for number, entry in sorted(self._entries.items())
            if number >= control.floor or number in names
        )
        pins = tuple((name, pin.number) for name, pin in savepoints(control).items())
        return Look(entries, pins, control.floor)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A query whose name cannot be followed: it is shown among the others, with the reason."""

    label: str
    problem: str

    def look(self) -> Look:
        """Say why."""
        return Look(problem=self.problem)


def changes(before: Look | None, after: Look) -> Iterator[tuple[str, Entry | str]]:
    """What is new since the look before, and of what kind it is. Pure."""
    if before is None:
        if after.newest is not None:
            yield "checkpoint", after.newest
        if after.problem is not None:
            yield "problem", after.problem
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
    for name, number in sorted(set(after.savepoints) - set(before.savepoints)):
        yield "savepoint", f"{name} keeps checkpoint {number}"
    for name, number in sorted(set(before.savepoints) - set(after.savepoints)):
        yield "savepoint", f"{name} no longer keeps checkpoint {number}"
    if after.floor > before.floor:
        yield "pruned", f"checkpoints before {after.floor} are pruned"
