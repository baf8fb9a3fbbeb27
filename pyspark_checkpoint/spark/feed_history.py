"""The part of a table's history that a stream of changes has not seen, read once each."""

from __future__ import annotations

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.history.head import Head, find_head
from pyspark_checkpoint.history.living import find_summary
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.history.status import origins
from pyspark_checkpoint.spark.session import OpenTable
from pyspark_checkpoint.table.feed import FeedEntry, FeedPosition
from pyspark_checkpoint.table.info import TableInfo


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

    def entries(self, after: FeedPosition) -> list[FeedEntry]:
        """Every entry above ``after`` that still exists, oldest first."""
        opened = self._opened
        head = find_head(opened.store, cached=self._head, mac=opened.mac, store_id=opened.store_id)
        self._head = head
        if head is None:
            return []
        first = max(head.control.floor, after.checkpoint_id + 1)
        entries = [self._entry(number) for number in range(first, head.number)]
        if head.number >= first:
            kind, epoch = head.manifest.kind, head.manifest.epoch
            entries.append(FeedEntry(head.number, epoch, kind, final=self._is_final(head)))
        return [entry for entry in entries if entry is not None]

    def _entry(self, number: int) -> FeedEntry | None:
        if number not in self._known:
            summary = find_summary(self._opened.store, number)
            if summary is None:
                # Pruned since the head was read; a consumer that needed it is told so by the plan.
                return None
            self._known[number] = FeedEntry(number, summary.epoch, summary.kind)
        return self._known[number]

    def _is_final(self, head: Head) -> bool:
        if head.manifest.table is None:
            raise FormatError(f"checkpoint {head.number} has no table")
        if TableInfo.from_json(head.manifest.table).batch:
            return True
        # A claim is sealed a moment after it was made; what it says again has been sealed all the time.
        store = self._opened.store
        return any(find_seal(store, said) is not None for said in origins(store, head.manifest))
