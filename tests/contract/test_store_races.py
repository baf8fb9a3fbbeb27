"""Conditions under a race: exactly one creator wins, no update is lost, no reader sees half an object."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import AlreadyExists, Conflict, NotFound
from pyspark_checkpoint.store.base import ObjectStore
from tests.conftest import CLOUDS, KEEPS_CONDITIONAL_COPY, Place, fresh_place
from tests.contract.racer import race_count, race_create, run_threads

KEYS = [f"race/{index}" for index in range(5)]
PROCESSES = 4


def test_of_16_threads_one_creates(place: Place, store: ObjectStore) -> None:
    """One winner for each key, and the bytes are the winner's."""
    keys = [f"race/{index}" for index in range(_often(place, 5, memory=2000, file=100))]
    won = race_create(store, "one", keys, threads=16)
    for key in keys:
        assert len(won[key]) == 1
        assert store.get(key) == won[key][0].encode()


def test_16_threads_lose_no_update(place: Place, store: ObjectStore) -> None:
    """A counter that is only swapped ends at the number of successful swaps."""
    steps = _often(place, 3, memory=300, file=10)
    store.put("counter", b"0")
    assert race_count(store, "counter", threads=16, steps=steps) == 16 * steps
    assert store.get("counter") == str(16 * steps).encode()


def _often(place: Place, cloud: int, *, memory: int, file: int) -> int:
    """How often to try: where a race is over in microseconds it must be run more often to be one."""
    return {"memory": memory, "file": file}.get(place.scheme, cloud)


@pytest.mark.parametrize("place", KEEPS_CONDITIONAL_COPY, indirect=True)
def test_of_16_copies_one_creates(store: ObjectStore) -> None:
    """A conditional copy is as exclusive as a conditional put."""
    for index in range(16):
        store.put(f"source/{index}", str(index).encode())
    won = []

    def copy(index: int) -> None:
        try:
            store.copy(f"source/{index}", "target", if_absent=True)
            won.append(index)
        except AlreadyExists:
            pass

    run_threads(copy, 16)
    assert len(won) == 1
    assert store.get("target") == str(won[0]).encode()


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["file", *CLOUDS])
def test_four_processes_of_16_threads_race(
    request: pytest.FixtureRequest, scheme: str, tmp_path: Path
) -> None:
    """Across processes: one creator for each key, and a counter without a lost update."""
    place = fresh_place(request, scheme, tmp_path)
    store = place.open()
    store.put("counter", b"0")
    results = _run_racers(place)
    for key in KEYS:
        winners = [mark for result in results for mark in result["won"][key]]
        assert len(winners) == 1, f"{key}: {winners}"
        assert store.get(key) == winners[0].encode()
    assert sum(result["added"] for result in results) == PROCESSES * 4 * 2
    assert store.get("counter") == str(PROCESSES * 4 * 2).encode()
    store.close()


def _run_racers(place: Place) -> list[dict[str, Any]]:
    racers = []
    for index in range(PROCESSES):
        task = {
            "url": place.url,
            "options": place.options,
            "name": f"process-{index}",
            "keys": KEYS,
            "create_threads": 16,
            "count_threads": 4,
            "steps": 2,
        }
        argv = [sys.executable, "-m", "tests.contract.racer", json.dumps(task)]
        racers.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
            for pipe in (racer.stdin, racer.stdout):
                if pipe is not None:
                    pipe.close()


def test_no_reader_sees_a_part_of_a_put(store: ObjectStore) -> None:
    """While an object is replaced again and again, every read is the whole of one put."""
    size_bytes = 1_000_000
    store.put("k", b"a" * size_bytes)
    stop = threading.Event()
    torn: list[str] = []

    def check(data: bytes) -> None:
        if len(data) != size_bytes or data.count(data[:1]) != size_bytes:
            torn.append(f"{len(data)} bytes, {set(data)}")

    def look(index: int) -> None:
        if index == 0:
            for letter in b"bcdefghijkl":
                store.put("k", bytes([letter]) * size_bytes)
            stop.set()
            return
        while not stop.is_set():
            check(store.get("k"))
            stored = store.read("k")
            check(stored.data)
            try:
                check(b"".join(store.stream("k", chunk_bytes=250_000)))
            except Conflict:
                continue

    run_threads(look, 4)
    assert torn == []


def test_a_swap_and_a_plain_put_do_not_lose_each_other(store: ObjectStore) -> None:
    """A swap that succeeded was from the version that was there, also between plain puts and deletes."""
    store.put("k", b"plain-0")
    swapped: list[tuple[bytes, bytes]] = []

    def work(index: int) -> None:
        for step in range(10):
            if index == 0:
                store.put("k", f"plain-{step}".encode())
            elif index == 1 and step % 3 == 2:
                store.delete(["k"])
            elif index > 1:
                try:
                    stored = store.read("k")
                    data = f"swap-{index}-{step}".encode()
                    store.put("k", data, if_match=stored.version)
                    swapped.append((stored.data, data))
                except (Conflict, NotFound):
                    continue

    run_threads(work, 6)
    sources = [source for source, _ in swapped if source.startswith(b"swap")]
    assert len(sources) == len(set(sources)), "one version was swapped twice"
