"""What the driver asks of partitions whose tasks ran no Python: their newest versions alone. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import DeclaredStore, StateRecord
from pyspark_checkpoint.sink.state_driver import WHOLE_EVERY, plan_looks
from pyspark_checkpoint.spark_files.inventory import CapturedFile, OperatorFiles
from pyspark_checkpoint.spark_files.versions import FileFacts
from tests.sink.test_state_reading import commit, watch
from tests.support.made_stream import Killed, MadeStream, totals_after
from tests.support.sink_kit import rows_from

KINDS = pytest.mark.parametrize("kind", ["v1", "v2", "zips"])


def made(root: Path, kind: str = "v1", partitions: int = 2) -> MadeStream:
    """A query whose tasks run no Python."""
    stream = MadeStream(root, version=2 if kind == "v2" else 1, zips=kind == "zips", partitions=partitions)
    stream.query.inline = True
    return stream


def commit_again(stream: MadeStream) -> CheckpointManifest:
    """Commit the batch whose state is there."""
    number = stream.next_batch()
    rows = rows_from(list(totals_after(number).items()))
    return stream.query.commit(stream.query.write(stream.query.plan(), number, rows), number)


@pytest.fixture
def never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition's turn comes to be listed as a whole."""
    monkeypatch.setattr("pyspark_checkpoint.sink.state_driver.WHOLE_EVERY", 1000)


@pytest.mark.usefixtures("never_whole")
@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_lists_the_two_newest_versions_of_a_partition_and_no_more(
    tmp_path: Path, version: int
) -> None:
    """However many versions Spark keeps, and however long the query has run."""
    stream = made(tmp_path, f"v{version}", partitions=3)
    asked = watch(stream)
    stream.run(3)
    for number in (3, 4):
        manifest, requests = commit(stream, asked)
        newest = [f"list state/0/{at}/{one}" for at in range(3) for one in (number, number + 1)]
        assert sorted(one for one in requests if one.startswith("list")) == ["list sources/", *newest]
        assert f"get commits/{number - 1}" in requests
        assert stream.stored_state(manifest, "before") == totals_after(number - 1)
        stream.finish(number)
    assert list(stream.history().verify()) == []


@KINDS
def test_the_checkpoint_is_the_one_that_a_listing_of_everything_gives(tmp_path: Path, kind: str) -> None:
    """Path by path and byte by byte, but for the ids that Spark invents."""
    found = []
    for once in (True, False):
        stream = made(tmp_path / str(once), kind, partitions=3)
        stream.query.once = once
        asked = watch(stream)
        manifests = []
        for number in range(5):
            manifest, requests = commit(stream, asked)
            assert ("list " in requests) == (not once or number == 0)
            named = artifacts(manifest)
            manifests.append(sorted(named) if kind == "zips" else named)
            stream.finish(number)
        found.append(manifests)
    assert found[0] == found[1]


def artifacts(manifest: CheckpointManifest) -> list[tuple[str, int, int, bool, str]]:
    """What a checkpoint names of the state; the bytes of a snapshot of RocksDB have ids in them."""
    return [
        (
            operator,
            part.partition_id,
            ref.epoch,
            ref.is_delta,
            "" if ref.name.endswith((".zip", ".sst")) else ref.sha256,
        )
        for operator, info in sorted(manifest.operators.items())
        if operator != "table"
        for part in info.partitions
        for ref in part.artifacts
    ]


@pytest.mark.usefixtures("never_whole")
@KINDS
@pytest.mark.parametrize("gone", [3, 4], ids=["the version before", "the version after"])
def test_a_newest_file_that_is_missing_is_refused(tmp_path: Path, kind: str, gone: int) -> None:
    """As if the location had been listed; nothing is published."""
    stream = made(tmp_path, kind)
    stream.run(3)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    for path in (stream.location / "state" / "0" / "1").glob(f"{gone}[._]*"):
        path.unlink()
    with pytest.raises(RefusedError, match=f"version {gone} of state state/0/1"):
        commit_again(stream)
    assert stream.history().list_ids()[-1] == 3


