"""What captures cost the store: names and manifests lead everywhere, nothing is listed. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
from pyspark_checkpoint.errors import FencedError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.manifest import CheckpointManifest, QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore, MeterSnapshot
from tests.support.made_location import MadeLocation

RETAIN = 20
STEP = RETAIN // 2


class Watched:
    """A query that is captured batch by batch, with a store that counts."""

    def __init__(self, location: MadeLocation) -> None:
        self.location = location
        self.store = MeteredStore(MemoryStore(f"memory://{location.path.parent.name}"))
        info = QueryInfo(id=location.query_id, checkpoint_location=str(location.path))
        self.history = CheckpointStore(self.store, query=info)
        run = self.history.writer()
        run.claim()
        facts = QueryFacts(info, self.history.run_id, ("source",), "test", "update")
        self.capturer = QueryCapture(LocationSpec(str(location.path)).open(), run, facts)

    def capture(self, batch: int) -> CheckpointManifest:
        self.location.commit(batch)
        assert self.capturer.newest_committed() == batch
        made = self.capturer.capture(batch)
        assert made is not None
        self.history.remember(made)
        return made


def requests(cost: MeterSnapshot) -> dict[str, int]:
    return {verb: count.requests for verb, count in cost.verbs.items() if count.requests}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    yield Watched(MadeLocation(tmp_path / "location", state_bytes=20_000))


def test_a_capture_costs_three_puts_and_one_get(watched: Watched) -> None:
    """Its files in one object, its manifest, the pointer; and the look at the control record. No LIST."""
    watched.capture(0)
    for batch in range(1, 12):
        before = watched.store.snapshot()
        watched.capture(batch)
        assert requests(watched.store.snapshot() - before) == {"put": 3, "read": 1}


def test_retention_reads_no_manifest_that_its_own_run_has_published(watched: Watched) -> None:
    """Every tenth capture prunes ten: it reads those that it deletes, and not the twenty that stay."""
    for batch in range(4 * STEP):
        watched.capture(batch)
        if (batch + 1) % STEP == 0:
            before = watched.store.snapshot()
            removed = watched.history.prune(RETAIN)
    cost = requests(watched.store.snapshot() - before)
    assert removed == STEP
    assert "list" not in cost
    assert cost["get"] <= STEP + 2
    assert sum(cost.values()) <= 3 * STEP + 5
    assert list(watched.history.verify()) == []


def held_capture(watched: Watched, batch: int) -> list[dict[str, int]]:
    """What a batch that waits costs the store, until it is told, and until its capture has ended."""
    plan_file = watched.location.plan(batch).path / "offsets" / str(batch)
    plan = plan_file.read_bytes()
    plan_file.unlink()
    began, told = watched.store.snapshot(), list[dict[str, int]]()

    def note() -> None:
        told.append(requests(watched.store.snapshot() - began))

    manifest = watched.capturer.capture_planned(batch, plan, note)
    assert manifest is not None and manifest.planned is not None
    note()
    return told


def test_a_batch_waits_for_two_requests_if_the_one_before_it_was_prepared(watched: Watched) -> None:
    """The manifest and the look at the control record. Its files were sent before, the hint moves after."""
    watched.capture(0)
    watched.location.commit(1)
    before = watched.store.snapshot()
    watched.capturer.prepare()
    assert requests(watched.store.snapshot() - before) == {"put": 1}
    assert held_capture(watched, 2) == [{"put": 1, "read": 1}, {"put": 2, "read": 1}]
    watched.location.commit(2)
    assert held_capture(watched, 3)[0] == {"put": 2, "read": 1}, "one more, if nothing was prepared"
    restored = watched.history.load_latest()
    assert restored is not None
    assert (restored.epoch, restored.requests.puts) == (2, 2), "its files, and the manifest"
    assert list(watched.history.verify()) == []


def test_what_spark_writes_again_after_it_was_prepared_is_sent_again(watched: Watched) -> None:
    """By size and time of the files; the checkpoint has what the location has."""
    watched.capture(0)
    watched.location.commit(1)
    watched.capturer.prepare()
    state = watched.location.path / "state/0/1/2.delta"
    state.write_bytes(watched.location.new_state(20_001))
    made = watched.capturer.capture(1)
    assert made is not None
    digests = {ref.sha256 for ref in made.artifacts()}
    assert sha256_hex(state.read_bytes()) in digests
    assert list(watched.history.verify()) == []


def test_what_was_prepared_for_a_number_that_another_run_took_is_not_named(watched: Watched) -> None:
    """What is staged for a number is published under that one only."""
    watched.capture(0)
    watched.location.commit(1)
    watched.capturer.prepare()
    CheckpointStore(watched.store, query=watched.capturer.facts.query).writer().claim()
    with pytest.raises(FencedError):
        held_capture(watched, 2)
    assert list(watched.history.verify()) == []
