"""What a commit costs: requests, bytes, time; verify and recovery beside plain hashing and download.

The sides are timed in turns, so that whatever else the machine does hits all of them. ``bare requests`` are
those of a commit with nothing around them.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from benchmarks.frame import Settings, Side, time_turns
from benchmarks.stores import Opener, open_stores
from pyspark_checkpoint.crypto.keyring import KeyRing, make_key_ring
from pyspark_checkpoint.format.keys import CHECKPOINTS_PREFIX, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest import OperatorSnapshotEntry as Operator
from pyspark_checkpoint.format.manifest import PartitionSnapshotEntry as Partition
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.meter import MeteredStore

RING = make_key_ring({"bench": bytes(range(32))}, "bench")
THREADS = 8
KEPT = 20


@dataclass(frozen=True)
class Workload:
    """What an epoch brings: so many partitions with so many bytes of delta each, on top of others."""

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
        self, store: ObjectStore, work: Workload, ring: KeyRing | None = None, retain: int | None = None
    ) -> None:
        self.meter = MeteredStore(store)
        self.work = work
        self.history = CheckpointStore(self.meter, key_ring=ring, max_retained=retain, accept_unsafe=True)
        self.epoch = 0
        self.parts: tuple[Partition, ...] = ()
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
            Partition(number, (*before.get(number, ()), staged.refs[number]))
            for number in range(work.partitions)
        )
        operators = {"table": Operator(self.parts, "table")}
        manifest = replace(CheckpointManifest.new(0, epoch), operators=operators)
        manifest = replace(manifest, partition_count=work.partitions, requests=staged.requests)
        return self.history.save(manifest)

    def commits(self, count: int) -> tuple[tuple[float, ...], str, dict[str, float]]:
        """What each of so many commits took, in which unit, and what one of them asks for."""
        before, took = self.meter.snapshot(), []
        for _ in range(count):
            started = time.perf_counter()
            self.commit()
            took.append(1000 * (time.perf_counter() - started))
        spent = self.meter.snapshot() - before
        verbs = {verb.upper(): spent[verb].requests for verb in ("put", "head", "list", "delete")}
        verbs["GET"] = spent["get"].requests + spent["read"].requests  # ranged reads are GETs
        asked = {verb: number / count for verb, number in verbs.items() if number}
        written = {"bytes out": spent["put"].bytes_out / count, "manifest bytes": self.manifest_bytes}
        return tuple(took), "ms", asked | written

    @property
    def manifest_bytes(self) -> int:
        return self.meter.inner.head(manifest_key(self.epoch)).size_bytes


def requests_of_a_commit(rounds: int) -> Iterator[Side]:
    """Requests and bytes of one commit in the steady state."""
    for work, (way, ring) in itertools.product(WORKLOADS, {"plain": None, "encrypted": RING}.items()):
        committer = Committer(MemoryStore(), work, ring)
        committer.commits(work.deltas + 1)
        yield Side(f"{work.name}, memory", way, *committer.commits(rounds))


def bare_commit(store: ObjectStore, sizes: Sequence[int], number: int) -> None:
    """The least that a commit can do: put the data, put the manifest, read once, put the hint."""
    store.put(f"bare/{number}/data", bytes(sizes[0]), if_absent=True)
    store.put(f"bare/{number}/manifest", bytes(sizes[1]), if_absent=True)
    store.get("bare/control")
    store.put("bare/latest", b"x" * 112)


def latency(name: str, open_store: Opener, partitions: int, commits: int) -> Iterator[Side]:
    """Time of a commit, without and with retention, beside the same requests with nothing around them."""
    work = replace(COMMON, name=f"{partitions:,} x 2 KB", partitions=partitions)
    alone = Committer(open_store(f"a{partitions}"), work)
    retaining = Committer(open_store(f"b{partitions}"), work, retain=KEPT)
    bare = open_store(f"bare{partitions}")
    bare.put("bare/control", b"x" * 300)
    for committer in (alone, retaining):
        committer.commits(2 * work.deltas + 2)
    asked = {"commit": alone.commits(1)[2], "with retention": retaining.commits(1)[2]}
    sizes, numbers = (partitions * work.delta_bytes, alone.manifest_bytes), itertools.count()
    works = {
        "bare requests": lambda: bare_commit(bare, sizes, next(numbers)),
        "commit": alone.commit,
        "with retention": retaining.commit,
    }
    for side in time_turns(f"{work.name}, {name}", works, commits):
        yield replace(side, counts=asked.get(side.way, {}))


def throughput(name: str, store: ObjectStore, rounds: int) -> Iterator[Side]:
    """Verify and recovery beside hashing and downloading the same bytes."""
    committer = Committer(store, Workload("throughput", 12, 6_000_000, 1))
    committer.commit()
    keys = [info.key for info in store.list(CHECKPOINTS_PREFIX)]
    blobs = [store.get(key) for key in keys]

    def in_threads(work: Callable[..., object], values: Sequence[object]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, values))

    def verify() -> None:
        assert next(iter(verify_store(store, max_concurrent_reads=THREADS)), None) is None

    def recover() -> None:
        assert committer.history.recover_latest_validated().chosen_id == 1

    works = {
        "download and hash": lambda: in_threads(lambda key: hashlib.sha256(store.get(key)).digest(), keys),
        "hash": lambda: in_threads(lambda blob: hashlib.sha256(blob).digest(), blobs),
        "download": lambda: in_threads(store.get, keys),
        "verify": verify,
        "recovery": recover,
    }
    yield from time_turns(f"{sum(map(len, blobs)) / 1e6:.0f} MB, {name}", works, rounds, "s")


def growth(numbers: Sequence[int]) -> Iterator[Side]:
    """What the 10th, 100th, 1,000th and 10,000th commit cost, retention included."""
    committer = Committer(MemoryStore(), SMALL, retain=KEPT)
    for number in numbers:
        window = min(40, number)
        committer.commits(max(0, number - window // 2 - committer.epoch))
        way = f"commit {number:,}"
        yield Side(f"{SMALL.name}, memory, {KEPT} kept", way, *committer.commits(window))


def measure_all(settings: Settings) -> Iterator[Side]:
    """Without any server first; then by store."""
    yield from requests_of_a_commit(settings.number("commits"))
    yield from growth([many for many in (10, 100, 1000, 10_000) if many <= settings.number("history")])
    for name in settings.names("stores"):
        with open_stores(name) as (open_store, _):
            for partitions in settings.numbers("partitions"):
                yield from latency(name, open_store, partitions, settings.number("commits"))
            yield from throughput(name, open_store("throughput"), settings.number("rounds"))
