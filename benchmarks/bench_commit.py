"""What a commit costs: requests, bytes, time; verify and recovery beside plain hashing and download.

Everything is measured in one run, and what can be compared is compared as a ratio in alternating order,
so that whatever else the machine does hits both sides.

    python -m benchmarks.bench_commit [--stores file,s3,memory] [--commits 30] [--history 10000]
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.frame import in_turns, quantile, typed_arguments
from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.crypto.keyring import make_key_ring
from pyspark_checkpoint.format.keys import CHECKPOINTS_PREFIX, manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore, MeterSnapshot
from tests.support.servers.launch import seaweedfs

MAX_PUTS = 4
RING = make_key_ring({"bench": bytes(range(32))}, "bench")
THREADS = 8


@dataclass(frozen=True)
class Workload:
    """What an epoch brings: so many partitions with so many bytes of delta each, on top of ten others."""

    name: str
    partitions: int
    delta_bytes: int
    deltas: int = 10


COMMON = Workload("400 x 2 KB", 400, 2048)
WORKLOADS = (
    COMMON,
    Workload("8 x 200 B", 8, 200),
    Workload("200 x 50 KB", 200, 50_000),
    Workload("4 x 6 MB", 4, 6_000_000, 2),
)
SMALL = Workload("10 x 600 B", 10, 600, 5)


class Committer:
    """Commits epochs of one workload to a store, as a table with rolling deltas does."""

    def __init__(
        self, store: ObjectStore, work: Workload, *, encrypted: bool = False, retain: int | None = None
    ) -> None:
        self.meter = MeteredStore(store)
        self.work = work
        ring = RING if encrypted else None
        self.history = CheckpointStore(self.meter, key_ring=ring, max_retained=retain, accept_unsafe=True)
        self.epoch = 0
        self.parts: tuple[PartitionSnapshotEntry, ...] = ()
        self.data = bytes(range(256)) * (work.delta_bytes // 256 + 1)

    def commit(self) -> CheckpointManifest:
        """Stage one delta a partition and publish."""
        self.epoch += 1
        work, epoch = self.work, self.epoch
        rows = self.data[: work.delta_bytes - 8] + epoch.to_bytes(8, "big")
        items = [StagedItem(rows, True, epoch, "table", number) for number in range(work.partitions)]
        staged = self.history.stage(items)
        before = {part.partition_id: part.artifacts[-(work.deltas - 1) :] for part in self.parts}
        self.parts = tuple(
            PartitionSnapshotEntry(number, (*before.get(number, ()), staged.refs[number]))
            for number in range(work.partitions)
        )
        manifest = replace(
            CheckpointManifest.new(0, epoch),
            operators={"table": OperatorSnapshotEntry(self.parts, "table")},
            partition_count=work.partitions,
            requests=staged.requests,
        )
        return self.history.save(manifest)

    def spent(self, commits: int) -> MeterSnapshot:
        """What so many commits cost in requests and bytes."""
        before = self.meter.snapshot()
        for _ in range(commits):
            self.commit()
        return self.meter.snapshot() - before


def time_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def alternate(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each work in turn, forwards and backwards."""
    took: dict[str, list[float]] = {label: [] for label in works}
    for _, (label, function) in in_turns(works.items(), rounds):
        gc.collect()
        took[label].append(time_of(function))
    return took


def counts(spent: MeterSnapshot, *verbs: str) -> list[int]:
    """Requests by verb; ranged reads are GETs."""
    numbers = {verb: spent[verb].requests for verb in verbs}
    return list((numbers | {"get": spent["get"].requests + spent["read"].requests}).values())


def largest_manifest(committer: Committer) -> int:
    return max(info.size_bytes for info in committer.meter.inner.list("manifests/"))


def show_requests() -> bool:
    """Requests and bytes of one commit in the steady state."""
    print(f"{'requests of a commit':30}  PUT  GET  HEAD  LIST {'bytes out':>12} {'manifest':>10}")
    good = True
    for work, encrypted in product(WORKLOADS, (False, True)):
        committer = Committer(MemoryStore(), work, encrypted=encrypted)
        committer.spent(work.deltas + 1)
        spent = committer.spent(1)
        puts, gets, heads, lists = counts(spent, "put", "get", "head", "list")
        label = f"{work.name}{', encrypted' if encrypted else ''}"
        sizes = f"{spent['put'].bytes_out:12,} {largest_manifest(committer):10,}"
        print(f"{label:30} {puts:4} {gets:4} {heads:5} {lists:5} {sizes}")
        if work is COMMON:
            good = good and puts <= MAX_PUTS and lists == 0
    print(f"400 partitions with 2 KB each commit in at most {MAX_PUTS} PUTs: {'yes' if good else 'NO'}\n")
    return good


