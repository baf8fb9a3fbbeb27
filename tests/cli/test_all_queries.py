"""Commands on all queries below a URL: one line or record a query, one exit status, none hides another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_checkpoint.cli import exits
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import QueryRoot, name_key, register, root_url
from pyspark_checkpoint.store.open import open_object_store
from tests.cli.kit import OTHER_ID, Shell, make_query
from tests.support.made_location import QUERY_ID

THIRD_ID = "1a7b6c5d-0e4f-4a3b-9c2d-8e1f7a6b5c44"
NO_SERVER = (
    *("--option", "trustedStores=s3://tables"),
    *("--option", "endpoint=http://127.0.0.1:9"),
    *("--option", "accessKey=a"),
    *("--option", "secretKey=b"),
    *("--option", "retrySeconds=0"),
)
"""Where the table of a query should be, and nobody listens."""


def damage(parent: Path) -> None:
    """Flip a byte of one artifact of ``orders``."""
    path = max((parent / QUERY_ID / "checkpoints").rglob("*.pack"), key=lambda found: found.stat().st_size)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def ids(parent: Path, query_id: str) -> list[int]:
    return list(CheckpointStore.open(root_url(str(parent), query_id)).list_ids())


@pytest.fixture
def silent(parent: Path) -> Path:
    """A third query, whose table does not answer."""
    root = QueryRoot("silent", THIRD_ID, "shop", 1, "s3://tables/wc")
    register(open_object_store(str(parent)), root)
    return parent


def test_verify_proves_every_query_by_itself(ckpt: Shell, parent: Path) -> None:
    """One line a query; findings of one do not end the command."""
    good = ckpt("verify", parent)
    assert good.status == exits.DONE, good.err
    assert [line.split(":")[0] for line in good.out.splitlines()] == ["clicks", "orders"]
    assert all("all good: every byte checked" in line for line in good.out.splitlines())
    damage(parent)
    done = ckpt("verify", parent, "--json")
    assert done.status == exits.FOUND
    results = {one["name"]: one["result"] for one in done.json}
    assert results["clicks"] == []
    assert results["orders"] == ckpt("verify", parent, "--query", "orders", "--json").json != []
    told = ckpt("verify", parent)
    assert told.status == exits.FOUND
    assert "clicks: 3 checkpoints, all good" in told.out
    assert "orders: " in told.out
    assert results["orders"][0]["object"] in told.out
    assert ckpt("verify", parent, "--quick").status == exits.DONE


def test_verify_of_one_checkpoint_of_every_query(ckpt: Shell, parent: Path) -> None:
    """What each has under that name; a query that has none is a problem of that query."""
    assert ckpt("verify", parent, "latest").status == exits.DONE
    lacking = ckpt("verify", parent, "epoch=2", "--json")
    assert lacking.status == exits.FOUND
    problems = {one["name"]: one for one in lacking.json}
    assert problems["orders"]["problem"] is problems["orders"]["code"] is None
    assert "epoch=2" in problems["clicks"]["problem"]
    assert problems["clicks"]["code"] == "CKPT-NO-CHECKPOINT"
    assert "ckpt list" in problems["clicks"]["hint"]


def test_what_can_lose_something_asks_for_all(ckpt: Shell, parent: Path) -> None:
    """Without --all or --query nothing is done, and the message says how to go on, in few words."""
    for typed in (("gc", parent), ("prune", parent, "--keep", "1"), ("savepoint", parent, "good")):
        refused = ckpt(*typed)
        assert refused.status == exits.REFUSED, typed
        assert "2 queries" in refused.err
        assert "--all" in refused.err
        assert QUERY_ID not in refused.err
        both = ckpt(*typed, "--all", "--query", "orders")
        assert both.status == exits.USAGE
    assert len(ids(parent, QUERY_ID)) == 5


def test_prune_all(ckpt: Shell, parent: Path) -> None:
    """The dry run and the deed are one line a query, or one record."""
    planned = ckpt("prune", parent, "--keep", "1", "--all", "--dry-run")
    assert [line.split(":")[0] for line in planned.out.splitlines()] == ["clicks", "orders"]
    before = ids(parent, QUERY_ID)
    assert len(before) == 5
    done = ckpt("prune", parent, "--keep", "1", "--all", "--json")
    assert done.status == exits.DONE
    removed = {one["name"]: one["result"]["removed"] for one in done.json}
    assert ids(parent, QUERY_ID) == [max(removed["orders"]) + 1]
    assert ids(parent, OTHER_ID) == [max(removed["clicks"]) + 1]


def test_gc_all(ckpt: Shell, parent: Path) -> None:
    """What lost attempts left goes from each history."""
    name = "checkpoints/0000000002-01890a5d-ac96-774b-bcce-b302099a8057/pack-00000.pack"
    for query_id in (QUERY_ID, OTHER_ID):
        orphan = parent / query_id / name
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"left")
    planned = ckpt("gc", parent, "--all", "--grace", "0s", "--dry-run")
    assert planned.out.count("would remove 1 object, 4 B") == 2
    done = ckpt("gc", parent, "--all", "--grace", "0s", "--json")
    assert [one["result"]["objects"] for one in done.json] == [[name], [name]]
    assert ckpt("verify", parent).status == exits.DONE


def test_savepoints_of_all_queries(ckpt: Shell, parent: Path) -> None:
    """Made, listed and removed at once; a query that lacks it is told, and does not stop the others."""
    made = ckpt("savepoint", parent, "night", "--all")
    assert made.status == exits.DONE
    assert [line.split()[0] for line in made.out.splitlines()] == ["clicks:", "orders:"]
    listed = {one["name"]: one["result"] for one in ckpt("savepoint", parent, "--json").json}
    assert [[point["name"] for point in points] for points in listed.values()] == [["night"], ["night"]]
    assert "orders: night (5)" in ckpt("savepoint", parent).out
    assert ckpt("savepoint", parent, "night", "--remove", "--query", "clicks").status == exits.DONE
    rest = ckpt("savepoint", parent, "night", "--remove", "--all")
    assert rest.status == exits.FOUND
    assert "clicks: error CKPT-NO-CHECKPOINT: there is no savepoint 'night'" in rest.out
    assert "orders: night no longer keeps" in rest.out


def test_one_history_is_all_of_itself(ckpt: Shell, parent: Path, tmp_path: Path) -> None:
    """--all of a history, or of a URL with one query below it, does no harm."""
    url = root_url(str(parent), QUERY_ID)
    assert ckpt("verify", url, "--all", "--json").json == []
    assert ckpt("prune", url, "--keep", "1", "--all", "--dry-run").status == exits.DONE
    alone = tmp_path / "alone"
    make_query(alone, tmp_path / "alone-location", 0)
    assert ckpt("verify", alone, "--json").json == []
    (record,) = ckpt("verify", alone, "--all", "--json").json
    assert (record["name"], record["query_id"], record["problem"], record["result"]) == (
        "orders",
        QUERY_ID,
        None,
        [],
    )


@pytest.mark.parametrize(
    "typed",
    [
        ("verify",),
        ("savepoint",),
        ("savepoint", "night", "--all"),
        ("gc", "--all"),
        ("prune", "--keep", "1", "--all"),
        ("list",),
    ],
)
def test_a_table_that_does_not_answer_hides_no_other_query(
    ckpt: Shell, silent: Path, typed: tuple[str, ...]
) -> None:
    """It is named with what is wrong, the others are done, and the exit status says that one was not."""
    command, *rest = typed
    done = ckpt(command, silent, *rest, *NO_SERVER, "--json")
    assert done.status == exits.FOUND, done.err
    problems = {one["name"]: one["problem"] for one in done.json}
    assert problems.keys() == {"clicks", "orders", "silent"}
    assert [name for name, problem in problems.items() if problem is not None] == ["silent"]
    assert "127.0.0.1" in problems["silent"] or "s3://tables" in problems["silent"]
    if command == "list":
        assert {one["name"]: one["kind"] for one in done.json}["silent"] == "unknown"
    shown = ckpt(command, silent, *rest, *NO_SERVER)
    assert shown.status == exits.FOUND
    assert problems["silent"] in shown.out


def test_watch_and_report_go_on_without_a_table_that_does_not_answer(
    ckpt: Shell, silent: Path, tmp_path: Path
) -> None:
    """Both say what is wrong with it."""
    lines = ckpt("watch", silent, "--once", "--json", *NO_SERVER).out.splitlines()
    events = [json.loads(line) for line in lines]
    assert [(one["query"], one["event"]) for one in events] == [
        ("clicks", "checkpoint"),
        ("orders", "checkpoint"),
        ("silent", "problem"),
    ]
    page = tmp_path / "page.html"
    done = ckpt("report", silent, "-o", page, *NO_SERVER)
    assert done.status == exits.FOUND
    assert "query silent is not on the page" in done.err
    assert "<h1>orders</h1>" in page.read_text("utf-8")


def test_copy_goes_on_with_the_other_queries(ckpt: Shell, silent: Path, tmp_path: Path) -> None:
    """A copy that lacks a query says which, by its exit status too; repeating it brings what is missing."""
    target = tmp_path / "copy"
    done = ckpt("copy", silent, target, *NO_SERVER)
    assert done.status == exits.FOUND
    assert [line.split(":")[0] for line in done.out.splitlines()][:2] == [
        root_url(str(target), OTHER_ID),
        root_url(str(target), QUERY_ID),
    ]
    assert "query silent is not copied: " in done.out
    records = ckpt("copy", silent, target, *NO_SERVER, "--json").json
    assert [one["problem"] is None for one in records] == [True, True, False]
    listed = ckpt("list", target, "--json")
    assert {one["name"] for one in listed.json} == {"orders", "clicks"}


def test_a_record_that_names_another_account_is_a_problem_of_its_query(ckpt: Shell, silent: Path) -> None:
    """Its table is not asked, and the hint says how to trust it."""
    done = ckpt("verify", silent, "--option", "retrySeconds=0")
    assert done.status == exits.FOUND
    assert "a record names the table 's3://tables/wc'" in done.out
    assert "trustedStores=s3://tables" in done.err


def test_a_damaged_name_is_one_line(ckpt: Shell, parent: Path) -> None:
    """Whatever is done with the others."""
    record = parent / name_key("orders")
    record.write_bytes(record.read_bytes()[:-20])
    done = ckpt("verify", parent)
    assert done.status == exits.FOUND
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["clicks", "orders"]
