"""Metering, fault injection and the probe: stores that hold a store."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsafeStore,
)
from pyspark_checkpoint.store.base import Version
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore, VerbCount
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.store.probe import (
    PROBED_VARIABLE,
    ProbeResult,
    probe_conditions,
    require_conditional_writes,
)
from pyspark_checkpoint.testing.faulty_store import (
    Fault,
    FaultKind,
    FaultyStore,
    SimulatedCrash,
    StoreCall,
    fault_at,
    fault_on,
)
from pyspark_checkpoint.testing.manual_clock import ManualClock
from tests.conftest import Place
from tests.contract.racer import run_threads
from tests.support.servers.launch import S3Server

# --- meter ---------------------------------------------------------------------------------------


def test_the_meter_counts_requests_bytes_and_failures_by_verb() -> None:
    """Bytes go out with puts and come in with reads; a failed call counts, its bytes do not."""
    store = MeteredStore(MemoryStore())
    version = store.put("a", b"12345")
    store.put("b", io.BytesIO(b"123"), if_absent=True)
    store.put("a", b"1234567", if_match=version)
    with pytest.raises(AlreadyExists):
        store.put("b", b"xxxx", if_absent=True)
    store.get("a")
    store.get("a", start=1, end=3)
    assert store.read("b").data == b"123"
    assert b"".join(store.stream("a", chunk_bytes=2)) == b"1234567"
    assert store.head("a").size_bytes == 7
    assert len(list(store.list())) == 2
    store.copy("a", "c")
    store.delete(["a", "b"])
    counts = store.snapshot()
    assert (counts["put"].requests, counts["put"].failures, counts["put"].bytes_out) == (4, 1, 15)
    assert (counts["get"].requests, counts["get"].bytes_in) == (2, 9)
    assert (counts["read"].requests, counts["read"].bytes_in) == (1, 3)
    assert (counts["stream"].requests, counts["stream"].bytes_in) == (1, 7)
    for verb in ("head", "list", "copy", "delete"):
        assert counts[verb].requests == 1
    assert counts.total.requests == 12
    assert counts["never"] == VerbCount()


def test_a_difference_of_snapshots_is_what_happened_between() -> None:
    """Snapshots do not change later, and subtract."""
    store = MeteredStore(MemoryStore())
    store.put("a", b"123")
    before = store.snapshot()
    store.put("b", b"12")
    store.get("b")
    between = store.snapshot() - before
    assert (between["put"].requests, between["put"].bytes_out, between["get"].requests) == (1, 2, 1)
    assert before["put"].requests == 1
    with pytest.raises(FrozenInstanceError):
        before.verbs = {}  # type: ignore[misc]


def test_the_meter_counts_the_time_in_the_store_only() -> None:
    """Seconds are those of the calls, by the clock; a slow reader of a stream is not the store's time."""
    clock = ManualClock(jitter=1.0)
    slow = FaultyStore(MemoryStore(), lambda call: Fault(FaultKind.DELAY, 2.0), clock)
    store = MeteredStore(slow, clock)
    store.put("a", b"123")
    for _ in store.stream("a", chunk_bytes=1):
        clock.sleep(100)
    counts = store.snapshot()
    assert counts["put"].seconds == 2.0
    assert counts["stream"].seconds == 2.0


def test_threads_lose_no_count() -> None:
    """Many threads share a meter."""
    store = MeteredStore(MemoryStore())

    def work(_: int) -> None:
        for _step in range(500):
            store.put("k", b"x")

    run_threads(work, 8)
    assert store.snapshot()["put"].requests == 4000
    assert store.snapshot()["put"].bytes_out == 4000


# --- faults --------------------------------------------------------------------------------------


def test_calls_are_recorded_in_order() -> None:
    """Every verb is one call with its key; a delete is one call a key, so that it can break between."""
    store = FaultyStore(MemoryStore())
    store.put("a", b"x")
    store.read("a")
    store.get("a")
    store.head("a")
    list(store.stream("a"))
    list(store.list("p"))
    store.copy("a", "b")
    store.delete(["a", "b"])
    assert [(call.verb, call.key) for call in store.calls] == [
        ("put", "a"),
        ("read", "a"),
        ("get", "a"),
        ("head", "a"),
        ("stream", "a"),
        ("list", "p"),
        ("copy", "b"),
        ("delete", "a"),
        ("delete", "b"),
    ]
    assert store.calls[3] == StoreCall(3, "head", "a")