def bare_commit(store: ObjectStore, sizes: Sequence[int], number: int) -> None:
    """The least that a commit can do: put the data, put the manifest, read once, put the hint."""
    store.put(f"bare/{number}/data", bytes(sizes[0]), if_absent=True)
    store.put(f"bare/{number}/manifest", bytes(sizes[1]), if_absent=True)
    store.get("bare/control")
    store.put("bare/latest", b"x" * 112)


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(one / two for one, two in zip(above, below, strict=True))


def show_latency(name: str, open_store: Callable[[str], ObjectStore], commits: int) -> None:
    """Time of a commit, without and with retention, beside the same requests with nothing around them."""
    alone, retaining = Committer(open_store("a"), COMMON), Committer(open_store("b"), COMMON, retain=20)
    bare = open_store("bare")
    bare.put("bare/control", b"x" * 300)
    for committer in (alone, retaining):
        committer.spent(2 * COMMON.deltas + 2)
    manifest_bytes = alone.meter.head(manifest_key(alone.epoch)).size_bytes
    sizes = (COMMON.partitions * COMMON.delta_bytes, manifest_bytes)
    numbers = iter(range(10 * commits))
    works = {
        "bare requests": lambda: bare_commit(bare, sizes, next(numbers)),
        "commit": alone.commit,
        "with retention": retaining.commit,
    }
    took = alternate(works, commits)
    for label, seconds in took.items():
        times = (
            f"{1000 * statistics.median(seconds):8.1f} ms   p95 {1000 * quantile(seconds, 0.95):8.1f} ms"
        )
        print(
            f"{name:8} {label:15} {times}   {ratio(seconds, took['bare requests']):5.2f} of bare requests"
        )


def show_throughput(name: str, store: ObjectStore, rounds: int) -> None:
    """Verify and recovery, in MB/s of artifacts, beside hashing and downloading the same bytes."""
    committer = Committer(store, Workload("throughput", 12, 6_000_000, 1))
    committer.commit()
    keys = [info.key for info in store.list(CHECKPOINTS_PREFIX)]
    blobs = [store.get(key) for key in keys]

    def in_threads(work: Callable[..., object], values: Sequence[object]) -> Callable[[], object]:
        def run() -> None:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(work, values))

        return run

    def verify() -> None:
        assert next(iter(verify_store(store, max_concurrent_reads=THREADS)), None) is None

    def recover() -> None:
        assert committer.history.recover_latest_validated().chosen_id == 1

    works = {
        "hashing": in_threads(lambda blob: hashlib.sha256(blob).digest(), blobs),
        "download": in_threads(store.get, keys),
        "download+hash": in_threads(lambda key: hashlib.sha256(store.get(key)).digest(), keys),
        "verify": verify,
        "recovery": recover,
    }
    took = alternate(works, rounds)
    for label, seconds in took.items():
        speed = sum(map(len, blobs)) / 1e6 / statistics.median(seconds)
        share = ratio(took["download+hash"], seconds)
        print(f"{name:8} {label:14} {speed:9.1f} MB/s   {share:5.2f} of download and hash")


def show_growth(numbers: Sequence[int]) -> None:
    """The cost of commit 10, 1,000 and 10,000, retention included."""
    committer = Committer(MemoryStore(), SMALL, retain=20)
    verbs = ("put", "get", "head", "list", "delete")
    shown = " ".join(f"{verb.upper():>6}" for verb in verbs)
    print(f"{'commit number':>14} {'ms':>8} {shown} {'manifest bytes':>16}")
    times: list[float] = []
    for number in numbers:
        window = min(40, number)
        while committer.epoch < number - window // 2:
            committer.commit()
        before = committer.meter.snapshot()
        times.append(statistics.median(time_of(committer.commit) for _ in range(window)))
        each = counts(committer.meter.snapshot() - before, *verbs)
        shown = " ".join(f"{count / window:6.2f}" for count in each)
        print(f"{number:14,} {1000 * times[-1]:8.2f} {shown} {largest_manifest(committer):16,}")
    grown = times[-1] / times[min(1, len(times) - 1)]
    print(f"last over the one at 100: {grown:.2f}; {SMALL.name}, 20 epochs kept, in memory\n")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Callable[[str], ObjectStore]]:
    """Start what a kind of store needs; yield what opens one at a prefix."""
    if name == "memory":
        yield lambda prefix: MemoryStore(prefix=prefix)
    elif name == "file":
        with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as root:
            yield lambda prefix: open_object_store(f"{root}/{prefix}")
    else:
        with seaweedfs() as server:
            yield lambda prefix: open_object_store(server.url(prefix), server.options, env={})


def main() -> int:
    chosen = typed_arguments(__doc__, stores="file,s3", commits=30, rounds=5, history=10_000)
    good = show_requests()
    show_growth([number for number in (10, 100, 1000, chosen.history) if number <= chosen.history])
    for name in chosen.stores.split(","):
        with opened(name) as open_store:
            show_latency(name, open_store, chosen.commits)
            show_throughput(name, open_store("throughput"), chosen.rounds)
        print()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
