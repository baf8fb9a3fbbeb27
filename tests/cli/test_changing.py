"""Commands that change something: what they do, and that ``--dry-run`` does nothing of it."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import QueryRoot, list_queries, register
from pyspark_checkpoint.spark_files.requirements import PROVIDER
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.cli.kit import Shell, make_table
from tests.restorer.test_restore_steps import Life, living
from tests.support.made_location import QUERY_ID, contents
from tests.support.made_stream import MadeStream
from tests.support.sink_kit import read_pairs


def ids(table: str) -> list[int]:
    return CheckpointStore.open(table).list_ids()


@pytest.mark.parametrize(
    "typed",
    [
        ("rollback", "2"),
        ("savepoint", "other"),
        ("savepoint", "good", "--remove"),
        ("prune", "--keep", "1"),
        ("gc", "--grace", "0s"),
    ],
    ids=lambda typed: "-".join(typed).replace("--", ""),
)
def test_a_dry_run_changes_nothing(ckpt: Shell, table: str, typed: tuple[str, ...]) -> None:
    """Not a byte, with and without JSON; it says what it would do."""
    CheckpointStore.open(table).savepoint("good", 2)
    orphan = (
        Path(table) / "checkpoints" / "0000000003-01890a5d-ac96-774b-bcce-b302099a8057" / "pack-00000.pack"
    )
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"left")
    before = contents(Path(table))
    name, *rest = typed
    told = ckpt(name, table, *rest, "--dry-run")
    assert told.status == 0
    assert "would" in told.out
    assert ckpt(name, table, *rest, "--dry-run", "--json").json
    assert contents(Path(table)) == before


def test_rollback_makes_an_earlier_checkpoint_the_newest(ckpt: Shell, table: str) -> None:
    """The table reads as it did then; nothing is gone."""
    then = read_pairs(table, checkpointId="2")
    done = ckpt("rollback", table, "epoch=1", "--json")
    assert (done.json["checkpoint_id"], done.json["kind"], done.json["rollback_of"]) == (6, "rollback", 2)
    assert read_pairs(table) == then
    assert ids(table) == [1, 2, 3, 4, 5, 6]


def test_savepoints_are_made_listed_and_removed(ckpt: Shell, table: str) -> None:
    """By name, at any checkpoint; making one twice is no error, making another of that name is."""
    assert ckpt("savepoint", table, "good", "--at", "2").status == 0
    assert ckpt("savepoint", table, "good", "--at", "2").status == 0
    assert ckpt("savepoint", table, "newest", "--json").json["checkpoint_id"] == 5
    listed = ckpt("savepoint", table, "--json").json
    assert [(one["name"], one["checkpoint_id"]) for one in listed] == [("good", 2), ("newest", 5)]
    assert "good" in ckpt("savepoint", table).out
    refused = ckpt("savepoint", table, "good", "--at", "3")
    assert refused.status == 3
    assert "already pins checkpoint 2" in refused.err
    assert ckpt("savepoint", table, "good", "--remove").status == 0
    assert ckpt("savepoint", table, "good", "--remove").status == 3
    assert ckpt("savepoint", table, "--remove").status == 2


def test_prune_keeps_what_it_says(ckpt: Shell, table: str) -> None:
    """The newest epochs and the savepoints; without a limit nothing is done."""
    ckpt("savepoint", table, "good", "--at", "2")
    assert ckpt("prune", table).status == 2
    planned = ckpt("prune", table, "--keep", "2", "--dry-run", "--json").json
    done = ckpt("prune", table, "--keep", "2", "--json").json
    assert planned["removed"] == done["removed"] == [1, 3]
    assert done["pinned"] == [2]
    assert ids(table) == [2, 4, 5]
    assert ckpt("prune", table, "--newer-than", "1h", "--json").json["removed"] == []
    assert "pruned; 1 savepoint of them kept" in ckpt("list", table).out


def test_gc_removes_orphans_older_than_the_grace(ckpt: Shell, table: str) -> None:
    """What a lost attempt left goes, once it is old enough."""
    name = "checkpoints/0000000003-01890a5d-ac96-774b-bcce-b302099a8057/pack-00000.pack"
    orphan = Path(table) / name
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"left")
    young = ckpt("gc", table, "--json").json
    assert (young["objects"], young["young"]) == ([], 1)
    assert ckpt("gc", table, "--grace", "0s", "--json").json["objects"] == [name]
    assert not orphan.exists()
    assert ckpt("verify", table).status == 0


def test_restore_rebuilds_the_location(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """State, logs and query id as they were; the history is taken over; a second restore is refused."""
    fresh = tmp_path / "fresh"
    planned = ckpt("restore", parent, "--query", "orders", "--to", fresh, "--dry-run", "--json").json
    assert not fresh.exists()
    assert (planned["epoch"], planned["query_id"]) == (2, QUERY_ID)
    done = ckpt("restore", parent, "--query", "orders", "--to", fresh, "--json")
    assert (done.json["epoch"], done.json["query_id"], done.json["resumed"]) == (2, QUERY_ID, False)
    assert sorted(contents(fresh)) == sorted(planned["files"])
    newest = CheckpointStore.open(f"{parent}/{QUERY_ID}").load_latest()
    assert newest is not None
    assert newest.kind is ManifestKind.CLAIM
    for refused in (
        ckpt("restore", parent, "--query", "orders", "--to", fresh),
        ckpt("restore", parent, "--query", "orders", "--to", fresh, "--dry-run"),
    ):
        assert refused.status == 3
        assert "in use" in refused.err
        assert "hint: restore into a fresh location" in refused.err


@pytest.mark.parametrize("which", [("--epoch", "1"), ("--at", "epoch=1"), ("--at", "3"), ("--at", "keep")])
def test_restore_chooses_a_checkpoint(
    ckpt: Shell, parent: Path, tmp_path: Path, which: tuple[str, str]
) -> None:
    """By epoch, number or savepoint; what was later is rolled back, which the dry run announces."""
    ckpt("savepoint", parent, "keep", "--at", "3", "--query", "orders")
    fresh = tmp_path / "fresh"
    typed = ("restore", parent, "--query", "orders", "--to", fresh, *which)
    assert "would record a rollback from checkpoint 5" in ckpt(*typed, "--dry-run").out
    assert "epoch 1" in ckpt(*typed).out
    newest = CheckpointStore.open(f"{parent}/{QUERY_ID}").load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, 1)


def test_a_clone_is_another_query(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """The history stays as it is."""
    before = ids(f"{parent}/{QUERY_ID}")
    done = ckpt("restore", parent, "--query", "orders", "--to", tmp_path / "c", "--clone", "--json").json
    assert done["query_id"] != QUERY_ID
    assert ids(f"{parent}/{QUERY_ID}") == before


@pytest.mark.parametrize("clone", [(), ("--clone",)], ids=["resume", "clone"])
def test_a_dry_run_knows_which_restore_was_interrupted(
    ckpt: Shell, parent: Path, tmp_path: Path, clone: tuple[str, ...]
) -> None:
    """It says that it would finish its own, and is refused where the restore would be: by another's."""
    fresh = tmp_path / "fresh"
    typed = ("restore", parent, "--query", "orders", "--to", fresh)
    with living(Life(5)), pytest.raises(SimulatedCrash):
        ckpt(*typed, "--epoch", "1", *clone)
    before = contents(fresh)
    assert ckpt(*typed, "--epoch", "1", *clone, "--dry-run", "--json").json["resumes"] is True
    other = () if clone else ("--clone",)
    for wrong in ((*typed, *clone), (*typed, "--epoch", "1", *other)):
        for refused in (ckpt(*wrong), ckpt(*wrong, "--dry-run")):
            assert refused.status == 3
            assert "of checkpoint 4, was interrupted" in refused.err
    assert contents(fresh) == before
    assert ckpt(*typed, "--epoch", "1", *clone).status == 0


