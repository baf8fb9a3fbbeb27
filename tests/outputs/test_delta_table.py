"""Delta tables go back: real tables on disk, written and read again by delta-rs, which is not our code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Schema, Transaction
from deltalake import write_deltalake as write
from deltalake.schema import PrimitiveType

from pyspark_checkpoint import restore
from pyspark_checkpoint.errors import (
    CheckpointError,
    Diverged,
    FormatError,
    MissingExtra,
    RefusedError,
    StaleAttempt,
    Unsupported,
)
from pyspark_checkpoint.outputs import delta_log, delta_table
from pyspark_checkpoint.outputs.delta_table import DeltaOutput
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.support.made_location import MadeLocation, capture

OURS, OTHERS = "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11", "another-query"
Table = Callable[..., "MadeTable"]


class MadeTable:
    """A table to which a query has written one commit a batch, three rows each."""

    def __init__(self, path: Path, *, partitioned: bool = False) -> None:
        self.path = path
        self.partitions = ["part"] if partitioned else None

    def batch(self, *batch_ids: int, query_id: str = OURS, first_row: int | None = None) -> MadeTable:
        """Commit these batches."""
        for batch_id in batch_ids:
            numbers = list(range(3)) if first_row is None else list(range(first_row, first_row + 3))
            rows = [batch_id * 10 + number if first_row is None else number for number in numbers]
            write(
                str(self.path),
                pa.table({"n": rows, "part": [f"a {row % 2}%/b" for row in rows]}),
                mode="append",
                partition_by=self.partitions,
                commit_properties=CommitProperties(app_transactions=[Transaction(query_id, batch_id)]),
            )
        return self

    def commit(self, *actions: dict[str, Any]) -> MadeTable:
        """Commit a file of these actions."""
        path = self.path / "_delta_log" / f"{self.version + 1:020d}.json"
        path.write_text("\n".join(map(json.dumps, actions)))
        return self

    @property
    def delta(self) -> DeltaTable:
        """As delta-rs has it."""
        return DeltaTable(str(self.path))

    @property
    def version(self) -> int:
        """The newest commit."""
        return max(int(path.stem) for path in (self.path / "_delta_log").glob("[0-9]" * 20 + ".json"))

    def last(self) -> list[dict[str, Any]]:
        """The actions of the newest commit."""
        text = (self.path / "_delta_log" / f"{self.version:020d}.json").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def rows(self, version: int | None = None) -> list[int]:
        """What is in it, as delta-rs reads it."""
        table = DeltaTable(str(self.path), version=version)
        query = QueryBuilder().register("t", table).execute("select n from t order by n")
        return [row["n"] for row in pa.table(query.read_all()).to_pylist()]

    @property
    def output(self) -> DeltaOutput:
        """As a restore asks it."""
        return DeltaOutput("out", open_object_store(str(self.path)))

    def plan(self, batch_id: int, query_id: str = OURS) -> RollBackPlan:
        """The plan, which there is."""
        plan = self.output.plan_roll_back(query_id, batch_id)
        assert plan is not None
        return plan

    def go_back(self, batch_id: int) -> RollBackPlan:
        """Plan and carry out; afterwards there is nothing left to do."""
        plan = self.plan(batch_id)
        self.output.roll_back(plan)
        assert self.output.position(OURS).batch_id == (batch_id if batch_id >= 0 else None)
        assert self.output.plan_roll_back(OURS, batch_id) is None
        assert self.delta.version() == int(plan.from_version) + 1
        assert self.delta.transaction_version(OURS) == batch_id
        return plan


def of(*batch_ids: int) -> list[int]:
    """The rows of these batches."""
    return [batch_id * 10 + number for batch_id in batch_ids for number in range(3)]


@pytest.fixture(params=[False, True], ids=["flat", "partitioned"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> MadeTable:
    """A table of batches 0 to 5."""
    return MadeTable(tmp_path / "t", partitioned=request.param).batch(*range(6))


@pytest.fixture
def flat(tmp_path: Path) -> MadeTable:
    """A table of batches 0 to 3, without partitions."""
    return MadeTable(tmp_path / "t").batch(*range(4))


def test_a_table_goes_back_to_a_batch_and_takes_the_next_one(table: MadeTable) -> None:
    """Again and again: a commit of an older number later in the log does not mislead."""
    plan = table.go_back(3)
    assert (plan.from_version, plan.to_version, plan.others) == ("5", "3", ())
    assert plan.dropped == ("version 5: batch 5", "version 4: batch 4")
    assert table.rows() == of(0, 1, 2, 3)
    table.batch(4, 5, 6)
    assert table.rows() == of(0, 1, 2, 3, 4, 5, 6)
    table.go_back(4)
    assert table.rows() == of(0, 1, 2, 3, 4)
    table.go_back(1)
    assert table.rows() == of(0, 1)
    table.go_back(-1)
    assert table.rows() == []
    assert table.batch(0).rows() == of(0)


def test_an_output_that_is_not_ahead_has_nothing_to_do(flat: MadeTable) -> None:
    """Nor has one of another query, nor a place without a table."""
    assert flat.output.plan_roll_back(OURS, 3) is None
    assert flat.output.plan_roll_back("nobody", 0) is None
    empty = DeltaOutput("out", MemoryStore("empty"))
    assert empty.plan_roll_back(OURS, 0) is None
    assert empty.pin("a", OURS, 0) is None


def test_batches_without_a_commit_are_passed_over(tmp_path: Path) -> None:
    """A query whose batch has no rows may commit nothing."""
    made = MadeTable(tmp_path / "t").batch(0, 2, 5, 9)
    assert made.go_back(4).to_version == "1"
    assert made.rows() == of(0, 2)


@pytest.mark.parametrize("batch_id", [1, 4])
def test_files_that_were_compacted_since_come_back(table: MadeTable, batch_id: int) -> None:
    """Compaction changes no rows: nobody's work would be lost. A checkpoint of the log does not matter."""
    table.delta.optimize.compact()
    table.delta.create_checkpoint()
    table.batch(6)
    plan = table.go_back(batch_id)
    assert plan.others == ()
    assert len(plan.dropped) == 6 - batch_id + 1
    assert sum("OPTIMIZE" in line and "changes no rows" in line for line in plan.dropped) == 1
    assert table.rows() == of(*range(batch_id + 1))
    assert table.batch(batch_id + 1).rows() == of(*range(batch_id + 2))


