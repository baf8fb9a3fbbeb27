"""A restored query goes on as if nothing had happened: every later batch is the undisturbed run's."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.restorer.api import restore
from tests.integration.listener.lab import Lab
from tests.support.drivers.queries import PROVIDERS
from tests.support.lab import QUERIES

ROCKSDB_ONLY = ("transform-with-state",)
QUICK = [
    ("aggregation", "hdfs"),
    ("aggregation", "rocksdb"),
    ("aggregation", "rocksdb-v2"),
    ("aggregation-append", "rocksdb-changelog-v2"),
    ("global-aggregation", "hdfs"),
    ("join", "rocksdb-changelog-v2"),
    ("deduplication", "rocksdb-changelog"),
    ("session-window", "hdfs"),
    ("two-operators", "hdfs"),
    ("grouped-state", "hdfs"),
    ("transform-with-state", "rocksdb-changelog"),
    ("limit", "hdfs"),
    ("stateless", "hdfs"),
]
WHOLE = [
    (query, provider)
    for query in QUERIES
    for provider in PROVIDERS
    if (query not in ROCKSDB_ONLY or provider != "hdfs") and (query, provider) not in QUICK
]


def check(lab: Lab, query: str, provider: str, epochs: list[int]) -> None:
    """Run undisturbed, capture, lose the location, restore at each epoch, go on, compare."""
    location, store = lab.directory / "location", lab.directory / "store"
    undisturbed = lab.run(query, location, PROVIDERS[provider])
    assert max(undisturbed) >= 12
    numbers = lab.capture(location, store, epochs)
    location.rename(lab.directory / "lost")  # Spark's maintenance may still write to it
    restored = {}
    for epoch, number in zip(epochs, numbers, strict=True):
        fresh = lab.directory / f"restored-{epoch}"
        report = restore(str(store), str(fresh), at=number, clone=True)
        assert report.epoch == epoch
        restored[epoch] = lab.start(query, fresh, PROVIDERS["hdfs"])
    for epoch, run in restored.items():
        later = {batch: rows for batch, rows in undisturbed.items() if batch > epoch}
        assert run.finished() == later, f"restored at epoch {epoch}"


@pytest.mark.parametrize(
    ("query", "provider"), [pytest.param(*QUICK[0], marks=pytest.mark.promise), *QUICK[1:]]
)
def test_every_later_batch_is_that_of_an_undisturbed_run(lab: Lab, query: str, provider: str) -> None:
    """Restored at an early, a middle and the newest epoch, on a session that has another provider set."""
    check(lab, query, provider, [1, 6, 11])


@pytest.mark.soak
@pytest.mark.parametrize(("query", "provider"), QUICK)
def test_every_epoch_of_every_query(lab: Lab, query: str, provider: str) -> None:
    """Every kind of query, restored at every epoch."""
    check(lab, query, provider, list(range(12)))


@pytest.mark.soak
@pytest.mark.parametrize(("query", "provider"), WHOLE)
def test_the_other_pairs_of_query_and_provider(lab: Lab, query: str, provider: str) -> None:
    """The rest of the matrix, restored at the first, a middle and the newest epoch."""
    check(lab, query, provider, [0, 5, 11])
