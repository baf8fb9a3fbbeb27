"""Committing rows and state: what tasks take, what the driver takes, what is refused. No Spark."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError, SettingsError, Unavailable
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.support.made_stream import QUERY_ID, Killed, MadeStream, key_ring, totals_after
from tests.support.sink_kit import Query, offsets_text, rows_from


def own_objects(manifest: CheckpointManifest) -> int:
    """How many objects were made for a checkpoint."""
    return sum(1 for path in manifest.paths() if f"/{manifest.checkpoint_id:010d}-" in path)


def test_rows_and_state_of_a_task_are_in_one_object(tmp_path: Path) -> None:
    """Two tasks, two objects, and the logs travel inside the manifest."""
    stream = MadeStream(tmp_path)
    stream.run(1)
    manifest = stream.batch()
    assert own_objects(manifest) == 2
    assert all(ref.inline is not None for ref in manifest.files)
    assert manifest.query.checkpoint_location == str(stream.location)


def test_state_that_no_task_can_collect_is_collected_by_the_driver(tmp_path: Path) -> None:
    """More state partitions than tasks, whose number is not known: one object more, and nothing missing."""
    stream = MadeStream(tmp_path, partitions=5, options={"keyColumns": ""})
    stream.query.keys = ""
    stream.query.output_mode = "append"
    manifest = stream.batch()
    assert own_objects(manifest) == 3
    assert stream.stored_state(manifest, "before") == {}
    assert len(state_refs(manifest)) == 5


def test_a_file_rewritten_after_its_task_is_collected_by_the_driver(tmp_path: Path) -> None:
    """A second attempt of the state's task ended later: the bytes that are there count."""
    stream = MadeStream(tmp_path, once=False)
    stream.run(1)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    plan = stream.query.plan()
    messages = stream.query.write(plan, 1, rows_from(list(stream.whole_state(2).items())))
    later = json.dumps([[0, 77]])
    stream.write("state/0/0/2.delta", later)
    manifest = stream.query.commit(messages, 1)
    reader = stream.history().reader()
    found = state_refs(manifest)["state/0/0/2.delta"]
    assert reader.read(found, "0-stateStoreSave", 0) == later.encode()


def test_a_file_rewritten_in_the_same_second_is_noticed(tmp_path: Path) -> None:
    """Same name, size and time, as a store that counts in seconds shows it, and yet another file."""
    stream = MadeStream(tmp_path, once=False)
    stream.run(1)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    messages = stream.query.write(stream.query.plan(), 1, rows_from(list(stream.whole_state(2).items())))
    path = stream.location / "state" / "0" / "0" / "2.delta"
    first, taken = path.stat(), path.read_bytes()
    later = taken[:-3] + bytes([taken[-3] ^ 1]) + taken[-2:]
    again = path.with_suffix(".again")
    again.write_bytes(later)
    again.rename(path)
    os.utime(path, ns=(first.st_mtime_ns, first.st_mtime_ns))
    manifest = stream.query.commit(messages, 1)
    ref = state_refs(manifest)["state/0/0/2.delta"]
    assert stream.history().reader().read(ref, "0-stateStoreSave", 0) == later != taken


def test_tasks_that_ran_twice_leave_no_duplicates(tmp_path: Path) -> None:
    """Retried and speculative attempts: one message of each counts, whichever it is."""
    stream = MadeStream(tmp_path, once=False)
    stream.run(1)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    plan = stream.query.plan()
    rows = rows_from([(k, v) for k, v in stream.whole_state(2).items()])
    first, second = stream.query.write(plan, 1, rows), stream.query.write(plan, 1, rows)
    manifest = stream.query.commit([first[0], second[1]], 1)
    assert own_objects(manifest) == 2
    assert stream.stored_state(manifest, "before") == totals_after(0)
    assert stream.rows() == totals_after(1)


def test_a_partition_that_is_missing_fails_the_batch_and_publishes_nothing(tmp_path: Path) -> None:
    """The location is not shared by all machines: the message says so."""
    stream = MadeStream(tmp_path, once=False)
    stream.run(1)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    before = stream.history().list_ids()
    plan = stream.query.plan()
    messages = stream.query.write(plan, 1, rows_from([(1, 1)]))
    for path in (stream.location / "state" / "0" / "1").iterdir():
        path.unlink()
    with pytest.raises(RefusedError, match=r"partition 1 has no state file.*option state to off"):
        stream.query.commit(messages, 1)
    assert stream.history().list_ids() == before


