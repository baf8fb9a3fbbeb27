"""Checkpoint locations made by hand, as Spark lays them out: what needs no Spark is tested without it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.run import HeadCheck
from pyspark_checkpoint.listener.checkpointer import QueryCapture, Uploader
from pyspark_checkpoint.spark_files.location import LocationSpec

QUERY_ID = "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11"
CONF = {"spark.sql.shuffle.partitions": "2"}


@dataclass
class MadeLocation:
    """The checkpoint location of an aggregation in two partitions, HDFS-backed, that never ran."""

    path: Path
    query_id: str = QUERY_ID
    state_bytes: int = 40_000
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self._write("metadata", json.dumps({"id": self.query_id}))
        info = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
        }
        self._write("state/0/_metadata/metadata", "v1\n" + json.dumps(info))

    def commit(self, *batches: int) -> MadeLocation:
        """Write what Spark writes for these batches."""
        for batch in batches:
            head = {"batchWatermarkMs": 0, "batchTimestampMs": batch, "conf": CONF}
            self._write(f"offsets/{batch}", "v1\n" + json.dumps(head) + f'\n{{"topic":{{"0":{batch}}}}}')
            for partition in range(2):
                data = self.chance.randbytes(self.state_bytes)
                self._write(f"state/0/{partition}/{batch + 1}.delta", data)
            self._write(f"commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{batch * 1000}}}')
        return self

    def _write(self, name: str, data: str | bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def open_capture(
    location: MadeLocation,
    url: str,
    options: dict[str, str] | None = None,
    *,
    sink: str = "test",
    run_id: str | None = None,
    instance_id: str = "",
    uploader: Uploader | None = None,
    check: HeadCheck | None = None,
) -> QueryCapture:
    """What captures a location, as a listener has it; the store is claimed."""
    info = QueryInfo(id=location.query_id, checkpoint_location=str(location.path), spark_version="4.3.0")
    history = CheckpointStore.open(url, options, query=info, run_id=run_id, instance_id=instance_id)
    run = history.writer()
    run.claim(check)
    facts = QueryFacts(info, history.run_id, ("source",), sink, "update")
    return QueryCapture(LocationSpec(str(location.path)).open(), run, facts, uploader, check=check)


def capture(
    location: MadeLocation,
    url: str,
    *epochs: int,
    options: dict[str, str] | None = None,
    sink: str = "test",
) -> list[CheckpointManifest]:
    """Capture these epochs; all of them are new."""
    capturer = open_capture(location, url, options, sink=sink)
    made = [capturer.capture(epoch) for epoch in epochs]
    return [manifest for manifest in made if manifest is not None]


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def needed(location: MadeLocation, epoch: int) -> dict[str, bytes]:
    """What a location restored at ``epoch`` must consist of, byte by byte."""
    state = [f"state/0/{p}/{v}.delta" for p in range(2) for v in range(1, epoch + 2)]
    logs = ["metadata", f"offsets/{epoch}", f"commits/{epoch}", "state/0/_metadata/metadata"]
    before = [f"offsets/{epoch - 1}"] if epoch > 0 else []
    return {name: (location.path / name).read_bytes() for name in (*state, *logs, *before)}
