"""Histories for the command line, made as a query makes them, and running a command in this process."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.cli.main import main
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.registry.queries import QueryRoot, register, root_url
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.made_history import commit_epoch
from tests.support.made_location import QUERY_ID, MadeLocation, capture
from tests.support.sink_kit import Query

OTHER_ID = "0f6a5f0e-91a7-4c0c-8d3e-5b7b6a1f2c22"


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Shell:
    """Runs commands in this process."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *typed: str | Path) -> Outcome:
        self.capsys.readouterr()
        status = main([str(word) for word in typed])
        out, err = self.capsys.readouterr()
        return Outcome(status, out, err)


def make_query(parent: Path, location: Path, *batches: int, name: str = "orders") -> str:
    """A query below ``parent`` with one checkpoint a batch; the URL of its own history."""
    query_id = QUERY_ID if name == "orders" else OTHER_ID
    url = root_url(str(parent), query_id)
    made = MadeLocation(location, query_id=query_id)
    for batch in batches:
        made.commit(batch)
        capture(made, url, batch)
    register(open_object_store(str(parent)), QueryRoot(name, query_id, "shop", 1_700_000_000_000))
    return url


def make_table(path: Path, epochs: int = 3, **options: str) -> str:
    """A keyed table: each epoch updates one key, and adds another."""
    query = Query(str(path), options=options)
    for epoch in range(epochs):
        query.epoch(epoch, [(0, epoch), (epoch + 1, epoch * 10)])
    return str(path)


class BusyClock(ManualClock):
    """A clock on which making an id takes a moment, so that everything takes some time."""

    def nonce(self) -> str:
        self.sleep(0.03)
        return super().nonce()

    def uuid7(self) -> str:
        self.sleep(0.03)
        return super().uuid7()


def make_long_history(path: Path) -> CheckpointStore:
    """A history of some hours: three runs, a pause, savepoints, a rollback, pruned and deleted parts."""
    clock = BusyClock("long")
    store = open_object_store(str(path))
    history = CheckpointStore(store, clock=clock)
    chance = random.Random(5)
    query = QueryInfo(id=QUERY_ID, name="orders", spark_version="4.3.0", app_name="shop")
    epoch = 0
    for at, (run_id, batches) in enumerate((("run-a", 30), ("run-b", 25), ("run-c", 20))):
        run = Run(store, run_id, clock=clock, query=query)
        run.claim()
        for batch in range(batches):
            clock.sleep(40 + chance.random() * 30)
            commit_epoch(run, epoch, large_bytes=4000 + epoch * 150 + chance.randrange(9000))
            epoch += 1
            if batch == 12:
                history.savepoint(("before-upgrade", "weekly", "black-friday")[at])
        clock.sleep(2500 if at == 0 else 90)
    history.prune(58)
    history.delete_checkpoint(40)
    history.rollback(70)
    return history