def test_a_version_below_a_checkpoint_of_the_log_is_found_there(flat: MadeTable) -> None:
    """Its files stand in the checkpoint alone, with partition values, when the commits are cleaned up."""
    flat.delta.create_checkpoint()
    flat.batch(4)
    flat.delta.optimize.compact()
    for version in range(3):
        (flat.path / "_delta_log" / f"{version:020d}.json").unlink()
    flat.batch(5)
    flat.go_back(3)
    assert flat.rows() == of(0, 1, 2, 3)
    added = [line["add"] for line in flat.last() if "add" in line]
    assert len(added) == 4
    assert all(json.loads(add["stats"])["numRecords"] == 3 for add in added)
    assert {len(line["remove"]["partitionValues"]) for line in flat.last() if "remove" in line} == {0}


@pytest.mark.parametrize("seed", range(5))
def test_any_table_has_the_rows_of_the_version_that_the_plan_names(seed: int, tmp_path: Path) -> None:
    """Whatever happened to it since: delta-rs reads that version before, and the newest one after."""
    chance = Random(seed)
    made = MadeTable(tmp_path / "t", partitioned=bool(seed % 2)).batch(0)
    newest = 0
    for _ in range(14):
        match chance.choice(
            ["batch", "batch", "batch", "compact", "checkpoint", "delete", "other", "back"]
        ):
            case "batch":
                newest += chance.choice([1, 1, 2])
                made.batch(newest)
            case "compact":
                made.delta.optimize.compact()
            case "checkpoint":
                made.delta.create_checkpoint()
            case "delete":
                made.delta.delete(f"n % {chance.randint(2, 30)} = 1")
            case "other":
                made.batch(chance.randint(0, 99), query_id=OTHERS, first_row=chance.randint(500, 900))
            case "back" if newest:
                newest = chance.randrange(newest)
                plan = made.output.plan_roll_back(OURS, newest)
                if plan is not None:
                    before = made.rows(int(plan.to_version))
                    made.output.roll_back(plan)
                    assert made.rows() == before
    if newest:
        plan = made.plan(0)
        before = made.rows(int(plan.to_version))
        made.output.roll_back(plan)
        assert made.rows() == before


