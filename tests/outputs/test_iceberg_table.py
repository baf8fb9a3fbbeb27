"""Going back on real Iceberg tables of a SQL catalog on disk; with Spark in tests/ecosystem."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from pyspark_checkpoint.errors import (
    Diverged,
    FormatError,
    InUse,
    NotFound,
    StaleAttempt,
    Unavailable,
    Unsupported,
)
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.outputs.iceberg_table import EPOCH_ID, QUERY_ID, IcebergOutput, IcebergTable
from pyspark_checkpoint.outputs.output import RollBackPlan
from pyspark_checkpoint.outputs.pyiceberg_table import (
    PyIcebergTable,
    catalog_properties,
    find_pyiceberg_table,
    tables_of_confs,
)
from pyspark_checkpoint.store.open import open_object_store

OURS, OTHERS = "query-1", "query-2"
NAME = "db.numbers"


class Lake:
    """A catalog with one table, whose rows are the numbers that were written."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.uri = f"sqlite:///{home}/catalog.db"
        self.catalog = SqlCatalog("lake", uri=self.uri, warehouse=f"file://{home}/warehouse")
        self.catalog.create_namespace("db")
        self.catalog.create_table(NAME, pa.schema([("n", pa.int64())]))
        self.output = IcebergOutput("lake.db.numbers", table=PyIcebergTable(self.catalog, NAME))

    @property
    def table(self) -> Table:
        """The table as it is now."""
        return self.catalog.load_table(NAME)

    @property
    def rows(self) -> list[int]:
        """Its rows, as pyiceberg reads them."""
        return sorted(self.table.scan().to_arrow().column("n").to_pylist())

    def write(self, number: int, query_id: str | None = OURS) -> int:
        """A batch of one row that is its number; without a query, somebody else's."""
        said = {} if query_id is None else {QUERY_ID: query_id, EPOCH_ID: str(number)}
        said["spark.app.id"] = "app-1"
        self.table.append(pa.table({"n": [number]}), snapshot_properties=said)
        return self.current

    @property
    def current(self) -> int:
        """The current snapshot."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def expire(self, *snapshots: int) -> None:
        """Expire snapshots, as the table's maintenance does."""
        change = self.table.maintenance.expire_snapshots()
        change.by_ids(list(snapshots)).commit()

    def go_back(self, batch_id: int) -> RollBackPlan:
        """Plan, carry out, and look at what the next restore would find."""
        plan = self.output.plan_roll_back(OURS, batch_id)
        assert plan is not None
        self.output.roll_back(plan)
        assert self.output.plan_roll_back(OURS, batch_id) is None
        self.output.roll_back(plan)  # as after a kill
        return plan


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An empty table."""
    made = Lake(tmp_path)
    yield made
    made.catalog.engine.dispose()


def test_a_table_goes_back_to_a_batch_and_takes_the_next_one(lake: Lake) -> None:
    made = [lake.write(batch) for batch in range(6)]
    plan = lake.go_back(2)
    assert (plan.from_version, plan.to_version) == (str(made[5]), str(made[2]))
    assert plan.dropped == tuple(f"batch {batch}: snapshot {made[batch]}" for batch in (5, 4, 3))
    assert plan.others == ()
    assert lake.output.position(OURS).batch_id == 2
    assert lake.rows == [0, 1, 2]
    lake.write(3)
    assert lake.output.position(OURS).batch_id == 3
    assert lake.rows == [0, 1, 2, 3]


def test_only_ancestors_of_the_current_snapshot_count(lake: Lake) -> None:
    """After going back, the metadata has two snapshots of batch 3; the abandoned one is no way back."""
    for batch in range(5):
        lake.write(batch)
    lake.go_back(2)
    again = lake.write(3)
    lake.write(4)
    plan = lake.go_back(3)
    assert plan.to_version == str(again)


def test_a_table_with_nothing_after_the_batch_has_nothing_to_go_back_from(lake: Lake) -> None:
    lake.write(0)
    lake.write(100, None)
    assert lake.output.plan_roll_back(OURS, 0) is None
    assert lake.output.plan_roll_back(OURS, 7) is None


def test_the_commit_of_another_writer_is_named(lake: Lake) -> None:
    """It goes with the batches that come before it; one before them stays."""
    lake.write(0)
    lake.write(100, None)
    lake.write(1)
    other, query = lake.write(101, None), lake.write(7, OTHERS)
    lake.write(2)
    plan = lake.output.plan_roll_back(OURS, 0)
    assert plan is not None
    assert len(plan.others) == 2
    assert f"snapshot {query}" in plan.others[0]
    assert OTHERS in plan.others[0]
    assert f"snapshot {other}" in plan.others[1]
    assert "app-1" in plan.others[1]
    lake.output.roll_back(plan)
    assert lake.rows == [0, 100]
    assert lake.output.position(OURS).batch_id == 0


def test_a_batch_that_is_missing_goes_back_to_the_one_before_it(lake: Lake) -> None:
    for batch in (0, 1, 4, 5):
        lake.write(batch)
    lake.go_back(3)
    assert lake.rows == [0, 1]


def test_before_the_first_batch_is_what_the_table_had_then(lake: Lake) -> None:
    lake.write(100, None)
    lake.write(0)
    lake.write(1)
    lake.go_back(-1)
    assert lake.rows == [100]
    found = lake.output.position(OURS)
    assert (found.batch_id, found.is_known) == (None, True)


def test_before_the_first_commit_the_table_is_empty(lake: Lake) -> None:
    lake.write(0)
    lake.write(1)
    assert lake.go_back(-1).to_version == ""
    assert lake.rows == []
    lake.write(0)
    assert lake.rows == [0]


def test_a_commit_after_planning_stops_it(lake: Lake) -> None:
    lake.write(0)
    lake.write(1)
    plan = lake.output.plan_roll_back(OURS, 0)
    assert plan is not None
    lake.write(2)
    with pytest.raises(StaleAttempt):
        lake.output.roll_back(plan)
    assert lake.rows == [0, 1, 2]


def test_a_commit_while_it_goes_back_stops_it_in_the_catalog(lake: Lake) -> None:
    """Between the look and the change: the catalog itself refuses, so that nothing is undone unseen."""
    first = lake.write(0)
    planned = lake.write(1)
    lake.write(100, None)
    with pytest.raises(StaleAttempt):
        PyIcebergTable(lake.catalog, NAME).set_reference("main", first, planned)
    assert lake.rows == [0, 1, 100]


def test_an_expired_snapshot_is_refused_with_what_is_left(lake: Lake) -> None:
    made = [lake.write(batch) for batch in range(4)]
    lake.expire(*made[:2])
    lake.write(4)
    with pytest.raises(Diverged, match="no tag keeps one"):
        lake.output.plan_roll_back(OURS, 0)
    with pytest.raises(Diverged, match="older ones have expired"):
        lake.output.plan_roll_back(OURS, 1)
    assert lake.go_back(2).to_version == str(made[2])


def test_a_position_that_expired_is_unknown_and_not_none(lake: Lake) -> None:
    first = lake.write(0)
    lake.write(100, None)
    lake.expire(first)
    found = lake.output.position(OURS)
    assert (found.batch_id, found.is_known) == (None, False)
    with pytest.raises(Diverged):
        lake.output.plan_roll_back(OURS, -1)


def test_a_savepoints_tag_holds_what_expires(lake: Lake) -> None:
    made = [lake.write(batch) for batch in range(5)]
    pin = lake.output.pin("daily", OURS, 1)
    assert pin is not None
    assert (pin.version, pin.is_kept) == (str(made[1]), True)
    assert lake.output.pin("daily", OURS, 1) == pin
    lake.expire(made[0], made[2], made[3])
    plan = lake.output.plan_roll_back(OURS, 1)
    assert plan is not None
    assert plan.to_version == str(made[1])
    assert "expired" in plan.others[0], "nobody knows whose the expired ones were"
    lake.output.roll_back(plan)
    assert lake.rows == [0, 1]
    assert lake.output.position(OURS).batch_id == 1
    lake.output.unpin("daily")
    lake.output.unpin("daily")
    assert set(lake.table.metadata.refs) == {"main"}


def test_two_tagged_snapshots_of_one_batch_are_not_chosen_between(lake: Lake) -> None:
    """One is of the way that was abandoned when the table went back; expiry has hidden which."""
    lake.write(0)
    lake.write(1)
    lake.output.pin("before", OURS, 1)
    lake.go_back(0)
    lake.write(1)
    lake.output.pin("after", OURS, 1)
    hidden = lake.write(2)
    lake.write(3)
    lake.expire(hidden)
    with pytest.raises(Diverged, match="2 tags name one"):
        lake.output.plan_roll_back(OURS, 1)


def test_a_name_that_somebody_elses_tag_has_is_refused(lake: Lake) -> None:
    lake.write(0, OTHERS)
    lake.output.pin("daily", OTHERS, 0)
    lake.write(0)
    with pytest.raises(InUse):
        lake.output.pin("daily", OURS, 0)


def test_a_batch_that_is_gone_cannot_be_pinned(lake: Lake) -> None:
    lake.write(0)
    assert lake.output.pin("daily", OURS, 7) is None


def test_pyiceberg_is_asked_for_the_catalogs_that_it_knows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(0)
    assert find_pyiceberg_table("lake.db.numbers") is None
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", lake.uri)
    assert find_pyiceberg_table("other.db.numbers") is None
    assert find_pyiceberg_table("/warehouse/db/numbers") is None
    table = find_pyiceberg_table("lake.db.numbers")
    assert table is not None
    assert IcebergOutput("lake.db.numbers", table=table).position(OURS).batch_id == 0
    absent = find_pyiceberg_table("lake.db.absent")
    assert absent is not None
    with pytest.raises(NotFound, match=r"db\.absent"):
        absent.read_metadata()


OF_ICEBERG = "org.apache.iceberg.spark.SparkCatalog"


@pytest.mark.parametrize(
    ("confs", "expected"),
    [
        (
            {"": OF_ICEBERG, "type": "rest", "uri": "http://host", "credential": "a:b", "io-impl": "x.Y"},
            {"type": "rest", "uri": "http://host", "credential": "a:b"},
        ),
        (
            {
                "": OF_ICEBERG,
                "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
                "warehouse": "s3://b",
            },
            {"type": "glue", "warehouse": "s3://b"},
        ),
        (
            {"": "org.apache.iceberg.spark.SparkSessionCatalog", "uri": "thrift://host:9083"},
            {"type": "hive", "uri": "thrift://host:9083"},
        ),
        (
            {"": OF_ICEBERG, "type": "jdbc", "uri": "jdbc:sqlite:/data/x.db"},
            {"type": "sql", "uri": "sqlite:////data/x.db"},
        ),
        (
            {
                "": OF_ICEBERG,
                "type": "jdbc",
                "uri": "jdbc:postgresql://host:5432/books",
                "jdbc.user": "me@home",
                "jdbc.password": "p:w/d",
            },
            {"type": "sql", "uri": "postgresql+psycopg2://me%40home:p%3Aw%2Fd@host:5432/books"},
        ),
        ({"": OF_ICEBERG, "type": "jdbc", "uri": "jdbc:derby:;databaseName=x"}, None),
        ({"": OF_ICEBERG, "type": "hadoop", "warehouse": "/w"}, None),
        ({"": OF_ICEBERG, "catalog-impl": "com.acme.Catalog", "uri": "http://host"}, None),
        ({"": OF_ICEBERG}, None),
        (
            {"": "org.apache.spark.sql.delta.catalog.DeltaCatalog", "type": "rest", "uri": "http://host"},
            None,
        ),
        ({}, None),
    ],
)
def test_confs_of_spark_are_read_as_pyiceberg_spells_them(
    confs: dict[str, str], expected: dict[str, str] | None
) -> None:
    """Those of a catalog that pyiceberg knows too; any other is nobody's here."""
    spelled = {f"spark.sql.catalog.lake{'.' if name else ''}{name}": text for name, text in confs.items()}
    more = {"spark.sql.catalog.lake2": OF_ICEBERG, "spark.sql.catalog.lake2.uri": "http://other"}
    assert catalog_properties({**spelled, **more}, "lake") == expected


