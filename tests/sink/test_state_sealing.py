"""Checkpoints that stay the newest are sealed, so that they restore to after their batch. No Spark."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.capture import commit_log as sealing
from pyspark_checkpoint.capture.commit_log import find_commit, seal_head
from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.cli.main import main
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.listener.sink_watcher import Captures, watch_query
from pyspark_checkpoint.restorer.api import savepoint
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from tests.support.made_stream import QUERY_ID, Killed, MadeStream, key_ring, totals_after


@pytest.fixture(params=["plain", "encrypted"])
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The options of a plain table, or of an encrypted one, whose bytes cannot be compared as they lie."""
    return key_ring(tmp_path) if request.param == "encrypted" else {}


KINDS = pytest.mark.parametrize("kind", ["v1", "v2", "zips"])


def lucky(tmp_path: Path, kind: str, options: dict[str, str]) -> MadeStream:
    """A query whose every attempt is another, after three batches."""
    version = 2 if kind == "v2" else 1
    chance = random.Random(1)
    made = MadeStream(tmp_path, version=version, zips=kind == "zips", chance=chance, options=options)
    made.run(3)
    return made


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> MadeStream:
    """A query whose state is of format version 1 or 2, after three batches."""
    made = MadeStream(tmp_path, version=request.param)
    made.run(3)
    return made


def sealed(stream: MadeStream) -> bool:
    """Whether the newest checkpoint has a seal."""
    newest = stream.history().load_latest()
    assert newest is not None
    return find_seal(stream.history().store, newest) is not None


def watch(stream: MadeStream, run_id: str | None = None) -> tuple[Captures, list[str]]:
    """What a listener has for the query, and what it did besides."""
    begun: list[str] = []

    def begin() -> Captures:
        begun.append("captured as any other")
        spec, run = LocationSpec(str(stream.location)), stream.history().writer()
        return QueryCapture(spec.open(), run, facts)

    info = QueryInfo(id=QUERY_ID, checkpoint_location=str(stream.location))
    facts = QueryFacts(info, run_id or stream.query.run_id, (), f"ckpt-sink {stream.table}", "update")
    return watch_query(facts, LocationSpec(str(stream.location)).open(), None, begin), begun


def test_a_sealed_head_is_restored_after_its_batch(stream: MadeStream) -> None:
    """Sealing it twice is harmless."""
    location = LocationSpec(str(stream.location)).open()
    first = seal_head(stream.history(), location)
    assert first is not None
    assert seal_head(stream.history(), location) == first
    stream.lose_location()
    assert stream.restore().point is RestorePoint.AFTER
    assert stream.next_batch() == 3
    stream.run(1)
    assert stream.rows() == stream.whole_state(4) == totals_after(3)


def test_a_batch_that_spark_has_not_finished_is_not_sealed(stream: MadeStream) -> None:
    """``commits/N`` is not there: the batch will run again."""
    with pytest.raises(Killed):
        stream.batch(stop_after="published")
    assert seal_head(stream.history(), LocationSpec(str(stream.location)).open()) is None
    assert not sealed(stream)


@KINDS
def test_a_diverged_location_seals_nothing(tmp_path: Path, kind: str, secret: dict[str, str]) -> None:
    """Its ``commits/N`` belongs to other state, although the batch has the same number."""
    stream = lucky(tmp_path, kind, secret)
    other = tmp_path / "other"
    shutil.copytree(stream.location, other)
    stream.lose_location()
    stream.restore(point="before")
    stream.batch()
    with suppress(RefusedError):
        assert seal_head(stream.history(), LocationSpec(str(other)).open()) is None
    assert not sealed(stream)
    assert seal_head(stream.history(), LocationSpec(str(stream.location)).open()) is not None


@KINDS
@pytest.mark.parametrize("maintained", [False, True], ids=["changes", "snapshot"])
def test_an_old_disk_is_refused(
    tmp_path: Path, kind: str, secret: dict[str, str], maintained: bool
) -> None:
    """Its state belongs to rows that the table has replaced since: refused, and nothing is published.

    Also if a snapshot has made superfluous what the table was written with.
    """
    stream = lucky(tmp_path, kind, secret)
    old = stream.location
    stream.restore(point="before")
    stream.batch()
    newest = stream.history().load_latest()
    stream.location = old
    if maintained:
        stream.maintain(3)
    stream.start()
    with pytest.raises(RefusedError, match="checkpoint location has diverged from the table"):
        stream.batch()
    after = stream.history().load_latest()
    assert newest is not None
    assert after is not None
    assert after.table == newest.table


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_an_old_disk_is_refused_where_the_table_names_only_a_snapshot(tmp_path: Path, kind: str) -> None:
    """The batch ran again elsewhere, and maintenance there made its change superfluous: nothing of that
    version is in both places, so nothing shows that the old disk has the same state. It has not."""
    stream = lucky(tmp_path, kind, {})
    old = stream.location
    stream.restore(point="before")
    stream.batch()
    stream.maintain(3)
    stream.batch()
    stream.location = old
    stream.start()
    with pytest.raises(RefusedError, match="checkpoint location has diverged from the table"):
        stream.batch()


