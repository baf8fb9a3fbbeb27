"""What a history is, as plain dictionaries: the model that the real one is held against."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint: whose it is, its epoch, and the rows of each epoch that it still holds."""

    run_id: str
    epoch: int
    rows: tuple[tuple[int, bytes], ...]

    def with_rows(self, run_id: str, epoch: int, data: bytes, keep: int = 3) -> Entry:
        """The next checkpoint of ``epoch``: earlier rows, the last few of them, and the new ones."""
        before = tuple(row for row in self.rows if row[0] < epoch)
        return Entry(run_id, epoch, (*before[-keep:], (epoch, data)))


@dataclass(slots=True)
class Model:
    """A history without any protocol."""

    entries: dict[int, Entry] = field(default_factory=dict)
    floor: int = 1
    pins: dict[str, int] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    """Runs that have a checkpoint."""

    @property
    def head(self) -> int:
        """The newest number, 0 if there is none."""
        return max(self.entries, default=0)

    @property
    def newest(self) -> Entry:
        """The newest checkpoint."""
        return self.entries[self.head]

    def visible(self) -> list[int]:
        """What exists for readers."""
        pinned = {number for number in self.pins.values() if number < self.floor}
        return sorted(pinned | set(range(self.floor, self.head + 1)) - self.deleted)

    def add(self, entry: Entry) -> int:
        """Append a checkpoint."""
        number = self.head + 1
        self.entries[number] = entry
        self.begun.add(entry.run_id)
        return number

    def is_fenced(self, run_id: str) -> bool:
        """Whether a run had the store and another one has it now."""
        return run_id in self.begun and self.newest.run_id != run_id

    def claim(self, run_id: str) -> None:
        """A run takes over what is there."""
        if self.head and self.newest.run_id != run_id:
            self.add(replace(self.newest, run_id=run_id))

    def may_pin(self, name: str, number: int) -> bool:
        """Whether a savepoint can be made."""
        return number in self.visible() and self.pins.get(name, number) == number

    def may_delete(self, number: int) -> bool:
        """Whether a checkpoint can be deleted; one that is deleted already can be deleted again."""
        return self.floor <= number < self.head and number not in self.pins.values()

    def prune(self, keep: int) -> None:
        """Keep the newest ``keep`` distinct epochs."""
        epochs: set[int] = set()
        floor = self.head
        for number in range(self.head, self.floor - 1, -1):
            if number not in self.deleted:
                epochs.add(self.entries[number].epoch)
            if len(epochs) > keep:
                break
            floor = number
        self.floor = max(self.floor, floor)
        self.deleted = {number for number in self.deleted if number >= self.floor}
