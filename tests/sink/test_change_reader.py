"""The stream of changes: final epochs only, each once, restartable, honest about what is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import FormatError, RefusedError, SettingsError
from pyspark_checkpoint.format.keys import seal_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import FeedPosition, TableMode
from pyspark_checkpoint.format.records import Control
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.rollback import rollback
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.seal import write_seal
from pyspark_checkpoint.sink.change_reader import ChangeReader, FeedHistory
from pyspark_checkpoint.sink.table_options import parse_read_options
from pyspark_checkpoint.sink.table_reader import TableReader
from pyspark_checkpoint.sink.worker_cache import CACHE, OpenTable
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore
from pyspark_checkpoint.table.feed import NOTHING_SERVED
from pyspark_checkpoint.table.info import TableInfo
from pyspark_checkpoint.table.schema import TableSchema
from tests.support.made_history import new_run
from tests.support.sink_kit import SCHEMA, Query, rows_from

ADDED = [
    {"name": "_change_type", "type": "string", "nullable": False, "metadata": {}},
    {"name": "_epoch", "type": "long", "nullable": False, "metadata": {}},
]


class Consumer:
    """A streaming query over the changes, with Spark's order of calls and an offset of its own."""

    def __init__(self, path: str, *, told_its_start: bool = True, **options: str) -> None:
        """Spark before 4.2 asks for the latest offset without saying where it is."""
        schema = SCHEMA.to_json()
        schema["fields"] += ADDED
        self._told_its_start = told_its_start
        self._make: Callable[[], ChangeReader] = lambda: ChangeReader(
            parse_read_options({"path": path, **options}), schema
        )
        self.reader = self._make()
        self.offset: dict[str, Any] | None = None

    def restart(self) -> None:
        """A new process with the offset of the old one."""
        self.reader = self._make()

    def batch(self) -> list[tuple[Any, ...]]:
        """One batch: the rows of everything that is new."""
        start = self.offset if self.offset is not None else self.reader.initialOffset()
        end = self.reader.latestOffset(*((start, None) if self._told_its_start else ()))
        found: list[tuple[Any, ...]] = []
        if end != start:
            for split in self.reader.partitions(start, end):
                for batch in self.reader.read(split):
                    found += [tuple(row.values()) for row in batch.to_pylist()]
        self.offset = end
        return sorted(found, key=repr)


def test_the_feed_begins_with_the_table_and_goes_on_with_changes(path: str) -> None:
    """The newest epoch waits until the next one makes it final."""
    query, consumer = Query(path), Consumer(path)
    query.epoch(0, [(1, 10), (2, 20)])
    assert consumer.batch() == []
    query.epoch(1, [(2, 21)])
    query.epoch(2, [(3, 30)])
    assert consumer.batch() == [(1, 10, "upsert", 1), (2, 21, "upsert", 1)]
    assert consumer.batch() == []
    query.epoch(3, [(1, 11)])
    consumer.restart()
    assert consumer.batch() == [(3, 30, "upsert", 2)]


def test_every_epoch_is_served_once_whatever_happens_to_the_writer(path: str) -> None:
    """Claims, replacements and compacted chains between them."""
    consumer = Consumer(path, startingEpoch="earliest")
    query = Query(path, options={"maxDeltas": "1"})
    served: list[tuple[Any, ...]] = []
    for batch_id in range(8):
        query.epoch(batch_id, [(batch_id, 0)])
        served += consumer.batch()
        if batch_id % 3 == 1:
            CACHE.forget()
            query = Query(path, options={"maxDeltas": "1"})
            query.epoch(batch_id, [(batch_id, 1)])
            served += consumer.batch()
    assert served == [(n, int(n % 3 == 1), "upsert", n) for n in range(7)]