class InRocksdb(MadeStream):
    """A query whose state Spark could repartition."""

    def offsets(self, number: int) -> str:
        version, head, source = super().offsets(number).split("\n")
        fields = json.loads(head)
        fields["conf"][PROVIDER] = (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        )
        return "\n".join([version, json.dumps(fields), source])


def test_a_dry_run_repartitions_no_state_of_a_batch_that_may_be_unfinished(
    ckpt: Shell, tmp_path: Path
) -> None:
    """Spark would not either; nothing of it is started to find out."""
    stream = InRocksdb(tmp_path / "made", version=2)
    stream.run(3)
    typed = ("restore", str(stream.table), "--to", tmp_path / "fresh", "--partitions", "5", "--dry-run")
    refused = ckpt(*typed)
    assert refused.status == 3
    assert "repartitions the state of finished batches only" in refused.err
    told = ckpt(*typed, "--epoch", "1", "--json").json
    assert (told["partitions"], told["point"]) == (5, "after")
    assert ckpt(*typed, "--epoch", "1", "--before").status == 2


def test_rows_and_state_are_restored_before_or_after_a_batch(ckpt: Shell, tmp_path: Path) -> None:
    """What is known decides, or the user; the answer says which it was, and so does the dry run."""
    stream = MadeStream(tmp_path / "made")
    stream.run(4)
    typed = ("restore", str(stream.table), "--clone", "--json", "--to")
    assert ckpt(*typed, tmp_path / "a").json["point"] == "before"
    assert ckpt(*typed, tmp_path / "b", "--epoch", "2").json["point"] == "after"
    assert ckpt(*typed, tmp_path / "c", "--epoch", "2", "--before").json["point"] == "before"
    assert ckpt(*typed, tmp_path / "d", "--epoch", "2", "--before", "--dry-run").json["point"] == "before"
    assert not (tmp_path / "d").exists()
    for refused in (
        ckpt(*typed, tmp_path / "e", "--after"),
        ckpt(*typed, tmp_path / "e", "--after", "--dry-run"),
    ):
        assert refused.status == 3
        assert "hint:" in refused.err
    assert ckpt(*typed, tmp_path / "f", "--after", "--before").status == 2
    told = ckpt("restore", str(stream.table), "--to", tmp_path / "g", "--epoch", "1", "--before").out
    assert "before batch 1: Spark runs it again" in told