def test_what_pyiceberg_is_configured_for_comes_before_confs_of_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(0)
    prefix = "spark.sql.catalog.lake"
    confs = {prefix: OF_ICEBERG, f"{prefix}.type": "jdbc", f"{prefix}.uri": f"jdbc:{lake.uri[:7]}/absent/x"}
    find = tables_of_confs(confs)
    assert find("other.db.numbers") is None
    with pytest.raises(Unavailable):
        find("lake.db.numbers")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", lake.uri)
    table = find("lake.db.numbers")
    assert table is not None
    assert IcebergOutput("lake.db.numbers", table=table).position(OURS).batch_id == 0


def test_a_catalog_that_cannot_be_reached_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/absent/catalog.db")
    with pytest.raises(Unavailable) as raised:
        find_pyiceberg_table("lake.db.numbers")
    assert "absent" not in str(raised.value), "a URI may hold a password"


def test_a_checkpoints_output_is_found_in_a_catalog_before_its_files_are(lake: Lake) -> None:
    """By the name in the record, or the one that the caller gives; a path is for no catalog."""
    lake.write(0)
    place, url = f"{lake.home}/warehouse/db/numbers", str(lake.home / "checkpoints")
    sink = SinkRecord("iceberg", "lake.db.numbers", OURS, 0, location=place)

    def find(name: str) -> IcebergTable | None:
        return PyIcebergTable(lake.catalog, NAME) if name == "lake.db.numbers" else None

    def lacks(name: str) -> IcebergTable | None:
        raise NotFound(f"no {name}")

    for given in (None, place):
        output = OutputQuestion(url, place=given, tables=find).open(sink)
        assert output is not None
        assert output.position(OURS).batch_id == 0
        unasked = OutputQuestion(url, place=given, tables=lacks).open(sink)
        assert unasked is not None
        assert not unasked.position(OURS).is_known
    assert OutputQuestion(url, place="other.db.numbers", tables=find).open(sink) is None
    assert OutputQuestion(url, tables=find).open(SinkRecord("table", "a.b")) is None
    renamed = OutputQuestion(url, place="lake.db.numbers", tables=find).open(
        SinkRecord("table", "old.db.numbers")
    )
    assert renamed is not None
    assert renamed.position(OURS).batch_id == 0


