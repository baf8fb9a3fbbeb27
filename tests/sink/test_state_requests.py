"""What a batch with its state asks of the store, planned and committed in several processes. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.sink import batch_commit as sink_commit
from pyspark_checkpoint.sink.batch_manifest import is_of_last_batch
from pyspark_checkpoint.sink.query import WriterFacts
from pyspark_checkpoint.sink.worker_cache import CACHE, store_key
from pyspark_checkpoint.store.base import Body, Stored, Version
from tests.sink.test_state_reading import Asked
from tests.support.made_stream import Killed, MadeStream, totals_after
from tests.support.sink_kit import Query, Worker, rows_from


class Table(Asked):
    """A table that writes down what it is asked, by what its objects are."""

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        self.asked.append(f"put {key}")
        return super().put(key, data, if_absent=if_absent, if_match=if_match, nonce=nonce)

    def read(self, key: str, *, max_bytes: int | None = None) -> Stored:
        self.asked.append(f"get {key}")
        return super().read(key, max_bytes=max_bytes)

    def take(self) -> list[str]:
        """What it was asked since the last time; a directory is asked besides whether it is shared."""
        asked = [one.split("/")[0] for one in self.asked if not one.startswith("head ")]
        self.asked.clear()
        return sorted(asked)


def opened(worker: Worker, query: Query) -> Table:
    """Let a process see the table through a store that writes everything down."""
    store = Table(Path(query.path))
    with worker:
        CACHE.stores.put(store_key(query.parsed().shared), store)
    return store


class ThreeProcesses:
    """A query whose batches are planned in one process, run in another, committed in a third."""

    def __init__(self, stream: MadeStream) -> None:
        self.stream = stream
        self.workers = [Worker() for _ in range(3)]
        self.stores = [opened(worker, stream.query) for worker in self.workers]

    def batch(self) -> list[list[str]]:
        """Run the next batch, and say what planning, tasks and commit have asked."""
        stream = self.stream
        number, (plans, tasks, commits) = stream.next_batch(), self.workers
        stream.write(f"offsets/{number}", stream.offsets(number))
        with plans:
            plan = stream.query.plan(batch_id=number)
        stream.ids = [stream._commit_state(part, number)[0] for part in range(stream.partitions)]
        with tasks:
            messages = stream.query.write(
                plan, number, rows_from(list(stream.whole_state(number + 1).items()))
            )
        with commits:
            stream.query.commit(messages, number, offsets=stream.offsets(number))
        stream.finish(number)
        return [store.take() for store in self.stores]


@pytest.mark.parametrize("state", ["on", "off"])
def test_a_batch_in_steady_state_asks_for_nothing_that_it_could_know(tmp_path: Path, state: str) -> None:
    """One GET to plan, one PUT a task, two PUTs and one GET to commit; the state adds none."""
    lab = ThreeProcesses(MadeStream(tmp_path, options={"state": state}))
    lab.batch()
    lab.batch()
    for _ in range(3):
        planned, written, committed = lab.batch()
        assert planned == ["get manifests"]
        assert written == ["put checkpoints"] * 2
        assert committed == ["get _control", "put _latest", "put manifests"]
    assert lab.stream.rows() == totals_after(4)


def test_a_task_reads_what_it_compacts_and_nothing_else(tmp_path: Path) -> None:
    """Each delta once, when it is its partition's turn: one GET a task and batch in the long run."""
    lab = ThreeProcesses(MadeStream(tmp_path, options={"maxDeltas": "4"}))
    written = [lab.batch()[1] for _ in range(12)]
    read = [sum(one.startswith("get") for one in asked) for asked in written]
    assert [number for number, count in enumerate(read) if count] == [3, 4, 7, 8, 11]
    assert sum(read) <= 2 * len(read)
    assert all(asked.count("put checkpoints") == 2 for asked in written)


def test_pruning_reads_what_it_removes_and_nothing_that_it_keeps(tmp_path: Path) -> None:
    """What the checkpoints name that stay is known from their commits."""
    lab = ThreeProcesses(MadeStream(tmp_path, options={"retain": "4"}))
    for _ in range(10):
        lab.batch()
    with lab.workers[2]:
        options = lab.stream.query.parsed()
        [run] = CACHE.runs.values()
        assert run.head is not None
        sink_commit._prune(options, run, run.head)
    assert len(lab.stream.history().list_ids()) == 4
    asked = lab.stores[2].take()
    assert asked.count("get manifests") == 6 + 1, "those that go, and one look for a newer one"
    assert list(lab.stream.history().verify()) == []


def test_what_is_known_for_pruning_is_bounded_also_if_somebody_else_prunes(tmp_path: Path) -> None:
    """The floor rises without this process; what is below it is forgotten."""
    lab = ThreeProcesses(MadeStream(tmp_path, options={"retain": "20"}))
    for _ in range(12):
        lab.batch()
        lab.stream.history().prune(2)
    with lab.workers[2]:
        [known] = CACHE.summaries.values()
    assert 0 < len(known) <= 4


def test_a_process_that_missed_batches_finds_the_head_all_the_same(tmp_path: Path) -> None:
    """Spark may plan in another process in between, or start a new one."""
    lab = ThreeProcesses(MadeStream(tmp_path))
    plans = lab.workers[0]
    other = Worker()
    for number in range(6):
        lab.workers[0] = plans if number in (0, 1, 4) else other
        lab.batch()
    assert lab.stream.rows() == totals_after(5)


def test_only_the_last_batch_of_this_run_is_known_to_be_the_last(tmp_path: Path) -> None:
    """A claim, another run's, or an earlier one may have a successor."""
    stream = MadeStream(tmp_path)
    stream.run(2)
    manifest = stream.history().load_latest()
    assert manifest is not None
    run_id = stream.query.run_id
    assert is_of_last_batch(manifest, WriterFacts(run_id=run_id, batch=2))
    assert not is_of_last_batch(manifest, WriterFacts(run_id=run_id, batch=1)), "it runs again"
    assert not is_of_last_batch(manifest, WriterFacts(run_id=run_id, batch=3))
    assert not is_of_last_batch(manifest, WriterFacts(run_id=run_id)), "nobody has said which it is"
    assert not is_of_last_batch(manifest, WriterFacts(run_id="another", batch=2))
    stream.start()
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    claim = stream.history().load_latest()
    assert claim is not None
    assert claim.kind is ManifestKind.CLAIM
    assert not is_of_last_batch(claim, WriterFacts(run_id=stream.query.run_id, batch=2))
