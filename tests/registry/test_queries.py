"""Names that point to queries, and what records may lead to with the user's credentials. No Spark."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Busy, Conflict, RefusedError
from pyspark_checkpoint.plugin.auto_restore import auto_restore
from pyspark_checkpoint.plugin.plugin_settings import PluginSettings, parse_plugin_settings
from pyspark_checkpoint.registry.queries import (
    QueryRoot,
    check_named_location,
    check_named_table,
    find_query,
    history_url,
    list_app_queries,
    name_key,
    register,
    resolve_root,
    root_url,
)
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.store.open import open_object_store
from tests.support.made_location import QUERY_ID, MadeLocation, capture

ELSEWHERE = "abfss://c@acct.dfs.example.invalid/table"
SAS = {"sasToken": "sig=s3cr3t", "retrySeconds": "0"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that somebody looked for; there are none."""
    hosts: list[str] = []

    def look(host: str, *_: object, **__: object) -> None:
        hosts.append(host)
        raise socket.gaierror("there is no network here")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return hosts


@pytest.fixture
def parent(tmp_path: Path) -> str:
    """What several queries share; nobody has written to it yet."""
    return str(tmp_path / "shared")


def named(parent: str, *, table: str = "", location: str = "") -> None:
    """A record as anybody who can write to the store can write it."""
    register(open_object_store(parent), QueryRoot("orders", QUERY_ID, "shop", 1, table, location))


def plugin(parent: str) -> PluginSettings:
    """An application that restores what is missing."""
    confs = {
        "spark.ckpt.url": parent,
        "spark.ckpt.restore": "missing",
        "spark.ckpt.secret.sasToken": SAS["sasToken"],
        "spark.ckpt.option.retrySeconds": SAS["retrySeconds"],
    }
    return parse_plugin_settings(confs, "shop")


def by_name(parent: str, _to: Path) -> None:
    named(parent, table=ELSEWHERE)
    resolve_root(parent, "orders", SAS)


def by_application(parent: str, to: Path) -> None:
    named(parent, table=ELSEWHERE, location=str(to))
    auto_restore(plugin(parent))


def by_manifest(parent: str, to: Path) -> None:
    made = MadeLocation(to.with_name("first")).commit(0)
    capture(made, root_url(parent, QUERY_ID), 0, sink=f"ckpt-sink {ELSEWHERE}")
    restore(root_url(parent, QUERY_ID), str(to), sink="rollback", options=SAS)


def by_location(parent: str, to: Path) -> None:
    made = MadeLocation(to.with_name("first")).commit(0)
    capture(made, root_url(parent, QUERY_ID), 0)
    named(parent, location=ELSEWHERE)
    auto_restore(plugin(parent))


@pytest.mark.parametrize("read", [by_name, by_application, by_manifest, by_location])
def test_credentials_never_go_to_a_host_that_only_a_record_names(
    read: Callable[[str, Path], None], parent: str, tmp_path: Path, asked: list[str]
) -> None:
    """Not for a table, by whatever record it is named, nor for a checkpoint location."""
    with pytest.raises(RefusedError, match=re.escape("acct.dfs.example.invalid")) as caught:
        read(parent, tmp_path / "to")
    assert asked == []
    assert "trustedStores=abfss://CONTAINER@acct.dfs.example.invalid" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert not (tmp_path / "to").exists()


HOME = "abfss://c@acct.dfs.core.windows.net/x"
STACK = "abfss://c@acct.dfs.stack.example/x"


@pytest.mark.parametrize(
    ("table", "typed", "options"),
    [
        ("s3a://bucket/tables/wc", "s3://bucket/ckpt", {}),
        ("gcs://bucket/tables/wc", "gs://bucket/ckpt", {}),
        ("file:/tables/wc", "/ckpt", {}),
        ("wasbs://tables@acct.blob.core.windows.net/wc", HOME, {}),
        ("abfss://tables@acct.dfs.core.windows.net/wc", "az://c", {"accountName": "acct"}),
        ("abfss://tables@acct.dfs.stack.example/wc", STACK, {}),
        ("s3://other/wc", "s3://bucket/ckpt", {"trustedStores": "gs://b, s3a://other/tables"}),
        ("s3://other/wc", "/ckpt", {"TRUSTEDSTORES": "s3://other"}),
        (STACK, HOME, {"trustedStores": "abfss://any@acct.dfs.stack.example"}),
    ],
)
def test_a_table_in_the_same_account_or_bucket_or_in_a_trusted_one_is_opened(
    table: str, typed: str, options: dict[str, str]
) -> None:
    check_named_table(table, typed, {**options, "encryptionKeyFile": "ring.json"})


