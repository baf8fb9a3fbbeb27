"""Copies to and from every backend, on real servers."""

from __future__ import annotations

from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.replication import MEMORY_BYTES, copy_store
from pyspark_checkpoint.history.savepoint import add_savepoint, list_savepoints
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.conftest import Place
from tests.support.made_history import commit_epoch, content, contents, make_history


def test_a_history_goes_to_every_backend_and_back(place: Place) -> None:
    """There and back, in two steps, with a large object and a savepoint: byte for byte the same."""
    origin, there, back = MemoryStore(), place.open(), MemoryStore()
    run = make_history(origin, 3)
    add_savepoint(origin, "two", ManualClock(), number=2)
    copy_store(origin, there)
    commit_epoch(run, 4, large_bytes=MEMORY_BYTES + 1)
    copy_store(origin, there)
    assert list(verify_store(there)) == []
    copy_store(there, back)
    assert list(verify_store(back)) == []
    assert list_savepoints(back) == list_savepoints(origin)
    here, again = contents(origin), contents(back)
    assert {key for key in here if here[key] != again.get(key)} <= {"_control"}
    head = find_head(back)
    assert head is not None
    assert ArtifactReader(back).read_partition(head.manifest, "agg", 0)[-1] == content(4, 0)
    there.close()
