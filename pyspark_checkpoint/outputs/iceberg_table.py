"""Iceberg tables: a snapshot of the streaming sink names its query and batch in its summary.

Read from the table's metadata files, without Spark, where they show which one is current: in a hadoop
catalog by ``version-hint.text``, in others by the highest number. Iceberg walks from the current snapshot
to its ancestors; once older snapshots have expired, it can no longer tell, and neither can we.
"""

from __future__ import annotations

import gzip
import re
from typing import Any

import orjson

from pyspark_checkpoint.errors import FormatError, NotFound
from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPosition
from pyspark_checkpoint.store.base import ObjectStore

METADATA = "metadata/"
HINT = f"{METADATA}version-hint.text"
QUERY_ID, EPOCH_ID = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
MAX_METADATA_BYTES = 256 << 20
_FILE = re.compile(
    r"metadata/(?:v(\d{1,18})|(\d{1,18})-[^/]*?)(?:\.gz)?\.metadata\.json(?:\.gz)?\Z", re.ASCII
)


class IcebergOutput(Output):
    """An Iceberg table at a path."""

    kind = OutputKind.ICEBERG
    runs_skipped_batches = True

    def __init__(self, target: str, store: ObjectStore) -> None:
        """``store`` is opened at the table's location."""
        super().__init__(target)
        self._store = store

    def position(self, query_id: str) -> OutputPosition:
        """The batch of the newest ancestor that the query wrote, and the current snapshot."""
        metadata = self._current()
        if metadata is None:
            return OutputPosition(None)
        try:
            by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
            current = metadata.get("current-snapshot-id")
            number = None if current in (None, -1) else current
            version = "" if number is None else str(number)
            while number is not None:
                snapshot = by_id.get(number)
                if snapshot is None:
                    return OutputPosition(None, version, is_known=False)
                summary = snapshot.get("summary", {})
                if summary.get(QUERY_ID) == query_id:
                    return OutputPosition(int(summary[EPOCH_ID]), version)
                number = snapshot.get("parent-snapshot-id")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._damaged("its metadata lacks a field") from None
        return OutputPosition(None, version)

    def ancestors(self) -> tuple[int, ...]:
        """The current snapshot and those before it that the metadata still has, newest first."""
        metadata = self._current() or {}
        try:
            before = {each["snapshot-id"]: each.get("parent-snapshot-id") for each in metadata["snapshots"]}
        except (KeyError, TypeError, AttributeError):
            return ()
        found, number = list[int](), metadata.get("current-snapshot-id")
        while number is not None and number in before and number not in found:
            found.append(number)
            number = before[number]
        return tuple(found)

    def _current(self) -> dict[str, Any] | None:
        files: dict[int, str] = {}
        for info in self._store.list(METADATA):
            if found := _FILE.match(info.key):
                files[int(found[1] or found[2])] = info.key
        if not files:
            return None
        key = files.get(self._hint() or -1, files[max(files)])
        data = self._store.read(key, max_bytes=MAX_METADATA_BYTES).data
        try:
            metadata = orjson.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        except (orjson.JSONDecodeError, OSError, EOFError):
            raise self._damaged(f"{key} is not JSON") from None
        if not isinstance(metadata, dict):
            raise self._damaged(f"{key} is not an object")
        return metadata

    def _hint(self) -> int | None:
        """The version that a hadoop catalog says is current, or a later one if the hint lags behind."""
        try:
            text = self._store.read(HINT, max_bytes=64).data.strip()
        except NotFound:
            return None
        if not text.isdigit():
            return None
        number = int(text)
        while True:
            try:
                self._store.head(f"{METADATA}v{number + 1}.metadata.json")
            except NotFound:
                return number
            number += 1

    def _damaged(self, reason: str) -> FormatError:
        return FormatError(
            f"the Iceberg table {self.target} cannot be read: {reason}",
            hint="repair the table before its query goes on",
        )
