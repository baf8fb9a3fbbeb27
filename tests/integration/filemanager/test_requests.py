"""How many requests each operation costs on S3."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.filemanager.jvm import Jvm, Manager
from tests.support.servers.launch import S3Server
from tests.support.servers.proxy import FaultProxy, Request
from tests.support.waiting import wait_until


@pytest.fixture
def log(jvm: Jvm, s3_root: str, proxy: FaultProxy) -> Manager:
    """The manager of an offset log whose store has been probed."""
    jvm.manager(s3_root).write("metadata", b"x")
    jvm.access.flushDeletes(s3_root, jvm.conf())
    manager = jvm.manager(f"{s3_root}/offsets")
    proxy.clear()
    return manager


def verbs(requests: Iterable[Request]) -> dict[str, int]:
    """The requests by verb; a LIST is a GET with a query."""
    counts: dict[str, int] = {}
    for request in requests:
        verb = "LIST" if "list-type" in request.target else request.method
        counts[verb] = counts.get(verb, 0) + 1
    return counts


def test_a_log_entry_is_one_head_and_one_put(log: Manager, proxy: FaultProxy) -> None:
    """What Spark does for offsets/N and commits/N: does it exist, then create it."""
    assert not log.exists("7")
    log.write("7", b"x")
    assert verbs(proxy.requests) == {"HEAD": 1, "PUT": 1}


def test_a_state_file_is_one_put(jvm: Jvm, s3_root: str, log: Manager, proxy: FaultProxy) -> None:
    """Making its directory costs nothing, and so does asking whether the directory exists."""
    partition = jvm.manager(f"{s3_root}/state/0/3")
    partition.mkdirs("")
    assert partition.exists("")
    partition.write("1.delta", b"x" * 100_000, overwrite=True)
    assert verbs(proxy.requests) == {"PUT": 1}


def test_a_directory_that_was_made_is_listed_without_further_requests(
    jvm: Jvm, s3_root: str, log: Manager, proxy: FaultProxy
) -> None:
    """Making it costs nothing, and the listing of its parent is one LIST as ever."""
    log.write("0", b"x")
    proxy.clear()
    log.mkdirs("empty")
    assert log.names() == ["0", "empty"]
    assert verbs(proxy.requests) == {"LIST": 1}


def remove_elsewhere(server: S3Server, root: str, name: str) -> None:
    """Remove a file and the directories that it lies in, past every manager; SeaweedFS keeps them."""
    client = server.client()
    prefix = root.removeprefix(f"s3a://{server.bucket}/")
    parts = name.split("/")
    directories = ["/".join([*parts[:depth], ""]) for depth in range(len(parts) - 1, 0, -1)]
    for key in (name, *directories):
        client.delete_object(Bucket=server.bucket, Key=f"{prefix}/{key}")
    client.close()


def test_a_location_that_somebody_else_has_removed_lists_nothing(
    jvm: Jvm, s3_server: S3Server, s3_root: str
) -> None:
    """Spark refuses to begin anew in a location whose state is not empty, be it by an empty directory."""
    manager = jvm.manager(s3_root)
    manager.mkdirs("state/0/0")
    manager.mkdirs("state/0/1")
    assert manager.names("state/0") == ["0", "1"]
    manager.write("state/0/0/1.delta", b"x", overwrite=True)
    assert manager.names("state/0") == ["0", "1"]
    remove_elsewhere(s3_server, s3_root, "state/0/0/1.delta")
    assert manager.names("state/0") == manager.names("state") == []


def test_a_directory_that_somebody_else_has_removed_exists_for_who_has_made_it(
    jvm: Jvm, s3_server: S3Server, s3_root: str, proxy: FaultProxy
) -> None:
    """As the documentation says: only a request could tell, and Spark asks for each log and state store."""
    manager = jvm.manager(s3_root)
    manager.mkdirs("state/0/0")
    manager.write("state/0/0/1.delta", b"x", overwrite=True)
    remove_elsewhere(s3_server, s3_root, "state/0/0/1.delta")
    proxy.clear()
    assert manager.exists("state/0/0")
    assert verbs(proxy.requests) == {}
    assert not manager.exists("state/0/0/1.delta")
    assert not jvm.spark_manager(s3_root).exists("state/0/0")
    manager.delete("state")
    assert not manager.exists("state/0/0")


def test_the_directories_that_are_remembered_are_bounded(jvm: Jvm, s3_root: str, proxy: FaultProxy) -> None:
    """An application may make locations for months; the newest are known, and those that they lie in."""
    manager = jvm.manager(s3_root)
    assert jvm.access.makeDirectories(manager.java, s3_root, 12_000, jvm.conf()) == 10_000
    for name in ("", "made", "made/11999"):
        assert manager.exists(name)
    assert verbs(proxy.requests) == {}
    assert not manager.exists("made/0")
    assert "made/11999" in {f"made/{name}" for name in manager.names("made")}


def test_a_cancelled_file_costs_nothing(log: Manager, proxy: FaultProxy) -> None:
    """Not even a request that begins an upload."""
    stream = log.create("7")
    stream.write(bytearray(b"x" * 1_000_000))
    stream.cancel()
    assert verbs(proxy.requests) == {}


def test_whether_a_directory_exists_is_not_answered_by_a_head_alone(
    jvm: Jvm, s3_root: str, log: Manager
) -> None:
    """A partition of the state is a directory with a number for its name; so may be a location."""
    jvm.manager(f"{s3_root}/state/0").write("3/1.delta", b"x", overwrite=True)
    assert jvm.manager(f"{s3_root}/state/0").exists("3")
    jvm.manager(f"{s3_root}/offsets/7").write("metadata", b"x")
    assert jvm.manager(f"{s3_root}/offsets/7").exists("")


def test_a_listing_is_one_list(log: Manager, proxy: FaultProxy) -> None:
    """One request for a page."""
    for number in range(3):
        log.write(str(number), b"x")
    proxy.clear()
    assert log.names() == ["0", "1", "2"]
    assert verbs(proxy.requests) == {"LIST": 1}


def test_listings_are_in_the_order_of_the_names(log: Manager, proxy: FaultProxy) -> None:
    """As the store gives them, whatever the connector does with directories."""
    for name in ("b/x", "a", "c", "10", "9"):
        log.write(name, b"x")
    assert log.names() == ["10", "9", "a", "b", "c"]


def test_deletes_go_together(jvm: Jvm, log: Manager, proxy: FaultProxy) -> None:
    """Fifty purged entries are one request, but for what a second sends; gone at once for this process."""
    for number in range(60):
        log.write(str(number), b"x")
    proxy.clear()
    began = time.monotonic()
    for number in range(50):
        log.delete(str(number))
        assert not log.exists(str(number))
    jvm.access.flushDeletes(log.root, jvm.conf())
    seconds = int(time.monotonic() - began)
    found = verbs(proxy.requests)
    assert found.keys() == {"POST"}
    assert found["POST"] <= 1 + seconds, "what waits is also sent after each second"
    assert jvm.spark_manager(log.root).names() == [str(number) for number in range(50, 60)]


def test_large_listings_and_deletes_go_in_pages(
    jvm: Jvm, s3_server: S3Server, log: Manager, proxy: FaultProxy
) -> None:
    """A thousand names a LIST, 250 names a delete, and nothing is left out."""
    prefix = log.root.removeprefix(f"s3a://{s3_server.bucket}/")
    client = s3_server.client()

    def put(number: int) -> None:
        client.put_object(Bucket=s3_server.bucket, Key=f"{prefix}/{number}", Body=b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(1100)))
    client.close()
    proxy.clear()
    pages = {"fs.s3a.impl.disable.cache": "true", "fs.s3a.paging.maximum": "1000"}
    assert jvm.manager(log.root, pages).names() == sorted(map(str, range(1100)))
    assert verbs(proxy.requests) == {"LIST": 2}
    proxy.clear()
    began = time.monotonic()
    for number in range(600):
        log.delete(str(number))
    jvm.access.flushDeletes(log.root, jvm.conf())
    seconds = int(time.monotonic() - began) + 1
    assert 3 <= verbs(proxy.requests)["POST"] <= 3 + seconds, "what waits is also sent after each second"
    assert log.names() == sorted(map(str, range(600, 1100)))


def test_nothing_waits_where_every_manager_has_a_connector_of_its_own(
    jvm: Jvm, s3_root: str, log: Manager
) -> None:
    """With Hadoop's cache off, a delete that waits could take away what another manager creates."""
    off = {"fs.s3a.impl.disable.cache": "true"}
    one, other = jvm.manager(s3_root, off), jvm.manager(s3_root, off)
    one.write("4.delta", b"old", overwrite=True)
    one.delete("4.delta")
    other.write("4.delta", b"new")
    time.sleep(1.5)
    assert other.read("4.delta") == b"new"


