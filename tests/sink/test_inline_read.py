"""What a read asks of the store, and the rows that come with its plan. Needs no Spark."""

from __future__ import annotations

import base64
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from pyspark_checkpoint import CheckpointStore
from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.errors import NoCheckpoint, SettingsError
from pyspark_checkpoint.history.savepoint import add_savepoint
from pyspark_checkpoint.sink.datasource import CheckpointSinkSource, scanned_source
from pyspark_checkpoint.sink.table_options import parse_read_options
from pyspark_checkpoint.sink.table_reader import InlineSplit, TableReader, read_table
from pyspark_checkpoint.sink.worker_cache import CACHE, SeenHead, store_key
from pyspark_checkpoint.store.open import open_object_store
from tests.sink.test_state_requests import Table
from tests.support.sink_kit import SCHEMA, Query, Worker

JAVA = Path("jvm-shim/src/main/java/io/github/pysparkcheckpoint/source/InlineRead.java")


def options_of(path: str, **options: str) -> Any:
    """Options as the jar gives them to a scan."""
    return parse_read_options({"path": path, "__ckpt.scan": "own", **options})


class Process:
    """A Python of Spark, which counts what it reads of the store."""

    def __init__(self, path: str) -> None:
        self.options = options_of(path)
        self.worker = Worker()
        self.store = Table(Path(path))
        with self.worker:
            CACHE.stores.put(store_key(self.options.shared), self.store)

    def find(self, seen: SeenHead | None = None) -> tuple[list[str], SeenHead]:
        """Find the newest checkpoint: what was read for it, and what was found."""
        self.store.take()
        with self.worker:
            found = read_table(self.options, seen).seen
        assert found is not None
        return self.store.take(), found


THE_LONG_WAY = ["get _control", "get _control", "get _latest", "get manifests"]


def test_a_head_that_was_seen_is_found_again_by_the_control_record_alone(path: str) -> None:
    """And by asking whether there is a next one, in the same process and in another."""
    query = Query(path)
    query.epoch(0, [(1, 1)])
    first, second = Process(path), Process(path)
    assert first.find()[0] == THE_LONG_WAY
    asked, seen = first.find()
    assert (asked, seen.number) == (["get _control"], 1)
    assert second.find(seen)[0] == ["get _control"]
    query.epoch(1, [(2, 2)])
    asked, found = second.find(seen)
    assert (asked, found.number) == (["get _control", "get manifests"], 2)
    assert first.find()[1].number == 2


def test_a_table_that_was_deleted_and_made_again_is_another_one(path: str) -> None:
    """Its checkpoints have the same numbers."""
    Query(path).epoch(0, [(0, 0)])
    process = Process(path)
    _, seen = process.find()
    shutil.rmtree(path)
    CACHE.forget()
    with pytest.raises(NoCheckpoint):
        process.find(seen)
    Query(path).epoch(0, [(9, 9)])
    _, found = process.find(seen)
    assert found.number == seen.number
    assert found.data != seen.data


def test_a_number_that_was_lost_and_taken_again_is_another_checkpoint(path: str) -> None:
    """Somebody deletes the newest manifest, and the loss is accepted by a rollback."""
    query = Query(path)
    for batch in range(3):
        query.epoch(batch, [(batch, batch)])
    process = Process(path)
    _, seen = process.find()
    Path(path, "manifests", f"manifest-{seen.number:010d}.json").unlink()
    made = CheckpointStore.open(path).rollback(seen.number - 1)
    _, found = process.find(seen)
    assert found.number == made.checkpoint_id
    assert found.data != seen.data


def test_what_was_seen_is_not_trusted_once_the_control_record_has_changed(path: str) -> None:
    """A pin, a prune and a rollback change it: then the newest is looked for from the beginning."""
    Query(path).epoch(0, [(1, 1)])
    process = Process(path)
    process.find()
    add_savepoint(open_object_store(path), "one", SYSTEM_CLOCK, number=1)
    assert process.find()[0] == sorted(["get _control", *THE_LONG_WAY])
    assert process.find()[0] == ["get _control"]


