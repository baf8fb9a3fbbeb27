"""What workers remember, and what they must not: removed tables, pruned heads, rows in wrong places."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_checkpoint.errors import FormatError, RefusedError, SettingsError
from pyspark_checkpoint.sink.datasource import CheckpointSinkSource
from pyspark_checkpoint.sink.table_options import split_columns
from pyspark_checkpoint.sink.table_reader import FilteringTableReader, TableReader
from pyspark_checkpoint.sink.writers import StreamWriter
from pyspark_checkpoint.table.schema import TableSchema
from tests.support.sink_kit import SCHEMA, Query, Worker, read_pairs, rows_from

ONE, TWO = [(1, 10), (2, 20)], [(2, 21), (3, 30)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the table is."""
    return str(tmp_path / "table")


@pytest.mark.parametrize("query_id", ["query", ""])
@pytest.mark.parametrize("jar", [True, False])
def test_a_table_that_was_removed_is_a_new_one_for_the_next_start(
    path: str, jar: bool, query_id: str
) -> None:
    """As in a notebook: Spark's workers live on and remember a table that is no more."""
    arguments = {"jar": jar, "keys": "k" if jar else "", "query_id": query_id}
    for life in range(3):
        for batch_id in range(life + 1):
            if not (batch_id and query_id):
                query = Query(path, **arguments)  # type: ignore[arg-type]
            manifest = query.epoch(batch_id, [(life, batch_id), (9, 9 + batch_id)])
        assert manifest.checkpoint_id == life + 1
        assert (life, life) in read_pairs(path)
        shutil.rmtree(path)


def test_a_table_that_is_removed_under_a_running_query_is_an_error(path: str) -> None:
    """Its earlier epochs are gone: going on would hide that."""
    query = Query(path)
    query.epoch(0, ONE)
    shutil.rmtree(path)
    with pytest.raises(FormatError, match="no _control"):
        query.epoch(1, TWO)
    assert not Path(path).exists() or not list(Path(path).glob("manifests/*"))


def test_a_worker_that_has_not_planned_for_long_plans_on_the_newest_head(path: str) -> None:
    """What it remembers has been pruned meanwhile; that no successor of it exists proves nothing."""
    query, idle, busy = Query(path, options={"retain": "1"}), Worker(), Worker()
    with idle:
        query.epoch(0, ONE)
        query.epoch(1, ONE)
    with busy:
        for batch_id in range(2, 60):
            query.epoch(batch_id, [(5, batch_id)])
    with idle:
        query.epoch(60, TWO)
    assert read_pairs(path) == [(1, 10), (2, 21), (3, 30), (5, 59)]


def test_rows_that_came_to_the_wrong_partition_fail_the_batch(path: str) -> None:
    """Also when the first row is where it belongs: nobody would find the others again."""
    query = Query(path, options={"partitions": "2"})
    plan = query.plan()
    rows = rows_from([(n, n) for n in range(20)])
    own = query.split(plan, rows)[0]
    query.task(plan, 0, own, 0)
    with pytest.raises(RefusedError, match="came to partition 0"):
        query.task(plan, 0, pa.concat_tables([own, query.split(plan, rows)[1]]), 0)


def test_a_batch_that_lacks_a_tasks_message_is_not_committed(path: str) -> None:
    """Spark gives None for a task that failed; abort takes it, commit never does."""
    query = Query(path, keys="")
    messages = query.write(query.plan(), 0, rows_from(ONE))
    StreamWriter(query.parsed(), None).abort([messages[0], None], 0)
    with pytest.raises(RefusedError, match="a task's message is missing"):
        query.commit([messages[0], None], 0)
    query.commit(messages, 0)
    assert read_pairs(path) == ONE


def test_only_scans_of_their_own_are_thinned_out_by_filters(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
