"""What a query asks of the store until its first batch is committed, in the processes that Spark starts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import FormatError, UnsafeStore
from pyspark_checkpoint.history.control import find_control_or_new
from pyspark_checkpoint.sink import worker_cache
from pyspark_checkpoint.sink.datasource import CheckpointSinkSource
from pyspark_checkpoint.sink.worker_cache import CACHE, store_key
from pyspark_checkpoint.store.base import ObjectInfo
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.sink.test_state_requests import Table
from tests.support.sink_kit import SCHEMA, Query, Worker, read_pairs, rows_from


class Processes:
    """One that is asked for the layout, one that plans, one that commits."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.workers = [Worker() for _ in range(3)]
        self.stores = [Table(Path(query.path)) for _ in self.workers]
        for worker, store in zip(self.workers, self.stores, strict=True):
            with worker:
                CACHE.stores.put(store_key(query.parsed().shared), store)

    def ask_layout(self) -> None:
        facts = {f"__ckpt.{name}": value for name, value in self.query.facts().items()}
        asked = {"__ckpt.ask": "layout", "__ckpt.schema": json.dumps(SCHEMA.to_json())}
        with self.workers[0]:
            CheckpointSinkSource({"path": self.query.path, "keyColumns": "k", **facts, **asked}).schema()

    def batch(self, number: int) -> None:
        with self.workers[1]:
            plan = self.query.plan(batch_id=number)
        messages = self.query.write(plan, number, rows_from([(n, number) for n in range(10)]))
        with self.workers[2]:
            self.query.commit(messages, number)

    def asked(self) -> list[str]:
        return [one for store in self.stores for one in store.take()]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has probed the store; a disk is never asked by itself."""
    found: list[str] = []
    monkeypatch.setattr(
        worker_cache, "require_conditional_writes", lambda store, *_: found.append(store.url)
    )
    return found


def test_the_first_batch_of_a_new_table_reads_the_control_record_once_a_process(
    path: str, probes: list[str]
) -> None:
    """And once more in the commit, which is a rule of the protocol. Who plans probes, for all."""
    processes = Processes(Query(path, inline=True))
    processes.ask_layout()
    processes.batch(0)
    asked = processes.asked()
    assert asked.count("get _control") == 4
    assert not any("manifests" in one for one in asked if one.startswith("get"))
    assert len(probes) == 1


def test_the_layout_of_a_new_table_is_one_request(path: str) -> None:
    """Whether it is new, or has lost its control record, is looked into when the batch is planned."""
    processes = Processes(Query(path, inline=True))
    processes.ask_layout()
    assert processes.asked() == ["get _control"]
    assert processes.stores[0].asked == []


def test_a_table_that_has_lost_its_control_record_is_refused_when_it_is_planned(path: str) -> None:
    """The layout takes it for a new one; nothing is written, and no row is read."""
    Query(path).epoch(0, [(1, 1)])
    CACHE.forget()
    (Path(path) / "_control").unlink()
    processes = Processes(Query(path, inline=True))
    processes.ask_layout()
    with pytest.raises(FormatError, match="no _control"):
        processes.batch(1)
    assert not any(one.startswith("put") for one in processes.asked())


def test_a_store_without_a_control_record_is_asked_for_its_history_at_once(path: str) -> None:
    """The pointer, the manifests and the artifacts: each waits for the others here."""
    together = threading.Barrier(3)

    class Store(LocalStore):
        def head(self, key: str) -> ObjectInfo:
            together.wait(10)
            return super().head(key)

        def list(self, prefix: str = "", **bounds: Any) -> Iterator[ObjectInfo]:
            together.wait(10)
            return super().list(prefix, **bounds)

    assert find_control_or_new(Store(Path(path)), at_once=True) is None


def test_a_store_is_looked_at_while_it_is_probed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a store that fails the probe is left without a control record."""
    looked = threading.Event()
    monkeypatch.setattr(worker_cache, "find_control_or_new", lambda _, **__: looked.set())

    def probe(store: Table, _: bool) -> None:
        assert looked.wait(10)
        raise UnsafeStore(f"{store.url} does not honour conditional writes")

    monkeypatch.setattr(worker_cache, "require_conditional_writes", probe)
    with pytest.raises(UnsafeStore):
        Query(path).plan()
    assert not (Path(path) / "_control").exists()


def test_a_new_run_on_a_table_finds_the_head_once_a_process(path: str, probes: list[str]) -> None:
    """The layout, the plan with its claim, the commit; the claim looks once more."""
    Query(path).epoch(0, [(1, 1)])
    CACHE.forget()
    probes.clear()
    processes = Processes(Query(path, inline=True))
    processes.ask_layout()
    processes.batch(1)
    asked = processes.asked()
    assert asked.count("get _control") == 8
    assert asked.count("get _latest") == 2
    assert len(probes) == 1
    assert (0, 1) in read_pairs(path)