def test_state_that_a_task_wrote_where_the_driver_does_not_see_it_is_refused(tmp_path: Path) -> None:
    """The table's disk is not shared; it is noticed also if the task had no rows, and knew some state."""
    stream = MadeStream(tmp_path)
    stream.run(1)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    messages = stream.query.write(stream.query.plan(), 1, rows_from([]))
    assert [part.ref for part in messages] == [None, None]
    for path in {file.ref.path for file in messages[1].state if file.path.endswith("2.delta")}:
        (stream.table / str(path)).unlink()
    with pytest.raises(RefusedError, match="the driver does not see"):
        stream.query.commit(messages, 1)


def test_a_location_of_another_query_is_refused(tmp_path: Path) -> None:
    """The option points to a directory that somebody else's query uses."""
    stream = MadeStream(tmp_path)
    stream.run(1)
    stream.write("metadata", json.dumps({"id": "another"}))
    stream.start()
    with pytest.raises(RefusedError, match="the checkpoint location is of query another"):
        stream.batch()


def test_on_is_refused_before_anything_is_written_where_it_cannot_work(tmp_path: Path) -> None:
    """No location, one that cannot be read from Python, one that is not there."""
    for location in ("", "hdfs://host/location", str(tmp_path / "nowhere")):
        options = {"state": "on", **({"checkpointLocation": location} if location else {})}
        query = Query(str(tmp_path / "table"), query_id=QUERY_ID, options=options)
        with pytest.raises(SettingsError, match=r"state=on cannot work.*state to off"):
            query.plan()
    assert CheckpointStore.open(str(tmp_path / "table")).list_ids() == []


def test_auto_keeps_the_rows_where_the_state_cannot_be_read(tmp_path: Path) -> None:
    """And off keeps them everywhere; such a checkpoint says so when it is to be restored."""
    for name, options in (("a", {}), ("b", {"state": "off", "checkpointLocation": str(tmp_path)})):
        query = Query(str(tmp_path / name), query_id=QUERY_ID, options=options)
        manifest = query.epoch(0, [(1, 1)])
        assert manifest.state is None
        assert manifest.files == ()


def test_auto_does_not_drop_the_state_because_a_store_does_not_answer(tmp_path: Path) -> None:
    """That the location cannot be read now does not mean that it cannot be read: the batch fails."""
    stream = MadeStream(tmp_path)
    stream.run(1)
    stream.start()
    stream.watch(_Away(stream.location), run_id="")
    with pytest.raises(Unavailable):
        stream.query.plan()


class _Away(LocalStore):
    """A location that does not answer."""

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        raise Unavailable(f"no answer to {key} from {start} to {end}")


def test_state_can_be_switched_off_and_on_again(tmp_path: Path) -> None:
    """The first checkpoint with state again holds all of it."""
    stream = MadeStream(tmp_path)
    stream.run(2)
    stream.options["state"] = "off"
    stream.start()
    stream.run(1)
    with pytest.raises(RefusedError, match="state=off"):
        stream.restore()
    del stream.options["state"]
    stream.location, stream.locations = tmp_path / "location-1", 1
    stream.start()
    stream.run(2)
    stream.lose_location()
    assert stream.restore(epoch=3).point is RestorePoint.AFTER
    assert stream.rows() == stream.whole_state(4) == totals_after(3)


def test_an_encrypted_store_holds_rows_and_state_alike(tmp_path: Path) -> None:
    """Tasks encrypt the state with the data key of their rows; a restore needs the key ring."""
    stream = MadeStream(tmp_path, options=key_ring(tmp_path))
    stream.run(4)
    stream.start()
    stream.run(1)
    manifest = stream.history().load_latest()
    assert manifest is not None
    assert all(ref.data_key_id for ref in manifest.artifacts())
    stream.lose_location()
    stream.restore()
    assert stream.whole_state(4) == totals_after(3)
    stream.run(1)
    assert stream.rows() == totals_after(4)


def test_a_query_that_takes_a_table_over_has_its_own_batch_numbers(tmp_path: Path) -> None:
    """Its batch 0 is a later epoch; state and logs are those of the batch."""
    first = Query(str(tmp_path / "table"), query_id="another", options={"state": "off"})
    first.epoch(0, [(99, 1)])
    first.epoch(1, [(99, 2)])
    stream = MadeStream(tmp_path, options={"takeOver": "true"})
    stream.run(3)
    manifest = stream.history().load_latest()
    assert manifest is not None
    assert manifest.epoch == 4
    record = manifest.state
    assert record is not None
    assert record.batch_id == 2
    assert list(stream.history().verify()) == []
    stream.lose_location()
    stream.restore(epoch=3)
    assert stream.next_batch() == 2
    assert stream.rows() == {99: 2, **totals_after(1)}
    stream.run(1)
    assert stream.rows() == {99: 2, **totals_after(2)}


