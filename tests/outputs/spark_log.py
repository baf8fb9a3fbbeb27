"""The log of Spark's file sink as Spark writes and reads it, in little: ``CompactibleFileStreamLog``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark_checkpoint.store.base import ObjectStore

LOG = "_spark_metadata/"


@dataclass
class SparkLog:
    """What a query does that starts afresh before each batch. ``retain`` is ``minBatchesToRetain``."""

    store: ObjectStore
    usual_interval: int = 10
    retain: int = 100
    written: int = 0

    def add(self, batch_id: int, files: int = 2) -> None:
        """Write a batch as the sink does, unless the log has it; then delete what has expired."""
        if batch_id <= max(self.numbers(), default=-1):
            return
        interval = self.interval()
        lines = [self._write_file(batch_id) for _ in range(files)]
        name = str(batch_id)
        if (batch_id + 1) % interval == 0:
            name = f"{batch_id}.compact"
            before = range(max(0, batch_id - interval), batch_id)
            lines = [line for number in before for line in self._lines(number, interval)] + lines
        self.store.put(f"{LOG}{name}", "\n".join(["v1", *lines]).encode(), if_absent=True)
        least = batch_id + 1 - self.retain
        if interval <= least:
            oldest = least - least % interval - 1
            self.store.delete([key for key in self.keys() if _number(key) < oldest])

    def run(self, batches: range) -> None:
        """Write these batches; every fourth has no rows."""
        for batch_id in batches:
            self.add(batch_id, files=0 if batch_id % 4 == 3 else 2)

    def files(self) -> list[str]:
        """What a reader of the directory finds."""
        newest = max(self.numbers(), default=-1)
        interval = self.interval()
        first = max(0, (newest + 1) // interval * interval - 1)
        lines = [line for number in range(first, newest + 1) for line in self._lines(number, interval)]
        return [json.loads(line)["path"].removeprefix(f"{self.store.url}/") for line in lines]

    def there(self) -> list[str]:
        """The files of rows that are there."""
        return [info.key for info in self.store.list() if info.key.endswith(".parquet")]

    def keys(self) -> list[str]:
        """The log by file."""
        keys = [info.key for info in self.store.list(LOG)]
        return [key for key in keys if not key.endswith(".crc")]

    def numbers(self) -> list[int]:
        """The batches in the log."""
        return [_number(key) for key in self.keys()]

    def interval(self) -> int:
        """``compactInterval``."""
        found = sorted((_number(key) for key in self.keys() if key.endswith(".compact")), reverse=True)
        if len(found) >= 2:
            return found[0] - found[1]
        usual = self.usual_interval
        if not found:
            return usual
        if usual < (found[0] + 1) // 2:
            return next(n for n in range(usual, found[0] + 2) if (found[0] + 1) % n == 0)
        return found[0] + 1

    def _lines(self, number: int, interval: int) -> list[str]:
        suffix = ".compact" if (number + 1) % interval == 0 else ""
        version, *lines = self.store.get(f"{LOG}{number}{suffix}").decode().split("\n")
        assert version == "v1"
        return lines

    def _write_file(self, batch_id: int) -> str:
        self.written += 1
        key = f"day={batch_id // 7}/part-{batch_id:05d}-{self.written:05d}.parquet"
        self.store.put(key, b"rows", if_absent=True)
        return json.dumps(
            {
                "path": f"{self.store.url}/{key}",
                "size": 4,
                "isDir": False,
                "modificationTime": 1,
                "blockReplication": 1,
                "blockSize": 1,
                "action": "add",
            }
        )


def _number(key: str) -> int:
    return int(key.removeprefix(LOG).removesuffix(".compact"))
