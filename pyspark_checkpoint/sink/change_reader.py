"""The changes of a table as a stream: what each final epoch did, in order, once.

An offset is the checkpoint and the epoch that were served last. A consumer that starts gets the table
as it is at the newest final epoch and then every later epoch, or it names the epoch to start with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_checkpoint.errors import Diverged, FormatError, NoCheckpoint, SettingsError
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.manifest_parts import FeedPosition, Lineage, TableMode
from pyspark_checkpoint.history.head import Head, find_head
from pyspark_checkpoint.history.live_set import find_summary
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.history.sink_status import origins
from pyspark_checkpoint.sink.chain import Chain
from pyspark_checkpoint.sink.table_options import ReadOptions
from pyspark_checkpoint.sink.table_reader import (
    FoundTable,
    TableSplit,
    as_batches,
    found_table,
    open_table,
    read_split,
    read_table,
    table_chains,
)
from pyspark_checkpoint.sink.worker_cache import OpenTable
from pyspark_checkpoint.table.feed import (
    NOTHING_SERVED,
    PRUNED_HINT,
    START_OVER,
    FeedEntry,
    find_newest_backwards,
    plan_feed,
)
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.lineage import find_lineage
from pyspark_checkpoint.table.schema import DELETED_COLUMN, raw_arrow_schema

CHANGE_TYPE_COLUMN = "_change_type"
EPOCH_COLUMN = "_epoch"
INSERT, UPSERT, DELETE, REPLACE = "insert", "upsert", "delete", "replace"
STARTS = ("snapshot", "earliest", "latest")
_KEPT_ENTRIES = 8


@dataclass
class ChangeSplit(InputPartition):
    """What one task reads: what one epoch did to some partitions, or all rows to begin with."""

    split: TableSplit
    epoch: int
    whole: bool


class ChangeReader(DataSourceStreamReader):
    """Serves final epochs only, so that an epoch that is replaced never reaches a consumer twice."""

    def __init__(self, options: ReadOptions, schema: Mapping[str, Any]) -> None:
        self._options = options
        self._schema = dict(schema)
        self._start = check_start(options.starting_epoch)
        self._history: FeedHistory | None = None
        self._last: dict[str, Any] | None = None
        _check_options(options, self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_history": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new consumer begins."""
        if self._start == "latest":
            return self._encoded(self._newest_known())
        if self._start in ("snapshot", "earliest"):
            return {**encode_offset(NOTHING_SERVED), "start": self._start}
        return encode_offset(FeedPosition(0, int(self._start) - 1))

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """The newest final epoch, but never one before ``start``.

        Spark before 4.2 gives neither start nor limit: there, what this reader was asked for last counts.
        """
        told = start or self._last
        known = told or self.initialOffset()
        self._refuse_another_table(known)
        newest, given = self._feed().newest() if told else self._newest_known(), decode_offset(known)
        if newest != NOTHING_SERVED and not newest.is_behind(given):
            return self._encoded(newest)
        if given.checkpoint_id:
            plan_feed(self._feed().entries(given), given)  # raises if the table was rolled back
        return dict(known)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The changes after ``start`` up to ``end``."""
        self._last = end
        self._refuse_another_table(start)
        self._refuse_another_table(end)
        upto = decode_offset(end)
        if start.get("start") == "snapshot":
            if upto == NOTHING_SERVED:
                return []
            found = self._found_at(upto)
            if found is None:
                return []
            chains, _ = table_chains(found, None)
            return [ChangeSplit(split, upto.epoch, True) for split in found.splits(chains)]
        after = decode_offset(start)
        oldest_left = start.get("start") == "earliest"
        return [
            split
            for entry in plan_feed(self._feed().entries(after), after, upto, oldest_left=oldest_left)
            for split in epoch_splits(self._found(entry.checkpoint_id, entry.epoch), entry.epoch)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, each with what happened to it and when."""
        if not isinstance(partition, ChangeSplit):
            return
        split, shared = partition.split, self._options.shared
        if partition.whole:
            tables = read_split(shared, split)
        else:
            tables = iter(split.reader(shared).parts(*split.chains))
        replaces = split.table.replaces and not partition.whole
        for table in tables:
            rows = with_change_columns(table, split.table, partition.epoch, replaces=replaces)
            yield from as_batches(rows, raw_arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the store keeps epochs by its own rule."""

    def stop(self) -> None:
        """Nothing to release."""

    def _feed(self) -> FeedHistory:
        if self._history is None or not self._history.begun:
            self._history = FeedHistory(open_table(self._options.shared))
        return self._history

    def _newest_known(self) -> FeedPosition:
        """The newest final epoch, also one that is pruned, if a consumer that begins can do without it.

        Who is not told where it is may have been given that epoch before it was started again. One that
        wants the oldest epoch left waits until there is one.
        """
        newest = self._feed().newest()
        if newest == NOTHING_SERVED and self._start != "earliest":
            return self._feed().before_newest() or newest
        return newest

    def _encoded(self, position: FeedPosition) -> dict[str, Any]:
        return encode_offset(position, self._feed().store_id if position.checkpoint_id else "")

    def _refuse_another_table(self, offset: Mapping[str, Any]) -> None:
        table = offset.get("table")
        if table and table != self._feed().store_id:
            raise Diverged(
                f"the table at {self._options.shared.path} was deleted and created again since this stream "
                f"read epoch {offset['epoch']} of the old one",
                hint=START_OVER,
            )

    def _found_at(self, position: FeedPosition) -> FoundTable | None:
        """The table as it was after an epoch; if that is pruned, by what the newest one has kept of it.

        None if the newest one has replaced all rows: they come when it is served.
        """
        opened = open_table(self._options.shared)
        if find_checkpoint(opened.store, position.checkpoint_id, mac=opened.mac) is None:
            newest = read_table(self._options)
            lineage = find_lineage(newest.manifest)
            if lineage is not None and lineage.before == position:
                return None if newest.table.replaces else replace(newest, own_epoch=False)
        return self._found(position.checkpoint_id, position.epoch)

    def _found(self, number: int, epoch: int) -> FoundTable:
        opened = open_table(self._options.shared)
        loaded = find_checkpoint(opened.store, number, mac=opened.mac)
        if loaded is None:
            raise NoCheckpoint(f"epoch {epoch} was pruned with checkpoint {number}", hint=PRUNED_HINT)
        return found_table(opened, loaded.manifest, self._options.shared)


def epoch_splits(found: FoundTable, epoch: int) -> Iterator[ChangeSplit]:
    """What an epoch itself wrote: never what was compacted beside it."""
    written = (
        Chain(chain.partition, tuple(ref for ref in chain.refs if ref.epoch == epoch and not ref.name))
        for chain in found.newest_chains()
    )
    return (ChangeSplit(split, epoch, False) for split in found.splits(own for own in written if own.refs))


def with_change_columns(rows: pa.Table, table: TableInfo, epoch: int, *, replaces: bool) -> pa.Table:
    """Add what happened and when; the mark of deleted rows becomes words."""
    if replaces:
        kinds: Any = pa.repeat(pa.scalar(REPLACE), rows.num_rows)
    elif table.mode is not TableMode.UPSERT:
        kinds = pa.repeat(pa.scalar(INSERT), rows.num_rows)
    elif DELETED_COLUMN in rows.column_names:
        kinds = pc.if_else(rows.column(DELETED_COLUMN), DELETE, UPSERT)
        rows = rows.drop_columns([DELETED_COLUMN])
    else:
        kinds = pa.repeat(pa.scalar(UPSERT), rows.num_rows)
    rows = rows.append_column(CHANGE_TYPE_COLUMN, kinds)
    return rows.append_column(EPOCH_COLUMN, pa.repeat(pa.scalar(epoch, pa.int64()), rows.num_rows))


def encode_offset(position: FeedPosition, table: str = "") -> dict[str, Any]:
    """A position in the ``table`` of that id, as Spark writes it into its log."""
    offset: dict[str, Any] = {"checkpoint_id": position.checkpoint_id, "epoch": position.epoch}
    more = {"table": table, "lineage": position.lineage}
    return {**offset, **{name: value for name, value in more.items() if value}}


def decode_offset(offset: Mapping[str, Any]) -> FeedPosition:
    """Read a position back."""
    return FeedPosition(
        int(offset["checkpoint_id"]), int(offset["epoch"]), str(offset.get("lineage") or "")
    )


def check_start(text: str | None) -> str:
    """Where to begin: the table as it is, the oldest epoch left, only what comes, or an epoch."""
    start = (text or "snapshot").strip().lower()
    if start not in STARTS and not start.isdecimal():
        raise SettingsError(
            f"option startingEpoch cannot be {text!r}",
            hint=f"startingEpoch is {', '.join(STARTS)} or the number of an epoch",
        )
    return start


def _check_options(options: ReadOptions, schema: Mapping[str, Any]) -> None:
    points = (options.checkpoint_id, options.epoch, options.savepoint, options.timestamp, options.vnodes)
    if any(point is not None for point in points):
        raise SettingsError(
            "checkpointId, epoch, savepoint, timestampAsOf and vnodes are for spark.read",
            hint="a stream takes startingEpoch",
        )
    names = [field["name"] for field in schema["fields"]]
    if CHANGE_TYPE_COLUMN not in names or EPOCH_COLUMN not in names:
        raise SettingsError(
            f"a stream of changes has the columns {CHANGE_TYPE_COLUMN} and {EPOCH_COLUMN}",
            hint='without the jar, add .option("changes", "true")',
        )


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
        lineage = None if self._head is None else find_lineage(self._head.manifest)
        return None if lineage is None else lineage.before

    def _look(self) -> Head | None:
        opened = self._opened
        self._head = find_head(opened.store, cached=self._head, mac=opened.mac, store_id=opened.store_id)
        return self._head

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
        self._known = {
            number: entry for number, entry in self._known.items() if number >= first - _KEPT_ENTRIES
        }

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
        # A claim is sealed a moment after it was made; what it repeats has a seal already.
        store, mac = self._opened.store, self._opened.mac
        repeated = origins(store, head.manifest, mac=mac)
        return any(find_seal(store, manifest, mac=mac) is not None for manifest in repeated)


def _table(head: Head) -> TableInfo:
    if head.manifest.table is None:
        raise FormatError(
            f"checkpoint {head.number} has no table",
            hint="read the path of a table that ckpt-sink wrote; ckpt show says what is here",
        )
    return TableInfo.of_manifest(head.manifest)


def _entry(
    number: int, epoch: int, kind: ManifestKind, lineage: Lineage | None, *, final: bool = False
) -> FeedEntry:
    if lineage is None:
        return FeedEntry(number, epoch, kind, final=final)
    return FeedEntry(number, epoch, kind, final, lineage.position.lineage, lineage.before)
