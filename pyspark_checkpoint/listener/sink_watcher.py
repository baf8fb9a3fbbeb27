"""A query whose ckpt-sink commits its state with its rows: nothing is left to upload. Needs no Spark.

Such a query is watched like any other, so that ``statuses`` shows it; and the newest checkpoint of its
table is sealed when the query is idle, so that a restore continues after its batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark_checkpoint.capture.commit_log import seal_head
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.capture.sink_description import sink_store_url
from pyspark_checkpoint.errors import CheckpointError, Denied, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.spark_files.location import CheckpointLocation
from pyspark_checkpoint.spark_files.names import OFFSETS

_LOG = logging.getLogger(__name__)
_BY_A_BATCH = (ManifestKind.EPOCH, ManifestKind.REPLACEMENT)


class Captures(Protocol):
    """What makes, or watches, the checkpoints of one run of one query."""

    facts: QueryFacts

    def newest_committed(self) -> int | None:
        """The newest epoch that there can be a checkpoint of; None before the first one."""

    def capture(self, batch_id: int | None = None) -> CheckpointManifest | None:
        """The checkpoint of a batch, the newest by default."""

    def prepare(self) -> None:
        """Bring to the store what the checkpoint of the newest batch needs, all but its manifest."""

    def capture_planned(
        self, batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        """The checkpoint of the batch before ``batch``, with the plan of that, which waits for it.

        ``on_durable`` may be called as soon as it is in the store; when this returns, it is.
        """


class TableQuery:
    """A query that writes to a ckpt-sink. Reports and seals what the sink commits with its state.

    Whether the sink does commit state is known from the first batch of the run. If it does not, the
    query is captured as any other, by what ``begin`` gives.
    """

    def __init__(
        self,
        facts: QueryFacts,
        location: CheckpointLocation,
        table: CheckpointStore,
        begin: Callable[[], Captures],
    ) -> None:
        self.facts = facts
        self._location = location
        self._table = table
        self._begin = begin
        self._own: Captures | None = None
        self._other: Captures | None = None
        self._seen: int | None = None

    def newest_committed(self) -> int | None:
        """The newest epoch of the table, which is sealed when the query is idle."""
        if self._other is None:
            newest = self._find_newest()
            if self._other is None:
                return None if newest is None else newest.epoch
        self._other.facts = self.facts
        return self._other.newest_committed()

    def capture(self, batch_id: int | None = None) -> CheckpointManifest | None:
        """The table's newest checkpoint, which its query has made itself."""
        return self._find_newest() if self._other is None else self._other.capture(batch_id)

    def prepare(self) -> None:
        """Nothing to do where the sink commits state."""
        if self._other is not None:
            self._other.facts = self.facts
            self._other.prepare()

    def capture_planned(
        self, batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        """Nothing to do where the sink commits state: the plan of a batch is in the commit of its rows.

        Whether it does is not known before batch 0 is committed: its plan is brought to the query's own
        history, as for any other sink.
        """
        newest = self._find_newest() if self._other is None else None
        if newest is not None:
            return newest
        capture = self._captures()
        if batch > 0:
            self._other = capture
        capture.facts = self.facts
        return capture.capture_planned(batch, offsets, on_durable)

    def _captures(self) -> Captures:
        """What captures the query itself; the history is claimed once."""
        if self._own is None:
            self._own = self._other or self._begin()
        return self._own

    def _find_newest(self) -> CheckpointManifest | None:
        try:
            newest = self._table.load_latest()
        except (Denied, SettingsError) as error:
            _LOG.warning("query %s: its table cannot be read: %s", self.facts.query.id, error)
            self._other = self._captures()
            return None
        if newest is None or newest.query.id != self.facts.query.id:
            return None
        record = newest.state
        if record is None:
            if newest.run_id == self.facts.run_id and newest.kind in _BY_A_BATCH:
                self._other = self._captures()
            return None
        self._seal_if_idle(newest, record.batch_id)
        return newest

    def _seal_if_idle(self, newest: CheckpointManifest, batch: int) -> None:
        """Seal when no next batch has begun, or when nothing has changed since the last call."""
        is_same, self._seen = self._seen == newest.checkpoint_id, newest.checkpoint_id
        if not is_same and max(self._location.listing(OFFSETS).offsets, default=-1) > batch:
            return
        try:
            seal_head(self._table, self._location)
        except CheckpointError as error:
            _LOG.info("query %s: its newest checkpoint is not sealed: %s", self.facts.query.id, error)


def watch_query(
    facts: QueryFacts,
    location: CheckpointLocation,
    options: Mapping[str, str] | None,
    begin: Callable[[], Captures],
) -> Captures:
    """What captures a query: ``begin``, or, for a ckpt-sink, what watches its table first."""
    url = sink_store_url(facts.sink)
    if url is None:
        return begin()
    return TableQuery(facts, location, CheckpointStore.open(url, options), begin)


def find_table_checkpoint(
    table_url: str, query_id: str, options: Mapping[str, str] | None
) -> CheckpointManifest | None:
    """The newest checkpoint of a table that has the state of this query; None if it has none."""
    newest = CheckpointStore.open(table_url, options).load_latest()
    if newest is None or newest.query.id != query_id or newest.state is None:
        return None
    return newest
