"""What a commit reads of the location: all of it when it must, else what the tasks saw. No Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.sink.batch_manifest import Batch, gather
from pyspark_checkpoint.sink.query import WriterFacts
from pyspark_checkpoint.sink.state_driver import may_combine
from pyspark_checkpoint.sink.state_task import StatePlan
from pyspark_checkpoint.sink.worker_cache import CACHE, LastCommit
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.state_artifacts import state_refs
from pyspark_checkpoint.store.base import ObjectInfo
from pyspark_checkpoint.store.local.local_store import LocalStore
from tests.support.made_stream import Killed, MadeStream, totals_after
from tests.support.sink_kit import Worker, rows_from


class Asked(LocalStore):
    """A location that writes down what it is asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def list(self, prefix: str = "", *, start_after: str | None = None):  # type: ignore[no-untyped-def]
        self.asked.append(f"list {prefix}")
        return super().list(prefix, start_after=start_after)

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
        self.asked.append(f"get {key}")
        return super().get(key, start=start, end=end)

    def head(self, key: str) -> ObjectInfo:
        self.asked.append(f"head {key}")
        return super().head(key)


def watch(stream: MadeStream) -> Asked:
    """Let this run ask the location through a store that writes everything down."""
    store = Asked(stream.location)
    stream.watch(store)
    return store


def commit(stream: MadeStream, asked: Asked) -> tuple[CheckpointManifest, list[str]]:
    """The next batch, and what its commit asked of the location."""
    number = stream.next_batch()
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    plan = stream.query.plan()
    rows = rows_from(list(stream.whole_state(number + 1).items()))
    messages = stream.query.write(plan, number, rows)
    asked.asked.clear()
    return stream.query.commit(messages, number), list(asked.asked)


@pytest.mark.parametrize("kind", ["v1", "v2", "zips"])
def test_a_commit_asks_the_location_for_no_more_than_two_things(tmp_path: Path, kind: str) -> None:
    """However much state there is: what the sources keep, and the last commit. The first one lists all."""
    stream = MadeStream(tmp_path, version=2 if kind == "v2" else 1, zips=kind == "zips", partitions=8)
    asked = watch(stream)
    stream.batch()
    assert "list " in asked.asked
    for number in (1, 2):
        manifest, requests = commit(stream, asked)
        assert sorted(requests) == [f"get commits/{number - 1}", "list sources/"]
        assert stream.stored_state(manifest, "before") == totals_after(number - 1)
        stream.finish(number)
    assert list(stream.history().verify()) == []


def test_a_process_that_remembers_nothing_lists_the_location(tmp_path: Path) -> None:
    """Spark replaces its Python processes; the new one knows nothing of the run so far."""
    stream = MadeStream(tmp_path)
    stream.run(2)
    CACHE.forget()
    asked = watch(stream)
    assert "list " in commit(stream, asked)[1]


def test_batches_may_be_committed_by_two_processes_in_turn(tmp_path: Path) -> None:
    """Each lists the location once, and then goes on from what the other one has committed."""
    stream = MadeStream(tmp_path, version=2)
    workers = [Worker(), Worker()]
    lists = []
    for number in range(6):
        with workers[number % 2]:
            lists.append("list " in commit(stream, watch(stream))[1])
        stream.finish(number)
    assert lists == [True, True, False, False, False, False]
    assert stream.rows() == totals_after(5)
    assert list(stream.history().verify()) == []


def test_a_task_that_may_have_run_twice_makes_the_commit_list(tmp_path: Path) -> None:
    """A retry, speculation, a stage that ran again: what a task saw may have been written again since."""
    stream = MadeStream(tmp_path)
    asked = watch(stream)
    stream.run(2)
    stream.query.once = False
    assert "list " in commit(stream, asked)[1]


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_written_after_its_task_looked_is_collected_by_the_driver(
    tmp_path: Path, version: int
) -> None:
    """A union or a coalesce: a task looks at a partition that another one still writes."""
    stream = MadeStream(tmp_path, version=version)
    stream.run(2)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    [late] = (stream.location / "state" / "0" / "1").glob("3[._]*")
    hidden = late.with_name(f".{late.name}")
    late.rename(hidden)
    rows = rows_from(list(totals_after(2).items()))
    messages = stream.query.write(stream.query.plan(), 2, rows)
    assert not [file for part in messages for file in part.state if file.path.endswith(f"/1/{late.name}")]
    hidden.rename(late)
    manifest = stream.query.commit(messages, 2)
    assert f"state/0/1/{late.name}" in state_refs(manifest)
    assert list(stream.history().verify()) == []


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_an_earlier_run_are_not_committed_as_this_runs(tmp_path: Path, version: int) -> None:
    """A task looks at a partition before it is written again, and sees what the dead run wrote there."""
    stream = MadeStream(tmp_path, version=version, chance=random.Random(2))
    stream.run(2)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    left = files_of(stream, "state/0/0/3")
    stream.start()
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    made = files_of(stream, "state/0/0/3")
    assert made != left
    put(stream, "state/0/0/3", left)
    messages = stream.query.write(stream.query.plan(), 2, rows_from([(1, 1)]))
    put(stream, "state/0/0/3", made)
    manifest = stream.query.commit(messages, 2, offsets=stream.offsets(2))
    reader = stream.history().reader()
    refs = {path: ref for path, ref in state_refs(manifest).items() if path.startswith("state/0/0/3")}
    assert {path: reader.read(ref, "0-stateStoreSave", 0) for path, ref in refs.items()} == made
    stream.finish(2)
    right = stream.whole_state(3)
    assert stream.stored_state(stream.batch(), "before") == right


def files_of(stream: MadeStream, prefix: str) -> dict[str, bytes]:
    """The files of the location that begin so."""
    found = sorted(stream.location.glob(f"{prefix}[._]*"))
    return {str(path.relative_to(stream.location)): path.read_bytes() for path in found}


def put(stream: MadeStream, prefix: str, files: dict[str, bytes]) -> None:
    """Let these be the files that begin so."""
    for path in files_of(stream, prefix):
        (stream.location / path).unlink()
    for path, data in files.items():
        stream.write(path, data)


def batch_of(stream: MadeStream, number: int) -> Batch:
    """The messages of a batch whose state is there."""
    messages = stream.query.write(stream.query.plan(), number, rows_from([(1, 1)]))
    return gather(messages, WriterFacts(run_id=stream.query.run_id, once=True))


def test_each_condition_of_not_listing_is_needed(tmp_path: Path) -> None:
    """The batch before is of this run and this process; nothing is newer; no task ran twice."""
    stream = MadeStream(tmp_path)
    stream.run(2)
    with pytest.raises(Killed):
        stream.batch(stop_after="state")
    batch = batch_of(stream, 2)
    run_id = stream.query.run_id
    head = StatePlan(location=LocationSpec("/x"), record=StateRecord(1), head_run=run_id)
    before = LastCommit(1, 2)
    assert may_combine(batch, head, before)
    assert not may_combine(batch, replace(head, head_run="another"), before)
    assert not may_combine(batch, replace(head, record=StateRecord(2)), before)
    assert not may_combine(batch, replace(head, record=None), before)
    assert may_combine(batch, head, LastCommit(0, 2)), "another process has committed the last one"
    assert not may_combine(batch, head, LastCommit(2, 2))
    for newest in (3, 4):
        assert not may_combine(batch, head, LastCommit(1, newest)), "an earlier attempt got so far"
    assert not may_combine(replace(batch, facts=replace(batch.facts, once=False)), head, before)
