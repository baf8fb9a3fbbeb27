"""The table that a query's ckpt-sink keeps, when its query is restored: both at one epoch, or refused."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history import lookup
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore


class LinkedSink:
    """The history of the ckpt-sink that a checkpoint's query writes to."""

    def __init__(self, manifest: CheckpointManifest, options: Mapping[str, str] | None) -> None:
        self._url = manifest.table_store_checkpoint_path
        self._epoch = manifest.epoch
        self._options = options
        self._target: int | None = None

    def plan(self, *, may_roll_back: bool) -> int | None:
        """The sink's checkpoint to go back to, None if it is where it must be. Changes nothing.

        Refused: a sink that is further without permission to roll it back, one that is behind, and
        one that does not have the epoch any more.
        """
        if self._url is None:
            return None
        history = CheckpointStore.open(self._url, self._options)
        newest = history.load_latest()
        if newest is None or newest.epoch < self._epoch:
            at = "empty" if newest is None else f"at epoch {newest.epoch}"
            raise RefusedError(
                f"the query's table {self._url} is {at}, the checkpoint at {self._epoch}: "
                "rows between them would be missing",
                hint="restore an epoch that the table has",
            )
        if newest.epoch == self._epoch:
            return None
        if not may_roll_back:
            raise RefusedError(
                f"the query's table {self._url} is at epoch {newest.epoch}, the checkpoint at "
                f"{self._epoch}: the query would write epochs again that the table has",
                hint="roll the table back with it (rollback_sink=True, --rollback-sink), "
                "or restore a clone that writes to another table",
            )
        self._target = lookup.find_number_by_epoch(history.store, self._epoch)
        if self._target is None:
            raise RefusedError(f"the query's table {self._url} does not keep epoch {self._epoch} any more")
        return self._target

    def roll_back(self) -> CheckpointManifest | None:
        """Do what ``plan`` found, as a recorded rollback."""
        if self._url is None or self._target is None:
            return None
        return CheckpointStore.open(self._url, self._options).rollback(self._target)
