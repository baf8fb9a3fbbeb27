"""Rows and state in one manifest: both restore points, and what happens between them, without Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.spark_files.names import parse_state_file
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from tests.sink.test_change_reader import Consumer
from tests.support.made_stream import Killed, MadeStream, input_keys, key_ring, totals_after


@pytest.fixture(params=["v1", "v2", "zips"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> MadeStream:
    """A query whose state is of format version 1 or 2, or a snapshot in each version."""
    return MadeStream(tmp_path, version=2 if request.param == "v2" else 1, zips=request.param == "zips")


def test_a_checkpoint_is_restored_after_its_batch_once_the_next_one_is_there(stream: MadeStream) -> None:
    """``commits/N`` is in the manifest of N + 1; the rows and the state of N come back together."""
    stream.run(5)
    stream.lose_location()
    report = stream.restore(epoch=2)
    assert (report.epoch, report.point) == (2, RestorePoint.AFTER)
    assert stream.next_batch() == 3
    assert stream.rows() == stream.whole_state(3) == totals_after(2)
    stream.run(3)
    assert stream.rows() == stream.whole_state(6) == totals_after(5)


def test_the_newest_checkpoint_is_restored_before_its_batch(stream: MadeStream) -> None:
    """Whether Spark finished it is not known: it runs again, and replaces its rows."""
    stream.run(4)
    stream.lose_location()
    report = stream.restore()
    assert (report.epoch, report.point) == (3, RestorePoint.BEFORE)
    assert stream.next_batch() == 3
    assert stream.whole_state(3) == totals_after(2)
    assert stream.batch().kind is ManifestKind.REPLACEMENT
    stream.run(1)
    assert stream.rows() == stream.whole_state(5) == totals_after(4)


def test_the_first_batch_is_restored_to_both_points(stream: MadeStream) -> None:
    """Before batch 0 there is no state and no commit log at all."""
    stream.run(1)
    stream.lose_location()
    assert stream.restore().point is RestorePoint.BEFORE
    stream.run(2)
    stream.lose_location()
    assert stream.restore(epoch=0).point is RestorePoint.AFTER
    stream.run(2)
    assert stream.rows() == stream.whole_state(3) == totals_after(2)


def test_after_is_refused_where_it_is_not_known(stream: MadeStream) -> None:
    """And the message says which point there is."""
    stream.run(2)
    stream.lose_location()
    with pytest.raises(RefusedError, match="restore before it"):
        stream.restore(point="after")


def test_a_rollback_takes_rows_and_state_back_by_one_manifest(stream: MadeStream) -> None:
    """One recorded rollback of the one history; it is known to be after its batch."""
    stream.run(5)
    before = stream.history().load_latest()
    assert before is not None
    stream.restore(epoch=1)
    history = stream.history()
    newest = history.load_latest()
    assert newest is not None
    assert newest.kind is ManifestKind.ROLLBACK
    assert newest.checkpoint_id == before.checkpoint_id + 1
    assert stream.stored_state(newest, "after") == stream.rows() == totals_after(1)
    stream.lose_location()
    assert stream.restore().point is RestorePoint.AFTER
    assert stream.next_batch() == 2


def test_a_stream_of_changes_sees_a_restore_as_a_rollback(stream: MadeStream) -> None:
    """One that has been given a later epoch is told so; one that has not continues with the new lineage."""
    table = str(stream.table)
    ahead, behind = Consumer(table, startingEpoch="0"), Consumer(table, startingEpoch="0")
    stream.run(2)
    seen = behind.batch()
    stream.run(3)
    assert {row[3] for row in ahead.batch()} == {0, 1, 2, 3}
    stream.restore(epoch=1)
    stream.run(2)
    with pytest.raises(RefusedError, match="rolled back to epoch 1"):
        ahead.batch()
    seen += behind.batch()
    assert {row[3] for row in seen} == {0, 1, 2}
    assert len(seen) == len({(row[0], row[3]) for row in seen}), "a row came twice"
    assert dict(row[:2] for row in sorted(seen, key=lambda row: row[3])) == totals_after(2)


def run_epoch_1_again(stream: MadeStream) -> Consumer:
    """A restore to before an epoch that a consumer has been given, because somebody asked for that."""
    consumer = Consumer(str(stream.table), startingEpoch="0")
    stream.run(3)
    assert {row[3] for row in consumer.batch()} == {0, 1}
    stream.restore(epoch=1, point="before")
    stream.run(2)
    return consumer


def test_a_stream_of_changes_fails_if_an_epoch_was_repeated_with_other_rows(tmp_path: Path) -> None:
    """The query does something else each time: what the consumer was given is not in the table any more."""
    consumer = run_epoch_1_again(MadeStream(tmp_path, chance=random.Random(3)))
    with pytest.raises(RefusedError, match="epoch 1 was run again"):
        consumer.batch()


def test_a_stream_of_changes_continues_if_an_epoch_was_repeated_with_the_same_rows(
    stream: MadeStream,
) -> None:
    """The table is what the consumer has been given, and nothing comes twice."""
    consumer = run_epoch_1_again(stream)
    assert consumer.batch() == []
    stream.run(1)
    assert {row[3] for row in consumer.batch()} == {2}


def test_a_repeated_batch_replaces_its_state_with_its_rows(tmp_path: Path) -> None:
    """The query does something else each time, as with ``rand()``: the table has what the state has."""
    stream = MadeStream(tmp_path, chance=random.Random(3))
    stream.run(3)
    with pytest.raises(Killed):
        stream.batch(stop_after="published")
    first = stream.rows()
    stream.start()
    assert stream.batch().kind is ManifestKind.REPLACEMENT
    assert stream.rows() == stream.whole_state(4)
    assert stream.rows() != first, "the attempts must differ, or nothing is shown"


def test_a_clone_runs_beside_its_original(stream: MadeStream, tmp_path: Path) -> None:
    """It has the state under an id of its own; its table begins empty, and the other one is not its own."""
    stream.run(4)
    original, table = stream.location, stream.table
    clone = stream.restore(epoch=2, clone=True)
    assert clone.query_id != stream.query_id
    stream.query_id, theirs = clone.query_id, stream.query_id
    stream.start()
    with pytest.raises(RefusedError, match="was written by the streaming query"):
        stream.batch()
    stream.table = tmp_path / "cloned"
    stream.start()
    stream.run(2)
    assert stream.whole_state(5) == totals_after(4)
    changed = {key for batch in (3, 4) for key in input_keys(batch)}
    assert stream.rows() == {key: total for key, total in totals_after(4).items() if key in changed}
    stream.location, stream.table, stream.query_id = original, table, theirs
    stream.start()
    stream.run(1)
    assert stream.rows() == totals_after(4)


def own_state(manifest: CheckpointManifest) -> Counter[int]:
    """Of which versions state files were uploaded for a checkpoint; -1 for those that RocksDB shares."""
    here = f"checkpoints/{manifest.checkpoint_id:010d}-"
    made = (path for path, ref in state_refs(manifest).items() if (ref.path or "").startswith(here))
    return Counter(parsed.version if (parsed := parse_state_file(path)) else -1 for path in made)


def test_nothing_is_uploaded_twice(stream: MadeStream) -> None:
    """In one run each new file goes up once; a batch costs a PUT a task and the manifest."""
    stream.run(3)
    manifest = stream.batch()
    assert manifest.requests.puts == 3
    assert own_state(manifest) == ({4: 2, -1: 2} if stream.zips else {4: 2})


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("way", ["started again", "restored"])
def test_a_new_run_uploads_nothing_that_the_table_has(
    tmp_path: Path, stream: MadeStream, way: str, encrypted: bool
) -> None:
    """Every file is looked at once, and named again; only what the batch itself made goes up."""
    if encrypted:
        stream.options |= key_ring(tmp_path)
    stream.start()
    stream.run(3)
    if way == "restored":
        stream.lose_location()
        stream.restore(epoch=1)
    else:
        stream.start()
    version = stream.next_batch() + 1
    assert own_state(stream.batch()) == ({version: 2, -1: 2} if stream.zips else {version: 2})


@pytest.mark.parametrize("version", [1, 2])
def test_snapshots_of_maintenance_shorten_the_chain(tmp_path: Path, version: int) -> None:
    """A snapshot made later is picked up, and what it covers is not named any more."""
    stream = MadeStream(tmp_path, version=version)
    stream.run(4)
    stream.maintain(4)
    stream.run(1)
    stream.maintain(5)
    manifest = stream.batch()
    names = {ref.name.partition("_")[0].partition(".")[0] for ref in manifest.artifacts() if ref.name}
    assert {"5", "6"} <= names
    assert not {"1", "2", "3"} & names
    assert stream.stored_state(manifest, "before") == totals_after(4)


def test_a_snapshot_of_a_repeated_attempt_is_left_out(tmp_path: Path) -> None:
    """Format version 1: maintenance made it from state that the re-run has written anew."""
    stream = MadeStream(tmp_path, chance=random.Random(5))
    stream.run(4)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    stream.maintain(5)
    stale = stream.whole_state(5)
    stream.start()
    with stream.snapshots_hidden(), pytest.raises(Killed):
        # Spark goes on from what it has in memory, and does not load the snapshot.
        stream.batch(stop_after="state")
    with stream.snapshots_hidden():
        right = stream.whole_state(5)
    assert right != stale, "the attempts must differ, or nothing is shown"
    manifest = stream.commit_rows(right)
    stream.finish(4)
    assert not [path for path in state_refs(manifest) if path.endswith("5.snapshot")]
    assert stream.rows() == right
    with stream.snapshots_hidden(), pytest.raises(Killed):
        stream.batch(stop_after="state")
    with stream.snapshots_hidden():
        later = stream.whole_state(6)
    manifest = stream.commit_rows(later)
    assert not [path for path in state_refs(manifest) if path.endswith("5.snapshot")]
    assert stream.stored_state(manifest, "before") == right


def test_speculative_attempts_are_all_named_until_one_is_known_to_count(tmp_path: Path) -> None:
    """Format version 2: the loser's file stays beside the winner's; the next manifest names one alone."""
    stream = MadeStream(tmp_path, version=2)
    stream.run(2)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    loser = SYSTEM_CLOCK.uuid7()
    stream.write(f"state/0/1/3_{loser}.changelog", json.dumps([[1, 999]]))
    stream.query.once = False
    manifest = stream.commit_rows(totals_after(2))
    assert named(manifest, "state/0/1/3_") == {loser, stream.ids[1]}
    stream.finish(2)
    following = stream.batch()
    assert named(following, "state/0/1/3_") == {stream.winners[2][1]} != {loser}
    assert stream.stored_state(manifest, "after") == totals_after(2)
    assert stream.stored_state(following, "before") == totals_after(2)
    assert list(stream.history().verify()) == []


def named(manifest: CheckpointManifest, prefix: str) -> set[str]:
    """The unique ids of the state files that begin so."""
    found = (path for path in state_refs(manifest) if path.startswith(prefix))
    return {path.removeprefix(prefix).partition(".")[0] for path in found}


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_restored_location_has_the_files_of_its_point_and_no_other(tmp_path: Path, point: str) -> None:
    """Before: the state that the batch began from, and no log that says it ran. After: what it made."""
    stream = MadeStream(tmp_path)
    stream.write("sources/0/0", "v1\n0")
    stream.run(4)
    stream.restore(epoch=2, point=point)
    files = (path for path in stream.location.rglob("*") if path.is_file())
    found = {str(path.relative_to(stream.location)) for path in files}
    state = {f"state/0/{p}/{v}.delta" for p in (0, 1) for v in range(1, 3 if point == "before" else 4)}
    logs = {"metadata", "offsets/1", "offsets/2", "commits/1", "sources/0/0", "state/0/_metadata/metadata"}
    assert found == state | logs | ({"commits/2"} if point == "after" else set())


def test_a_file_sources_log_is_cut_to_the_batch(tmp_path: Path) -> None:
    """An entry that the next batch's files are in would make a restored query skip them silently."""
    stream = MadeStream(tmp_path, file_source=True)
    stream.run(5)
    stream.restore(epoch=2)
    assert {path.name for path in (stream.location / "sources" / "0").iterdir()} == {"0", "1", "2"}
    stream.run(1)
    assert stream.rows() == totals_after(3)