def test_the_newest_file_of_a_catalogs_table_is_not_taken_for_the_current_one(lake: Lake) -> None:
    """A commit that failed leaves one behind; only the catalog knows."""
    lake.write(0)
    place = f"{lake.home}/warehouse/db/numbers"
    output = IcebergOutput(place, open_object_store(place))
    assert not output.position(OURS).is_known
    assert output.ancestors() is None
    with pytest.raises(Unsupported, match="catalog alone"):
        output.plan_roll_back(OURS, 0)


class Made(IcebergTable):
    """A table whose metadata is whatever somebody wrote."""

    def __init__(self, metadata: object) -> None:
        self._metadata = metadata

    def read_metadata(self) -> bytes:
        """It."""
        return self._metadata if isinstance(self._metadata, bytes) else json.dumps(self._metadata).encode()

    def set_reference(self, name: str, snapshot_id: int | None, expected_id: int | None) -> None:
        """Nobody gets here."""
        raise AssertionError


def made_snapshot(number: Any, parent: Any = None, **summary: Any) -> dict[str, Any]:
    """A snapshot."""
    return {
        "snapshot-id": number,
        "parent-snapshot-id": parent,
        "timestamp-ms": 1_700_000_000_000,
        "summary": summary,
    }


DAMAGED = {
    "no JSON": b"{",
    "no object": [],
    "a text for an id": {"snapshots": [made_snapshot("1")], "current-snapshot-id": 1},
    "a negative id": {"snapshots": [made_snapshot(-7)], "current-snapshot-id": 1},
    "no id": {"snapshots": [{}], "current-snapshot-id": 1},
    "its own ancestor": {
        "snapshots": [made_snapshot(1, 2), made_snapshot(2, 1)],
        "current-snapshot-id": 1,
    },
    "an epoch that is no number": {
        "snapshots": [made_snapshot(1, None, **{QUERY_ID: OURS, EPOCH_ID: "-3"})],
        "current-snapshot-id": 1,
    },
    "a query without an epoch": {
        "snapshots": [made_snapshot(1, None, **{QUERY_ID: OURS})],
        "current-snapshot-id": 1,
    },
    "a reference without a snapshot": {"snapshots": [], "refs": {"main": {"type": "tag"}}},
}