@pytest.mark.parametrize(
    ("kind", "error", "landed"),
    [
        (FaultKind.CRASH_BEFORE, SimulatedCrash, False),
        (FaultKind.CRASH_AFTER, SimulatedCrash, True),
        (FaultKind.UNAVAILABLE, Unavailable, False),
        (FaultKind.LOST_RESPONSE, OutcomeUnknown, True),
        (FaultKind.LOST_REQUEST, OutcomeUnknown, False),
    ],
)
def test_each_fault_does_what_it_says(kind: FaultKind, error: type[Exception], landed: bool) -> None:
    """The error and the effect of a fault on a put."""
    inner = MemoryStore()
    store = FaultyStore(inner, fault_at(1, kind))
    store.put("first", b"x")
    with pytest.raises(error):
        store.put("second", b"x")
    assert [info.key for info in inner.list()] == (["first", "second"] if landed else ["first"])


def test_after_a_crash_nothing_has_an_effect() -> None:
    """Clean-up code that runs after a "death" changes nothing, and the crash is none of our errors."""
    inner = MemoryStore()
    store = FaultyStore(inner, fault_at(0, FaultKind.CRASH_BEFORE))
    with pytest.raises(SimulatedCrash):
        store.put("a", b"x")
    inner.put("b", b"x")
    with pytest.raises(SimulatedCrash):
        store.delete(["b"])
    assert inner.get("b") == b"x"
    assert len(store.calls) == 1
    assert not issubclass(SimulatedCrash, CheckpointError)


def test_a_fault_can_be_planned_by_verb_and_key() -> None:
    """The first calls that match suffer; a lost read is simply Unavailable."""
    store = FaultyStore(MemoryStore(), fault_on("get", "b", FaultKind.LOST_RESPONSE, times=2))
    store.put("ab", b"x")
    store.put("a", b"x")
    assert store.get("a") == b"x"
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.get("ab")
    assert store.get("ab") == b"x"


# --- probe ---------------------------------------------------------------------------------------


class Careless(MemoryStore):
    """Ignores the conditions it is told to ignore, as some servers do."""

    def __init__(self, **ignores: bool) -> None:
        super().__init__("careless")
        self.url = "s3://careless/prefix"
        self.ignores = ignores
        self.probes = 0

    def put(self, key: str, data: Any, **conditions: Any) -> Version:
        self.probes += 1
        if self.ignores.get("if_absent"):
            conditions.pop("if_absent", None)
        if self.ignores.get("if_match"):
            conditions.pop("if_match", None)
        return super().put(key, data, **conditions)


def test_an_honest_store_passes_and_is_left_clean(tmp_path: Path) -> None:
    """Memory and disk keep every condition; the disk keeps no nonce; no object stays behind."""
    assert probe_conditions(MemoryStore()) == ProbeResult(True, True, True, True, nonce_kept=True)
    disk = LocalStore(tmp_path)
    assert probe_conditions(disk) == ProbeResult(True, True, True, True, nonce_kept=False)
    assert list(disk.list()) == []


def test_each_broken_promise_is_found() -> None:
    """A store that ignores one condition is told apart from one that ignores the other."""
    no_create = probe_conditions(Careless(if_absent=True))
    assert (no_create.create_exclusive, no_create.create_races_exclusive) == (False, False)
    assert not no_create.conditional
    no_swap = probe_conditions(Careless(if_match=True))
    assert (no_swap.swap_honoured, no_swap.swap_of_absent_refused) == (False, False)
    assert no_swap.create_exclusive
    assert not no_swap.conditional


def test_conditions_are_tried_at_once() -> None:
    """No trial waits for another: a query's first batch waits for the longest one alone."""
    race, swap = threading.Event(), threading.Event()

    class Together(MemoryStore):
        def put(self, key: str, data: Any, **conditions: Any) -> Version:
            if key.endswith("-race"):
                race.set()
                assert swap.wait(10)
            if key.endswith("-swap"):
                swap.set()
                assert race.wait(10)
            return super().put(key, data, **conditions)

    assert probe_conditions(Together()).conditional


def test_a_careless_store_is_refused_by_name_each_time() -> None:
    """The error names the store and the option; a refusal is not remembered; accepting asks nothing."""
    store = Careless(if_absent=True)
    env: dict[str, str] = {}
    for _ in range(2):
        with pytest.raises(UnsafeStore) as caught:
            require_conditional_writes(store, env=env)
        assert "s3://careless/prefix" in str(caught.value)
        assert "allowUnsafeStore=true" in str(caught.value)
    asked = store.probes
    require_conditional_writes(store, accept_unsafe=True, env=env)
    assert (store.probes, env) == (asked, {})


def test_a_store_is_asked_once_per_process_tree() -> None:
    """The answer is in the environment, which children inherit, under a digest and not the URL."""
    store = Careless()
    env: dict[str, str] = {}
    require_conditional_writes(store, env=env)
    asked = store.probes
    assert asked > 0
    require_conditional_writes(store, env=env)
    require_conditional_writes(Careless(if_absent=True), env=dict(env))
    assert store.probes == asked
    assert [name.startswith(PROBED_VARIABLE) for name in env] == [True]
    assert "careless" not in str(env)


