"""What captures cost the store: names and manifests lead everywhere, nothing is listed. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_checkpoint.capture.manifest_builder import QueryFacts
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
        self._capture = QueryCapture(LocationSpec(str(location.path)).open(), run, facts)

    def capture(self, batch: int) -> CheckpointManifest:
        self.location.commit(batch)
        assert self._capture.newest_committed() == batch
        made = self._capture.capture(batch)
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