@pytest.mark.parametrize(
    ("table", "typed", "options"),
    [
        ("s3://other/wc", "s3://bucket/ckpt", {}),
        ("s3://bucket/wc", "gs://bucket/ckpt", {}),
        ("/tables/wc", "s3://bucket/ckpt", {}),
        ("s3://bucket/wc", "/ckpt", {}),
        ("abfss://c@other.dfs.core.windows.net/wc", HOME, {}),
        (STACK, HOME, {}),
        (STACK, HOME, {"trustedStores": HOME}),
        ("abfss://c@acct.dfs.core.chinacloudapi.cn/wc", HOME, {}),
        ("abfss://c@acct.dfs.core.windows.net/wc", "az://c", {"accountName": "other"}),
        ("hdfs://nn/wc", "/ckpt", {}),
    ],
)
def test_a_table_elsewhere_is_refused(table: str, typed: str, options: dict[str, str]) -> None:
    with pytest.raises(RefusedError, match="a record names"):
        check_named_table(table, typed, options)


def test_a_checkpoint_location_may_be_on_any_host_of_the_clouds() -> None:
    """Locations lie elsewhere as a rule; what Spark alone reaches is Spark's to judge."""
    for url in ("/x", "hdfs://nn/x", "s3://other/x", "abfss://c@other.dfs.core.usgovcloudapi.net/x", ""):
        check_named_location(url, HOME)
    check_named_location(STACK, STACK)
    check_named_location(STACK, HOME, {"trustedStores": STACK})


def test_a_trusted_table_elsewhere_is_followed(parent: str) -> None:
    """As one in the same place is; here it has no state, so that the query's own history counts."""
    named(parent, table="memory://trusted-tables/wc")
    root = QueryRoot("orders", QUERY_ID, "shop", 1, "memory://trusted-tables/wc")
    with pytest.raises(RefusedError, match="trustedStores=memory://trusted-tables"):
        history_url(parent, root)
    trusted = {"trustedStores": "memory://trusted-tables"}
    assert history_url(parent, root, trusted) == root_url(parent, QUERY_ID)


def test_a_name_keeps_pointing_at_the_query_that_began_last(tmp_path: Path) -> None:
    """A query that began earlier, and whose store was away until now, does not take the name back."""
    parent = open_object_store(str(tmp_path))
    old = QueryRoot("orders", "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11", "shop", 1_000)
    new = QueryRoot("orders", "0f6a5f0e-91a7-4c0c-8d3e-5b7b6a1f2c22", "shop", 2_000)
    register(parent, new)
    register(parent, old)
    assert find_query(parent, "orders") == new
    assert {root.query_id for root in list_app_queries(parent, "shop")} == {old.query_id, new.query_id}
    register(parent, replace(new, timestamp_ms=3_000, checkpoint_location="/elsewhere"))
    assert find_query(parent, "orders") == replace(
        new, timestamp_ms=3_000, checkpoint_location="/elsewhere"
    )


def test_a_damaged_name_record_is_replaced(tmp_path: Path) -> None:
    """It is only a pointer: a new start sets it right, and captures do not fail for it."""
    parent = open_object_store(str(tmp_path))
    parent.put(name_key("orders"), b"torn")
    root = QueryRoot("orders", "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11", "shop", 1_000)
    register(parent, root)
    assert find_query(parent, "orders") == root


def test_of_two_concurrent_registrations_the_later_query_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other comes in between this one's look and its write."""
    parent, late = open_object_store(str(tmp_path)), open_object_store(str(tmp_path))
    old = QueryRoot("orders", "6c1b0d9e-3b52-4c7a-9f0e-0a5d0c6f1e11", "", 1_000)
    new = QueryRoot("orders", "0f6a5f0e-91a7-4c0c-8d3e-5b7b6a1f2c22", "", 2_000)
    put = late.put

    def other_first(key: str, data: bytes, **conditions: object) -> object:
        monkeypatch.setattr(late, "put", put)
        register(parent, new)
        return put(key, data, **conditions)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "put", other_first)
    register(late, old)
    assert find_query(parent, "orders") == new


def test_registering_gives_up_after_many_conflicting_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written by this call, and the error says what to do."""
    parent = open_object_store(str(tmp_path))

    def lost(*_: object, **__: object) -> None:
        raise Conflict("another write was faster")

    monkeypatch.setattr(parent, "put", lost)
    with pytest.raises(Busy, match="gave up after 20 conflicting writes to names/orders") as caught:
        register(parent, QueryRoot("orders", QUERY_ID, "", 1_000))
    assert caught.value.hint