def test_deletes_inserts_and_replacements_are_told_apart(path: str, tmp_path: Path) -> None:
    """By one word a row."""
    fields = [
        *SCHEMA.to_json()["fields"],
        {"name": "op", "type": "string", "nullable": True, "metadata": {}},
    ]
    schema = TableSchema.from_json({"type": "struct", "fields": fields})
    query = Query(path, schema=schema, options={"opColumn": "op"})
    for batch_id, op in enumerate(["u", "d", "u"]):
        rows = rows_from([(1, batch_id)]).append_column("op", pa.array([op]))
        query.commit(query.write(query.plan(), batch_id, rows), batch_id)
    changes = Consumer(path, startingEpoch="0").batch()
    assert [row[2:] for row in changes] == [("upsert", 0), ("delete", 1)]
    plain, whole = str(tmp_path / "plain"), str(tmp_path / "whole")
    for table, arguments in ((plain, {"keys": ""}), (whole, {"keys": "", "output_mode": "complete"})):
        query = Query(table, **arguments)  # type: ignore[arg-type]
        for batch_id in range(3):
            query.epoch(batch_id, [(batch_id, batch_id)])
    assert Consumer(plain, startingEpoch="1").batch() == [(1, 1, "insert", 1)]
    assert Consumer(whole, startingEpoch="0").batch() == [(0, 0, "replace", 0), (1, 1, "replace", 1)]


def test_a_seal_or_a_batch_job_makes_the_newest_epoch_final(path: str, tmp_path: Path) -> None:
    """Nobody can run it again."""
    manifest = Query(path).epoch(0, [(1, 1)])
    consumer = Consumer(path)
    assert consumer.batch() == []
    write_seal(open_object_store(path), manifest, {}, SYSTEM_CLOCK, check=lambda *_: None)
    assert consumer.batch() == [(1, 1, "upsert", 0)]
    job = str(tmp_path / "job")
    Query(job, query_id="").epoch(0, [(1, 1)])
    assert Consumer(job).batch() == [(1, 1, "upsert", 0)]


def test_only_what_comes_from_now_on(path: str) -> None:
    """``latest`` leaves out what is final already."""
    query = Query(path)
    query.epoch(0, [(1, 1)])
    query.epoch(1, [(2, 2)])
    consumer = Consumer(path, startingEpoch="latest")
    assert consumer.batch() == []
    query.epoch(2, [(3, 3)])
    assert consumer.batch() == [(2, 2, "upsert", 1)]


def test_a_pruned_epoch_is_an_error_that_names_it(path: str) -> None:
    """A consumer that was away for too long, and one that asks for what is gone, are told so."""
    query = Query(path)
    query.epoch(0, [(0, 0)])
    query.epoch(1, [(1, 1)])
    late = Consumer(path)
    late.batch()
    for batch_id in range(2, 9):
        query.epoch(batch_id, [(batch_id, 0)])
    CheckpointStore.open(path).prune(keep=2)
    with pytest.raises(RefusedError, match="epoch 1 was pruned: the oldest one left is epoch"):
        late.batch()
    with pytest.raises(RefusedError, match="epoch 3 was pruned"):
        Consumer(path, startingEpoch="3").batch()
    with pytest.raises(RefusedError, match="epoch 0 was pruned"):
        Consumer(path, startingEpoch="0").batch()
    assert Consumer(path, startingEpoch="earliest").batch()


def test_what_was_planned_and_then_pruned_is_an_error_that_says_so(path: str) -> None:
    """A consumer that died in its first batch runs it again, too late; a query that read for too long."""
    query = Query(path, options={"maxDeltas": "2"})
    query.epoch(0, [(0, 0)])
    query.epoch(1, [(1, 1)])
    consumer = Consumer(path)
    start = consumer.reader.initialOffset()
    end = consumer.reader.latestOffset(start, None)
    reader = TableReader(parse_read_options({"path": path}), SCHEMA.to_json())
    splits = reader.partitions()
    for batch_id in range(2, 9):
        query.epoch(batch_id, [(batch_id, 0)])
    CheckpointStore.open(path).prune(keep=2)
    with pytest.raises(RefusedError, match=r"epoch 0 was pruned with checkpoint 1.*retain"):
        consumer.reader.partitions(start, end)
    with pytest.raises(FormatError, match=r"is missing.*option retain"):
        [list(reader.read(split)) for split in splits]


def test_a_consumer_that_began_before_the_table_fails_with_what_it_missed(path: str) -> None:
    """With ``latest`` on a table that had nothing final yet, every later epoch is wanted."""
    query = Query(path)
    query.epoch(0, [(0, 0)])
    early = Consumer(path, startingEpoch="latest")
    assert early.batch() == []
    for batch_id in range(1, 5):
        query.epoch(batch_id, [(batch_id, 0)])
    CheckpointStore.open(path).prune(keep=2)
    with pytest.raises(RefusedError, match="epoch 0 was pruned"):
        early.batch()


