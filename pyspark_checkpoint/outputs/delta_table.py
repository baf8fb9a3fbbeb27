"""Delta tables: a commit of Delta's streaming sink carries ``txn``, the query's id and its batch.

Read from the table's log, without Spark: commits from the newest one back, then the newest checkpoint of
the log, which holds the ``txn`` of every application. Spark does not run the plan of a batch that the sink
drops, so that a stateful query loses state too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import orjson

from pyspark_checkpoint.errors import FormatError, Unsupported
from pyspark_checkpoint.outputs.output import Output, OutputKind, OutputPosition
from pyspark_checkpoint.store.base import ObjectStore

LOG = "_delta_log/"
MAX_CHECKPOINT_BYTES = 512 << 20
_COMMIT = re.compile(r"_delta_log/(\d{20})\.json\Z", re.ASCII)
_CHECKPOINT = re.compile(
    r"_delta_log/(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)\Z", re.ASCII
)


class DeltaOutput(Output):
    """A Delta table at a path."""

    kind = OutputKind.DELTA
    runs_skipped_batches = False

    def __init__(self, target: str, store: ObjectStore) -> None:
        """``store`` is opened at the table's path."""
        super().__init__(target)
        self._store = store

    def position(self, query_id: str) -> OutputPosition:
        """The newest ``txn`` of the query, and the table's version."""
        commits, checkpoints = self._log()
        if not commits and not checkpoints:
            return OutputPosition(None)
        base = max(checkpoints, default=-1)
        newest = max(commits, default=base)
        later = [number for number in commits if number > base]
        if len(later) != newest - base:
            raise FormatError(
                f"the log of Delta table {self.target} has a gap below version {newest}",
                hint="a commit file is missing: repair the table before its query goes on",
            )
        for number in sorted(later, reverse=True):
            batch = _last_transaction(self._lines(f"{LOG}{number:020d}.json"), query_id)
            if batch is not None:
                return OutputPosition(batch, str(newest))
        return OutputPosition(self._in_checkpoint(checkpoints.get(base, ()), query_id), str(newest))

    def _log(self) -> tuple[set[int], dict[int, tuple[str, ...]]]:
        """The versions that have a commit file, and the files of each whole checkpoint of the log."""
        commits, found, parts = set(), dict[int, tuple[str, ...]](), dict[int, int]()
        for info in self._store.list(LOG):
            if commit := _COMMIT.match(info.key):
                commits.add(int(commit[1]))
            elif checkpoint := _CHECKPOINT.match(info.key):
                number = int(checkpoint[1])
                if checkpoint[3] is None:
                    found[number], parts[number] = (info.key,), 1
                elif parts.get(number) != 1:
                    found[number] = (*found.get(number, ()), info.key)
                    parts[number] = int(checkpoint[3])
        return commits, {number: keys for number, keys in found.items() if len(keys) == parts[number]}

    def _lines(self, key: str) -> Iterator[bytes]:
        rest = b""
        for chunk in self._store.stream(key):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        yield rest

    def _in_checkpoint(self, keys: tuple[str, ...], query_id: str) -> int | None:
        found = None
        for key in keys:
            if key.endswith(".json"):
                batch = _last_transaction(self._lines(key), query_id)
            else:
                batch = self._in_parquet(key, query_id)
            found = batch if batch is not None else found
        return found

    def _in_parquet(self, key: str, query_id: str) -> int | None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - most questions are answered by the newest commit

        size = self._store.head(key).size_bytes
        if size > MAX_CHECKPOINT_BYTES:
            raise Unsupported(
                f"the checkpoint of Delta table {self.target} has {size} bytes",
                hint="let Delta write a newer commit with this query, or look up its txn with Spark",
            )
        try:
            rows = pq.read_table(io.BytesIO(self._store.get(key)), columns=["txn"]).column("txn")
        except (ValueError, KeyError, OSError) as error:
            raise FormatError(
                f"{key} of Delta table {self.target} cannot be read ({type(error).__name__})",
                hint="repair the table before its query goes on",
            ) from None
        found = [row for row in rows.to_pylist() if row is not None and row.get("appId") == query_id]
        return max((int(row["version"]) for row in found), default=None)


def _last_transaction(lines: Iterator[bytes], query_id: str) -> int | None:
    found = None
    for line in lines:
        if b'"txn"' not in line:
            continue
        try:
            action = orjson.loads(line).get("txn")
        except (orjson.JSONDecodeError, AttributeError):
            raise FormatError(
                "a commit of a Delta table is not JSON", hint="repair the table before its query goes on"
            ) from None
        if (
            isinstance(action, dict)
            and action.get("appId") == query_id
            and type(action.get("version")) is int
        ):
            found = action["version"]
    return found
