"""The id of a batch of foreachBatch: kept while it is repeated, changed when it is planned anew."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from pyspark_checkpoint import idempotent_options, restore
from pyspark_checkpoint.errors import FormatError, SettingsError, TooLarge
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.idempotent import (
    MAX_LINEAGES,
    LineageStart,
    application_id,
    begin_lineage,
    decode_lineages,
    encode_lineages,
    read_lineages,
)
from pyspark_checkpoint.spark_files.names import LINEAGE
from pyspark_checkpoint.store.memory import MemoryStore
from tests.support.made_location import QUERY_ID, MadeLocation, capture, contents

A, B, C = (sha256_hex(name.encode())[:32] for name in ("a", "b", "c"))


def test_an_id_has_the_newest_lineage_that_begins_by_then() -> None:
    lineages = (LineageStart(3, A), LineageStart(7, B))
    ids = [application_id("q", batch_id, lineages) for batch_id in (0, 2, 3, 6, 7, 9)]
    assert ids == ["q", "q", f"q:{A}", f"q:{A}", f"q:{B}", f"q:{B}"]
    assert application_id("q", 5, ()) == "q"


def test_lineages_that_begin_later_are_replaced() -> None:
    """Their batches are planned anew; a restore that is repeated leaves one note."""
    store = MemoryStore("lineages")
    begin_lineage(store, 5, is_restored=False)
    begin_lineage(store, 9, is_restored=True)
    assert [one.first_batch for one in read_lineages(store)] == [5, 9]
    first = read_lineages(store)[0].token
    for _ in range(2):
        begin_lineage(store, 7, is_restored=True)
        assert [one.first_batch for one in read_lineages(store)] == [5, 7]
        assert read_lineages(store)[0].token == first
    begin_lineage(store, 8, is_restored=False)
    assert [one.first_batch for one in read_lineages(store)] == [8], "what was there is of another attempt"


def test_only_the_newest_lineages_are_kept() -> None:
    many = [LineageStart(number, A) for number in range(50)]
    assert decode_lineages(encode_lineages(many)) == tuple(many[-MAX_LINEAGES:])


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {},
        {"version": 2, "lineages": []},
        {"version": 1, "lineages": [5]},
        {"version": 1, "lineages": [{"first_batch": -1, "token": A}]},
        {"version": 1, "lineages": [{"first_batch": True, "token": A}]},
        {"version": 1, "lineages": [{"first_batch": 1, "token": "x' OR 1=1"}]},
        {"version": 1, "lineages": [{"first_batch": 1, "token": 5}]},
        {"version": 1, "lineages": [{"first_batch": 2, "token": A}, {"first_batch": 2, "token": B}]},
        {"version": 1, "lineages": [{"first_batch": "x", "token": A}, {"first_batch": 2, "token": B}]},
    ],
)
def test_a_note_that_no_restore_writes_is_refused(fields: object) -> None:
    """To go on without it would drop batches, or write them twice."""
    with pytest.raises(FormatError, match=LINEAGE):
        decode_lineages(orjson.dumps(fields))
    with pytest.raises(FormatError, match=LINEAGE):
        decode_lineages(orjson.dumps(fields)[:-1])


def test_a_note_of_any_size_is_not_read() -> None:
    store = MemoryStore("large")
    store.put(LINEAGE, b" " * (1 << 17))
    with pytest.raises(TooLarge):
        read_lineages(store)


def id_of(location: Path, batch_id: int) -> str:
    """Under which id a batch of this location is written."""
    options = idempotent_options(QUERY_ID, batch_id, location=str(location))
    assert options["txnVersion"] == str(batch_id)
    return options["txnAppId"]


def test_ids_follow_the_lineage_through_captures_and_restores(tmp_path: Path, url: str) -> None:
    """The note is captured with the checkpoint: a restored location knows the ids of its own past."""
    first = MadeLocation(tmp_path / "first").commit(0, 1, 2)
    capture(first, url, 0, 1, 2, sink="ForeachBatchSink")
    assert {id_of(first.path, batch_id) for batch_id in range(6)} == {QUERY_ID}
    restore(url, str(tmp_path / "second"), epoch=1)
    assert [id_of(tmp_path / "second", batch_id) == QUERY_ID for batch_id in range(4)] == [True] * 2 + [
        False
    ] * 2
    second = MadeLocation(tmp_path / "second").commit(2, 3, 4)
    capture(second, url, 2, 3, 4, sink="ForeachBatchSink")
    ids = [id_of(second.path, batch_id) for batch_id in range(6)]
    restore(url, str(tmp_path / "third"), epoch=3)
    third = [id_of(tmp_path / "third", batch_id) for batch_id in range(6)]
    assert third[:4] == ids[:4]
    assert third[4] == third[5] not in ids
    assert contents(tmp_path / "third")[LINEAGE] != contents(second.path)[LINEAGE]


def test_a_batch_that_is_planned_keeps_its_id(tmp_path: Path, url: str) -> None:
    """Its offsets are restored, so that Spark repeats it as it was."""
    made = MadeLocation(tmp_path / "made").commit(0, 1)
    made.plan(2)
    capture(made, url, 1, sink="ForeachBatchSink")
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    assert newest.planned is not None
    restore(url, str(tmp_path / "fresh"))
    ids = [id_of(tmp_path / "fresh", batch_id) for batch_id in (1, 2, 3)]
    assert ids[:2] == [QUERY_ID, QUERY_ID]
    assert ids[2] != QUERY_ID


def test_other_sinks_need_no_note(tmp_path: Path, url: str) -> None:
    """Their location is as it was, byte by byte."""
    capture(MadeLocation(tmp_path / "made").commit(0, 1), url, 1, sink="ConsoleTable")
    restore(url, str(tmp_path / "fresh"))
    assert LINEAGE not in contents(tmp_path / "fresh")


def test_options_need_a_session_or_a_location() -> None:
    """Without a running query there is nobody to ask where it is."""
    with pytest.raises(SettingsError, match="no active Spark session") as caught:
        idempotent_options(QUERY_ID, 3)
    assert caught.value.hint