def test_what_others_commit_before_the_first_dropped_batch_stays(flat: MadeTable) -> None:
    """The table goes back no further than it must."""
    flat.batch(77, query_id=OTHERS, first_row=900)
    flat.batch(4, 5)
    assert flat.go_back(3).others == ()
    assert flat.rows() == [*of(0, 1, 2, 3), 900, 901, 902]


def test_others_are_named(flat: MadeTable) -> None:
    """Rows of another query, a deletion and a changed property; its text is shown without control signs."""
    flat.batch(77, query_id=OTHERS, first_row=900)
    flat.delta.delete("n = 1")
    flat.delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    odd = {"operation": "\x1b[31mODD\n" + "x" * 500, "engineInfo": ["list"], "timestamp": "now"}
    flat.commit({"commitInfo": odd}, {"remove": {"path": "never-there", "dataChange": True}})
    flat.commit({"commitInfo": {"operation": "VACUUM END"}})
    plan = flat.plan(2)
    assert [line.partition(" at ")[0].partition("[31m")[0] for line in plan.others] == [
        "version 7: ?",
        "version 6: SET TBLPROPERTIES",
        "version 5: DELETE",
        "version 4: WRITE",
    ]
    assert plan.others[-1].endswith("77 of application another-query")
    assert "by delta-rs" in plan.others[-1]
    assert all(line.isprintable() and len(line) < 400 for line in plan.others)
    flat.go_back(2)
    assert flat.rows() == of(0, 1, 2)
    assert "delta.logRetentionDuration" not in flat.delta.metadata().configuration


def test_a_schema_that_has_grown_goes_back(flat: MadeTable) -> None:
    """As Spark's RESTORE does it."""
    flat.delta.alter.add_columns([Field("more", PrimitiveType("string"))])
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add("later.parquet"))
    assert len(flat.go_back(2).others) == 1
    assert [field.name for field in flat.delta.schema().fields] == ["n", "part"]
    assert flat.rows() == of(0, 1, 2)


def test_a_table_that_the_query_made_stays_empty_if_nothing_stays(flat: MadeTable) -> None:
    """With its schema; there is no version before it."""
    assert flat.go_back(-1).to_version == "-1"
    assert flat.rows() == []
    assert flat.batch(0, 1).rows() == of(0, 1)


def test_a_commit_since_the_plan_is_seen(flat: MadeTable) -> None:
    """Whoever it is: nothing is changed."""
    plan = flat.plan(1)
    flat.batch(8, query_id=OTHERS)
    before = flat.rows()
    with pytest.raises(StaleAttempt, match="after version 3"):
        flat.output.roll_back(plan)
    assert flat.rows() == before
    assert flat.version == 4


class _Late(MemoryStore):
    """A store in which somebody commits in the moment before we do."""

    def put(self, key: str, data: Any, **more: Any) -> Any:
        super().put(key, b"{}")
        return super().put(key, data, **more)


def test_of_two_writers_of_one_version_one_wins(flat: MadeTable) -> None:
    """The number of the commit is created, never replaced."""
    store = _Late("race")
    for file in flat.path.rglob("*"):
        if file.is_file():
            MemoryStore.put(store, file.relative_to(flat.path).as_posix(), file.read_bytes())
    output = DeltaOutput("out", store)
    plan = output.plan_roll_back(OURS, 1)
    assert plan is not None
    with pytest.raises(StaleAttempt, match="somebody committed"):
        output.roll_back(plan)
    assert store.get(f"_delta_log/{4:020d}.json") == b"{}"


def test_carrying_a_plan_out_again_changes_nothing(flat: MadeTable) -> None:
    """It was killed after its one commit."""
    plan = flat.go_back(1)
    flat.output.roll_back(plan)
    assert flat.version == 4