@pytest.mark.parametrize("metadata", DAMAGED.values(), ids=DAMAGED)
def test_damaged_metadata_is_refused_and_never_read_as_none(metadata: object) -> None:
    output = IcebergOutput("t", table=Made(metadata))
    with pytest.raises(FormatError):
        output.position(OURS)
    with pytest.raises(FormatError):
        output.plan_roll_back(OURS, 0)


def test_a_writers_name_is_printed_without_control_characters() -> None:
    ours = [made_snapshot(n, n - 1 or None, **{QUERY_ID: OURS, EPOCH_ID: str(n)}) for n in (1, 2)]
    foreign = made_snapshot(3, 2, operation="append", **{"spark.app.id": "\x1b[2J" + "x" * 5_000})
    metadata = {"snapshots": [*ours, foreign], "current-snapshot-id": 3}
    plan = IcebergOutput("t", table=Made(metadata)).plan_roll_back(OURS, 1)
    assert plan is not None
    assert "\x1b" not in plan.others[0]
    assert len(plan.others[0]) <= 300


def test_a_rewrite_is_named_and_is_not_another_writers_row() -> None:
    ours = [made_snapshot(n, n - 1 or None, **{QUERY_ID: OURS, EPOCH_ID: str(n)}) for n in (1, 2)]
    rewrite = made_snapshot(3, 2, operation="replace", **{"spark.app.id": "nightly"})
    output = IcebergOutput(
        "t", table=Made({"snapshots": [*ours, rewrite], "current-snapshot-id": 3, "refs": None})
    )
    plan = output.plan_roll_back(OURS, 1)
    assert plan is not None
    assert plan.others == ()
    assert "snapshot 3" in plan.dropped[0]
    assert "changed no rows" in plan.dropped[0]


