"""The table that a query's ckpt-sink keeps, when its query is restored: both at one epoch, or refused.

After a rollback a table has epochs of the same number from other batches. So an epoch is the checkpoint's
only if it was read up to the same offsets, as far as both sides know theirs. That is enough to leave the
table as it is. It goes back only to what both sides say is the same batch of the same query: a checkpoint
that says less could roll back a table that has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark_checkpoint.errors import Diverged, FormatError, NoCheckpoint, StaleAttempt, UnknownVersion
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.output import (
    Output,
    OutputKind,
    OutputPin,
    OutputPosition,
    RollBackPlan,
    listed,
)
from pyspark_checkpoint.registry.queries import check_named_table
from pyspark_checkpoint.spark_files.positions import SourcePositions

_WRITES_ROWS = (ManifestKind.EPOCH, ManifestKind.REPLACEMENT, ManifestKind.MERGE)


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
        self._batch = manifest.epoch if manifest.batch_id is None else manifest.batch_id
        self._typed_url = typed_url
        self._given = options, sink_options
        self._options = options if sink_options is None else sink_options

    def plan(self, *, may_roll_back: bool, drop_others: bool = False) -> int | None:
        """The table's checkpoint to roll back to, None if it is where it must be. Changes nothing.

        Refused: a table that is further, or has diverged, without permission to roll it back, one that is
        behind, one that no longer has these batches, and one that may be somebody else's; also one to which
        others have written since, unless ``drop_others`` says that this may go too.
        """
        if self._url is None:
            return None
        check_named_table(self._url, self._typed_url, *self._given)
        history = CheckpointStore.open(self._url, self._options)
        newest = history.load_latest()
        if self._manifest.is_start:
            self._check_start(newest)
            return None
        if newest is None or (newest.batch_id is not None and newest.batch_id < self._batch):
            at = "empty" if newest is None else f"at batch {newest.batch_id}"
            raise Diverged(
                f"the query's table {self._url} is {at}, the checkpoint at {self._batch}: "
                "rows between them would be missing",
                hint="restore an epoch that the table has",
            )
        if self._is_here(newest):
            return None
        if not may_roll_back:
            raise self._diverged(newest)
        target = self._find(history)
        if not drop_others:
            keep_others(history, target, self._manifest.query.id)
        return target

    def roll_back(self, number: int) -> None:
        """Roll the table back to the checkpoint that ``plan`` found, as a recorded rollback."""
        if self._url is not None:
            CheckpointStore.open(self._url, self._options).rollback(number)

    def _check_start(self, newest: CheckpointManifest | None) -> None:
        """Before its first batch a query has nothing in the table. That batch is repeated, and replaced.

        Unless somebody else has written since: then it would be there twice.
        """
        if newest is None or self._url is None:
            return
        query_id = self._manifest.query.id
        batch_id = CkptSinkOutput(self._url, self._options).position(query_id).batch_id
        is_last = newest.query.id == query_id and newest.batch_id is not None
        since = "" if is_last else " of the query, and others have written to it since"
        if batch_id is not None and (batch_id > 0 or since):
            raise Diverged(
                f"the query's table {self._url} is at batch {batch_id}{since}, the checkpoint before the "
                "first: the query would write epochs again that the table has",
                hint="restore an epoch that the table has (ckpt list), or a clone for another table",
            )

    def _is_here(self, table: CheckpointManifest) -> bool:
        """Whether a checkpoint of the table ends with the very batch of the query's checkpoint."""
        return table.batch_id == self._batch and not self._differs(table)

    def _differs(self, table: CheckpointManifest) -> bool:
        """Whether it is of another query or other batches, as far as both are known."""
        ours, theirs = self._manifest.query.id, table.query.id
        if ours and theirs and ours != theirs:
            return True
        read, written = SourcePositions.of_manifest(self._manifest), SourcePositions.of_manifest(table)
        return bool(read) and bool(written) and read != written

    def _is_proven(self, table: CheckpointManifest) -> bool:
        """Whether both sides name the same query and the same offsets."""
        ours, read = self._manifest.query.id, SourcePositions.of_manifest(self._manifest)
        return (
            bool(ours)
            and ours == table.query.id
            and bool(read)
            and read == SourcePositions.of_manifest(table)
        )

    def _find(self, history: CheckpointStore) -> int:
        """The newest checkpoint of the table that ends with the batch."""
        has_epoch, unproven = False, None
        for number in reversed(history.list_ids()):
            table = history.load_by_id(number)
            if table is not None and table.batch_id == self._batch:
                if self._is_proven(table):
                    return number
                if unproven is None and not self._differs(table):
                    unproven = number
                has_epoch = True
        if unproven is not None:
            raise Diverged(
                f"the query's table {self._url} is not rolled back to batch {self._batch}: its checkpoint "
                "and the query's do not both say of which query and of which source offsets they are",
                hint=f"if it is the query's table: ckpt rollback {self._url} {unproven}, then restore "
                "again",
            )
        if has_epoch:
            raise Diverged(
                f"the query's table {self._url} has batch {self._batch} from other batches than the "
                "checkpoint's: it was rolled back since and has diverged, and no longer keeps this one",
                hint="restore a later checkpoint, of the table's own lineage, or a clone that writes to "
                "another table",
            )
        raise NoCheckpoint(
            f"the query's table {self._url} no longer keeps batch {self._batch}",
            hint="restore an epoch that the table has (ckpt list), or a clone that writes to another table",
        )

    def _diverged(self, newest: CheckpointManifest) -> Diverged:
        """The refusal of a table that would have to be rolled back."""
        if newest.batch_id == self._batch:
            problem = "from other batches: rows would be missing, and others duplicated"
            message = f"at batch {self._batch} as the checkpoint is, but {problem}"
        else:
            problem = "the query would write epochs again that the table has"
            message = f"at {_told(newest)}, the checkpoint at {self._batch}: {problem}"
        return Diverged(
            f"the query's table {self._url} is {message}",
            hint="roll the table back with it (sink=rollback, --sink rollback), or restore a clone "
            "that writes to another table",
        )