@pytest.mark.parametrize("from_how_many", [1000, 1], ids=["asked", "listed"])
def test_files_that_vacuum_has_removed_are_named(
    flat: MadeTable, from_how_many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is changed."""
    monkeypatch.setattr(delta_table, "LISTED_FROM", from_how_many)
    flat.delta.optimize.compact()
    flat.batch(4)
    assert len(flat.plan(3).dropped) == 1
    flat.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    version = flat.version
    with pytest.raises(Diverged, match=r"3 files of version 2 .* VACUUM has removed"):
        flat.output.plan_roll_back(OURS, 2)
    assert flat.version == version
    assert flat.go_back(3).dropped == ("version 5: batch 4",)
    assert flat.rows() == of(0, 1, 2, 3)


def test_a_log_that_was_cleaned_up_is_refused(flat: MadeTable) -> None:
    """The version of the batch is nowhere, or not even the batch's commit."""
    flat.batch(4)
    flat.delta.create_checkpoint()
    flat.batch(5)
    log = flat.path / "_delta_log"
    for version in range(3):
        (log / f"{version:020d}.json").unlink()
    for batch_id in (1, 3):
        with pytest.raises(Diverged, match="no longer has the version of batch"):
            flat.output.plan_roll_back(OURS, batch_id)
    for version in (3, 4, 5):
        (log / f"{version:020d}.json").unlink()
    assert flat.output.position(OURS).batch_id == 4
    with pytest.raises(Diverged, match="no longer has the version of batch"):
        flat.output.plan_roll_back(OURS, 3)


VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
MAPPING = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}


def with_protocol(made: MadeTable, *features: str, configuration: dict[str, str] | None = None) -> None:
    """A commit of somebody who changes protocol and properties."""
    metadata = json.loads((made.path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()[1])
    for line in (made.path / "_delta_log" / f"{0:020d}.json").read_text().splitlines():
        metadata = json.loads(line).get("metaData") or metadata
    metadata["configuration"] = configuration or {}
    reader = [one for one in features if one in ("columnMapping", "deletionVectors", "catalogManaged")]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader}
    made.commit({"protocol": protocol | {"writerFeatures": list(features)}}, {"metaData": metadata})


def add(path: str, **more: Any) -> dict[str, Any]:
    """An action that adds a file."""
    stats = '{"numRecords":3,"tightBounds":false}'
    facts = {"partitionValues": {}, "size": 100, "modificationTime": 1, "dataChange": True, "stats": stats}
    return {"add": {"path": path} | facts | more}


def removal(path: str, **more: Any) -> dict[str, Any]:
    """An action that removes a file."""
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1} | more}


def test_deletion_vectors_go_back_with_their_files_under_column_mapping_too(flat: MadeTable) -> None:
    """A file with a vector is another one than without; what the log says of it is kept to the letter."""
    with_protocol(flat, "columnMapping", "deletionVectors", configuration=MAPPING)
    inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add("x.parquet"), add("y.parquet"))
    flat.commit(removal("x.parquet"), add("x.parquet", deletionVector=VECTOR))
    flat.commit({"txn": {"appId": OURS, "version": 5}}, add("z.parquet", deletionVector=inline))
    flat.commit(removal("x.parquet", deletionVector=VECTOR), add("x.parquet", deletionVector=inline))
    name = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    (flat.path / "x.parquet").write_bytes(b"rows")
    with pytest.raises(Diverged, match=f"1 files of version 6 .* such as {name}"):
        flat.output.plan_roll_back(OURS, 4)
    (flat.path / "ab").mkdir()
    (flat.path / name).write_bytes(b"vector")
    plan = flat.plan(4)
    assert len(plan.others) == 1
    flat.output.roll_back(plan)
    made = [line for line in flat.last() if "remove" in line or "add" in line]
    assert [line["remove"]["path"] for line in made[:2]] == ["x.parquet", "z.parquet"]
    assert [line["remove"]["deletionVector"] for line in made[:2]] == [inline, inline]
    assert made[2] == add("x.parquet", deletionVector=VECTOR)


