"""The table that a query's ckpt-sink keeps, when its query is restored: both at one epoch, or refused.

After a rollback a table has epochs of the same number from other batches. So an epoch is the checkpoint's
only if it was read up to the same offsets, as far as both sides know theirs. That is enough to leave the
table as it is. It goes back only to what both sides say is the same batch of the same query: a checkpoint
that says less could roll back a table that has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.rules import source_positions
from pyspark_checkpoint.registry.queries import check_named_table


class LinkedSink:
    """The history of the ckpt-sink that a checkpoint's query writes to."""

    def __init__(
        self,
        manifest: CheckpointManifest,
        typed_url: str,
        options: Mapping[str, str] | None = None,
        sink_options: Mapping[str, str] | None = None,
    ) -> None:
        """``typed_url`` and ``options`` led to the manifest; ``sink_options`` are the table's, if other."""
        self._url = manifest.table_store_checkpoint_path
        self._manifest = manifest
        self._epoch = manifest.epoch
        self._typed_url = typed_url
        self._given = options, sink_options
        self._options = options if sink_options is None else sink_options
        self._target: int | None = None

    def plan(self, *, may_roll_back: bool) -> int | None:
        """The sink's checkpoint to go back to, None if it is where it must be. Changes nothing.

        Refused: a sink that is further, or went another way, without permission to roll it back, one that
        is behind, one that does not have these batches any more, and one that may be somebody else's.
        """
        self._target = None
        if self._url is None:
            return None
        check_named_table(self._url, self._typed_url, *self._given)
        history = CheckpointStore.open(self._url, self._options)
        newest = history.load_latest()
        if newest is None or _batch(newest) < self._epoch:
            at = "empty" if newest is None else f"at epoch {_batch(newest)}"
            raise RefusedError(
                f"the query's table {self._url} is {at}, the checkpoint at {self._epoch}: "
                "rows between them would be missing",
                hint="restore an epoch that the table has",
            )
        if self._is_here(newest):
            return None
        if not may_roll_back:
            raise self._refused(newest)
        self._target = self._find(history)
        return self._target

    def roll_back(self) -> CheckpointManifest | None:
        """Do what ``plan`` found, as a recorded rollback."""
        if self._url is None or self._target is None:
            return None
        return CheckpointStore.open(self._url, self._options).rollback(self._target)

    def _is_here(self, table: CheckpointManifest) -> bool:
        """Whether a checkpoint of the table ends with the very batch of the query's checkpoint."""
        return _batch(table) == self._epoch and not self._differs(table)

    def _differs(self, table: CheckpointManifest) -> bool:
        """Whether it is of another query or other batches, as far as both are known."""
        ours, theirs = self._manifest.query.id, table.query.id
        if ours and theirs and ours != theirs:
            return True
        read, written = _offsets(self._manifest), _offsets(table)
        return bool(read) and bool(written) and read != written

    def _is_proven(self, table: CheckpointManifest) -> bool:
        """Whether both sides name the same query and the same offsets."""
        ours, read = self._manifest.query.id, _offsets(self._manifest)
        return bool(ours) and ours == table.query.id and bool(read) and read == _offsets(table)

    def _find(self, history: CheckpointStore) -> int:
        """The newest checkpoint of the table that ends with the batch."""
        has_epoch, unproven = False, None
        for number in reversed(history.list_ids()):
            table = history.load_by_id(number)
            if table is not None and _batch(table) == self._epoch:
                if self._is_proven(table):
                    return number
                if unproven is None and not self._differs(table):
                    unproven = number
                has_epoch = True
        if unproven is not None:
            raise RefusedError(
                f"the query's table {self._url} is not rolled back to epoch {self._epoch}: its checkpoint "
                "and the query's do not both say of which query and of which source offsets they are",
                hint=f"if it is the query's table: ckpt rollback {self._url} {unproven}, then restore "
                "again",
            )
        if has_epoch:
            raise RefusedError(
                f"the query's table {self._url} has epoch {self._epoch} from other batches than the "
                "checkpoint's: it was rolled back since and went another way, and does not keep this one "
                "any more",
                hint="restore a later checkpoint, of the way that the table went, or a clone that writes "
                "to another table",
            )
        raise RefusedError(f"the query's table {self._url} does not keep epoch {self._epoch} any more")

    def _refused(self, newest: CheckpointManifest) -> RefusedError:
        hint = (
            "roll the table back with it (rollback_sink=True, --rollback-sink), "
            "or restore a clone that writes to another table"
        )
        if _batch(newest) == self._epoch:
            return RefusedError(
                f"the query's table {self._url} is at epoch {self._epoch} as the checkpoint is, but from "
                "other batches: rows would be missing, and others there twice",
                hint=hint,
            )
        return RefusedError(
            f"the query's table {self._url} is at epoch {_batch(newest)}, the checkpoint at "
            f"{self._epoch}: the query would write epochs again that the table has",
            hint=hint,
        )


def _batch(table: CheckpointManifest) -> int:
    """The batch of Spark that a table ends with: its epochs go on where another query's ended."""
    return table.epoch - int((table.table or {}).get("first_epoch", 0))


def _offsets(manifest: CheckpointManifest) -> list[str]:
    """Where the sources stand that have an offset; empty if that is not known."""
    return sorted(filter(None, (found.get("offset") for found in source_positions(manifest).values())))
