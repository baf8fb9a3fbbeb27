"""Commands that only look: list, show, diff, verify, watch, probe, jar, preflight."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint import __version__
from pyspark_checkpoint.cli import exits
from pyspark_checkpoint.cli.commands.watch_command import Look, changes
from pyspark_checkpoint.errors import SettingsError, UnknownVersion
from pyspark_checkpoint.format.envelope import encode_sealed
from pyspark_checkpoint.format.keys import CONTROL_KEY, manifest_key
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Entry
from pyspark_checkpoint.jar import build_jar, find_jar
from pyspark_checkpoint.listener.health import HealthRecord, clear_health, put_health
from pyspark_checkpoint.store.open import open_object_store
from tests.cli.kit import Shell, make_table
from tests.support.made_location import QUERY_ID, MadeLocation, capture
from tests.support.made_stream import MadeStream
from tests.support.servers.launch import S3Server


def flip(table: str, key: str, at: int = 40) -> None:
    """Change one bit of an object."""
    path = Path(table) / key
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_list_has_the_agreed_fields_for_programs(ckpt: Shell, table: str) -> None:
    """An array of objects, oldest first, with the names that the design fixes."""
    CheckpointStore.open(table).savepoint("good", 2)
    records = ckpt("list", table, "--json").json
    assert [record["checkpoint_id"] for record in records] == [1, 2, 3, 4, 5]
    assert [record["epoch"] for record in records] == [0, 1, 2, 3, 4]
    wanted = {
        "checkpoint_id",
        "epoch",
        "timestamp_ms",
        "kind",
        "total_size_bytes",
        "generation",
        "savepoints",
    }
    assert all(wanted <= record.keys() for record in records)
    assert [record["savepoints"] for record in records] == [[], ["good"], [], [], []]
    assert {record["kind"] for record in records} == {"epoch"}


def test_list_is_a_table_for_people(ckpt: Shell, table: str) -> None:
    """One line a checkpoint below the heads."""
    lines = ckpt("list", table).out.splitlines()
    assert lines[0].split() == [
        "id",
        "epoch",
        "batch",
        "kind",
        "made",
        "age",
        "size",
        "new",
        "gen",
        "savepoints",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5", "writes"]


def test_list_of_a_parent_shows_the_queries_below_it(ckpt: Shell, parent: Path) -> None:
    """Each with its newest checkpoint; a name or an id then chooses one."""
    records = {record["name"]: record for record in ckpt("list", parent, "--json").json}
    assert records.keys() == {"orders", "clicks"}
    assert records["orders"]["query_id"] == QUERY_ID
    assert (records["orders"]["epoch"], records["clicks"]["epoch"]) == (2, 1)
    by_name = ckpt("list", parent, "--query", "orders", "--json").json
    by_id = ckpt("list", parent, "--query", QUERY_ID, "--json").json
    assert by_name == by_id == ckpt("list", records["orders"]["url"], "--json").json
    assert "orders" in ckpt("list", parent).out


def test_the_newest_and_every_savepoint(ckpt: Shell, table: str) -> None:
    """``--last`` leaves out what is neither."""
    CheckpointStore.open(table).savepoint("good", 2)
    records = ckpt("list", table, "--last", "1", "--json").json
    assert [record["checkpoint_id"] for record in records] == [2, 5]


def test_a_damaged_checkpoint_is_listed_as_such(ckpt: Shell, table: str) -> None:
    """Whoever looks wants to see the rest."""
    flip(table, manifest_key(3))
    records = ckpt("list", table, "--json").json
    assert [record["kind"] for record in records] == ["epoch", "epoch", "damaged", "epoch", "epoch"]
    assert records[2]["problem"]


def test_show_prints_the_manifest(ckpt: Shell, table: str) -> None:
    """For programs its fields; by number, savepoint, epoch or as the newest; options stand anywhere."""
    CheckpointStore.open(table).savepoint("good", 2)
    assert ckpt("show", table, "--json").json["checkpoint_id"] == 5
    assert ckpt("show", table, "2", "--json").json == ckpt("show", table, "--json", "good").json
    assert ckpt("show", table, "epoch=3", "--json").json["checkpoint_id"] == 4
    record = ckpt("show", table, "2", "--json").json
    assert record["operators"]["table"]["partitions"]
    assert record["source_offsets"]


def test_show_tells_people_where_sources_stand(ckpt: Shell, parent: Path) -> None:
    """Sources with each offset, operators with their size, sinks with their state."""
    out = ckpt("show", parent, "--query", "orders").out
    for words in (
        "epoch           2",
        "batch           2",
        "topic.0",
        "0-stateStoreSave",
        "committed",
        "commits/2",
    ):
        assert words in out


def test_diff_says_how_far_sources_moved_and_what_operators_gained(ckpt: Shell, parent: Path) -> None:
    """Per source the distance of each offset, per operator what was added, dropped and kept."""
    record = ckpt("diff", parent, "--query", "orders", "1", "latest", "--json").json
    assert record["epochs"] == [0, 2]
    (source,) = record["sources"]
    assert (source["change"], source["distance"]) == ("changed", 2)
    assert source["offsets"] == [{"name": "topic.0", "before": "0", "after": "2", "distance": 2}]
    (operator,) = record["operators"]
    assert operator["added"]["artifacts"] == 4
    assert operator["kept"]["artifacts"] == 2
    assert operator["dropped"]["artifacts"] == 0
    out = ckpt("diff", parent, "--query", "orders", "1").out
    assert "topic.0     0   2     +2" in out
    assert "0-stateStoreSave  changed" in out


def test_diff_counts_a_partition_that_was_added(ckpt: Shell, tmp_path: Path) -> None:
    """A topic that got a second partition: its records are in the sum."""
    made, url = MadeLocation(tmp_path / "location"), str(tmp_path / "history")
    made.commit(0)
    capture(made, url, 0)
    made.commit(1)
    log = made.path / "offsets" / "1"
    log.write_text(log.read_text().replace('{"0":1}', '{"0":1,"1":40}'))
    capture(made, url, 1)
    (source,) = ckpt("diff", url, "epoch=0", "--json").json["sources"]
    assert [move["distance"] for move in source["offsets"]] == [1, 40]
    assert source["distance"] == 41
    assert re.search(r"together +\+41", ckpt("diff", url, "epoch=0").out)


def test_verify_ends_with_zero_only_if_nothing_is_wrong(ckpt: Shell, table: str) -> None:
    """A flipped byte of an artifact is a finding that names the object and the digests."""
    assert ckpt("verify", table, "--json").json == []
    assert ckpt("verify", table).status == 0
    path = sorted(ckpt("show", table, "--json").json["objects"])[0]
    flip(table, path)
    done = ckpt("verify", table, "--json")
    assert done.status == 1
    assert any(finding["object"] == path for finding in done.json)
    told = ckpt("verify", table)
    assert told.status == 1
    assert path in told.out
    assert "hint:" in told.err
    assert ckpt("verify", table, "--quick").status == 0
    assert ckpt("verify", table, "latest").status == 1


def test_a_checkpoint_of_a_newer_version_asks_for_that_and_for_no_rollback(ckpt: Shell, table: str) -> None:
    """It is not damaged: what it holds would be given up."""
    path = Path(table) / manifest_key(3)
    fields = json.loads(path.read_text("utf-8"))
    path.write_bytes(encode_sealed({**fields, "version": 2}))
    told = ckpt("show", table, "3", "--json").json["error"]
    assert (told["code"], told["hint"]) == (UnknownVersion.code, UnknownVersion.default_hint)


@pytest.mark.parametrize("typed", ["\u00b2", "epoch=\u00b2", "9" * 5000])
def test_what_only_looks_like_a_number_is_a_word(ckpt: Shell, table: str, typed: str) -> None:
    """Python calls a raised two a digit, and reads no number of 5,000 of them."""
    done = ckpt("show", table, typed)
    assert done.status == exits.REFUSED
    assert "has no checkpoint" in done.err


def test_verify_of_one_checkpoint_reads_only_that(ckpt: Shell, table: str) -> None:
    """The damage of another is none of its business."""
    flip(table, manifest_key(2))
    assert ckpt("verify", table, "5").status == 0
    assert ckpt("verify", table).status == 1


def test_watch_once_tells_the_newest_of_each_query(ckpt: Shell, parent: Path) -> None:
    """One line, or one JSON object, a history."""
    out = ckpt("watch", parent, "--once").out.splitlines()
    assert [line.split("  ", 1)[1].split(":")[0] for line in out] == ["clicks", "orders"]
    done = ckpt("watch", parent, "--query", "orders", "--once", "--json")
    assert done.json["event"] == "checkpoint"
    assert done.json["epoch"] == 2


def test_watch_shows_captures_that_fail(ckpt: Shell, parent: Path) -> None:
    """What a listener told the store, for all queries and for one; gone when captures work again."""
    store = open_object_store(str(parent))
    put_health(store, HealthRecord(QUERY_ID, "the location is not shared", 1_700_000_000_000))
    for typed in (("watch", parent), ("watch", parent, "--query", "orders")):
        assert (
            "captures fail since 2023-11-14 22:13:20Z: the location is not shared"
            in ckpt(*typed, "--once").out
        )
    events = [json.loads(line) for line in ckpt("watch", parent, "--once", "--json").out.splitlines()]
    assert [(one["query"], one["event"]) for one in events] == [
        ("clicks", "checkpoint"),
        ("orders", "checkpoint"),
        ("orders", "problem"),
    ]
    clear_health(store, QUERY_ID)
    assert "captures fail" not in ckpt("watch", parent, "--once").out


def test_watch_once_says_by_its_status_that_something_is_wrong(
    ckpt: Shell, parent: Path, table: str
) -> None:
    """For scripts: one query of several that cannot be read, captures that fail, a damaged history."""
    assert ckpt("watch", parent, "--once").status == exits.DONE
    store = open_object_store(str(parent))
    put_health(store, HealthRecord(QUERY_ID, "the location is not shared", 1_700_000_000_000))
    assert ckpt("watch", parent, "--once").status == exits.FOUND
    clear_health(store, QUERY_ID)
    (parent / QUERY_ID / CONTROL_KEY).write_bytes(b"{}")
    damaged = ckpt("watch", parent, "--once", "--json")
    assert damaged.status == exits.FOUND
    told = json.loads(damaged.out.splitlines()[-1])
    assert told["message"].startswith("error CKPT-FORMAT: ")
    assert told["hint"]
    assert f"  hint: {told['hint']}" in ckpt("watch", parent, "--once").err
    flip(table, CONTROL_KEY, 5)
    done = ckpt("watch", table, "--once")
    assert (done.status, CONTROL_KEY in done.out) == (exits.FOUND, True)


def test_watch_of_one_history_ends_with_what_waiting_does_not_cure(ckpt: Shell, tmp_path: Path) -> None:
    """A key that the ring lacks is told as by every command, and not again and again."""
    rings = [tmp_path / "first", tmp_path / "second"]
    for number, ring in enumerate(rings):
        ring.write_text(f"k{number} = " + base64.b64encode(bytes([number]) * 32).decode())
        ring.chmod(0o600)
    table = make_table(tmp_path / "sealed", 2, encryptionKeyFile=str(rings[0]))
    assert ckpt("watch", table, "--once", "--key-file", rings[0]).status == exits.DONE
    done = ckpt("watch", table, "--once", "--key-file", rings[1])
    assert (done.status, done.out) == (exits.USAGE, "")
    assert "k0" in done.err


def test_watching_tells_what_changed() -> None:
    """A problem once, its end once, a savepoint and a prune; nothing while nothing happens."""
    calm = Look((Entry(1, epoch=0),), (), 1)
    bad = replace(calm, problem="captures fail")
    assert list(changes(calm, calm)) == []
    assert list(changes(calm, bad)) == [("problem", "captures fail")]
    assert list(changes(bad, bad)) == []
    assert list(changes(bad, calm)) == [("well", "all is well again")]
    grown = Look((Entry(1, epoch=0), Entry(2, epoch=1)), (("a", 2),), 2)
    assert [event for event, _ in changes(calm, grown)] == ["checkpoint", "savepoint", "pruned"]


@pytest.mark.parametrize("url", ["memory://probed", "file"])
def test_probe_says_what_a_store_promises(ckpt: Shell, tmp_path: Path, url: str) -> None:
    """Both of these keep drivers apart; what is tried leaves nothing behind."""
    place = str(tmp_path / "probed") if url == "file" else url
    done = ckpt("probe", place, "--json")
    assert done.status == 0
    assert done.json["conditional"] is True
    assert list(open_object_store(place).list()) == []
    out = ckpt("probe", place).out
    assert "two drivers on this store are kept apart" in out
    assert "note:" in out


def test_probe_does_not_trust_a_server_that_ignores_conditions(
    ckpt: Shell, rclone_server: S3Server
) -> None:
    """A real one: exit status 1, what it breaks, what that would mean, and no secret."""
    options = [
        word for name, value in rclone_server.options.items() for word in ("--option", f"{name}={value}")
    ]
    done = ckpt("probe", rclone_server.url("probe"), *options)
    assert done.status == 1
    assert re.search(r"^NO +a key is created once", done.out, re.MULTILINE)
    assert "two drivers may overwrite each other" in done.out
    assert "hint: use another store" in done.err
    assert rclone_server.options["secretKey"] not in done.out + done.err


def test_preflight_of_a_location_and_of_a_checkpoint(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """The same question before and after a restore; a failure is exit status 1, with the cure."""
    location = tmp_path / "orders-location"
    for where in ((location,), (parent, "--query", "orders", "--at", "latest")):
        assert ckpt("preflight", *where, "--sources", "1").status == 0
        done = ckpt("preflight", *where, "--sources", "2")
        assert done.status == 1
        assert "failure: sources" in done.out
        assert "hint:" in done.out
        found = ckpt("preflight", *where, "--sources", "2", "--json").json
        assert [one["severity"] for one in found if one["what"] != "output"] == ["failure"]
        assert ckpt("preflight", *where, "--operators", "stateStoreSave").status == 0
        assert ckpt("preflight", *where, "--operators", "dedupe, stateStoreSave").status == 1


def test_what_a_build_of_the_jar_needs_is_told(tmp_path: Path) -> None:
    """Sources, a compiler and Spark; nothing is left behind if one is missing."""
    package = tmp_path / "pyspark_checkpoint"
    package.mkdir()
    with pytest.raises(SettingsError, match="no Java sources"):
        build_jar(__version__, package)
    (package / "jvm" / "java").mkdir(parents=True)
    with pytest.raises(SettingsError, match="no Java compiler") as caught:
        build_jar(__version__, package, env={"JAVA_HOME": str(tmp_path)})
    assert "install a JDK, 17 or newer" in str(caught.value)
    assert not (package / "jars").exists()


def test_the_jar_is_looked_for_in_the_package_then_in_the_checkout(tmp_path: Path) -> None:
    """The wheel carries it, a checkout builds it, it may carry the package; else the error has the cure."""
    package = tmp_path / "checkout" / "pyspark_checkpoint"
    package.mkdir(parents=True)
    with pytest.raises(SettingsError, match="not in this installation") as found:
        find_jar(__version__, package)
    assert found.value.hint is not None
    assert "install the wheel" in found.value.hint
    name = f"ckpt-spark_2.13-{__version__}.jar"
    target = package.parent / "jvm-shim" / "target"
    target.mkdir(parents=True)
    (target.parent / "pom.xml").touch()
    sources = (target.parent / "src" / "main", package / "jvm")
    for place in sources:
        (place / "java").mkdir(parents=True)
        with pytest.raises(SettingsError, match="not built yet") as unbuilt:
            find_jar(__version__, package)
        assert "ckpt jar --build" in str(unbuilt.value)
        shutil.rmtree(place)
    (target / name).touch()
    assert find_jar(__version__, package) == target / name
    (package / "jars").mkdir()
    (package / "jars" / name).touch()
    os.utime(target / name, (1, 1))
    assert find_jar(__version__, package) == package / "jars" / name
    os.utime(package / "jars" / name, (0, 0))
    assert find_jar(__version__, package) == target / name, "whichever was built last"
    carried = tmp_path / "ckpt.jar"
    assert find_jar(__version__, carried / "pyspark_checkpoint") == carried


def test_batches_stand_beside_the_epochs_of_a_table_that_was_taken_over(
    ckpt: Shell, tmp_path: Path
) -> None:
    """Epochs go on where the other query's ended; Spark counts its own batches."""
    stream = MadeStream(tmp_path / "first")
    stream.run(2)
    heir = MadeStream(
        tmp_path / "heir", query_id="11111111-2222-3333-4444-555555555555", options={"takeOver": "true"}
    )
    heir.table = stream.table
    heir.start()
    made = [heir.batch() for _ in range(2)]
    assert [(one.epoch, one.batch_id) for one in made] == [(2, 0), (3, 1)]
    listed = ckpt("list", stream.table, "--json").json
    assert [(one["epoch"], one["batch_id"]) for one in listed if one["kind"] == "epoch"] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 1),
    ]
    shown = ckpt("show", stream.table).out.splitlines()
    assert [line.split() for line in shown[1:3]] == [["epoch", "3"], ["batch", "1"]]
    ids = [str(one.checkpoint_id) for one in made]
    told = ckpt("diff", stream.table, *ids).out
    assert "epochs       2 -> 3 (+1)\nbatches      0 -> 1\n" in told
    assert ckpt("diff", stream.table, *ids, "--json").json["batches"] == [0, 1]