@pytest.mark.parametrize(
    ("features", "configuration", "why"),
    [
        (["catalogManaged"], {}, "feature catalogManaged"),
        (["icebergCompatV2", "columnMapping"], {}, "feature icebergCompatV2"),
        (["\x1b[31mnew"], {}, r"feature \?\[31mnew"),
        (["appendOnly"], {"delta.appendOnly": "true"}, "append-only"),
        (["inCommitTimestamp"], {"delta.enableInCommitTimestamps": "true"}, "enableInCommitTimestamps"),
        ([], {"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"}, "a catalog decides"),
    ],
)
def test_tables_whose_rules_are_unknown_are_refused(
    features: list[str], configuration: dict[str, str], why: str, flat: MadeTable
) -> None:
    """With the way that works."""
    with_protocol(flat, *features, configuration=configuration)
    with pytest.raises(Unsupported, match=why) as caught:
        flat.output.plan_roll_back(OURS, 1)
    assert caught.value.own_hint


@pytest.mark.parametrize("directory", ["_staged_commits", "_commits"])
def test_commits_that_a_catalog_has_not_published_are_not_taken_for_none(
    directory: str, flat: MadeTable
) -> None:
    """The newest batches may be in them: what the log has is an older version of the table."""
    staged = flat.path / "_delta_log" / directory
    staged.mkdir()
    name = "5f4b6e0c-9a0e-4a63-9f58-0d8a3c7f6f10.json"
    (staged / f"{flat.version:020d}.{name}").write_text("{}")
    assert flat.output.position(OURS).is_known, "it is published by now"
    (staged / f"{flat.version + 1:020d}.{name}").write_text("{}")
    assert not flat.output.position(OURS).is_known
    for batch_id in (1, 3):
        with pytest.raises(Unsupported, match="a catalog decides"):
            flat.output.plan_roll_back(OURS, batch_id)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ({"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}, "protocol is unknown"),
        ({"protocol": {"minReaderVersion": "3", "minWriterVersion": 7}}, "protocol is unknown"),
        ({"domainMetadata": {"domain": "delta.clustering", "configuration": "{}"}}, "delta.clustering"),
        (removal("file:/elsewhere/a.parquet"), None),
    ],
)
def test_changes_that_cannot_be_taken_back_are_refused(
    action: dict[str, Any], why: str | None, flat: MadeTable
) -> None:
    """A removal of a file that never was there is none of them."""
    flat.commit(action)
    if why is None:
        flat.go_back(1)
    else:
        with pytest.raises(Unsupported, match=why):
            flat.output.plan_roll_back(OURS, 1)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("file:/elsewhere/a.parquet", Unsupported),
        ("/elsewhere/a.parquet", Unsupported),
        ("..%2f..%2fa.parquet", FormatError),
        ("a%00b", FormatError),
    ],
)
def test_a_file_outside_of_the_table_is_not_looked_for(
    path: str, error: type[CheckpointError], flat: MadeTable
) -> None:
    """A shallow clone has such files; a hostile log may."""
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add(path))
    flat.commit({"txn": {"appId": OURS, "version": 5}}, removal(path))
    with pytest.raises(error):
        flat.output.plan_roll_back(OURS, 4)


@pytest.mark.parametrize(
    "line",
    [
        '{"add": 5}',
        '{"add": {"path": 7}}',
        '{"add": {"path": ""}}',
        '{"txn": []}',
        '["add"]',
        '{"add": {"path": "a", "deletionVector": "x"}}',
        '{"add": {"path": "a", "deletionVector": {"pathOrInlineDv": 5}}}',
        '{"add"',
    ],
)
def test_lines_that_are_no_actions_are_damage(line: str, flat: MadeTable) -> None:
    """Never a guess, and never another error."""
    path = flat.path / "_delta_log" / f"{4:020d}.json"
    path.write_text(line)
    with pytest.raises(FormatError):
        flat.output.plan_roll_back(OURS, 1)


