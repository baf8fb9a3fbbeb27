"""Captures that take longer than Spark keeps its files, on locations made by hand. Needs no Spark."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyspark_checkpoint.capture import upload
from pyspark_checkpoint.capture import upload_plan as uploads
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.versions import FileFacts
from tests.support.made_location import QUERY_ID, MadeLocation, open_capture

RETAIN = 10
PARTITIONS = 16
HOUR_MS = 3600 * 1000


@dataclass
class RunningQuery:
    """Writes a snapshot a batch and partition, and removes what is older than Spark keeps it.

    ``tables``: as RocksDB does, whose snapshots name a large file that stays the same for all batches.
    """

    path: Path
    tables: bool
    batch: int = -1
    reads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}]
        info = {
            "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
            "stateStoreInfo": stores,
        }
        self._write("metadata", json.dumps({"id": QUERY_ID}).encode())
        self._write("state/0/_metadata/metadata", b"v1\n" + json.dumps(info).encode())
        for partition in range(PARTITIONS) if self.tables else ():
            self._write(f"state/0/{partition}/SSTs/000008-{partition:04d}.sst", bytes([partition]) * 3000)
        for _ in range(3):
            self.run()

    def run(self) -> None:
        """One more batch."""
        self.batch += 1
        batch, old = self.batch, self.batch - RETAIN
        conf = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
        head = {"batchWatermarkMs": 0, "batchTimestampMs": batch, "conf": conf}
        self._write(f"offsets/{batch}", f'v1\n{json.dumps(head)}\n{{"t":{batch}}}'.encode())
        kind = "zip" if self.tables else "snapshot"
        for partition in range(PARTITIONS):
            data = self._zip(partition) if self.tables else bytes([batch % 251]) * 3000
            self._write(f"state/0/{partition}/{batch + 1}.{kind}", data)
            if old >= 0:
                (self.path / f"state/0/{partition}/{old + 1}.{kind}").unlink()
        self._write(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        for log in ("offsets", "commits"):
            (self.path / log / str(old - 1)).unlink(missing_ok=True)

    def _zip(self, partition: int) -> bytes:
        name = f"000008-{partition:04d}.sst"
        files = [{"localSstFileName": "000008.sst", "dfsSstFileName": name, "sizeBytes": 3000}]
        told, target = {"sstFiles": files, "logFiles": [], "numKeys": self.batch}, io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps(told))
        return target.getvalue()

    def _write(self, name: str, data: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class LiveLocation(CheckpointLocation):
    """A location whose query runs a batch while one large file of it is read."""

    def __init__(self, query: RunningQuery) -> None:
        spec = LocationSpec(str(query.path))
        super().__init__(spec, spec.open().store)
        self._query = query

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        """The bytes; by then a batch is over."""
        data = super().read(path, facts)
        if path.endswith(".sst" if self._query.tables else ".snapshot"):
            self._query.reads.append(path)
            self._query.run()
        return data


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All state is large: a group for each partition, a file at a time."""
    monkeypatch.setattr(uploads.plan_uploads, "__kwdefaults__", {"group_bytes": 3500})
    monkeypatch.setattr(upload, "READ_CONCURRENCY", 1)


def capturing(query: RunningQuery, url: str) -> tuple[CheckpointStore, QueryCapture]:
    """What captures the query, into a store that has nothing yet."""
    info = QueryInfo(id=QUERY_ID, checkpoint_location=str(query.path))
    history = CheckpointStore.open(url, query=info)
    run = history.writer()
    run.claim()
    return history, QueryCapture(
        LiveLocation(query), run, QueryFacts(info, history.run_id, ("s",), "x", "")
    )


def rounds(capture: QueryCapture, times: int) -> tuple[CheckpointManifest | None, list[str]]:
    """Capture the newest batch until that works; what each failure said."""
    said: list[str] = []
    for _ in range(times):
        try:
            return capture.capture(capture.newest_committed()), said
        except RefusedError as error:
            said.append(str(error))
    return None, said