def test_what_a_probe_left_behind_is_not_listed(jvm: Jvm, log: Manager) -> None:
    """A process may die between a probe and its delete; Spark takes every name in a log for a number."""
    log.write(".ckpt-probe-1", b"?")
    log.write("0", b"x")
    assert log.names() == ["0"]


def test_deletes_are_sent_without_being_asked_for(jvm: Jvm, log: Manager, proxy: FaultProxy) -> None:
    """A second later the file is gone for everybody."""
    log.write("0", b"x")
    log.write("1", b"x")
    log.delete("0")
    other = jvm.spark_manager(log.root)
    wait_until(lambda: not other.exists("0"), "the delete", 10)
    assert other.names() == ["1"]


def test_the_probe_is_done_once(jvm: Jvm, s3_root: str, proxy: FaultProxy) -> None:
    """Two creates and one delete for the first file of a JVM; later ones pay nothing."""
    jvm.access.forgetProbes()
    jvm.manager(s3_root).write("metadata", b"x")
    jvm.manager(f"{s3_root}/offsets").write("0", b"x")
    probes = [request for request in proxy.requests if ".ckpt-probe" in request.target]
    assert [request.status for request in probes if request.method == "PUT"] == [200, 412]
    jvm.access.flushDeletes(s3_root, jvm.conf())
    assert jvm.spark_manager(s3_root).names() == ["metadata", "offsets"]


def test_readers_do_not_probe(jvm: Jvm, s3_root: str, log: Manager, proxy: FaultProxy) -> None:
    """Whoever only reads a checkpoint writes nothing to it."""
    jvm.access.forgetProbes()
    reader = jvm.manager(s3_root)
    assert reader.exists("metadata")
    assert reader.read("metadata") == b"x"
    assert "PUT" not in verbs(proxy.requests)