def test_a_bucket_is_asked_once_for_all_its_tables() -> None:
    """It is the server that honours conditions or does not; another bucket may be of another kind."""
    env: dict[str, str] = {}
    for url, asked in (("s3://one/a", True), ("s3://one/b/c", False), ("s3://two/a", True)):
        store = Careless()
        store.url = url
        require_conditional_writes(store, env=env)
        assert (store.probes > 0) == asked, url


@pytest.mark.process
def test_children_do_not_ask_again() -> None:
    """A forked and a spawned child find the mark of their parent."""
    store = Careless()
    require_conditional_writes(store)
    marks = {name: value for name, value in os.environ.items() if name.startswith(PROBED_VARIABLE)}
    try:
        assert marks
        program = f"import os; assert os.environ[{next(iter(marks))!r}] == '1'"
        subprocess.run([sys.executable, "-c", program], check=True)
        pid = os.fork()
        if not pid:
            store.probes = 0
            require_conditional_writes(store)
            os._exit(1 if store.probes else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        for name in marks:
            del os.environ[name]


def test_stores_without_a_network_are_not_asked(tmp_path: Path) -> None:
    """Memory and disk decide conditions themselves."""
    env: dict[str, str] = {}
    disk = FaultyStore(LocalStore(tmp_path))
    memory = FaultyStore(MemoryStore("probe-memory"))
    require_conditional_writes(disk, env=env)
    require_conditional_writes(memory, env=env)
    assert (disk.calls, memory.calls, env) == ([], [], {})


def test_a_real_server_that_ignores_conditions_is_refused(rclone_server: S3Server) -> None:
    """`rclone serve s3` takes If-None-Match and If-Match without a word, and ignores them."""
    store = Place("s3", rclone_server.url("probe"), rclone_server.options).open()
    with pytest.raises(UnsafeStore) as caught:
        require_conditional_writes(store, env={})
    assert rclone_server.url("probe") in str(caught.value)
    with pytest.raises(NotFound):
        store.head("_probe/none")
    assert list(store.list("_probe/")) == []
    require_conditional_writes(store, accept_unsafe=True, env={})
    store.close()


@pytest.mark.parametrize(
    ("url", "options", "other"),
    [
        ("s3://b/t", {"accessKey": "a", "secretKey": "b"}, {"endpoint": "https://other.example"}),
        ("gs://b/t", {"anonymous": "true"}, {"endpoint": "https://other.example"}),
        ("az://c/t", {"accountName": "one", "accountKey": "a2V5"}, {"accountName": "two"}),
        (
            "az://c/t",
            {"connectionString": "AccountName=n;AccountKey=a2V5;BlobEndpoint=https://one.example/n"},
            {"connectionString": "AccountName=n;AccountKey=a2V5;BlobEndpoint=https://two.example/n"},
        ),
    ],
    ids=["s3", "gs", "az", "az-connection-string"],
)
def test_a_store_knows_its_server(url: str, options: dict[str, str], other: dict[str, str]) -> None:
    """One URL at two servers is two stores, also behind wrappers; credentials make no difference."""
    if url.startswith("s3"):
        options = {**options, "region": "us-east-1"}
    store = open_object_store(url, options, env={})
    servers = [
        MeteredStore(FaultyStore(open_object_store(url, given, env={}))).server
        for given in (options, {**options, "retrySeconds": "1"}, {**options, **other})
    ]
    assert servers[0] == servers[1] == store.server != servers[2]
    assert servers[0].startswith("https://")
    assert "a2V5" not in "".join(servers)


def test_the_server_of_an_s3_store_may_be_named_by_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's own files name endpoints too, of which our settings know nothing."""
    config = tmp_path / "config"
    config.write_text("[default]\nregion = us-east-1\nendpoint_url = https://profile.example\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store = open_object_store("s3://b/t", {"timeoutSeconds": "29"}, env={})
    assert store.server == "https://profile.example"


def test_one_bucket_name_at_two_servers_is_probed_at_each(
    s3_server: S3Server, rclone_server: S3Server
) -> None:
    """That the first server keeps conditions says nothing of the second one."""
    env: dict[str, str] = {}
    assert s3_server.url("probe") == rclone_server.url("probe")
    good = Place("s3", s3_server.url("probe"), s3_server.options).open()
    careless = Place("s3", rclone_server.url("probe"), rclone_server.options).open()
    require_conditional_writes(good, env=env)
    with pytest.raises(UnsafeStore):
        require_conditional_writes(careless, env=env)
    good.close()
    careless.close()


def test_a_real_server_that_keeps_conditions_passes(s3_server: S3Server) -> None:
    """SeaweedFS keeps them, and the nonce."""
    store = Place("s3", s3_server.url("probe"), s3_server.options).open()
    env: dict[str, str] = {}
    assert probe_conditions(store) == ProbeResult(True, True, True, True, nonce_kept=True)
    require_conditional_writes(store, env=env)
    assert len(env) == 1
    store.close()