def test_a_sealed_epoch_is_served_once_while_the_next_run_claims_the_table(path: str) -> None:
    """Between a claim and the copy of the seal the epoch is still what it was: final, and served."""
    query = Query(path)
    query.epoch(0, [(0, 0)])
    store = open_object_store(path)
    write_seal(store, query.epoch(1, [(1, 1)]), {}, SYSTEM_CLOCK, check=lambda *_: None)
    early, late = (Consumer(path, startingEpoch="0") for _ in range(2))
    start = late.reader.initialOffset()
    end = late.reader.latestOffset(start, None)
    assert [row[3] for row in early.batch()] == [0, 1]
    Query(path).plan()  # claims
    claim = find_head(store)
    assert claim is not None and claim.manifest.kind is ManifestKind.CLAIM
    store.delete([seal_key(claim.number)])
    assert early.batch() == []
    assert len(late.reader.partitions(start, end)) == 2, "what was promised is given"


def test_a_batch_that_was_planned_is_given_whatever_happens_to_the_table(path: str) -> None:
    """A rollback between the two calls of one batch takes nothing out of it; the next batch says so."""
    query, consumer = Query(path), Consumer(path, startingEpoch="0")
    for batch_id in range(3):
        query.epoch(batch_id, [(batch_id, 0)])
    start = consumer.reader.initialOffset()
    end = consumer.reader.latestOffset(start, None)
    rollback(open_object_store(path), 1)
    splits = consumer.reader.partitions(start, end)
    rows = [row for split in splits for batch in consumer.reader.read(split) for row in batch.to_pylist()]
    assert sorted(row["_epoch"] for row in rows) == [0, 1]
    consumer.offset = end
    with pytest.raises(RefusedError, match="rolled back to epoch 0"):
        consumer.batch()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("start", ["snapshot", "0"])
def test_with_one_epoch_left_nothing_is_served_twice(
    path: str, start: str, told: bool, restarted: bool
) -> None:
    """Nothing final is left then; a consumer that had come so far waits, also on Spark before 4.2."""
    query, consumer = Query(path), Consumer(path, startingEpoch=start, told_its_start=told)
    for batch_id in range(4):
        query.epoch(batch_id, [(batch_id, 0)])
    assert len(consumer.batch()) == 3
    CheckpointStore.open(path).prune(keep=1)
    if restarted:
        consumer.restart()
    assert consumer.batch() == []
    query.epoch(4, [(4, 0)])
    assert consumer.batch() == [(3, 0, "upsert", 3)]


def test_a_table_whose_only_epoch_replaced_all_rows_makes_a_restarted_consumer_wait(path: str) -> None:
    """On Spark before 4.2; the rows come when that epoch is final."""
    query = Query(path, output_mode="complete", keys="")
    consumer = Consumer(path, told_its_start=False)
    for batch_id in range(4):
        query.epoch(batch_id, [(batch_id, 0)])
    assert consumer.batch() != []
    CheckpointStore.open(path).prune(keep=1)
    consumer.restart()
    assert consumer.batch() == []
    query.epoch(4, [(4, 0)])
    assert [row[0] for row in consumer.batch()] == [3]


def new_course(path: str, target: int, epochs: range) -> None:
    """Roll the table back to checkpoint ``target`` and write other rows of ``epochs``."""
    rollback(open_object_store(path), target)
    CACHE.forget()
    query = Query(path)
    for batch_id in epochs:
        query.epoch(batch_id, [(batch_id, 9)])


@pytest.mark.parametrize("told", [True, False])
def test_a_restarted_writer_is_no_rollback(path: str, told: bool) -> None:
    """The claims behind a consumer are pruned, and it goes on: nothing was taken back."""
    query, consumer = Query(path), Consumer(path, told_its_start=told)
    for batch_id in range(4):
        query.epoch(batch_id, [(batch_id, 0)])
    assert len(consumer.batch()) == 3
    for batch_id in range(3, 7):
        CACHE.forget()
        again = Query(path)
        again.epoch(batch_id, [(batch_id, 1)])
        if batch_id == 3:
            CheckpointStore.open(path).prune(keep=1)
            consumer.restart()
    assert consumer.batch() == [(n, 1, "upsert", n) for n in range(3, 6)]


