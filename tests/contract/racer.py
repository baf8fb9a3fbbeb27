"""One of several processes that race for the same keys. Run as a module; talks JSON on its pipes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.errors import AlreadyExists, Conflict
from pyspark_checkpoint.store.base import ObjectStore


def race_create(store: ObjectStore, name: str, keys: list[str], threads: int) -> dict[str, list[str]]:
    """Let threads create each key at once; return who won which, by this process's count."""
    won: dict[str, list[str]] = {key: [] for key in keys}

    def create(index: int) -> None:
        for key in keys:
            mark = f"{name}-{index}"
            try:
                store.put(key, mark.encode(), if_absent=True)
                won[key].append(mark)
            except AlreadyExists:
                assert store.get(key) != mark.encode()

    run_threads(create, threads)
    return won


def race_count(store: ObjectStore, key: str, threads: int, steps: int) -> int:
    """Let threads add one to a counter ``steps`` times each; return how many additions succeeded."""
    done = []

    def add(_: int) -> None:
        for _step in range(steps):
            while not add_one(store, key):
                pass
            done.append(1)

    run_threads(add, threads)
    return len(done)


def add_one(store: ObjectStore, key: str) -> bool:
    """Try once to replace the counter by its successor."""
    stored = store.read(key)
    try:
        store.put(key, str(int(stored.data) + 1).encode(), if_match=stored.version)
    except Conflict:
        return False
    return True


def run_threads(work: Callable[[int], None], threads: int) -> None:
    """Run ``work`` in threads that begin together; pass the first failure on."""
    barrier = threading.Barrier(threads)
    failures: list[BaseException] = []

    def body(index: int) -> None:
        try:
            barrier.wait(60)
            work(index)
        except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failures.append(error)

    running = [threading.Thread(target=body, args=(index,)) for index in range(threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places in the middle of things
    try:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    store = open_object_store(task["url"], task["options"], env={})
    list(store.list("warm-up"))
    print("ready", flush=True)
    sys.stdin.readline()
    won = race_create(store, task["name"], task["keys"], task["create_threads"])
    added = race_count(store, "counter", task["count_threads"], task["steps"])
    print(json.dumps({"won": won, "added": added}), flush=True)


if __name__ == "__main__":
    main()
