"""Checkpoint locations made by hand, as Spark lays them out: what needs no Spark is tested without it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Self

QUERY_ID = "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11"
_PARTITIONS = 2
_CONF = {"spark.sql.shuffle.partitions": str(_PARTITIONS)}


@dataclass
class MadeLocation:
    """The checkpoint location of an aggregation in two partitions, HDFS-backed, that never ran.

    Args:
        path: The directory, which is made. One that has batches already is gone on with.
        query_id: The id in its ``metadata``.
        state_bytes: The size of each state file.
        seed: Another one makes other bytes: the same batches of another run.
    """

    path: Path
    query_id: str = QUERY_ID
    state_bytes: int = 40_000
    seed: int = 7
    _written: count[int] = field(default_factory=count, init=False, repr=False)

    def __post_init__(self) -> None:
        self._write("metadata", json.dumps({"id": self.query_id}))
        info = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [
                {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": _PARTITIONS}
            ],
        }
        self._write("state/0/_metadata/metadata", "v1\n" + json.dumps(info))

    def commit(self, *batch_ids: int) -> Self:
        """Write what Spark writes for these batches: offsets, state, and the commit last."""
        for batch_id in batch_ids:
            self.plan(batch_id)
            for partition in range(_PARTITIONS):
                self._write(f"state/0/{partition}/{batch_id + 1}.delta", self.new_state())
            self._write(f"commits/{batch_id}", f'v1\n{{"nextBatchWatermarkMs":{batch_id * 1000}}}')
        return self

    def plan(self, batch_id: int, *sources: str) -> Self:
        """Write what Spark writes before it runs a batch: the offsets of its sources, which are JSON."""
        head = {"batchWatermarkMs": 0, "batchTimestampMs": batch_id, "conf": _CONF}
        ends = sources or (f'{{"topic":{{"0":{batch_id}}}}}',)
        self._write(f"offsets/{batch_id}", "\n".join(("v1", json.dumps(head), *ends)))
        return self

    def needed(self, batch_id: int) -> dict[str, bytes]:
        """What a location restored at ``batch_id`` must consist of, byte by byte, by name."""
        state = [f"state/0/{p}/{v}.delta" for p in range(_PARTITIONS) for v in range(1, batch_id + 2)]
        logs = ["metadata", f"offsets/{batch_id}", f"commits/{batch_id}", "state/0/_metadata/metadata"]
        before = [f"offsets/{batch_id - 1}"] if batch_id > 0 else []
        return {name: (self.path / name).read_bytes() for name in (*state, *logs, *before)}

    def new_state(self, size_bytes: int | None = None) -> bytes:
        """Bytes that do not compress, as many as a state file has by default; other ones at each call."""
        size = self.state_bytes if size_bytes is None else size_bytes
        return hashlib.shake_256(f"{self.seed} {next(self._written)}".encode()).digest(size)

    def _write(self, name: str, data: str | bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