def test_a_commit_that_is_too_large_is_not_read(flat: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a checkpoint of the log."""
    flat.delta.create_checkpoint()
    flat.batch(4)
    monkeypatch.setattr(delta_log, "MAX_COMMIT_BYTES", 10)
    with pytest.raises(Unsupported, match=r"commit 4 .* bytes"):
        flat.output.position(OURS)


def test_a_time_in_the_commit_does_not_go_back(flat: MadeTable) -> None:
    """In-commit timestamps rise with every commit, whatever a clock says; the commit's info comes first."""
    settings = {"delta.enableInCommitTimestamps": "true"}
    with_protocol(flat, "inCommitTimestamp", configuration=settings)
    for batch_id in (4, 5):
        info = {"inCommitTimestamp": 2_000_000_000_000 + batch_id, "operation": "STREAMING UPDATE"}
        flat.commit({"commitInfo": info}, {"txn": {"appId": OURS, "version": batch_id}})
    output = DeltaOutput("out", open_object_store(str(flat.path)), ManualClock(5))
    plan = output.plan_roll_back(OURS, 4)
    assert plan is not None
    output.roll_back(plan)
    assert flat.last()[0]["commitInfo"]["inCommitTimestamp"] == 2_000_000_000_006


def test_row_ids_are_kept_and_files_without_them_refused(flat: MadeTable) -> None:
    """The table's high watermark stays where it is, so that no id is given twice."""
    with_protocol(flat, "rowTracking", "domainMetadata")
    ids = {"baseRowId": 100, "defaultRowCommitVersion": 5}
    domain = {"domain": "delta.rowTracking", "configuration": '{"rowIdHighWaterMark":102}'}
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add("x.parquet", **ids), {"domainMetadata": domain})
    flat.commit({"txn": {"appId": OURS, "version": 5}}, removal("x.parquet"))
    (flat.path / "x.parquet").write_bytes(b"rows")
    flat.output.roll_back(flat.plan(4))
    assert flat.last()[-1] == add("x.parquet", **ids)
    old = next(json.loads(line)["add"] for line in _lines(flat, 1) if "add" in json.loads(line))
    flat.commit({"txn": {"appId": OURS, "version": 5}}, removal(old["path"]))
    with pytest.raises(Unsupported, match="before its row tracking"):
        flat.output.plan_roll_back(OURS, 4)


def _lines(made: MadeTable, version: int) -> list[str]:
    return (made.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_checkpoint_of_the_second_version_is_read_with_its_sidecars(form: str, flat: MadeTable) -> None:
    """Its files stand in sidecars; its transactions do not."""
    flat.delta.optimize.compact()
    log = flat.path / "_delta_log"
    actions = [json.loads(line) for version in range(4) for line in _lines(flat, version)]
    adds = [line["add"] for line in actions if "add" in line]
    (log / "_sidecars").mkdir()
    kept = ("path", "size", "modificationTime", "dataChange", "stats")
    kind = pa.struct(
        [
            ("path", pa.string()),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
            ("partitionValues", pa.map_(pa.string(), pa.string())),
            ("stats_parsed", pa.struct([("numRecords", pa.int64())])),
        ]
    )
    rows = [{name: one.get(name) for name in kept} | {"partitionValues": []} for one in adds]
    rows[0] |= {"stats": None, "stats_parsed": {"numRecords": 3}}
    pq.write_table(pa.table({"add": pa.array(rows, kind)}), log / "_sidecars" / "one.parquet")
    small = [line for line in actions if "metaData" in line or "protocol" in line]
    small.append({"txn": {"appId": OURS, "version": 3}})
    small.append({"sidecar": {"path": "one.parquet", "sizeInBytes": 1, "modificationTime": 1}})
    name = f"{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.{form}"
    if form == "json":
        (log / name).write_text("\n".join(map(json.dumps, small)))
    else:
        metadata = next(line["metaData"] for line in small if "metaData" in line)
        metadata |= {"format": {"provider": "parquet"}, "configuration": None}
        columns = {
            each: pa.array([line.get(each) for line in small])
            for each in ("metaData", "protocol", "txn", "sidecar")
        }
        pq.write_table(pa.table(columns), log / name)
    for version in range(4):
        (log / f"{version:020d}.json").unlink()
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add("later.parquet"))
    output = flat.output
    assert output.position(OURS).batch_id == 4
    plan = output.plan_roll_back(OURS, 3)
    assert plan is not None
    assert plan.to_version == "4", "after the compaction, which stays"
    flat.commit({"txn": {"appId": OURS, "version": 5}}, *(removal(one["path"]) for one in adds))
    flat.commit({"txn": {"appId": OURS, "version": 6}}, *({"add": one} for one in adds[1:]))
    flat.commit({"txn": {"appId": OURS, "version": 7}}, removal(adds[1]["path"]))
    output.roll_back(flat.plan(3))
    assert [line["remove"]["path"] for line in flat.last() if "remove" in line] == sorted(
        ["later.parquet", *(one["path"] for one in adds[2:])]
    )
    (log / "_sidecars" / "one.parquet").write_bytes(b"torn")
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add("again.parquet"))
    with pytest.raises(FormatError, match="cannot be read"):
        output.plan_roll_back(OURS, 3)