@pytest.mark.parametrize("suffix", ["v2.metadata.json", "v2.gz.metadata.json", "v2.metadata.json.gz"])
def test_a_hadoop_catalogs_table_is_asked_without_the_catalog(suffix: str, tmp_path: Path) -> None:
    """Only the catalog changes it: refused when planned, before anything else has gone back."""
    made = [made_snapshot(n, n - 1 or None, **{QUERY_ID: OURS, EPOCH_ID: str(n)}) for n in (1, 2)]
    data = json.dumps({"snapshots": made, "current-snapshot-id": 2}).encode()
    home = tmp_path / "metadata"
    home.mkdir()
    (home / "v1.metadata.json").write_text("{}")
    (home / suffix).write_bytes(gzip.compress(data) if "gz" in suffix else data)
    (home / "version-hint.text").write_text("1")
    output = IcebergOutput(str(tmp_path), open_object_store(str(tmp_path)))
    assert output.position(OURS).batch_id == 2
    assert output.plan_roll_back(OURS, 2) is None
    with pytest.raises(Unsupported, match="by its catalog alone"):
        output.plan_roll_back(OURS, 1)
    pin = output.pin("daily", OURS, 1)
    assert pin is not None
    assert not pin.is_kept


@pytest.mark.parametrize("cut", [True, False])
def test_zipped_metadata_that_is_damaged_or_endless_is_refused(
    cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_checkpoint.outputs.iceberg_table.MAX_METADATA_BYTES", 1_000)
    home = tmp_path / "metadata"
    home.mkdir()
    data = gzip.compress(b" " * (500 if cut else 100_000))
    (home / "v1.gz.metadata.json").write_bytes(data[:-9] if cut else data)
    with pytest.raises(FormatError, match="cut off, or too large"):
        IcebergOutput("t", open_object_store(str(tmp_path))).position(OURS)


def test_a_hint_that_names_no_file_is_damage(tmp_path: Path) -> None:
    """Iceberg refuses to read such a table too."""
    home = tmp_path / "metadata"
    home.mkdir()
    (home / "v1.metadata.json").write_text("{}")
    (home / "version-hint.text").write_text("7")
    with pytest.raises(FormatError, match="version 7 is not there"):
        IcebergOutput("t", open_object_store(str(tmp_path))).position(OURS)
