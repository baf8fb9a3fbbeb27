"""What a restore writes, refuses, resumes and records; on locations made by hand, without Spark."""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import (
    FencedError,
    FormatError,
    InUse,
    NoCheckpoint,
    NotFound,
    RefusedError,
    SettingsError,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import PlannedBatch
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer import execute as restoring
from pyspark_checkpoint.restorer.api import RestoreRequest, dry_run, restore, savepoint
from pyspark_checkpoint.restorer.lock import RestoreMark
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER, plan_restore
from tests.support.made_location import MadeLocation, capture, contents, needed, open_capture
from tests.support.made_stream import MadeStream
from tests.support.servers.s3 import S3Server


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2, 3)


@pytest.mark.parametrize("epoch", [0, 2, 3])
def test_a_restored_location_has_every_byte_and_nothing_else(
    made: MadeLocation, url: str, tmp_path: Path, epoch: int
) -> None:
    """At the first, a middle and the newest epoch, chosen by epoch."""
    capture(made, url, 0, 1, 2, 3)
    restore(url, str(tmp_path / "fresh"), epoch=epoch, clone=False)
    assert contents(tmp_path / "fresh") == needed(made, epoch)


SCHEMA_LOGS = {"_schema_log_7c1e/0": b"v1\n{}", "bronze/_schemas/0": b"x" * 5000}


