"""Finding the checkpoint that a reader wants: newest, by number, epoch, savepoint or time."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest, OperatorSnapshotEntry
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import (
    find_number_by_epoch,
    find_number_by_savepoint,
    find_number_by_time,
    parse_timestamp_ms,
    read_checkpoint,
)
from pyspark_checkpoint.history.settle import unfolded
from pyspark_checkpoint.sink.partition import Chain
from pyspark_checkpoint.sink.table_options import ReadOptions, SharedOptions
from pyspark_checkpoint.sink.worker_cache import OpenTable, open_for_reading
from pyspark_checkpoint.table.info import TableInfo


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table at one checkpoint."""

    opened: OpenTable
    manifest: CheckpointManifest
    table: TableInfo
    own_epoch: bool = True
    """Whether the rows of the checkpoint's own epoch are wanted too, and not only those before it."""

    def chains(self) -> list[Chain]:
        """The chains of all partitions, with what is settled: reads the lists that the manifest names."""
        entry = self.manifest.operators.get(self.table.operator)
        if entry is not None and entry.settled:
            entry = unfolded(self.opened.store, entry)
        chains = _chains(entry)
        return chains if self.own_epoch else [chain.before(self.manifest.epoch) for chain in chains]

    def newest_chains(self) -> list[Chain]:
        """The same without what is settled, which is never of the manifest's own epoch."""
        return _chains(self.manifest.operators.get(self.table.operator))


def _chains(entry: OperatorSnapshotEntry | None) -> list[Chain]:
    return [Chain(part.partition_id, part.artifacts) for part in (entry.partitions if entry else ())]


def open_table(shared: SharedOptions) -> OpenTable:
    """Open a store that must hold something."""
    opened = open_for_reading(shared)
    if opened is None:
        raise RefusedError(f"there is no table at {shared.path}", hint="write one first, or check the path")
    return opened


def read_table(options: ReadOptions) -> FoundTable:
    """The table at the checkpoint that the options choose."""
    opened = open_table(options.shared)
    mac = opened.mac
    number = find_number(opened, options)
    if number is None:
        head = find_head(opened.store, mac=mac, store_id=opened.store_id)
        if head is None:
            raise RefusedError(
                f"nothing was committed to {options.shared.path} yet", hint="start the query that writes"
            )
        return found_table(opened, head.manifest, options.shared)
    return found_table(opened, read_checkpoint(opened.store, number, mac=mac).manifest, options.shared)


def found_table(opened: OpenTable, manifest: CheckpointManifest, shared: SharedOptions) -> FoundTable:
    """The table of a manifest, which must have one."""
    if manifest.table is None:
        raise RefusedError(f"{shared.path} holds checkpoints of a query, not a table")
    return FoundTable(opened, manifest, TableInfo.of_manifest(manifest))


def find_number(opened: OpenTable, options: ReadOptions) -> int | None:
    """The number of the wanted checkpoint, None for the newest."""
    store, wanted, number = opened.store, "", None
    if options.checkpoint_id is not None:
        return options.checkpoint_id
    if options.epoch is not None:
        number, wanted = find_number_by_epoch(store, options.epoch), f"epoch {options.epoch}"
    elif options.savepoint is not None:
        number, wanted = (
            find_number_by_savepoint(store, options.savepoint),
            f"savepoint {options.savepoint!r}",
        )
    elif options.timestamp is not None:
        at = parse_timestamp_ms(options.timestamp, "timestampAsOf")
        number, wanted = find_number_by_time(store, at), f"checkpoint from {options.timestamp} or before"
    if wanted and number is None:
        raise RefusedError(
            f"{options.shared.path} has no {wanted}",
            hint="ckpt list shows what it has; older ones are pruned",
        )
    return number
