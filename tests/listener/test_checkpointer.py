"""What happens to a location, or to its history, while it is captured. No Spark."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import FencedError, RefusedError
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.format.manifest_parts import PlannedBatch
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.versions import FileFacts
from tests.support.made_location import MadeLocation, contents, needed, open_capture


class Changing(CheckpointLocation):
    """A location in which something happens right before a file is read for the n-th time."""

    def __init__(self, inner: CheckpointLocation, name: str, happens: Callable[[], None], nth: int) -> None:
        super().__init__(inner.spec, inner.store)
        self._name = name
        self._happens = happens
        self._left = nth

    def read(self, path: str, facts: FileFacts | None = None) -> bytes:
        if path == self._name:
            self._left -= 1
            if self._left == 0:
                self._happens()
        return super().read(path, facts)


def changing(capturer: QueryCapture, name: str, happens: Callable[[], None], nth: int = 1) -> QueryCapture:
    """The same capture of a location that changes under its eyes."""
    location = Changing(capturer.location, name, happens, nth)
    return QueryCapture(location, capturer.run, capturer.facts)


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


def snapshot(made: MadeLocation, version: int) -> None:
    """What maintenance does: a snapshot, and what is older than it goes."""
    for partition in range(2):
        place = made.path / f"state/0/{partition}"
        (place / f"{version}.snapshot").write_bytes(made.new_state(5_000))
        for old in range(1, version + 1):
            (place / f"{old}.delta").unlink()


def test_files_purged_between_plan_and_upload_start_the_capture_over(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Maintenance has made a snapshot and removed what the plan wanted: the snapshot is taken."""
    capturer = changing(open_capture(made, url), "state/0/1/2.delta", lambda: snapshot(made, 2))
    manifest = capturer.capture(2)
    assert manifest is not None
    names = {
        ref.name for part in manifest.operators["0-stateStoreSave"].partitions for ref in part.artifacts
    }
    assert names == {"2.snapshot", "3.delta"}
    restore(url, str(tmp_path / "fresh"))
    for partition in range(2):
        path = f"state/0/{partition}/2.snapshot"
        assert (tmp_path / "fresh" / path).read_bytes() == (made.path / path).read_bytes()


