"""What may come between a plan and its commit, or between two runs, and must change nothing. No Spark."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.sink.worker_cache import CACHE, store_key
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.testing.faulty_store import FaultKind, FaultyStore, fault_on
from tests.support.made_stream import Killed, MadeStream, totals_after


def test_a_commit_whose_answer_is_lost_is_in_the_table_once(tmp_path: Path) -> None:
    """The same bytes are sent again, and found to be there."""
    stream = MadeStream(tmp_path)
    stream.run(1)
    deaf = FaultyStore(LocalStore(stream.table), fault_on("put", "manifests/", FaultKind.LOST_RESPONSE))
    CACHE.stores.put(store_key(stream.query.parsed().shared), deaf)
    CACHE.tables.clear()
    CACHE.runs.clear()
    stream.batch()
    sent = [call.key for call in deaf.calls if call.verb == "put" and call.key.startswith("manifests/")]
    assert len(sent) == 2 and len(set(sent)) == 1, "the same manifest, once more"
    assert [epoch for _, epoch in stream.history().list()] == [0, 1]
    stream.run(1)
    assert stream.rows() == stream.whole_state(3) == totals_after(2)
    assert list(stream.history().verify()) == []


class _Uploading(LocalStore):
    """A location that is listed while maintenance uploads: the snapshot is seen, its own files are not."""

    early = 0

    def list(self, prefix: str = "", *, start_after: str | None = None):  # type: ignore[no-untyped-def]
        for found in super().list(prefix, start_after=start_after):
            if self.early and "/SSTs/" in found.key:
                self.early -= 1
                continue
            yield found


@pytest.mark.parametrize("early", [1, 2, 20], ids=["task", "both tasks", "driver"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_snapshot_that_is_still_uploaded_is_looked_for_again(
    tmp_path: Path, version: int, early: int
) -> None:
    """Nothing is published that names a snapshot without the files that it needs."""
    stream = MadeStream(tmp_path, version=version)
    stream.run(3)
    stream.zips = version == 1
    stream.maintain(3)
    stream.zips = False
    store = _Uploading(stream.location)
    stream.watch(store)
    store.early = early
    if early == 20:
        # It takes longer than anybody waits: the batch fails, and the next attempt of it succeeds.
        with pytest.raises(RefusedError, match="SSTs"):
            stream.query.once = False
            stream.batch()
        store.early = 0
        stream.start()
    manifest = stream.batch()
    assert [path for path in state_refs(manifest) if path.endswith(".zip")]
    assert stream.stored_state(manifest, "before") == totals_after(2)


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_a_repeated_batch_may_repartition_the_table(tmp_path: Path, partitions: str) -> None:
    """The option ``partitions`` was changed before the restart: rows are replaced, and split, and fit."""
    stream = MadeStream(tmp_path, chance=random.Random(4))
    stream.run(2)
    with pytest.raises(Killed):
        stream.batch(stop_after="published")
    stream.options["partitions"] = partitions
    stream.start()
    manifest = stream.batch()
    assert manifest.kind is ManifestKind.REPLACEMENT
    assert stream.rows() == stream.whole_state(3)
    stream.run(1)
    stream.lose_location()
    stream.restore(epoch=2)
    assert stream.rows() == stream.whole_state(3)
    stream.run(2)
    assert stream.rows() == stream.whole_state(5)
    assert list(stream.history().verify()) == []


@pytest.mark.parametrize("kind", ["v1", "v2", "zips"])
def test_a_location_from_before_a_rollback_is_refused(tmp_path: Path, kind: str) -> None:
    """First it is ahead of the table, and later it has diverged."""
    chance = random.Random(6)
    stream = MadeStream(tmp_path, version=2 if kind == "v2" else 1, zips=kind == "zips", chance=chance)
    stream.run(4)
    old = stream.location
    stream.restore(epoch=1)
    new = stream.location
    stream.location = old
    stream.start()
    with pytest.raises(RefusedError, match="ahead of the store"):
        stream.batch()
    stream.location = new
    stream.start()
    stream.run(2)
    stream.location = old
    stream.start()
    with pytest.raises(RefusedError, match="checkpoint location has diverged from the table"):
        stream.batch()
    stream.location = new
    stream.start()
    stream.run(1)
    assert stream.rows() == stream.whole_state(5)


def test_an_operator_that_the_query_has_no_more_is_refused_with_the_option_to_change(
    tmp_path: Path,
) -> None:
    """Its state stays behind, and the checkpoint could not be restored with it."""
    stream = MadeStream(tmp_path)
    stream.write("state/1/0/1.delta", "[]")
    with pytest.raises(RefusedError, match=r"operator 1 has state files.*option state to off"):
        stream.batch()
    assert stream.history().list_ids() == []


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("batches", [2, 5])
def test_a_query_that_takes_a_table_over_is_not_compared_with_the_others_state(
    tmp_path: Path, version: int, batches: int
) -> None:
    """Whatever batch it has come to in its own location; so is the first, when it takes the table back."""
    options = {"takeOver": "true"}
    first = MadeStream(tmp_path / "first", version=version, options=options)
    first.run(3)
    second = MadeStream(
        tmp_path / "second",
        version=version,
        query_id="7c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e22",
        options=options,
        chance=random.Random(1),
    )
    second.run(batches)
    second.table = first.table
    second.start()
    second.run(1)
    first.start()
    first.run(1)
    history = first.history()
    assert list(history.verify()) == []
    newest = history.load_latest()
    assert newest is not None
    assert newest.query.id == first.query_id


@pytest.mark.parametrize("stop_after", ["committed", "published"])
def test_a_stateless_query_with_diverged_offsets_is_refused(tmp_path: Path, stop_after: str) -> None:
    """Its old location has read up to elsewhere: rows would be left out, or come twice."""
    stream = MadeStream(tmp_path, partitions=0)
    stream.run(3)
    old = stream.location
    with suppress(Killed):
        stream.batch(stop_after=stop_after)
    stream.restore(epoch=1)
    stream.offsets_note = "elsewhere"
    stream.run(1)
    if stop_after == "published":
        stream.offsets_note = (
            ""  # what is repeated in the old location ends where this ends, and begins elsewhere
        )
    stream.run(1)
    last = stream.history().load_latest()
    stream.offsets_note, stream.location = "", old
    stream.start()
    with pytest.raises(RefusedError, match=r"offsets/\d has other offsets"):
        stream.batch()
    newest = stream.history().load_latest()
    assert last is not None and newest is not None
    assert newest.source_offsets == last.source_offsets, "the rows are those of the other offsets"
    assert stream.rows() == dict.fromkeys(range(4), 1)


def test_a_stateless_query_continues_in_either_location_with_the_same_offsets(tmp_path: Path) -> None:
    """What was restored and ran nothing yet has not diverged."""
    stream = MadeStream(tmp_path, partitions=0)
    stream.run(3)
    old = stream.location
    stream.restore()
    stream.location = old
    stream.start()
    stream.run(2)
    assert stream.rows() == dict.fromkeys(range(5), 1)
