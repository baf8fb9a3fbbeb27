"""A name whose record is damaged: told for that name, and the other queries are there as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.keys import CONTROL_KEY
from pyspark_checkpoint.registry.copy_queries import CopyRequest, plan_histories
from pyspark_checkpoint.registry.queries import (
    QueryRoot,
    name_key,
    parse_name_key,
    read_names,
    register,
    resolve_root,
    root_url,
)
from pyspark_checkpoint.store.open import open_object_store
from tests.cli.kit import OTHER_ID, Shell
from tests.support.made_location import QUERY_ID


@pytest.fixture
def damaged(parent: Path) -> Path:
    """``clicks`` is whole, the record of ``orders`` is torn."""
    record = parent / name_key("orders")
    record.write_bytes(record.read_bytes()[:-20])
    return parent


def test_list_shows_the_others_and_says_what_is_wrong_with_this_one(ckpt: Shell, damaged: Path) -> None:
    """In both forms, and the exit status tells scripts."""
    done = ckpt("list", damaged, "--json")
    records = {record["name"]: record for record in done.json}
    assert (records["clicks"]["epoch"], records["clicks"]["problem"]) == (1, None)
    assert (records["orders"]["kind"], records["orders"]["query_id"]) == ("damaged", None)
    assert name_key("orders") in records["orders"]["problem"]
    shown = ckpt("list", damaged)
    assert done.status == shown.status == 1
    assert "clicks" in shown.out
    assert f"query orders: error CKPT-FORMAT: {records['orders']['problem']}" in shown.out


def test_a_damaged_history_does_not_hide_the_others_either(ckpt: Shell, parent: Path) -> None:
    """Its record is whole, its control record is not."""
    (parent / QUERY_ID / CONTROL_KEY).write_bytes(b"{}")
    done = ckpt("list", parent, "--json")
    records = {record["name"]: record for record in done.json}
    assert (records["clicks"]["epoch"], records["orders"]["kind"]) == (1, "damaged")
    assert CONTROL_KEY in records["orders"]["problem"]
    assert done.status == 1


def test_watch_and_report_go_on_with_the_others(ckpt: Shell, damaged: Path, tmp_path: Path) -> None:
    """Both say which one is left out."""
    lines = ckpt("watch", damaged, "--once", "--json").out.splitlines()
    events = [json.loads(line) for line in lines]
    assert [(one["query"], one["event"]) for one in events] == [
        ("clicks", "checkpoint"),
        ("orders", "problem"),
    ]
    page = tmp_path / "page.html"
    done = ckpt("report", damaged, "-o", page)
    assert done.status == 1
    assert "query orders is not on the page" in done.err
    assert "clicks" in page.read_text("utf-8")


def test_a_damaged_name_is_never_taken_for_absent(damaged: Path) -> None:
    """Not by its name, nor by an id that may be its; nor is the only other query taken for all there is."""
    url = str(damaged)
    assert resolve_root(url, "clicks") == root_url(url, OTHER_ID)
    assert resolve_root(url, OTHER_ID) == root_url(url, OTHER_ID)
    for query in ("orders", QUERY_ID):
        with pytest.raises(FormatError, match=name_key("orders")):
            resolve_root(url, query)
    with pytest.raises(RefusedError, match="several queries") as caught:
        resolve_root(url, None)
    assert caught.value.hint == "name one of: clicks, orders"
    with pytest.raises(RefusedError, match="no query 'others'"):
        resolve_root(url, "others")
    register(open_object_store(url), QueryRoot("renamed", OTHER_ID, "", 1))
    assert resolve_root(url, OTHER_ID) == root_url(url, OTHER_ID), "two names lead to it"
    assert resolve_root(root_url(url, QUERY_ID), None) == root_url(url, QUERY_ID)


def test_all_queries_are_copied_or_none(damaged: Path) -> None:
    """A copy that lacks one would be found out too late; a query that is named is copied."""
    request = CopyRequest(str(damaged), str(damaged.with_name("copy")))
    with pytest.raises(FormatError, match=name_key("orders")):
        plan_histories(request)
    (plan,) = plan_histories(CopyRequest(request.source_url, request.target_url, "clicks"))
    assert plan.source_url == root_url(str(damaged), OTHER_ID)


def test_only_damage_is_told_so(damaged: Path) -> None:
    """A store that does not answer is an error for all."""
    names = read_names(open_object_store(str(damaged)))
    assert [root.name for root in names.roots] == ["clicks"]
    assert [one.name for one in names.damaged] == ["orders"]


@pytest.mark.parametrize("name", ["orders", "Straße/1 %", "a.b=c_d-e", "日本"])
def test_a_name_comes_back_from_its_key(name: str) -> None:
    assert parse_name_key(name_key(name)) == name