def objects(url: str) -> int:
    """How many objects are staged, of this number or another."""
    return sum(path.is_file() for path in Path(url, "checkpoints").rglob("*"))


def test_staged_files_that_cannot_change_are_reused(url: str, tmp_path: Path) -> None:
    """A first capture that Spark overtakes goes on where it was, and ends; each large file is sent once."""
    query = RunningQuery(tmp_path / "location", tables=True)
    history, capture = capturing(query, url)
    made, said = rounds(capture, 4)
    assert made is not None, said
    assert said, "Spark was faster once"
    assert len(query.reads) < 2 * PARTITIONS - 5, (
        "only what was under way when a file was gone is read again"
    )
    assert list(history.verify()) == []
    report = restore(url, str(tmp_path / "fresh"), clone=True)
    tables = sorted((tmp_path / "fresh").rglob("*.sst"))
    assert report.epoch == made.epoch and len(tables) == PARTITIONS
    assert all(path.read_bytes() == bytes([int(path.parents[1].name)]) * 3000 for path in tables)


def test_a_capture_slower_than_sparks_purge_says_what_to_set(url: str, tmp_path: Path) -> None:
    """Nothing of one batch serves another: it cannot end, and the same words say so each time."""
    query = RunningQuery(tmp_path / "location", tables=False)
    history, capture = capturing(query, url)
    made, said = rounds(capture, 4)
    assert made is None and history.list_ids() == []
    assert all("spark.sql.streaming.minBatchesToRetain" in text for text in said[2:])
    assert said[2] == said[3], "a text that does not change is logged once"


@pytest.mark.parametrize("has_head", [False, True], ids=["the first number", "a later number"])
def test_leftovers_of_a_capture_that_never_ends_are_collected(
    url: str, tmp_path: Path, has_head: bool
) -> None:
    """Although their number is not taken: whoever staged them has said that he gives them up."""
    query = RunningQuery(tmp_path / "location", tables=False)
    history, capture = capturing(query, url)
    if has_head:
        before = LocationSpec(str(query.path)).open()
        QueryCapture(before, capture.run, capture.facts).capture()
        query.run()
    kept = objects(url)
    rounds(capture, 2)
    left = objects(url) - kept
    assert left > RETAIN
    young = history.plan_cleanup()
    assert young.keys == () and young.young_count == left, "the grace period holds for them too"
    assert history.cleanup_orphans(grace_ms=-HOUR_MS) == left
    assert objects(url) == kept
    assert list(history.verify()) == []


def test_leftovers_of_a_checkpoint_that_is_refused_before_it_is_sent_are_collected(
    url: str, tmp_path: Path
) -> None:
    """All is uploaded, and the history refuses a batch before its head's: no manifest is on its way."""
    made = MadeLocation(tmp_path / "location").commit(0, 1, 2)
    capture = open_capture(made, url)
    assert capture.capture(2) is not None
    kept = objects(url)
    (made.path / "state/0/0/2.delta").write_bytes(made.new_state(40_001))
    with pytest.raises(RefusedError, match="epoch 1"):
        capture.capture(1)
    left = objects(url) - kept
    assert left > 0
    assert CheckpointStore.open(url).cleanup_orphans(grace_ms=-HOUR_MS) == left
    assert objects(url) == kept


def test_what_a_capture_still_uses_is_not_collected(url: str, tmp_path: Path) -> None:
    """Files that it will name again are not given up, whatever the grace period."""
    query = RunningQuery(tmp_path / "location", tables=True)
    history, capture = capturing(query, url)
    _, said = rounds(capture, 1)
    assert said and history.list_ids() == []
    history.cleanup_orphans(grace_ms=-HOUR_MS)
    made, _ = rounds(capture, 4)
    assert made is not None
    assert list(history.verify()) == []