def test_a_query_whose_table_has_its_state_is_found_by_its_name(ckpt: Shell, tmp_path: Path) -> None:
    """Below the URL that its listener was given: listed, restored, copied as any other."""
    stream = MadeStream(tmp_path / "made")
    stream.run(3)
    parent, table = str(tmp_path / "parent"), str(stream.table)
    query_id = ckpt("show", table, "--json").json["query"]["id"]
    register(open_object_store(parent), QueryRoot("wc", query_id, "app", 1, table=table))
    (listed,) = ckpt("list", parent, "--json").json
    assert (listed["name"], listed["epoch"], listed["url"]) == ("wc", 2, table)
    for query in ("wc", query_id):
        assert ckpt("list", parent, "--query", query, "--json").json == ckpt("list", table, "--json").json
    assert ckpt("savepoint", parent, "good", "--query", "wc").status == 0
    assert ckpt("watch", parent, "--once", "--json").json["epoch"] == 2
    copied = ckpt("copy", parent, tmp_path / "copy", "--json").json
    assert copied[0]["savepoints"] == ["good"]
    stream.lose_location()
    shutil.rmtree(table)
    restored = ckpt("restore", tmp_path / "copy", "--query", "wc", "--to", tmp_path / "fresh", "--json")
    assert (restored.json["epoch"], restored.json["query_id"]) == (2, query_id)


def test_a_savepoint_of_rows_and_state_keeps_what_spark_wrote_after_it(ckpt: Shell, tmp_path: Path) -> None:
    """Later checkpoints may be pruned; the savepoint can still be restored after its batch."""
    stream = MadeStream(tmp_path / "made")
    stream.run(4)
    assert ckpt("savepoint", str(stream.table), "then", "--at", "epoch=1").status == 0
    assert ckpt("prune", str(stream.table), "--keep", "1").status == 0
    typed = ("restore", str(stream.table), "--clone", "--json", "--at", "then", "--to")
    assert ckpt(*typed, tmp_path / "a").json["point"] == "after"


