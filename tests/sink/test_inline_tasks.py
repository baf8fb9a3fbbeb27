"""Tasks without Python: what they send is written by the driver as they would have written it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.sink.batch_commit import commit_batch
from pyspark_checkpoint.sink.inline_plan import InlinePlan, plan_inline
from pyspark_checkpoint.sink.inline_tasks import run_inline
from pyspark_checkpoint.sink.query import facts_from_fields
from pyspark_checkpoint.sink.task import DriverFacts, InlineRows, inline_rows
from pyspark_checkpoint.sink.worker_cache import CACHE, store_key
from pyspark_checkpoint.sink.writers import StreamWriter
from tests.sink.test_state_requests import Table
from tests.support.made_stream import MadeStream, totals_after
from tests.support.sink_kit import Query, read_pairs, rows_from, stream_of

BOTH_WAYS = pytest.mark.parametrize("keys", ["k", ""], ids=["keyed", "unkeyed"])


def asked(query: Query) -> Table:
    """The store of this process, writing down what it is asked from now on."""
    store = Table(Path(query.path))
    CACHE.stores.put(store_key(query.parsed().shared), store)
    return store


@BOTH_WAYS
def test_a_batch_of_small_tasks_is_three_puts_whatever_the_partitions(path: str, keys: str) -> None:
    """Also where chains are compacted: what this process has written it does not read again."""
    query = Query(path, keys=keys, tasks=32, inline=True, options={"maxDeltas": "4", "partitions": "32"})
    store = asked(query)
    for batch_id in range(12):
        query.epoch(batch_id, [(n, batch_id) for n in range(200)])
        found = store.take()
        if batch_id > 1:
            puts = ["put _latest", "put checkpoints", "put manifests"]
            assert found == ["get _control", "get manifests", *puts]
    expected = [(n, batch_id) for n in range(200) for batch_id in range(12) if batch_id == 11 or not keys]
    assert sorted(read_pairs(path), key=str) == sorted(expected, key=str)


def test_a_process_that_remembers_nothing_reads_each_pack_once(path: str) -> None:
    """The compactions of all partitions need neighbours in the same packs."""
    query = Query(path, inline=True, tasks=8, options={"maxDeltas": "4", "partitions": "8"})
    for batch_id in range(7):
        query.epoch(batch_id, [(n, batch_id) for n in range(100)])
    plan = query.plan(batch_id=7)
    messages = query.write(plan, 7, rows_from([(n, 7) for n in range(100)]))
    CACHE.forget()
    store = asked(query)
    query.commit(messages, 7)
    reads = [one for one in store.asked if one.startswith("get checkpoints")]
    assert 0 < len(reads) == len(set(reads))
    assert read_pairs(path) == [(n, 7) for n in range(100)]


@BOTH_WAYS
def test_the_stored_bytes_are_those_of_a_python_task(path: str, tmp_path: Path, keys: str) -> None:
    """Partition by partition for a table with keys; without keys the rows of all tasks are one artifact."""
    found = []
    for inline in (True, False):
        query = Query(str(tmp_path / str(inline)), keys=keys, inline=inline, options={"maxDeltas": "2"})
        for batch_id in range(4):
            manifest = query.epoch(batch_id, [(n, batch_id) for n in range(50)])
        parts = manifest.operators["table"].partitions
        found.append({part.partition_id: [ref.sha256 for ref in part.artifacts] for part in parts})
    if keys:
        assert found[0] == found[1]
    else:
        assert (len(found[0]), len(found[1])) == (1, 2)


def test_one_batch_may_have_tasks_of_both_kinds(path: str) -> None:
    """Python for a task with many rows, the driver for the others."""
    query = Query(path, tasks=4, inline=True, options={"partitions": "4"})
    plan = query.plan(batch_id=0)
    parts = query.split(plan, rows_from([(n, n) for n in range(100)]))
    messages = [
        query.task(plan, 0, parts[0], 0),
        query.task(plan, 0, parts[2], 2),
        InlineRows(1, stream_of(parts[1])),
        InlineRows(3, b""),
    ]
    manifest = query.commit(messages, 0)
    assert len(manifest.paths()) == 3
    kept = {k for part in parts[:3] for k in part.column("k").to_pylist()}
    assert {k for k, _ in read_pairs(path)} == kept


def test_rows_of_another_partition_are_refused_on_the_driver_too(path: str) -> None:
    """The check is that of the task."""
    query = Query(path, tasks=2, inline=True, options={"partitions": "2"})
    plan = query.plan(batch_id=0)
    own = query.split(plan, rows_from([(n, n) for n in range(20)]))
    with pytest.raises(RefusedError, match="came to partition 0"):
        query.commit([InlineRows(0, stream_of(pa.concat_tables(own))), InlineRows(1, b"")], 0)


def test_rows_whose_plan_is_missing_are_refused(path: str) -> None:
    """Nothing is staged, nothing committed."""
    query = Query(path)
    query.plan(batch_id=0)
    messages = [InlineRows(0, b""), DriverFacts(facts_from_fields(query.facts()))]
    with pytest.raises(RefusedError, match="plan of the batch did not come"):
        run_inline(query.parsed(), None, messages)
    with pytest.raises(RefusedError, match="message is missing"):
        commit_batch(query.parsed(), messages)


def test_the_jar_finds_the_plan_in_what_python_pickles_before_anything_of_a_user(path: str) -> None:
    """Also if an option looks like one."""
    forged = "ckpt-inline:999:;"
    query = Query(path, options={"maxDeltas": "7", "encryptionKeyFile": forged})
    options = query.parsed()
    plain = Query(path)
    plan = plain.plan(batch_id=0)
    data = pickle.dumps(StreamWriter(options, plan))
    assert forged.encode() in data
    expected = plan_inline(plain.planned, options).mark()
    found = re.search(rb"ckpt-inline:([0-9]{1,9}):([0-9,]*);", data)
    assert found is not None
    assert found[0].decode() == expected
    assert int(found[1]) == 1024 * 1024
    assert inline_rows("7", b"rows") == InlineRows(7, b"rows")


def test_a_compaction_that_is_too_much_for_the_driver_is_left_to_a_task(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition runs Python in that batch, and in no other."""
    monkeypatch.setattr("pyspark_checkpoint.sink.inline_plan.MOST_COMPACTED_BYTES", 100)
    query = Query(path, inline=True, tasks=2, options={"maxDeltas": "4", "partitions": "2"})
    chosen = []
    for batch_id in range(8):
        query.epoch(batch_id, [(n, batch_id) for n in range(100)])
        chosen.append(plan_inline(query.planned, query.planned_with).in_python)
    assert {tasks for tasks in chosen if tasks} == {(0,), (1,)}
    assert read_pairs(path) == [(n, 7) for n in range(100)]
    parts = query.epoch(8, [(1, 1)]).operators["table"].partitions
    assert all(len(part.artifacts) <= 5 for part in parts), "they are compacted all the same"


