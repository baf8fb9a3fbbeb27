"""Spark's file sink: parquet, ORC, JSON, CSV and text below a path, with a log in ``_spark_metadata``.

The log has one entry a batch, named by its number; every tenth is ``N.compact`` and holds all before it.
The sink is not keyed by the query: whoever writes batch N to the path when the log has N is dropped,
without its plan being run.
"""

from __future__ import annotations

import re

from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPosition
from pyspark_checkpoint.store.base import ObjectStore

LOG = "_spark_metadata/"
_ENTRY = re.compile(r"_spark_metadata/(\d{1,18})(?:\.compact)?\Z", re.ASCII)


class FileSinkOutput(Output):
    """A directory that Spark's file sink writes to."""

    kind = OutputKind.FILE
    runs_skipped_batches = False

    def __init__(self, target: str, store: ObjectStore) -> None:
        """``store`` is opened at the sink's path."""
        super().__init__(target)
        self._store = store

    def position(self, query_id: str) -> OutputPosition:  # noqa: ARG002 - the log knows no queries
        """The newest entry of the log, whichever query wrote it: that is what the sink compares with."""
        numbers = [int(found[1]) for info in self._store.list(LOG) if (found := _ENTRY.match(info.key))]
        newest = max(numbers, default=None)
        return OutputPosition(newest, "" if newest is None else str(newest))