def test_a_dry_run_refuses_state_that_cannot_be_repartitioned(
    ckpt: Shell, parent: Path, tmp_path: Path
) -> None:
    """State in HDFS-backed stores; no Spark is started to find that out."""
    typed = ("restore", parent, "--query", "orders", "--to", tmp_path / "p", "--dry-run", "--partitions")
    refused = ckpt(*typed, "4")
    assert (refused.status, "cannot repartition" in refused.err) == (3, True)
    assert ckpt(*typed, "2", "--json").json["partitions"] is None
    assert ckpt(*typed, "0").status == 2


def test_restore_as_of_a_time(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """A time before everything is refused; a word that is no time is a mistake of usage."""
    typed = ("restore", parent, "--query", "orders", "--to", tmp_path / "t", "--as-of")
    assert ckpt(*typed, "2001-01-01").status == 3
    assert ckpt(*typed, "soon").status == 2
    assert ckpt(*typed, "2999-01-01").status == 0


def test_copy_keeps_queries_and_their_names(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """A copy of a parent is used as the parent is; repeating it brings what is new."""
    backup = tmp_path / "backup"
    planned = ckpt("copy", parent, backup, "--dry-run", "--json").json
    assert not list(open_object_store(str(backup)).list())
    done = ckpt("copy", parent, backup, "--json").json
    assert [one["checkpoint_ids"] for one in done] == [one["checkpoint_ids"] for one in planned]
    assert list_queries(open_object_store(str(backup))) == list_queries(open_object_store(str(parent)))
    ckpt("savepoint", parent, "good", "--query", "orders")
    ckpt("restore", parent, "--query", "orders", "--to", tmp_path / "x")
    again = {one["name"]: one for one in ckpt("copy", parent, backup, "--json").json}
    assert again["orders"]["checkpoint_ids"] == [6]
    assert again["orders"]["savepoints"] == ["good"]
    assert again["clicks"]["checkpoint_ids"] == []
    assert ckpt("verify", backup, "--query", "orders").status == 0
    assert ckpt("restore", backup, "--query", "orders", "--to", tmp_path / "y").status == 0


def test_copy_of_one_savepoint(ckpt: Shell, table: str, tmp_path: Path) -> None:
    """Only what was asked for goes."""
    ckpt("savepoint", table, "good", "--at", "2")
    backup = str(tmp_path / "backup")
    assert ckpt("copy", table, backup, "--savepoint", "good", "--json").json[0]["checkpoint_ids"] == [2]
    assert ids(backup) == [2]
    assert read_pairs(backup) == read_pairs(table, checkpointId="2")
    assert ckpt("copy", table, backup, "--savepoint", "none").status == 3


def test_rekey_and_the_key_file(ckpt: Shell, tmp_path: Path) -> None:
    """Old key out, new key in, without writing the data again; the key itself is never shown."""
    old, new = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))

    def ring(name: str, active: str, keys: dict[str, str]) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"active": active, "keys": keys}))
        path.chmod(0o600)
        return path

    first = ring("old.json", "k1", {"k1": old})
    both = ring("both.json", "k2", {"k1": old, "k2": new})
    last = ring("new.json", "k2", {"k2": new})
    table = str(tmp_path / "secret")
    make_table(Path(table), 2, encryptionKeyFile=str(first))
    before = {key: data for key, data in contents(Path(table)).items() if not key.startswith("keys/")}
    assert ckpt("show", table, "--key-file", last).status == 2
    planned = ckpt("rekey", table, "--key-file", both, "--dry-run", "--json").json
    done = ckpt("rekey", table, "--key-file", both)
    assert done.status == 0
    assert planned["rewrapped"]
    assert old not in done.out + done.err
    assert ckpt("show", table, "--key-file", last).status == 0
    after = {key: data for key, data in contents(Path(table)).items() if not key.startswith("keys/")}
    assert after == before
    assert ckpt("rekey", table).status == 2
    plain = make_table(tmp_path / "plain", 1)
    refused = ckpt("rekey", plain, "--key-file", both)
    assert refused.status == 3
    assert "not encrypted" in refused.err