def test_a_repartition_is_work_for_tasks(path: str) -> None:
    """Each reads several chains."""
    Query(path, inline=True, options={"partitions": "2"}).epoch(0, [(n, n) for n in range(20)])
    CACHE.forget()
    query = Query(path, inline=True, options={"partitions": "4"})
    query.epoch(1, [(n, n + 1) for n in range(10)])
    assert plan_inline(query.planned, query.planned_with) == InlinePlan()
    assert read_pairs(path) == [(n, n + 1 if n < 10 else n) for n in range(20)]


def test_the_sum_of_a_batch_is_bounded_by_the_share_of_each_task(path: str) -> None:
    """However many tasks there are."""
    query = Query(path, options={"inlineBatchBytes": "1000", "inlineTaskBytes": "400"})
    query.plan(batch_id=0)
    for tasks, most in ((1, 400), (2, 400), (4, 250), (200, 5)):
        options = query.planned_with
        facts = facts_from_fields({**query.facts(), "tasks": str(tasks), "batch": "0"})
        object.__setattr__(options, "facts", facts)
        assert plan_inline(query.planned, options).task_bytes == most


@pytest.mark.parametrize("value", ["-1", "x", str(1 << 40)])
def test_a_bound_that_no_message_could_have_is_refused(path: str, value: str) -> None:
    """Spark's messages have less than two gigabytes."""
    with pytest.raises(SettingsError, match="inlineTaskBytes cannot be"):
        Query(path, options={"inlineTaskBytes": value}).parsed()


def test_state_is_collected_by_the_driver_where_tasks_run_no_python(tmp_path: Path) -> None:
    """Rows and state of every batch fit each other, and the history verifies."""
    stream = MadeStream(tmp_path)
    stream.query.inline = True
    stream.run(5)
    assert stream.rows() == totals_after(4)
    assert list(stream.history().verify()) == []


def test_much_state_is_collected_by_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parallel, as far as the last batch shows how much it is."""
    monkeypatch.setattr("pyspark_checkpoint.sink.inline_plan.MOST_STATE_BYTES", 10)
    stream = MadeStream(tmp_path)
    stream.query.inline = True
    stream.run(3)
    assert plan_inline(stream.query.planned, stream.query.planned_with) == InlinePlan()
    assert stream.rows() == totals_after(2)