@pytest.mark.parametrize("name", ["../../x", 5, "a/b"])
def test_a_sidecar_is_looked_for_in_its_directory_alone(name: object, flat: MadeTable) -> None:
    """Its name comes from the log."""
    log = flat.path / "_delta_log"
    small = [{"sidecar": {"path": name}}, *(json.loads(line) for line in _lines(flat, 0))]
    path = log / f"{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    path.write_text("\n".join(map(json.dumps, small)))
    flat.commit({"txn": {"appId": OURS, "version": 4}}, add("x.parquet"))
    with pytest.raises(FormatError, match="names no sidecar"):
        flat.output.plan_roll_back(OURS, 3)


def test_a_pin_names_the_version_and_how_long_it_can_be_had(flat: MadeTable) -> None:
    """Delta keeps no version for anybody; the table's properties say how long its clean-up waits."""
    pin = flat.output.pin("before", OURS, 2)
    assert pin is not None
    assert (pin.version, pin.is_kept) == ("2", False)
    assert "7 days" in pin.until
    assert "30 days" in pin.until
    settings = {
        "delta.logRetentionDuration": "interval 3 hours",
        "delta.deletedFileRetentionDuration": "x\n",
    }
    with_protocol(flat, configuration=settings)
    pin = flat.output.pin("before", OURS, 3)
    assert pin is not None
    assert pin.version == "4"
    assert "3 hours" in pin.until
    assert "7 days" in pin.until
    flat.output.unpin("before")


def test_another_schema_is_kept_by_name(tmp_path: Path) -> None:
    """A table that was there before the query: nothing of it goes."""
    path = str(tmp_path / "t")
    DeltaTable.create(
        path, Schema([Field("n", PrimitiveType("long")), Field("part", PrimitiveType("string"))])
    )
    made = MadeTable(tmp_path / "t").batch(0, 1)
    assert made.go_back(-1).to_version == "0"
    assert made.rows() == []


def test_a_restore_takes_its_delta_table_back(flat: MadeTable, tmp_path: Path, url: str) -> None:
    """Refused without being told to; another writer's rows are named first."""
    made = MadeLocation(tmp_path / "location", query_id=OURS).commit(0, 1, 2, 3)
    capture(made, url, 0, 1, 2, 3, sink=f"DeltaSink[{flat.path}]")
    with pytest.raises(Diverged, match="drop batches 2 to 3"):
        restore(url, str(tmp_path / "fresh"), epoch=1)
    assert flat.version == 3
    restore(url, str(tmp_path / "fresh"), epoch=1, sink="rollback")
    assert flat.rows() == of(0, 1)
    assert flat.output.position(OURS).batch_id == 1
    flat.batch(2).batch(77, query_id=OTHERS, first_row=900)
    with pytest.raises(RefusedError, match="77 of application another-query"):
        restore(url, str(tmp_path / "again"), epoch=0, sink="rollback")
    assert flat.rows() == [*of(0, 1, 2), 900, 901, 902]


def test_a_checkpoint_of_the_log_needs_pyarrow(flat: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log without one needs nothing."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert flat.output.position(OURS).batch_id == 3
    flat.delta.create_checkpoint()
    with pytest.raises(MissingExtra) as caught:
        flat.output.position("nobody")
    assert "pyspark-checkpoint[delta]" in str(caught.value.hint)