def test_the_same_epoch_with_other_offsets_is_refused_before_the_state_is_read(tmp_path: Path) -> None:
    """Rule 7 comes first; nothing is staged by the driver."""
    stream = MadeStream(tmp_path)
    with pytest.raises(Killed):
        stream.batch(stop_after="published")
    stream.start()
    plan = stream.query.plan()
    messages = stream.query.write(plan, 0, rows_from([(1, 1)]))
    with pytest.raises(RefusedError, match="other source offsets"):
        stream.query.commit(messages, 0, note="x")
    assert offsets_text(0) != offsets_text(0, "x")


def test_a_replacement_restores_to_the_state_of_the_attempt_that_counts(tmp_path: Path) -> None:
    """Format version 2: the first attempt's files are still there, and ``commits/N`` says otherwise."""
    stream = MadeStream(tmp_path, version=2, chance=random.Random(3))
    stream.run(1)
    with pytest.raises(Killed):
        stream.batch(stop_after="published")
    first = {path.name for path in stream.location.rglob("2_*.changelog")}
    stream.start()
    manifest = stream.batch()
    assert manifest.kind is ManifestKind.REPLACEMENT
    right = stream.whole_state(2)
    following = stream.batch()
    assert not first & {ref.name for ref in following.artifacts()}
    assert stream.stored_state(manifest, "after") == stream.rows(epoch="1") == right
    assert stream.stored_state(following, "before") == right


def test_a_large_log_of_a_source_is_an_artifact_and_goes_up_once(tmp_path: Path) -> None:
    """Small logs are inline; one that grows with the files seen would fill the manifest."""
    stream = MadeStream(tmp_path)
    large = "v1\n" + "x" * 40_000
    stream.write("sources/0/0", large)
    first = stream.batch()
    second = stream.batch()
    assert (own_objects(first), own_objects(second)) == (3, 2)
    [ref] = [ref for ref in second.files if ref.name == "sources/0/0"]
    assert ref.inline is None
    stream.restore()
    assert (stream.location / "sources" / "0" / "0").read_text() == large


class _Purging(LocalStore):
    """A location in which Spark purges what a snapshot has made superfluous, while it is read."""

    def __init__(self, stream: MadeStream) -> None:
        super().__init__(stream.location)
        self._stream = stream
        self.purges = False
        self.purged = False

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        if key.endswith("/1.delta") and self.purges and not self.purged:
            self.purged = True
            self._stream.maintain(4)
            for version in (1, 2, 3):
                for path in self._stream.location.rglob(f"{version}.delta"):
                    path.unlink()
        return super().get(key, start=start, end=end)


@pytest.mark.parametrize("reader", ["task", "driver"])
def test_files_that_spark_purges_meanwhile_are_looked_for_again(tmp_path: Path, reader: str) -> None:
    """A new run looks at every file once; the one it wants is gone, and a snapshot has taken its place."""
    stream = MadeStream(tmp_path)
    stream.run(5)
    stream.start()
    purging = _Purging(stream)
    stream.watch(purging)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    purging.purges = reader == "task"
    messages = stream.query.write(stream.query.plan(), 5, rows_from([(1, 1)]))
    if reader == "driver":
        purging.purges = True
        messages = [replace(message, state=()) for message in messages]
    manifest = stream.query.commit(messages, 5, offsets=stream.offsets(5))
    assert purging.purged
    assert {"4.snapshot", "5.delta", "6.delta"} <= {ref.name for ref in manifest.artifacts()}
    assert stream.stored_state(manifest, "before") == totals_after(4)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_rocksdb_snapshot_uploaded_again_is_collected_with_its_files(
    tmp_path: Path, encrypted: bool
) -> None:
    """Two executors may upload the snapshot of one version, each with files of its own: the second zip
    has the name and the size of the first, and needs other files."""
    stream = MadeStream(tmp_path, options=key_ring(tmp_path) if encrypted else {})
    stream.run(3)
    make_zip(stream, 2)
    stream.run(2)
    make_zip(stream, 2)
    manifest = stream.batch()
    assert [path for path in state_refs(manifest) if path.endswith("/2.zip")]
    assert stream.stored_state(manifest, "before") == totals_after(4)


def make_zip(stream: MadeStream, version: int) -> None:
    """A snapshot as RocksDB makes it with a changelog, which names a file of its own."""
    stream.zips = True
    stream.maintain(version)
    stream.zips = False