def test_claims_of_the_epoch_that_was_served_may_be_all_that_is_left_of_it(path: str) -> None:
    """What they say is what the consumer has; the same from another lineage is not."""
    query = Query(path)
    same, other = Consumer(path, startingEpoch="0"), Consumer(path, startingEpoch="0")
    for batch_id in range(3):
        query.epoch(batch_id, [(batch_id, 0)])
    assert len(same.batch()) == len(other.batch()) == 2
    rollback(open_object_store(path), 2)
    for _ in range(2):
        CACHE.forget()
        Query(path).plan()  # claims
    store = CheckpointStore.open(path)
    store.prune(keep=1)
    assert same.batch() == []
    new_course(path, store.list_ids()[-1], range(2, 4))
    store.prune(keep=2)
    assert same.batch() == [(2, 9, "upsert", 2)]
    assert other.batch() == [(2, 9, "upsert", 2)]


@pytest.mark.parametrize("told", [True, False])
def test_a_recreated_table_is_not_mistaken_for_the_old_one(path: str, told: bool) -> None:
    """Its numbers begin again; a consumer of the old one would leave its first epochs out."""
    consumer = Consumer(path, told_its_start=told)
    for life in range(2):
        CACHE.forget()
        query = Query(path)
        for batch_id in range(3 - life):
            query.epoch(batch_id, [(batch_id, life)])
        if not life:
            assert len(consumer.batch()) == 2
            shutil.rmtree(path)
            consumer.restart()
    with pytest.raises(RefusedError, match="deleted and created again"):
        consumer.batch()


def test_options_that_a_stream_cannot_have_are_refused(path: str) -> None:
    """A point in time is for spark.read; and the two columns must be there."""
    with pytest.raises(SettingsError, match="are for spark"):
        Consumer(path, epoch="3")
    with pytest.raises(SettingsError, match="startingEpoch is snapshot"):
        Consumer(path, startingEpoch="soon")
    with pytest.raises(SettingsError, match="changes"):
        ChangeReader(parse_read_options({"path": path}), SCHEMA.to_json())


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("start", ["snapshot", "latest"])
def test_a_consumer_may_begin_while_nothing_final_is_left(path: str, start: str, told: bool) -> None:
    """What the newest epoch builds on is still there, though its own checkpoint is not."""
    query = Query(path, options={"maxDeltas": "1"})
    for batch_id in range(4):
        query.epoch(batch_id, [(batch_id, 0)])
    CheckpointStore.open(path).prune(keep=1)
    consumer = Consumer(path, startingEpoch=start, told_its_start=told)
    rows = consumer.batch()
    query.epoch(4, [(4, 0)])
    rows += consumer.batch()
    assert [row[0] for row in rows] == ([3] if start == "latest" else [0, 1, 2, 3])


TABLE = TableInfo(operator="table", schema=TableSchema(()), mode=TableMode.APPEND)


def write_epochs(run: Run, epochs: range) -> None:
    for epoch in epochs:
        draft = CheckpointManifest(checkpoint_id=0, epoch=epoch, batch_id=epoch, table=TABLE.record())
        run.publish(draft, run.attempt())


def feed_of(run: Run) -> tuple[FeedHistory, MeteredStore]:
    store = MeteredStore(run.store)
    store_id = run.store_id or ""
    return FeedHistory(OpenTable(store, store_id, None, None, Control(store_id=store_id))), store


def test_the_newest_final_epoch_is_found_without_reading_the_history() -> None:
    """However many epochs a table keeps, a consumer that starts reads its end."""
    run = new_run(MemoryStore())
    write_epochs(run, range(60))
    feed, store = feed_of(run)
    assert feed.newest() == FeedPosition(59, 58)
    assert store.snapshot().total.requests < 10


def test_a_claim_is_no_rows_so_that_the_newest_epoch_has_one_name() -> None:
    """Whoever looks finds the checkpoint that wrote the rows, as long as it is there."""
    run = new_run(MemoryStore())
    write_epochs(run, range(3))
    heir = new_run(run.store, "run-2")
    heir.claim()
    write_epochs(heir, range(3, 4))
    assert feed_of(heir)[0].newest() == FeedPosition(3, 2)


def test_what_was_pruned_is_forgotten() -> None:
    """A consumer may run for years."""
    run = new_run(MemoryStore())
    write_epochs(run, range(30))
    feed, _ = feed_of(run)
    assert len(feed.entries(NOTHING_SERVED)) == 30
    CheckpointStore(run.store, clock=run.clock).prune(keep=2)
    assert len(feed.entries(NOTHING_SERVED)) == 2
    assert len(feed._known) <= 1 + 8