def test_schema_logs_of_sources_come_back_and_other_strange_files_do_not(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Delta's source keeps there which schema it reads with."""
    for name, data in {**SCHEMA_LOGS, "notes.txt": b"mine", "sub/notes": b"mine"}.items():
        made._write(name, data)
    capture(made, url, 2, 3)
    restore(url, str(tmp_path / "fresh"), epoch=3, clone=False)
    assert contents(tmp_path / "fresh") == needed(made, 3) | SCHEMA_LOGS


def test_schema_logs_of_sources_are_committed_with_the_rows_of_every_batch(tmp_path: Path) -> None:
    """Also where a batch is put together from what the tasks saw, without a look at the whole location."""
    stream = MadeStream(tmp_path, once=True)
    for name, data in SCHEMA_LOGS.items():
        stream.write(name, data)
    stream.run(4)
    stream.restore()
    found = contents(stream.location)
    assert {name: found[name] for name in SCHEMA_LOGS} == SCHEMA_LOGS


def test_a_batch_that_is_planned_comes_back_with_its_offsets_unless_state_is_repartitioned(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """The output may have seen it: with other offsets, its rows would be dropped or duplicated."""
    made.plan(4)
    manifest = capture(made, url, 3)[0]
    assert manifest.planned == PlannedBatch(4, ("offsets/4",))
    assert manifest.validate(manifest.vnode_count) == []
    restore(url, str(tmp_path / "fresh"))
    ahead = {"offsets/4": (made.path / "offsets/4").read_bytes()}
    assert contents(tmp_path / "fresh") == needed(made, 3) | ahead
    assert plan_restore(manifest).planned_batch == 4
    anew = plan_restore(manifest, with_planned=False)
    assert anew.planned_batch is None
    assert "offsets/4" not in {file.path for file in anew.files}


@pytest.mark.parametrize("files", [("metadata", "offsets/3"), ("commits/2", "offsets/3"), ()])
def test_a_planned_batch_with_strange_files_is_refused(
    made: MadeLocation, url: str, files: tuple[str, ...]
) -> None:
    """Who can write a manifest cannot take files of the checkpoint itself away by calling them planned."""
    manifest = capture(made, url, 2)[0]
    ahead = ArtifactRef.of_inline(b"v1\n{}", is_delta=False, epoch=2, name="offsets/3")
    more = replace(manifest, files=(*manifest.files, ahead), planned=PlannedBatch(3, files))
    with pytest.raises(FormatError, match="strange files for batch 3"):
        plan_restore(more)


@pytest.mark.parametrize("ran", [("commits/4",), ("commits/4", "offsets/5")])
def test_an_interrupted_restore_does_not_touch_a_location_whose_planned_batch_was_run(
    made: MadeLocation, url: str, tmp_path: Path, ran: tuple[str, ...]
) -> None:
    """The mark is there, and so is more than the restore writes: a query has used the location."""
    capture(made.plan(4), url, 3)
    fresh = tmp_path / "fresh"
    restore(url, str(fresh))
    manifest = CheckpointStore.open(url).load_by_id(1)
    assert manifest is not None
    mark = RestoreMark.of(plan_restore(manifest))
    (fresh / RESTORE_MARKER).write_bytes(mark.encode())
    for name in ran:
        (fresh / name).write_bytes(b"v1\n{}")
    with pytest.raises(InUse, match="a query has run there since"):
        restore(url, str(fresh), at=1)


def test_a_checkpoint_of_a_batch_job_has_no_location(made: MadeLocation, url: str) -> None:
    manifest = capture(made, url, 2)[0]
    with pytest.raises(RefusedError, match="no batch of a streaming query"):
        plan_restore(replace(manifest, batch_id=None))


@pytest.mark.parametrize("name", ["notes.txt", "_schemas/../metadata", "state/_schemas/0", "_schemaless/0"])
def test_a_file_that_neither_spark_nor_a_source_writes_is_refused(
    made: MadeLocation, url: str, name: str
) -> None:
    """Who can write a manifest cannot make a restore write anywhere."""
    manifest = capture(made, url, 2)[0]
    strange = ArtifactRef.of_inline(b"x", is_delta=False, epoch=2, name=name)
    with pytest.raises(FormatError, match="names"):
        plan_restore(replace(manifest, files=(*manifest.files, strange)))


def test_a_checkpoint_is_chosen_by_number_name_time_or_as_the_newest(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Every way that people have to say which."""
    first, second, third = capture(made, url, 0, 1, 2)
    savepoint(url, "before-upgrade", at=second.checkpoint_id)

    def chosen(at: int | str = "latest", epoch: int | None = None, timestamp_ms: int | None = None) -> int:
        return dry_run(RestoreRequest(url, str(tmp_path / "fresh"), at, epoch, timestamp_ms)).epoch

    assert chosen() == 2
    assert chosen(first.checkpoint_id) == chosen(str(first.checkpoint_id)) == chosen("epoch=0") == 0
    assert chosen("before-upgrade") == 1
    assert chosen(timestamp_ms=third.timestamp_ms) == 2
    assert savepoint(url, "same", at="before-upgrade").checkpoint_id == second.checkpoint_id
    with pytest.raises(NoCheckpoint, match="of that time"):
        chosen(timestamp_ms=first.timestamp_ms - 1)
    with pytest.raises(NoCheckpoint, match="no epoch 9"):
        chosen(epoch=9)
    with pytest.raises(NoCheckpoint, match="no checkpoint 99"):
        chosen(99)
    with pytest.raises(NoCheckpoint, match="no savepoint 'nowhere'"):
        chosen("nowhere")
    with pytest.raises(SettingsError, match="each choose"):
        chosen(1, epoch=0)


def test_a_location_in_use_is_refused_and_left_alone(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """Also one that has nothing but a source's log."""
    capture(made, url, 0)
    before = contents(made.path)
    with pytest.raises(RefusedError, match="in use"):
        restore(url, str(made.path))
    assert contents(made.path) == before
    (tmp_path / "other" / "sources" / "0").mkdir(parents=True)
    (tmp_path / "other" / "sources" / "0" / "0").write_text("x")
    with pytest.raises(RefusedError, match="in use"):
        restore(url, str(tmp_path / "other"))


class Interrupted(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("clone", [False, True])
@pytest.mark.parametrize("after", [1, 3, 6])
def test_an_interrupted_restore_is_resumed_by_repeating_it(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: bool, after: int
) -> None:
    """It is unfinished until it is whole; nobody else may use the place; and then all bytes are right."""
    capture(made, url, 0, 1, 2, 3)
    fresh = tmp_path / "fresh"
    monkeypatch.setattr(restoring, "GROUP_BYTES", 1)
    groups = 0

    def stop(done: int, total: int) -> None:
        nonlocal groups
        groups += 1
        if groups == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        restore(url, str(fresh), clone=clone, progress=stop)
    assert (fresh / RESTORE_MARKER).exists()
    assert not (fresh / "commits").exists()
    with pytest.raises(RefusedError, match="interrupted"):
        restore(url, str(fresh), epoch=1, clone=clone)
    with pytest.raises(RefusedError, match="interrupted"):
        restore(url, str(fresh), clone=not clone)
    report = restore(url, str(fresh), clone=clone)
    assert report.resumed
    expected = needed(made, 3)
    found = contents(fresh)
    if clone:
        expected.pop("metadata")
        assert json.loads(found.pop("metadata"))["id"] == report.query_id != made.query_id
    assert found == expected


def test_a_restore_that_dies_after_taking_over_can_be_repeated(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking over makes a newer checkpoint of the same content, which is the same restore."""
    capture(made, url, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(restoring.Restore, "finish", lambda self: (_ for _ in ()).throw(Interrupted))
        with pytest.raises(Interrupted):
            restore(url, str(tmp_path / "fresh"))
    assert restore(url, str(tmp_path / "fresh")).resumed
    assert contents(tmp_path / "fresh") == needed(made, 1)


def test_a_restore_fences_the_run_that_still_captures(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """Going back is recorded; the old driver can add nothing after it."""
    old = open_capture(made, url)
    for epoch in (0, 1, 2):
        old.capture(epoch)
    restore(url, str(tmp_path / "fresh"), epoch=1)
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, 1)
    with pytest.raises(FencedError):
        old.capture(3)


def test_a_clone_leaves_the_history_alone(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """Another query with another id begins a history of its own; the captured one goes on."""
    old = open_capture(made, url)
    old.capture(0)
    restore(url, str(tmp_path / "fresh"), clone=True)
    after = old.capture(1)
    assert after is not None
    assert after.epoch == 1


def test_a_location_behind_its_history_cannot_be_captured(made: MadeLocation, url: str) -> None:
    """An old disk that comes back would write the same epochs again."""
    capture(made, url, 0, 1, 2)
    with pytest.raises(RefusedError, match="epoch"):
        capture(made, url, 1)


def damage(url: str, manifest: CheckpointManifest, how: str) -> None:
    """Damage the object that holds what only this checkpoint has, where its own bytes are."""
    ref = next(ref for ref in manifest.artifacts() if ref.path and ref.epoch == manifest.epoch)
    path = Path(url, ref.path or "")
    data = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
        return
    if how == "truncate":
        del data[len(data) // 2 :]
    else:
        data[ref.offset + 100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["delete", "truncate", "flip"])
def test_a_damaged_checkpoint_is_refused_and_the_newest_whole_one_is_named(
    made: MadeLocation, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """By number it is an error, with nothing to start from; the newest whole one is found, with a word."""
    _, second, third = capture(made, url, 0, 1, 2)
    damage(url, third, how)
    with pytest.raises((FormatError, NotFound)):
        restore(url, str(tmp_path / "bad"), at=third.checkpoint_id)
    assert not (tmp_path / "bad" / "commits").exists()
    with caplog.at_level(logging.WARNING):
        report = restore(url, str(tmp_path / "good"))
    assert (report.checkpoint_id, report.epoch) == (second.checkpoint_id, 1)
    assert f"skipped checkpoint {third.checkpoint_id}" in caplog.text
    assert contents(tmp_path / "good") == needed(made, 1)


def test_an_encrypted_store_end_to_end(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """No byte of state, offset or metadata is readable in the store; with the key all of them come back."""
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps({"active": "one", "keys": {"one": base64.b64encode(bytes(range(32))).decode()}})
    )
    keys.chmod(0o600)
    options = {"encryptionKeyFile": str(keys)}
    capture(made, url, 0, 1, options=options)
    stored = b"".join(data for data in contents(Path(url)).values())
    assert b"batchTimestampMs" not in stored
    assert all(data[:64] not in stored for name, data in contents(made.path).items() if "delta" in name)
    with pytest.raises((RefusedError, SettingsError, FormatError)):
        restore(url, str(tmp_path / "without"))
    restore(url, str(tmp_path / "fresh"), options=options)
    assert contents(tmp_path / "fresh") == needed(made, 1)


def test_what_a_capture_stores_is_what_changed(made: MadeLocation, url: str) -> None:
    """A file that an earlier checkpoint has is named again, not uploaded; also by another process."""
    first, second = capture(made, url, 1, 2)
    assert second.requests.bytes < first.requests.bytes
    again = open_capture(made, url)
    third = again.capture(3)
    assert third is not None
    assert third.requests.bytes < first.requests.bytes


def test_a_sink_that_spark_has_committed_is_not_driven_again(
    made: MadeLocation, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit log in the checkpoint is the proof; recovery has nothing to say about the sink."""
    (manifest,) = capture(made, url, 0)
    report = CheckpointStore.open(url).recover_latest_validated()
    assert report.sinks_to_drive == ()
    assert report.manifest is not None
    assert report.manifest.sink_commit_statuses == {manifest.sink_names[0]: SinkCommitStatus.COMMITTED}
    assert caplog.text == ""


def test_a_store_on_s3_and_a_location_on_s3(
    made: MadeLocation, s3_server: S3Server, tmp_path: Path
) -> None:
    """The store and the restored location are in the bucket, under the names that Spark has for them."""
    url, to = s3_server.url("captures"), s3_server.url("restored").replace("s3://", "s3a://")
    capture(made, url, 0, 1, options=s3_server.options)
    report = restore(url, to, options=s3_server.options)
    assert report.epoch == 1
    with pytest.raises(RefusedError, match="in use"):
        restore(url, to, options=s3_server.options)
    restore(url, str(tmp_path / "disk"), options=s3_server.options, clone=True)
    assert contents(tmp_path / "disk").keys() == needed(made, 1).keys()