@pytest.mark.parametrize("kind", ["v1", "zips"])
def test_a_version_that_is_written_again_after_its_commit_is_looked_at_again(
    tmp_path: Path, kind: str
) -> None:
    """By an executor that was declared lost: its bytes decide, as in a listing of everything."""
    stream = made(tmp_path, kind)
    stream.run(3)
    [path] = (stream.location / "state" / "0" / "1").glob("3.*")
    data = path.read_bytes()
    stream.write(str(path.relative_to(stream.location)), data + (b" " if kind == "v1" else b""))
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    asked = watch(stream)
    commit_again(stream)
    assert f"get state/0/1/{path.name}" in asked.asked
    assert "list " not in asked.asked


@pytest.mark.usefixtures("never_whole")
def test_every_attempt_of_the_newest_version_is_named(tmp_path: Path) -> None:
    """Format version 2: also one that no task of this batch is known to have written."""
    stream = made(tmp_path, "v2")
    stream.run(3)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    stream._commit_state(1, 3)
    manifest = commit_again(stream)
    of_partition = {part.partition_id: part for part in manifest.operators["0-stateStoreSave"].partitions}
    assert len(of_partition[1].artifacts) == len(of_partition[0].artifacts) + 1


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_snapshots_of_maintenance_are_found_in_a_round(tmp_path: Path, kind: str) -> None:
    """Each partition is listed as a whole once in so many batches, so that chains stay short."""
    stream = made(tmp_path, kind)
    stream.run(4)
    stream.maintain(2)
    stream.run(WHOLE_EVERY)
    manifest = stream.batch()
    for part in manifest.operators["0-stateStoreSave"].partitions:
        assert min(ref.epoch for ref in part.artifacts) == 1, "from the snapshot of version 2 on"
    assert stream.rows() == totals_after(4 + WHOLE_EVERY)
    assert list(stream.history().verify()) == []


@pytest.mark.usefixtures("never_whole")
def test_an_older_file_that_is_gone_is_in_the_checkpoint_all_the_same(tmp_path: Path) -> None:
    """The store has it since its own batch: where Spark fails at its next start, ckpt restore helps."""
    stream = made(tmp_path)
    stream.run(4)
    (stream.location / "state" / "0" / "1" / "2.delta").rename(tmp_path / "2.delta")
    with pytest.raises(AssertionError, match="does not find version 2"):
        stream.whole_state(4)
    (tmp_path / "2.delta").rename(stream.location / "state" / "0" / "1" / "2.delta")
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    (stream.location / "state" / "0" / "1" / "2.delta").unlink()
    manifest = commit_again(stream)
    assert stream.stored_state(manifest, "before") == totals_after(3)


def test_a_partition_is_asked_as_a_whole_when_its_turn_has_come() -> None:
    """And for its newest versions alone else, in each of its stores; not at all if a task has seen it."""
    record = StateRecord(20, (DeclaredStore(0, "default", 3), DeclaredStore(0, "left", 3)))
    old, new = file("state/0/2/19.delta", 18), file("state/0/2/21.delta", 20)
    last = (OperatorFiles(0, "0-join", {1: (file("state/0/1/19.delta", 18),), 2: (old, new)}),)
    looks = plan_looks(record, last, {(0, 1)}, batch_id=21, epoch=21)
    assert sorted(looks) == [(0, 2)]
    of_default, of_left = ("state/0/2/21", "state/0/2/22"), ("state/0/2/left/21", "state/0/2/left/22")
    assert looks[0, 2].prefixes == (*of_default, *of_left)
    assert list(looks[0, 2].known) == [old.path], "what the newest versions are is asked"
    turns = {
        at: plan_looks(record, last, set(), batch_id=at, epoch=at)[0, 2].prefixes[0]
        for at in range(21, 21 + WHOLE_EVERY)
    }
    assert [at for at, prefix in turns.items() if prefix == "state/0/2/"] == [30]


def file(path: str, epoch: int) -> CapturedFile:
    """A file that the last commit has chosen."""
    return CapturedFile(path, FileFacts(1, 1), epoch)