def as_spark_pickles(value: object) -> bytes:
    """As what Spark's workers send."""
    return cast(bytes, cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def rows_in(parts: Any) -> list[tuple[int, int]]:
    """The rows of what came with a plan."""
    tables = [pa.Table.from_batches(part.batches(), SCHEMA.arrow()) for part in parts]
    return sorted((row["k"], row["v"]) for table in tables for row in table.to_pylist())


def test_rows_come_with_the_plan_only_where_the_jar_takes_them(path: str) -> None:
    """Without it, with the option at 0 and beyond the bound a task reads them."""
    Query(path).epoch(0, [(n, n) for n in range(100)])
    for options, inline in (
        (options_of(path), True),
        (options_of(path, inlineReadBytes="100"), False),
        (options_of(path, inlineReadBytes="0"), False),
        (parse_read_options({"path": path}), False),
    ):
        reader = TableReader(options, SCHEMA.to_json())
        parts = reader.partitions()
        assert {isinstance(part, InlineSplit) for part in parts} == {inline}
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert sorted((row["k"], row["v"]) for row in rows) == [(n, n) for n in range(100)]
    (part,) = TableReader(options_of(path), SCHEMA.to_json()).partitions()
    assert rows_in([part]) == [(n, n) for n in range(100)]
    with pytest.raises(SettingsError, match="inlineReadBytes"):
        options_of(path, inlineReadBytes="1000000000")


def test_vnodes_that_were_asked_for_are_the_only_ones(path: str) -> None:
    """As a task leaves the others out."""
    Query(path).epoch(0, [(n, n) for n in range(100)])
    halves = []
    for vnodes in ("0-127", "128-255"):
        options = options_of(path, vnodes=vnodes)
        halves.append(rows_in(TableReader(options, SCHEMA.to_json()).partitions()))
    assert all(halves)
    assert sorted(halves[0] + halves[1]) == [(n, n) for n in range(100)]


@pytest.mark.parametrize("rows", [0, 1, 100_000])
def test_the_jar_finds_the_rows_in_the_pickle(rows: int) -> None:
    """By the pattern in its source, which knows how Spark pickles a partition."""
    text = JAVA.read_text()
    found = re.search(r"Pattern\.compile\(\s*((?:\"[^\"]*\"\s*\+?\s*)+)", text)
    assert found is not None
    pattern = "".join(re.findall(r'"([^"]*)"', found[1])).replace("\\\\", "\\")
    schema = SCHEMA.arrow()
    column = pa.array(range(rows), pa.int64())
    split = InlineSplit([pa.RecordBatch.from_arrays([column, column], schema=schema)], schema)
    for pickled in (as_spark_pickles(split), pickle.dumps(split, protocol=5)):
        head = re.search(pattern.encode(), pickled[:192], re.DOTALL)
        assert head is not None
        data = pickled[head.end() : head.end() + int(head[1])]
        assert pa.ipc.open_stream(data).read_all().num_rows == rows


def test_what_was_seen_goes_to_the_process_that_plans_and_not_to_the_tasks(path: str) -> None:
    """A manifest may be large; the options are those of the scan."""
    Query(path).epoch(0, [(1, 1)])
    asked = CheckpointSinkSource({"path": path})
    asked.schema()
    assert asked.seen is not None
    source = scanned_source(
        json.dumps({"path": path, "__ckpt.scan": "own"}), pickle.loads(pickle.dumps(asked))
    )
    assert source.seen == asked.seen
    assert scanned_source(json.dumps({"path": path}), None).seen is None
    reader = source.reader(StructType.fromJson(SCHEMA.to_json()))
    assert asked.seen.data[:40] not in as_spark_pickles((source, reader))


def test_what_was_seen_does_not_go_to_the_tasks_of_a_stream(path: str) -> None:
    """Nor to those of each of its batches: a stream looks at the history by itself."""
    Query(path).epoch(0, [(1, 1)])
    options = {"path": path, "changes": "true"}
    asked = CheckpointSinkSource({**options})
    schema = asked.schema()
    assert asked.seen is not None
    source = scanned_source(json.dumps(options), asked)
    reader = source.streamReader(schema)
    assert asked.seen.data[:40] not in as_spark_pickles((source, reader))


def test_an_encrypted_table_that_was_made_again_is_read_with_its_own_keys(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another master key, and once more without any."""
    seen = None
    for number, name in enumerate(("one", "two", "")):
        if name:
            key = base64.b64encode(bytes([number]) * 32).decode()
            monkeypatch.setenv("CKPT_KEYRING", json.dumps({"active": name, "keys": {name: key}}))
        else:
            monkeypatch.delenv("CKPT_KEYRING")
        CACHE.forget()
        Query(path).epoch(0, [(number, number)])
        found = read_table(options_of(path), seen)
        assert found.manifest.encryption_key_id == (name or None)
        seen = found.seen
        shutil.rmtree(path)
        with pytest.raises(NoCheckpoint):
            read_table(options_of(path), seen)
