"""Exactly once, step by step: every order in which Spark may call the sink, without Spark."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.errors import MissingKey, RefusedError, SettingsError
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.sink.datasource import CheckpointSinkSource
from pyspark_checkpoint.sink.table_options import parse_read_options, parse_write_options, split_columns
from pyspark_checkpoint.sink.table_reader import FilteringTableReader, TableReader
from pyspark_checkpoint.sink.worker_cache import CACHE
from pyspark_checkpoint.sink.writers import StreamWriter
from pyspark_checkpoint.table.schema import TableSchema
from tests.support.sink_kit import SCHEMA, Query, Worker, read_pairs, rows_from

ONE: list[tuple[int | None, int]] = [(1, 10), (2, 20)]
TWO: list[tuple[int | None, int]] = [(2, 21), (3, 30)]
THREE: list[tuple[int | None, int]] = [(1, 11), (None, 5)]


pytestmark = pytest.mark.usefixtures("both_ways")


def test_epochs_are_upserts_by_key(path: str) -> None:
    """Later epochs win, null is a key, and each epoch can be read again."""
    query = Query(path)
    for batch_id, rows in enumerate((ONE, TWO, THREE)):
        assert query.epoch(batch_id, rows).kind is ManifestKind.EPOCH
    assert read_pairs(path) == [(None, 5), (1, 11), (2, 21), (3, 30)]
    assert read_pairs(path, epoch="0") == ONE


def test_tasks_that_ran_twice_leave_no_duplicates(path: str) -> None:
    """Retried and speculative attempts upload under names of their own; the commit names one of each."""
    query = Query(path, keys="")
    plan = query.plan()
    first, second = query.write(plan, 0, rows_from(ONE)), query.write(plan, 0, rows_from(ONE))
    manifest = query.commit([first[0], second[1]], 0)
    assert read_pairs(path) == ONE
    stored = {info.key for info in open_object_store(path).list("checkpoints/")}
    # The driver uploads what Spark has committed, and so nothing that is in no table.
    assert (len(stored), len(manifest.paths())) == ((1, 1) if query.inline else (4, 2))


def test_a_batch_that_was_not_committed_is_not_in_the_table(path: str) -> None:
    """The driver died between the tasks and the commit; the next start runs the batch again."""
    Query(path).epoch(0, ONE)
    lost = Query(path)
    lost.write(lost.plan(), 1, rows_from(TWO))
    CACHE.forget()
    assert read_pairs(path) == ONE
    Query(path).epoch(1, TWO)
    assert read_pairs(path) == [(1, 10), (2, 21), (3, 30)]


def test_a_repeated_batch_replaces_its_own_rows(path: str) -> None:
    """The driver died between the commit and Spark's own log: the re-run's rows count, once."""
    Query(path, keys="").epoch(0, ONE)
    CACHE.forget()
    again = Query(path, keys="").epoch(0, TWO)
    assert again.kind is ManifestKind.REPLACEMENT
    assert read_pairs(path) == TWO


def test_a_replacement_builds_on_what_was_compacted_beside_the_epoch_it_replaces(path: str) -> None:
    """A snapshot made by compaction in epoch N covers up to N-1, so that replacing N never loses it."""
    options = {"maxDeltas": "1", "partitions": "1"}
    query = Query(path, options=options)
    query.epoch(0, [(0, 1), (9, 0)])
    compacted = query.epoch(1, [(1, 1), (9, 1)])
    assert [(ref.is_delta, ref.epoch) for ref in compacted.artifacts()] == [(False, 0), (True, 1)]
    CACHE.forget()
    again = Query(path, options=options).epoch(1, [(8, 8)])
    assert again.kind is ManifestKind.REPLACEMENT
    assert read_pairs(path) == [(0, 1), (8, 8), (9, 0)]


def test_a_repeated_commit_of_the_same_run_writes_nothing(path: str) -> None:
    """The digests show that nothing differs."""
    query = Query(path)
    query.epoch(0, ONE)
    head = query.epoch(1, TWO)
    assert query.epoch(1, TWO).checkpoint_id == head.checkpoint_id


def test_the_same_epoch_with_other_offsets_is_refused(path: str) -> None:
    """Replacing it would lose the rows that the other offsets stand for."""
    Query(path).epoch(0, ONE)
    with pytest.raises(RefusedError, match="other source offsets"):
        Query(path).epoch(0, TWO, note="x")
    assert read_pairs(path) == ONE


def test_an_epoch_behind_the_table_is_refused(path: str) -> None:
    """An old checkpoint location has come back; the message says what to do."""
    query = Query(path)
    query.epoch(0, ONE)
    query.epoch(1, TWO)
    with pytest.raises(RefusedError, match=r"behind the store.*ckpt restore"):
        Query(path).epoch(0, ONE)


def test_an_epoch_that_would_leave_a_gap_is_refused(path: str) -> None:
    """The table is behind the checkpoint location: the rows in between would be missing for good."""
    Query(path).epoch(0, ONE)
    with pytest.raises(RefusedError, match="ends with epoch 0, and this batch is epoch 2"):
        Query(path).epoch(2, TWO)


def test_a_table_may_begin_with_any_epoch(path: str) -> None:
    """A query that has run for long may get a ckpt-sink later."""
    assert Query(path).epoch(57, ONE).epoch == 57


@pytest.mark.parametrize("with_jar", [True, False])
def test_workers_may_be_replaced_at_any_step(path: str, with_jar: bool) -> None:
    """Nothing that a worker remembers is needed: the store has the truth."""
    query = Query(path, jar=with_jar, keys="k" if with_jar else "", tasks=2)
    for batch_id in range(5):
        plan = query.plan()
        CACHE.forget()
        messages = query.write(plan, batch_id, rows_from([(batch_id, batch_id)]))
        CACHE.forget()
        query.commit(messages, batch_id)
        CACHE.forget()
    assert read_pairs(path) == [(n, n) for n in range(5)]


def test_batches_may_be_planned_and_committed_in_any_of_several_processes(path: str) -> None:
    """A driver with many queries has many workers; each remembers another batch as the newest."""
    query, workers = Query(path), [Worker() for _ in range(3)]
    for batch_id, (planner, committer) in enumerate(
        [(0, 0), (0, 1), (1, 2), (1, 0), (2, 1), (0, 0), (2, 2)]
    ):
        with workers[planner]:
            plan = query.plan()
        messages = query.write(plan, batch_id, rows_from([(batch_id, batch_id), (99, batch_id)]))
        with workers[committer]:
            query.commit(messages, batch_id)
    assert read_pairs(path) == [*((n, n) for n in range(7)), (99, 6)]


def test_complete_mode_replaces_everything(path: str) -> None:
    """Also with nothing."""
    query = Query(path, keys="", jar=False, output_mode="complete")
    query.epoch(0, ONE)
    query.epoch(1, THREE)
    assert read_pairs(path) == [(None, 5), (1, 11)]
    query.epoch(2, [])
    assert read_pairs(path) == []
    assert read_pairs(path, epoch="1") == [(None, 5), (1, 11)]
    CACHE.forget()
    again = Query(path, keys="", jar=False, output_mode="complete").epoch(2, TWO)
    assert again.kind is ManifestKind.REPLACEMENT
    assert read_pairs(path) == TWO


def test_repartition_keeps_every_row(path: str) -> None:
    """Four partitions, then sixteen, then four, while epochs go on and one is replaced on the way."""
    rows = [(n, n) for n in range(200)]
    Query(path, options={"partitions": "4", "vnodes": "64"}).epoch(0, rows)
    Query(path, options={"partitions": "4"}).epoch(1, [(n, -n) for n in range(0, 200, 3)])
    wide = {"partitions": "16"}
    Query(path, options=wide).epoch(1, [(n, 7) for n in range(0, 200, 5)])
    expected = {n: 7 if n % 5 == 0 else n for n in range(200)}
    assert dict(read_pairs(path)) == expected
    manifest = Query(path).epoch(2, [(1, 1), (500, 5)])
    assert manifest.partition_count == 16, "what is recorded holds when nobody says otherwise"
    Query(path, options={"partitions": "4"}).epoch(3, [])
    assert dict(read_pairs(path)) == expected | {1: 1, 500: 5}


def test_layout_and_keys_are_fixed_or_refused(path: str) -> None:
    """What would put rows where nobody looks for them is refused with the cure."""
    Query(path, options={"partitions": "4", "vnodes": "64"}).epoch(0, ONE)
    with pytest.raises(SettingsError, match="64 vnodes, and that cannot change"):
        Query(path, options={"vnodes": "128"}).plan()
    with pytest.raises(SettingsError, match="do not divide"):
        Query(path, options={"partitions": "7"}).plan()
    with pytest.raises(RefusedError, match=r"keys are \(k\), the query's are \(v\)"):
        Query(path, keys="v").plan()
    with pytest.raises(RefusedError, match="table is in mode upsert"):
        Query(path, output_mode="complete").plan()
    with pytest.raises(RefusedError, match="is called 'table', not 'other'"):
        Query(path, options={"operator": "other"}).plan()


def test_batch_jobs_append_and_overwrite(path: str) -> None:
    """Each is one epoch; a stream may take over from them and the other way round, when told to."""
    job = Query(path, query_id="")
    assert job.epoch(0, ONE).epoch == 0
    assert Query(path, query_id="").epoch(0, TWO).epoch == 1
    assert read_pairs(path) == [(1, 10), (2, 21), (3, 30)]
    Query(path, query_id="").epoch(0, THREE, overwrite=True)
    assert read_pairs(path) == [(None, 5), (1, 11)]
    with pytest.raises(RefusedError, match="written by a batch job"):
        Query(path).epoch(0, ONE)
    stream = Query(path, options={"takeOver": "true"})
    assert stream.epoch(0, ONE).epoch == 3
    with pytest.raises(RefusedError, match="and a batch job is another writer"):
        Query(path, query_id="").epoch(0, ONE)


def test_old_epochs_are_pruned_and_the_table_stays_whole(path: str) -> None:
    """As many distinct epochs as asked for remain, however often runs change; nothing else does."""
    options = {"retain": "3", "maxDeltas": "4"}
    expected: dict[int, int] = {}
    for batch_id in range(60):
        if batch_id % 20 == 0:
            query = Query(path, options=options)
        rows = {batch_id: 1, batch_id % 7: batch_id}
        query.epoch(batch_id, list(rows.items()))
        expected |= rows
    store = open_object_store(path)
    manifests = [info.key for info in store.list("manifests/")]
    assert len(manifests) <= 3 + 10 + 5
    with pytest.raises(RefusedError, match="has no epoch 5"):
        read_pairs(path, epoch="5")
    assert dict(read_pairs(path)) == expected


def test_encrypted_tables_need_their_key(path: str, tmp_path: Path) -> None:
    """Rows are compacted and read with the key file, and not without it."""
    key_file = tmp_path / "keys.json"
    key_file.write_text(_key_ring())
    key_file.chmod(0o600)
    options = {"encryptionKeyFile": str(key_file), "maxDeltas": "2"}
    query = Query(path, options=options)
    for batch_id in range(5):
        query.epoch(batch_id, [(batch_id, 1), (7, batch_id)])
    manifest = query.epoch(5, [(7, 5)])
    assert all(ref.data_key_id for ref in manifest.artifacts())
    CACHE.forget()
    with pytest.raises(MissingKey, match="encrypted"):
        read_pairs(path)
    expected = [*((n, 1) for n in range(5)), (7, 5)]
    assert read_pairs(path, encryptionKeyFile=str(key_file)) == expected
    reader = TableReader(
        parse_read_options({"path": path, "encryptionKeyFile": str(key_file)}), SCHEMA.to_json()
    )
    splits = [pickle.loads(pickle.dumps(split)) for split in reader.partitions()]
    rows = [tuple(row.values()) for s in splits for batch in reader.read(s) for row in batch.to_pylist()]
    assert sorted(rows) == expected
    secret = base64.b64encode(bytes(range(32))).decode()
    assert not any(secret in repr(split) or "key=b" in repr(split) for split in splits)
    CACHE.forget()
    store = open_object_store(path)
    before = [info.key for info in store.list("checkpoints/")]
    for with_jar in (True, False):
        with pytest.raises(MissingKey, match="is encrypted"):
            Query(path, jar=with_jar).epoch(6, [(8, 8)])
    assert [info.key for info in store.list("checkpoints/")] == before, "plain rows were uploaded"


def _key_ring() -> str:
    secret = base64.b64encode(bytes(range(32))).decode()
    return json.dumps({"active": "one", "keys": {"one": secret}})


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 12), st.integers(0, 99), max_size=6),
            st.sampled_from(["go on", "die before commit", "die after commit", "new worker", "run twice"]),
        ),
        max_size=14,
    ),
    st.sampled_from(["1", "2", "5"]),
)
def test_any_sequence_of_events_gives_the_table_of_an_undisturbed_run(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[dict[int, int], str]], max_deltas: str
) -> None:
    """Deaths before and after commits, replaced workers and duplicated tasks, against a dictionary."""
    path = str(tmp_path_factory.mktemp("events") / "table")
    options = {"maxDeltas": max_deltas, "partitions": "3"}
    query = Query(path, options=options)
    model: dict[int, int] = {}
    for batch_id, (rows, event) in enumerate(steps):
        table = rows_from(list(rows.items()))
        if event == "die before commit":
            query.write(query.plan(), batch_id, table)
            CACHE.forget()
            query = Query(path, options=options)
        plan = query.plan()
        if event == "run twice":
            query.write(plan, batch_id, table)
        if event == "new worker":
            CACHE.forget()
        query.commit(query.write(plan, batch_id, table), batch_id)
        if event == "die after commit":
            CACHE.forget()
            query = Query(path, options=options)
            query.epoch(batch_id, list(rows.items()))
        model |= rows
    if steps:
        assert dict(read_pairs(path)) == model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keyColums": "k"}, "unknown option keyColums of ckpt-sink .*did you mean keyColumns"),
        ({"checkpointId": "3"}, "option checkpointId is not for writing"),
        ({"retain": "0"}, "retain is a whole number of at least 1"),
        ({"partitions": "x"}, "partitions is a whole number"),
        ({"partitions": "--5"}, "partitions is a whole number"),
        ({"retain": "\u00b2"}, "retain is a whole number"),
        ({"state": "maybe"}, "state is one of auto, off, on"),
        ({"takeOver": "si"}, "takeOver is one of true, false"),
        ({"path": "memory://x"}, "lives in one process"),
        ({"path": ""}, "needs a path"),
        ({"operator": "a/b"}, "has a slash"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_cure(options: dict[str, str], message: str) -> None:
    """Said before anything is opened; the nearest name is named."""
    with pytest.raises((SettingsError, RefusedError), match=message):
        parse_write_options({"path": "/x", **options})


def test_keys_without_the_jar_say_which_jar_to_add(path: str) -> None:
    """And update mode without keys says which option."""
    with pytest.raises(SettingsError, match=r"ckpt-spark_2\.13"):
        Query(path, jar=False).plan()
    with pytest.raises(SettingsError, match="update mode needs the option keyColumns"):
        Query(path, keys="", output_mode="update").plan()


def test_artifacts_that_the_driver_does_not_see_are_refused(path: str) -> None:
    """A directory that each machine has for itself is no store; nothing is committed."""
    query = Query(path, inline=False)
    messages = query.write(query.plan(), 0, rows_from(ONE))
    for file in Path(path).glob("checkpoints/**/*.delta"):
        file.unlink()
    with pytest.raises(RefusedError, match="the driver does not see"):
        query.commit(messages, 0)
    assert not list(Path(path).glob("manifests/*.json"))


def test_a_relative_path_is_meant_from_where_the_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks have working directories of their own."""
    monkeypatch.chdir(tmp_path)
    assert parse_write_options({"path": "here/table"}).shared.path == str(tmp_path / "here/table")
    assert parse_write_options({"path": "s3://bucket/x"}).shared.path == "s3://bucket/x"