def test_a_forged_successor_tells_nothing_of_an_encrypted_checkpoint(tmp_path: Path) -> None:
    """Whoever can write to the store, but has no key, cannot say that Spark finished a batch."""
    stream = MadeStream(tmp_path, options=key_ring(tmp_path))
    stream.run(3)
    history = stream.history()
    newest = history.load_latest()
    assert newest is not None
    number = newest.checkpoint_id
    forged = replace(
        newest,
        checkpoint_id=number + 1,
        parent_id=number,
        parent_sha256=sha256_hex(history.store.get(manifest_key(number))),
        epoch=newest.epoch + 1,
        files=(ArtifactRef.of_inline(b'v1\n{"x":1}', is_delta=False, epoch=3, name="commits/2"),),
    )
    history.store.put(manifest_key(number + 1), encode_manifest(forged, mac=lambda _: "0" * 64))
    assert find_commit(history, newest) is None


def test_a_new_run_seals_what_the_last_one_finished(stream: MadeStream) -> None:
    """Without a listener the next start does it, before it takes over."""
    stream.start()
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    assert sealed(stream)
    stream.lose_location()
    assert stream.restore().point is RestorePoint.AFTER


def test_a_savepoint_can_do_without_its_successor(stream: MadeStream) -> None:
    """What is known of its batch when it is made, is kept with it."""
    savepoint(str(stream.table), "newest")
    assert sealed(stream)
    number = stream.history().list_ids()[0]
    savepoint(str(stream.table), "first", at=number)
    stream.run(4)
    stream.history().prune(keep=1)
    stream.lose_location()
    assert stream.restore(at="first").point is RestorePoint.AFTER
    stream.run(1)
    assert stream.rows() == stream.whole_state(2) == totals_after(1)


def test_a_savepoint_that_the_next_batch_overtakes_can_do_without_it(
    stream: MadeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head that is sealed is not the savepoint's any more; its successor knows, and may be removed."""
    look = sealing.seal_head

    def overtaken(*arguments: Any) -> object:
        stream.batch()
        return look(*arguments)

    monkeypatch.setattr(sealing, "seal_head", overtaken)
    savepoint(str(stream.table), "overtaken")
    stream.run(4)
    stream.history().prune(keep=1)
    stream.lose_location()
    assert stream.restore(at="overtaken").point is RestorePoint.AFTER


def test_a_rollback_to_a_sealed_checkpoint_has_its_commit_log(stream: MadeStream) -> None:
    """And goes on knowing when the batch after that one is removed."""
    stream.run(2)
    history = stream.history()
    target = history.list_ids()[1]
    code = main(["rollback", str(stream.table), str(target)])
    newest = history.load_latest()
    assert (code, newest is not None and newest.rollback_of) == (0, target)
    history.prune(keep=1)
    stream.lose_location()
    assert stream.restore().point is RestorePoint.AFTER
    stream.run(1)
    assert stream.rows() == stream.whole_state(3) == totals_after(2)


def test_the_listener_uploads_nothing_and_seals_an_idle_query(stream: MadeStream) -> None:
    """It reports the table's checkpoints as its own."""
    watcher, begun = watch(stream)
    before = len(stream.history().list_ids())
    assert watcher.newest_committed() == 2
    made = watcher.capture(2)
    assert made is not None
    assert made.epoch == 2
    assert sealed(stream)
    assert len(stream.history().list_ids()) == before
    assert begun == []


def test_the_listener_does_not_seal_a_running_query(stream: MadeStream) -> None:
    """The next manifest will have the log; a seal would be a request for nothing."""
    watcher, _ = watch(stream)
    with pytest.raises(Killed):
        stream.batch(stop_after="offsets")
    assert watcher.newest_committed() == 2
    assert not sealed(stream)
    assert watcher.newest_committed() == 2
    assert sealed(stream), "nothing moved between two looks: it rests after all"


def test_a_query_whose_sink_keeps_rows_only_is_captured_as_any_other(tmp_path: Path) -> None:
    """The first batch of the run shows it."""
    stream = MadeStream(tmp_path, options={"state": "off"})
    watcher, begun = watch(stream)
    assert watcher.newest_committed() is None
    assert begun == []
    stream.run(1)
    watcher.newest_committed()
    assert begun == ["captured as any other"]
