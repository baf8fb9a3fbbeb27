"""What preflight says before a query starts from a restored location."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_checkpoint import preflight, restore
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.file_sink import FileSinkOutput
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.spark_files.listing import pinned_conf
from pyspark_checkpoint.spark_files.requirements import (
    FORMAT,
    PARTITIONS,
    PROVIDER,
    Offered,
    Recorded,
    Severity,
    check_preflight,
)
from pyspark_checkpoint.store.open import open_object_store
from tests.cli.conftest import ckpt
from tests.cli.kit import Shell
from tests.outputs.test_ckpt_sink import save_rows
from tests.support.made_location import MadeLocation, capture

__all__ = ["ckpt"]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
RECORDED = Recorded({PROVIDER: ROCKSDB, PARTITIONS: "4", FORMAT: "2"}, 2, ("stateStoreSave",), "4.1.3")


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (Offered("4.1.3", ROCKSDB, 4, 2, ("stateStoreSave",)), []),
        (Offered(), []),
        (Offered(spark_version="4.3.0"), []),
        (
            Offered(spark_version="4.0.1"),
            [(Severity.WARNING, "was not tried"), (Severity.FAILURE, "format")],
        ),
        (Offered(spark_version="5.0.0"), [(Severity.WARNING, "was not tried")]),
        (Offered(provider=HDFS), [(Severity.NOTE, "pinned")]),
        (Offered(partitions=8), [(Severity.WARNING, "restore with partitions=8")]),
        (Offered(sources=1), [(Severity.FAILURE, "has 2, the query 1")]),
        (Offered(operators=("dedupe",)), [(Severity.FAILURE, "stateStoreSave; the query has: dedupe")]),
        (Offered(operators=()), [(Severity.FAILURE, "the query has: none")]),
    ],
)
def test_each_thing_that_does_not_fit_is_named_with_its_cure(
    offered: Offered, expected: list[tuple[Severity, str]]
) -> None:
    """Nothing is said about what fits, or was not given."""
    found = check_preflight(RECORDED, offered)
    assert [finding.severity for finding in found] == [severity for severity, _ in expected]
    for finding, (_, text) in zip(found, expected, strict=True):
        assert text in str(finding)


def test_an_older_spark_is_warned_of_newer_state() -> None:
    """Spark reads what older versions wrote; the other way round is luck."""
    (finding,) = check_preflight(Recorded({}, 1, (), "4.3.0"), Offered(spark_version="4.1.0"))
    assert "newer than 4.1.0" in finding.message


def test_state_that_cannot_be_repartitioned_is_said_to_be_so() -> None:
    """Only RocksDB state can be."""
    recorded = Recorded({PROVIDER: HDFS, PARTITIONS: "4"}, 1, ("stateStoreSave",))
    (finding,) = check_preflight(recorded, Offered(partitions=8))
    assert "cannot be repartitioned" in finding.cure


def test_a_foreign_state_store_needs_its_jar() -> None:
    """The class is pinned by name in the offset log."""
    (finding,) = check_preflight(Recorded({PROVIDER: "com.acme.Store"}, 1, ()), Offered())
    assert "com.acme.Store" in finding.message


def test_a_location_is_read_for_what_it_records(tmp_path: Path) -> None:
    """Sources, operators and partitions come from Spark's own logs; an unfinished restore is a failure."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    assert preflight(str(made.path), sources=1, operators=["stateStoreSave"], partitions=2) == ()
    assert [str(f.severity.value) for f in preflight(str(made.path), sources=2)] == ["failure"]
    (made.path / "commits" / "1").unlink()
    (note,) = preflight(str(made.path))
    assert (note.severity, "batch 1" in note.message) == (Severity.NOTE, True)
    (made.path / RESTORE_MARKER).write_text("{}")
    assert preflight(str(made.path))[0].severity is Severity.FAILURE
    with pytest.raises(RefusedError, match="no offset log"):
        preflight(str(tmp_path / "empty"))


def test_a_batch_that_spark_can_neither_run_nor_leave_out_is_a_failure(tmp_path: Path) -> None:
    """Its output has it, it is not committed, and the names of state files say format version 2."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    (made.path / "commits" / "1").unlink()
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "1").write_text("v1")
    output = FileSinkOutput("out", open_object_store(str(tmp_path / "out")))
    assert [found.severity for found in preflight(str(made.path), outputs=[output])] == [Severity.NOTE]
    uid = "8232b143-ad8c-4d0b-b82e-7563efd350b4"
    (made.path / "state" / "0" / "0" / f"2_{uid}.changelog").write_bytes(b"")
    _, failure = preflight(str(made.path), outputs=[output])
    assert (failure.severity, "to batch 0" in failure.cure) == (Severity.FAILURE, True)


def test_an_output_that_is_ahead_of_its_location_is_a_failure(ckpt: Shell, tmp_path: Path) -> None:
    """Somebody copied an old location by hand; from Python and as a command."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "3").write_text("v1")
    typed = ("preflight", str(made.path), "--sink", f"file:{tmp_path / 'out'}")
    told = ckpt(*typed)
    assert (told.status, "has batch 3, the location goes on after 1" in told.out) == (1, True)
    assert "spark.ckpt.sink=rollback" in told.out
    (log / "3").rename(log / "1")
    assert ckpt(*typed).status == 0
    assert ckpt("preflight", str(made.path), "--sink", "kafka:topic").status == 2