def test_a_batch_that_lacks_a_tasks_message_is_not_committed(path: str) -> None:
    """Spark gives None for a task that failed; abort takes it, commit never does."""
    query = Query(path, keys="")
    messages = query.write(query.plan(), 0, rows_from(ONE))
    StreamWriter(query.parsed(), None).abort([messages[0], None], 0)
    with pytest.raises(RefusedError, match="a task's message is missing"):
        query.commit([messages[0], None], 0)
    query.commit(messages, 0)
    assert read_pairs(path) == ONE


def test_only_scans_of_the_jar_are_pruned_by_filters(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the jar Spark gives the reader of one query, filters and all, to the next one."""
    monkeypatch.setitem(sys.modules, "tests.data_source_pushdown_filters", sys.modules[__name__])
    schema = StructType.fromJson(SCHEMA.to_json())
    assert type(CheckpointSinkSource({"path": path}).reader(schema)) is TableReader
    own = CheckpointSinkSource({"path": path, "__ckpt.scan": "own"}).reader(schema)
    assert type(own) is FilteringTableReader


def test_names_in_backticks_may_have_commas_and_backticks() -> None:
    """As in SQL, two backticks inside of them are one."""
    for text, names in (
        ("a, B ,c", ("a", "B", "c")),
        ("`a,b`,c", ("a,b", "c")),
        ("`a``b`", ("a`b",)),
        ("``,`x`", ("x",)),
    ):
        assert split_columns(text) == names
    with pytest.raises(SettingsError, match="backtick"):
        split_columns("`a")


def test_a_sequence_must_have_an_order(path: str) -> None:
    """Refused by the plan, not in a task."""
    fields = [*SCHEMA.to_json()["fields"]]
    fields.append({"name": "s", "type": "variant", "nullable": True, "metadata": {}})
    schema = TableSchema.from_json({"type": "struct", "fields": fields})
    with pytest.raises(SettingsError, match="sequenceColumn s must be of a plain type"):
        Query(path, schema=schema, options={"sequenceColumn": "s"}).plan()