def test_a_file_rewritten_between_plan_and_upload_is_captured_as_rewritten(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Format version 1 uses names again. A speculative task was late: its bytes are the ones that count."""
    path = made.path / "state/0/0/3.delta"

    def again() -> None:
        path.write_bytes(made.new_state(40_001))

    assert changing(open_capture(made, url), "state/0/0/3.delta", again).capture(2) is not None
    restore(url, str(tmp_path / "fresh"))
    assert contents(tmp_path / "fresh") == needed(made, 2)


def zipped(*tables: str) -> bytes:
    """A snapshot of RocksDB that needs these files; equally long for equally long names."""
    fields = {"sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": name} for name in tables]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("metadata"), "v1\n" + json.dumps(fields))
    return buffer.getvalue()


@dataclass
class RocksLocation(MadeLocation):
    """The same with RocksDB: a snapshot a partition, and the table that it needs."""

    def commit(self, *batches: int) -> RocksLocation:
        super().commit(*batches)
        for partition in range(2):
            place = self.path / f"state/0/{partition}"
            for delta in place.glob("*.delta"):
                delta.unlink()
            self.upload(partition, max(batches) + 1, "a")
        return self

    def upload(self, partition: int, version: int, table: str) -> None:
        """What an executor does: its own table file, and the snapshot that names it, over any other."""
        self._write(f"state/0/{partition}/SSTs/{table}.sst", self.new_state(9_000))
        self._write(f"state/0/{partition}/{version}.zip", zipped(f"{table}.sst"))


@pytest.mark.parametrize("keeps_time", [False, True])
def test_a_snapshot_of_rocksdb_and_the_files_it_names_are_of_one_upload(
    url: str, tmp_path: Path, keeps_time: bool
) -> None:
    """Another executor uploads the same version meanwhile, with other tables and as many bytes."""
    made = RocksLocation(tmp_path / "location").commit(0)
    path = made.path / "state/0/1/1.zip"

    def again() -> None:
        before = path.stat()
        made.upload(1, 1, "b")
        assert path.stat().st_size == before.st_size
        if keeps_time:
            os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))

    assert changing(open_capture(made, url), "state/0/1/1.zip", again, nth=2).capture(0) is not None
    restore(url, str(tmp_path / "fresh"))
    found = contents(tmp_path / "fresh" / "state/0/1")
    with zipfile.ZipFile(io.BytesIO(found["1.zip"])) as archive:
        named = json.loads(archive.read("metadata").split(b"\n")[1])["sstFiles"][0]["dfsSstFileName"]
    assert f"SSTs/{named}" in found, "the snapshot and its table are of two uploads"


def test_two_listeners_of_one_run_make_one_history(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """Both have the run's own right to write; whoever is second plans again, and nothing is there twice."""
    one, two = open_capture(made, url, run_id="run"), open_capture(made, url, run_id="run")
    assert one.capture(0) is not None
    assert two.capture(1) is not None
    assert one.capture(1) is not None
    assert one.capture(2) is not None
    assert two.capture(2) is not None
    history = CheckpointStore.open(url)
    assert [epoch for _, epoch in history.list()] == [0, 1, 2]
    assert list(history.verify()) == []
    restore(url, str(tmp_path / "fresh"))
    assert contents(tmp_path / "fresh") == needed(made, 2)


def test_a_batch_without_its_commit_is_not_captured(made: MadeLocation, url: str) -> None:
    """Its state files may be written again; also if the commit goes while it is looked at."""
    (made.path / "commits/2").unlink()
    capturer = open_capture(made, url)
    assert capturer.newest_committed() == 1
    with pytest.raises(RefusedError, match="batch 2 is not committed"):
        capturer.capture(2)
    assert CheckpointStore.open(url).load_latest() is None


def test_a_location_without_batches_is_a_failure_once_spark_has_finished_some(
    tmp_path: Path, url: str
) -> None:
    """Another endpoint, another disk: nothing would ever be captured, and nobody would know."""
    capturer = open_capture(MadeLocation(tmp_path / "elsewhere"), url)
    assert capturer.newest_committed() is None
    capturer.facts = replace(capturer.facts, finished_batch=4)
    with pytest.raises(RefusedError, match="not the location that Spark writes to"):
        capturer.newest_committed()


def undescribed(capturer: QueryCapture) -> QueryCapture:
    """The same before the first event of the run has come: sources are not known."""
    capturer.facts = replace(capturer.facts, sources=())
    return capturer


def test_a_restart_without_new_batches_keeps_the_description(made: MadeLocation, url: str) -> None:
    """Its first look comes before the first event: what the run before knew of the sources still holds."""
    first = open_capture(made, url).capture(2)
    assert first is not None
    again = undescribed(open_capture(made, url)).capture(2)
    assert again is not None
    assert again.kind is ManifestKind.CLAIM, "there was nothing to write"
    assert again.pipeline_hash == first.pipeline_hash
    made.commit(3)
    later = undescribed(open_capture(made, url)).capture(3)
    assert later is not None
    assert later.pipeline_hash == first.pipeline_hash
    assert later.source_offsets["source-0"].metadata == {"description": "source"}


def test_a_fork_has_a_history_of_its_own(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """It may not write into the original's, whatever somebody tells it; the original goes on."""
    original = open_capture(made, url)
    assert original.capture(1) is not None
    report = restore(url, str(tmp_path / "fork"), clone=True)
    fork = MadeLocation(tmp_path / "unused", query_id=report.query_id)
    fork.path = tmp_path / "fork"
    with pytest.raises(RefusedError, match="history of query"):
        open_capture(fork, url)
    with pytest.raises(RefusedError, match="is of query"):
        QueryCapture(LocationSpec(str(fork.path)).open(), original.run, original.facts).capture(1)
    assert original.capture(2) is not None
    own = open_capture(fork, str(tmp_path / "own"))
    assert own.capture(1) is not None


def test_a_run_that_was_restarted_is_fenced_by_its_next_start(made: MadeLocation, url: str) -> None:
    """What the old driver captures late reaches nobody."""
    old = open_capture(made, url, run_id="old")
    assert old.capture(1) is not None
    new = open_capture(made, url, run_id="new")
    with pytest.raises(FencedError):
        old.capture(2)
    assert new.capture(2) is not None


def file_source(made: MadeLocation, *batches: int, planned: int | None = None) -> MadeLocation:
    """A query over files: the source has logged the files of a batch before its offsets are written."""
    for batch in (*batches, *(() if planned is None else (planned,))):
        entry = f"{batch}.compact" if batch % 10 == 9 else str(batch)
        made._write(f"sources/0/{entry}", f"v1\n{batch}")
        if batch != planned:
            made.commit(batch)
        made.plan(batch, f'{{"logOffset":{batch}}}')
    return made


@pytest.mark.parametrize(("planned", "entry"), [(3, "sources/0/3"), (9, "sources/0/9.compact")])
def test_a_planned_batch_is_captured_with_what_its_source_has_logged_for_it(
    tmp_path: Path, url: str, planned: int, entry: str
) -> None:
    """Without the entry Spark says that the batch does not exist; with a later one it skips files."""
    made = file_source(MadeLocation(tmp_path / "location"), *range(planned), planned=planned)
    made._write(f"sources/0/{planned + 1}", "v1\nlater")
    manifest = open_capture(made, url).capture()
    assert manifest is not None
    assert manifest.planned == PlannedBatch(planned, (f"offsets/{planned}", entry))
    restore(url, str(tmp_path / "fresh"))
    logged = {f"sources/0/{batch}" for batch in range(planned)} | {entry}
    ours = {name for name in contents(tmp_path / "fresh") if name.startswith("sources/")}
    assert ours == logged


def test_a_batch_whose_source_has_not_logged_it_is_left_out(tmp_path: Path, url: str) -> None:
    """A listing is not of one moment. The checkpoint is whole without it."""
    made = file_source(MadeLocation(tmp_path / "location"), 0, 1, planned=2)
    (made.path / "sources/0/2").unlink()
    manifest = open_capture(made, url).capture()
    assert manifest is not None
    assert (manifest.epoch, manifest.planned) == (1, None)