def _is_of(table: CheckpointManifest, query_id: str) -> bool:
    """Whether a checkpoint of a table is a batch of the query."""
    return table.query.id == query_id and table.batch_id is not None


def _named(table: CheckpointManifest) -> str:
    return f"checkpoint {table.checkpoint_id}, {_told(table)}"


def keep_others(history: CheckpointStore, target: int, query_id: str) -> None:
    """Refuse to undo what is not of the query after a checkpoint, and name it: a batch job, another query.

    What is damaged says nothing of who wrote it, and keeps nobody from going back.
    """
    others = []
    for number in reversed(history.list_ids()):
        if number <= target:
            break
        try:
            table = history.load_by_id(number)
        except UnknownVersion:
            raise
        except FormatError:
            continue
        if table is not None and table.kind in _WRITES_ROWS and not _is_of(table, query_id):
            others.append(_named(table))
    if others:
        raise Diverged(
            f"the table {history.store.url} has epochs that are not of this query, and would lose them "
            f"too: {listed(others)}",
            hint="if they may go: drop_others=True, --drop-others (it is recorded: ckpt rollback brings "
            "them back); else restore a clone that writes to another table",
        )


def _told(newest: CheckpointManifest) -> str:
    """How far a table is, in words: a batch job's epoch is no batch of any query."""
    return f"epoch {newest.epoch} of a batch job" if newest.batch_id is None else f"batch {newest.batch_id}"


class CkptSinkOutput(Output):
    """The table of a ckpt-sink, asked by query and batch. It goes back by a rollback of its own history."""

    kind = OutputKind.CKPT_SINK
    runs_skipped_batches = True

    def __init__(
        self,
        target: str,
        options: Mapping[str, str] | None = None,
        manifest: CheckpointManifest | None = None,
    ) -> None:
        """``manifest``: the query's checkpoint that is meant; a batch of other offsets is not its."""
        super().__init__(target)
        self._history = CheckpointStore.open(target, options)
        self._manifest = manifest

    def position(self, query_id: str) -> OutputPosition:
        """The newest batch of the query, whoever has written since, and the newest checkpoint."""
        newest = ""
        for table in self._newest_first():
            newest = newest or str(table.checkpoint_id)
            if table.query.id == query_id and table.batch_id is not None:
                return OutputPosition(table.batch_id, newest)
        return OutputPosition(None, newest)

    def plan_roll_back(self, query_id: str, batch_id: int) -> RollBackPlan | None:
        """Find the newest checkpoint of that very batch, and what was written after it, by whom."""
        position = self.position(query_id)
        if position.batch_id is None or position.batch_id <= batch_id:
            return None
        found, dropped, others = None, list[str](), list[str]()
        for table in self._newest_first():
            if self._is_batch(table, query_id, batch_id):
                found = table.checkpoint_id
                break
            if table.kind in _WRITES_ROWS:
                (dropped if _is_of(table, query_id) else others).append(_named(table))
        if found is None:
            raise Diverged(
                f"the {self} no longer keeps batch {batch_id} of query {query_id}",
                hint="go back to a batch that the table has (ckpt list), or write to another table",
            )
        return RollBackPlan(
            self.kind,
            self.target,
            query_id,
            batch_id,
            from_version=position.version,
            to_version=str(found),
            dropped=tuple(dropped),
            others=tuple(others),
        )

    def roll_back(self, plan: RollBackPlan) -> None:
        """Commit the content of that checkpoint again, as a recorded rollback."""
        newest = self._history.load_latest()
        if newest is None or str(newest.checkpoint_id) != plan.from_version:
            raise StaleAttempt(f"the {self} has a newer checkpoint since it was read", hint="plan it again")
        self._history.rollback(int(plan.to_version))

    def pin(self, name: str, query_id: str, batch_id: int) -> OutputPin | None:
        """Make a savepoint of the batch in the table's own history."""
        for table in self._newest_first():
            if self._is_batch(table, query_id, batch_id):
                self._history.savepoint(name, table.checkpoint_id)
                return OutputPin(str(table.checkpoint_id), is_kept=True)
        return None

    def unpin(self, name: str) -> None:
        """Remove that savepoint."""
        if any(point.name == name for point in self._history.savepoints()):
            self._history.remove_savepoint(name)

    def _newest_first(self) -> Iterator[CheckpointManifest]:
        for number in reversed(self._history.list_ids()):
            table = self._history.load_by_id(number)
            if table is not None:
                yield table

    def _is_batch(self, table: CheckpointManifest, query_id: str, batch_id: int) -> bool:
        if table.query.id != query_id or table.batch_id != batch_id:
            return False
        if self._manifest is None:
            return True
        read, written = SourcePositions.of_manifest(self._manifest), SourcePositions.of_manifest(table)
        return not read or not written or read == written