def test_an_output_that_lacks_what_is_done_is_named(ckpt: Shell, tmp_path: Path) -> None:
    """The guard would stop the query at its start; a new target is only said to be one."""
    made, log = MadeLocation(tmp_path / "location").commit(0, 1), tmp_path / "out" / "_spark_metadata"
    typed = ("preflight", str(made.path), "--sink", f"file:{tmp_path / 'out'}")
    told = ckpt(*typed)
    assert (told.status, "warning: output" in told.out, "has no batch" in told.out) == (0, True, True)
    log.mkdir(parents=True)
    (log / "0").write_text("v1")
    told = ckpt(*typed)
    assert (told.status, "would go on after batch 1: the rows between are not in it" in told.out) == (
        1,
        True,
    )


def test_a_checkpoint_that_its_output_is_ahead_of_is_a_failure(
    ckpt: Shell, url: str, tmp_path: Path
) -> None:
    """The checkpoint itself says where the rows go."""
    made, log = MadeLocation(tmp_path / "location").commit(0, 1), tmp_path / "out" / "_spark_metadata"
    capture(made, url, 0, 1, sink=f"FileSink[file:{tmp_path / 'out'}]")
    log.mkdir(parents=True)
    (log / "1").write_text("v1")
    assert ckpt("preflight", url, "--at", "latest").status == 0
    told = ckpt("preflight", url, "--at", "epoch=0")
    assert (told.status, "drop batch 1" in told.out) == (1, True)


def test_a_checkpoint_is_asked_about_as_a_restore_would_ask(ckpt: Shell, url: str, tmp_path: Path) -> None:
    """The table of a ckpt-sink that is ahead; the target that it has had since; a lineage that it left."""
    made, table = MadeLocation(tmp_path / "location").commit(0, 1, 2), str(tmp_path / "table")
    capture(made, url, 0, 1, sink=f"ckpt-sink {table}")
    save_rows(table, {0: 0, 1: 1})
    assert ckpt("preflight", url, "--at", "latest").status == 0
    told = ckpt("preflight", url, "--at", "epoch=0")
    assert (told.status, "write epochs again that the table has" in told.out) == (1, True)
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for batch in ("0", "1", "2"):
        (log / batch).write_text("v1")
    capture(made, url, 2, sink=f"FileSink[file:{tmp_path / 'out'}]")
    assert "drop batch 2" in ckpt("preflight", url, "--at", "epoch=1").out
    old = CheckpointStore.open(url).list_ids()[-1]
    restore(url, str(tmp_path / "back"), epoch=1, sink="rollback")
    (log / "2").write_text("v1")
    told = ckpt("preflight", url, "--at", str(old))
    assert (told.status, "taken back to batch 1 since" in told.out) == (1, True)


def test_an_output_elsewhere_is_given_as_a_restore_takes_it(ckpt: Shell, url: str, tmp_path: Path) -> None:
    """It was moved; or only a session of Spark knows its catalog."""
    made = MadeLocation(tmp_path / "location").commit(0, 1)
    capture(made, url, 0, 1, sink=f"FileSink[file:{tmp_path / 'out'}]")
    log = tmp_path / "moved" / "_spark_metadata"
    log.mkdir(parents=True)
    for batch in ("0", "1", "2", "3"):
        (log / batch).write_text("v1")
    typed = ("preflight", url, "--at", "latest")
    told = ckpt(*typed, "--sink-location", str(tmp_path / "moved"))
    assert (told.status, "drop batches 2 to 3" in told.out) == (1, True)
    assert ckpt(*typed, "--conf", "no conf").status == 2


def test_an_output_that_nobody_named_is_said_not_to_be_asked(ckpt: Shell, tmp_path: Path) -> None:
    """A location does not say where its query writes to. The table of a ckpt-sink can be named too."""
    made, table = MadeLocation(tmp_path / "location").commit(0, 1), str(tmp_path / "table")
    told = ckpt("preflight", str(made.path))
    assert (told.status, "note: output: it was not asked" in told.out) == (0, True)
    save_rows(table, {epoch: epoch for epoch in range(4)})
    told = ckpt("preflight", str(made.path), "--sink", f"ckpt-sink:{table}")
    assert (told.status, "has batch 3, the location goes on after 1" in told.out) == (1, True)


def test_the_format_of_state_is_recorded_by_the_names_of_its_files() -> None:
    """Spark's offset log does not have it."""
    names = ("state/0/0/2.changelog", "state/0/0/1_8232b143-ad8c-4d0b-b82e-7563efd350b4.zip")
    assert pinned_conf({"a": "b"}, names[:1]) == {"a": "b"}
    assert pinned_conf({"a": "b"}, names) == {"a": "b", FORMAT: "2"}


def test_a_restore_that_was_interrupted_early_is_said_to_be_so(tmp_path: Path) -> None:
    """Nothing of a query is there yet but state: it is not a place where no query has run."""
    made = MadeLocation(tmp_path / "location")
    (made.path / RESTORE_MARKER).write_text("{}")
    (finding,) = preflight(str(made.path), sources=1)
    assert finding.severity is Severity.FAILURE
    assert (finding.message, finding.cure) == ("a restore into it was interrupted", "repeat that restore")
