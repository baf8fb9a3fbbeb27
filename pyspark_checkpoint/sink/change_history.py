"""The part of a table's history that a stream of changes has not seen, read once each."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.manifest_parts import FeedPosition, Lineage
from pyspark_checkpoint.history.head import Head, find_head
from pyspark_checkpoint.history.live_set import find_summary
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.history.sink_status import origins
from pyspark_checkpoint.sink.worker_cache import OpenTable
from pyspark_checkpoint.table.feed import (
    NOTHING_SERVED,
    FeedEntry,
    find_newest_backwards,
)
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.lineage import find_lineage

_KEPT = 8


class FeedHistory:
    """Manifests from the floor to the head as feed entries. Remembers them: they never change."""

    def __init__(self, opened: OpenTable) -> None:
        self._opened = opened
        self._head: Head | None = None
        self._known: dict[int, FeedEntry] = {}

    @property
    def store_id(self) -> str:
        """What tells this table from another one that was here before it."""
        return self._opened.store_id

    @property
    def begun(self) -> bool:
        """Whether anything was committed when we looked; until then the table may still begin encrypted."""
        return self._head is not None

    @property
    def remembered(self) -> int:
        """How many manifests this holds in memory."""
        return len(self._known)

    def newest(self) -> FeedPosition:
        """The newest final epoch that is left; reads the end of the history only."""
        head = self._look()
        return NOTHING_SERVED if head is None else find_newest_backwards(self._newest_first(head))

    def entries(self, after: FeedPosition) -> list[FeedEntry]:
        """Every entry above ``after`` that still exists, oldest first, without a hole."""
        head = self._look()
        if head is None:
            return []
        first = max(head.control.floor, after.checkpoint_id + 1)
        entries: list[FeedEntry] = []
        for number in range(first, head.number):
            entry = self._find_entry(number)
            if entry is None:
                # Pruned since the head was read, and with it all before it, also what is remembered
                # here; a consumer that needed it is told so by the plan.
                entries.clear()
            else:
                entries.append(entry)
        if head.number >= first:
            entries.append(self._head_entry(head))
        self._forget_below(first)
        return entries

    def before_newest(self) -> FeedPosition | None:
        """The epoch before the newest one, whether it is still there or not; None if nobody knows."""
        head = self._head
        if head is None:
            return None
        lineage = find_lineage(head.manifest)
        return None if lineage is None else lineage.before

    def _look(self) -> Head | None:
        opened = self._opened
        head = find_head(opened.store, cached=self._head, mac=opened.mac, store_id=opened.store_id)
        self._head = head
        return head

    def _newest_first(self, head: Head) -> Iterator[FeedEntry]:
        yield self._head_entry(head)
        for number in range(head.number - 1, head.control.floor - 1, -1):
            entry = self._find_entry(number)
            if entry is None:
                return
            yield entry

    def _head_entry(self, head: Head) -> FeedEntry:
        manifest, final = head.manifest, self._is_final(head)
        return _entry(head.number, manifest.epoch, manifest.kind, find_lineage(manifest), final=final)

    def _forget_below(self, first: int) -> None:
        """What a consumer has behind it is asked for no more, but for the last few."""
        self._known = {number: entry for number, entry in self._known.items() if number >= first - _KEPT}

    def _find_entry(self, number: int) -> FeedEntry | None:
        if number not in self._known:
            found = find_summary(self._opened.store, number)
            if found is None:
                return None
            self._known[number] = _entry(number, found.epoch, found.kind, found.lineage)
        return self._known[number]

    def _is_final(self, head: Head) -> bool:
        if _table(head).batch:
            return True
        # A claim is sealed a moment after it was made; what it says again has been sealed all the time.
        store, mac = self._opened.store, self._opened.mac
        said_again = origins(store, head.manifest, mac=mac)
        return any(find_seal(store, said, mac=mac) is not None for said in said_again)


def _table(head: Head) -> TableInfo:
    return TableInfo.of_manifest(head.manifest)


def _entry(
    number: int, epoch: int, kind: ManifestKind, lineage: Lineage | None, *, final: bool = False
) -> FeedEntry:
    if lineage is None:
        return FeedEntry(number, epoch, kind, final=final)
    return FeedEntry(number, epoch, kind, final, lineage.position.lineage, lineage.before)
