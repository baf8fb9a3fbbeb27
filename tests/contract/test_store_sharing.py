"""Forks, threads, imports and damaged bytes: what a Spark worker does to a store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import AlreadyExists, CheckpointError, ChecksumRefused, NotFound, Unavailable
from pyspark_checkpoint.store.base import ObjectStore
from tests.conftest import CLOUDS, Place
from tests.contract.racer import run_threads
from tests.support.servers.launch import Server
from tests.support.servers.proxy import Fault, FaultProxy, Rule

CHILDREN = 4


def test_a_store_used_before_a_fork_works_after_it(place: Place, store: ObjectStore) -> None:
    """Children and parent go on with the store they share, at once, and each gets its own answers.

    Memory is not shared between processes: there a child sees what was there at the fork.
    """
    for index in range(20):
        store.put(f"before/{index}", f"body-{index}".encode() * 1000)
        store.get(f"before/{index}")
    children = [_fork(lambda child=child: _work_after_fork(store, child)) for child in range(CHILDREN)]
    _work_after_fork(store, CHILDREN)
    assert [_wait(child) for child in children] == [0] * CHILDREN
    if place.scheme != "memory":
        assert len(list(store.list("after/"))) == CHILDREN + 1


def _work_after_fork(store: ObjectStore, child: int) -> None:
    for step in range(20):
        index = (step + child * 3) % 20
        assert store.get(f"before/{index}") == f"body-{index}".encode() * 1000
    store.put(f"after/{child}", str(child).encode(), if_absent=True)
    assert store.get(f"after/{child}") == str(child).encode()


def _fork(work: object) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        assert callable(work)
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001 - a child of a fork must never return into pytest
        os.write(2, f"child failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _wait(pid: int, timeout_seconds: float = 60.0) -> int:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def test_threads_share_a_store(store: ObjectStore) -> None:
    """16 threads get their own bytes back, whatever the others do."""

    def work(index: int) -> None:
        data = bytes([index]) * 20_000
        for step in range(5):
            store.put(f"t/{index}/{step}", data)
            assert store.get(f"t/{index}/{step}") == data
            assert store.get(f"t/{index}/{step}", start=10, end=20) == data[10:20]
        store.delete([f"t/{index}/0"])

    run_threads(work, 16)
    assert len(list(store.list())) == 16 * 4


@pytest.mark.parametrize("cloud_server", CLOUDS, indirect=True)
@pytest.mark.parametrize("size_bytes", [5_000, 300_000])
def test_a_bit_flipped_on_the_way_down_is_never_returned(cloud_server: Server, size_bytes: int) -> None:
    """Whole reads are checked against the store's own digest; a damaged one is repeated, or refused.

    A stream is not: it may be read in ranges, for which no service has a digest. Whoever streams
    compares the SHA-256 that a manifest records.
    """
    data = os.urandom(size_bytes)
    with FaultProxy(cloud_server.endpoint) as proxy:
        url = cloud_server.url(f"flip-{size_bytes}-{os.getpid()}-{time.monotonic_ns()}")
        store = Place("", url, cloud_server.options_at(proxy.endpoint)).open(retrySeconds="5")
        store.put("k", data)
        for read in (store.get, lambda key: store.read(key).data):
            proxy.clear()
            proxy.add(Rule(Fault.FLIP_RESPONSE, method="GET", times=1))
            try:
                assert read("k") == data
            except (ChecksumRefused, Unavailable):
                continue
        store.close()


KEEPS_UPLOAD_CHECKSUM = ["s3", "az"]
"""The GCS emulator does not compare checksums; the backend compares the one in the answer itself."""


@pytest.mark.parametrize("cloud_server", KEEPS_UPLOAD_CHECKSUM, indirect=True)
@pytest.mark.parametrize("size_bytes", [5_000, 20_000_000])
def test_a_bit_flipped_on_the_way_up_is_refused(cloud_server: Server, size_bytes: int) -> None:
    """The server compares a digest: nothing is stored, and the error says why."""
    with FaultProxy(cloud_server.endpoint) as proxy:
        url = cloud_server.url(f"flip-up-{size_bytes}-{os.getpid()}-{time.monotonic_ns()}")
        options = cloud_server.options_at(proxy.endpoint)
        store = Place("", url, options).open(retrySeconds="0", partSizeBytes="5242880")
        proxy.add(Rule(Fault.FLIP_REQUEST, method="PUT", times=None))
        with pytest.raises(ChecksumRefused):
            store.put("k", os.urandom(size_bytes), if_absent=True)
        proxy.clear()
        with pytest.raises(NotFound):
            store.head("k")
        store.close()


@pytest.mark.parametrize("cloud_server", CLOUDS, indirect=True)
def test_a_lost_answer_to_a_create_is_settled_by_the_nonce(cloud_server: Server) -> None:
    """The put landed, its answer did not: the caller gets success, and the object is there once."""
    with FaultProxy(cloud_server.endpoint) as proxy:
        url = cloud_server.url(f"lost-{os.getpid()}-{time.monotonic_ns()}")
        store = Place("", url, cloud_server.options_at(proxy.endpoint)).open()
        store.put("warm-up", b"x")
        for kind in (Fault.LOSE_RESPONSE, Fault.RESET):
            proxy.clear()
            for method in ("PUT", "POST"):
                proxy.add(Rule(kind, method=method, times=1))
            version = store.put(kind.value, b"one", if_absent=True)
            assert store.head(kind.value).version == version
            assert any(request.fault is kind for request in proxy.requests)
            proxy.clear()
            with pytest.raises(AlreadyExists):
                store.put(kind.value, b"one", if_absent=True)
        store.close()


@pytest.mark.process
def test_a_file_store_imports_no_sdk(tmp_path: Path) -> None:
    """Opening and using a directory loads neither boto3 nor google nor azure, nor pyspark."""
    program = f"""
import sys
from pyspark_checkpoint import open_object_store
store = open_object_store({str(tmp_path / "s")!r})
store.put("k", b"x", if_absent=True); store.get("k"); list(store.list()); store.delete(["k"])
bad = [name for name in sys.modules if name.split(".")[0] in
       ("boto3", "botocore", "google", "azure", "requests", "urllib3", "pyspark", "pandas", "pyarrow")]
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.process
def test_importing_the_package_is_quick() -> None:
    """`import pyspark_checkpoint` takes under 100 ms in the best of several fresh processes."""
    program = """
import time
began = time.perf_counter()
import pyspark_checkpoint
print(time.perf_counter() - began)
"""
    seconds = [
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
        for _ in range(5)
    ]
    assert min(seconds) < 0.1


def test_only_our_errors_leave_a_store(store: ObjectStore) -> None:
    """Whatever a caller gets wrong, what it catches is a CheckpointError."""
    store.put("k", b"x")
    for call in (
        lambda: store.get("absent"),
        lambda: store.get("k", start=99),
        lambda: store.put("k", b"y", if_absent=True),
        lambda: store.copy("absent", "there"),
        lambda: list(store.stream("absent")),
        lambda: list(store.list("/")),
    ):
        with pytest.raises(CheckpointError):
            call()
