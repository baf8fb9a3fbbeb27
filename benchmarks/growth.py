"""What grows: batch time and requests over many epochs; manifest and commit time over many partitions.

python -m benchmarks.growth [--quick] [--epochs 1000] [--ways listener,sink] [--partitions 10,100,1000]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from benchmarks.bench_commit import Committer, Workload, alternate, bare_commit
from benchmarks.frame import Argument, CommitSize, Part, Settings, Stretch, tell
from benchmarks.lab import Lab, Load, count_committed, open_lab, query_spec
from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.store.base import ObjectStore
from tests.support.drivers.driver import Driver
from tests.support.servers.launch import seaweedfs

DELTA_BYTES = 2048
STRETCHES = 10
LONG_PARTITIONS = 2
ALONE_SHARE = 5
"""The query without any checkpoint elsewhere is there for its batch time: it runs for a fifth."""


def stretches(
    way: str, batch_ms: Sequence[int], samples: Sequence[tuple[int, int]], wanted: int
) -> list[Stretch]:
    """Cut a run in equal stretches. ``samples`` are (batches done, requests so far), both rising. Pure."""
    found = []
    length = max(1, wanted // STRETCHES)
    for first in range(0, wanted - length + 1, length):
        last = first + length
        low = max(sample for sample in samples if sample[0] <= max(first, samples[0][0]))
        high = min(sample for sample in samples if sample[0] >= min(last, samples[-1][0]))
        epochs = max(1, high[0] - low[0])
        middle = statistics.median(batch_ms[first:last])
        found.append(Stretch(way, first, last - 1, middle, (high[1] - low[1]) / epochs))
    return found


def run_long(lab: Lab, driver: Driver, way: str, settings: Settings) -> list[Stretch]:
    """One query for many epochs, with small batches: what is left is what an epoch costs by itself."""
    epochs, rows = settings.number("epochs"), settings.number("rows")
    if way == "disk":
        epochs = max(1, epochs // ALONE_SHARE)
    load = Load("windowed", "hdfs", LONG_PARTITIONS, rows, rows)
    spec = replace(query_spec(way, load, lab.place, f"growth-{way}"), listen_seconds=0.0)  # every epoch
    lab.delay(0)
    lab.proxy.clear()
    driver.start(spec)
    samples = [(0, 0)]
    while samples[-1][0] < epochs:
        time.sleep(0.5)
        done = count_committed(driver, spec.name)
        samples.append((done, len(lab.proxy.requests)))
    result = driver.call("stop", 300, name=spec.name)
    if spec.listen:
        driver.call("unlisten", 150, name=spec.name)
    return stretches(way, result["batch_ms"], samples, epochs)


def commit_sizes(settings: Settings) -> Iterator[CommitSize]:
    """A commit with so many partitions, each with a delta of 2 KB on top of nine others, on S3."""
    with seaweedfs() as server:
        for partitions in settings.numbers("partitions"):
            store = open_object_store(server.url(f"commits-{partitions}"), server.options, env={})
            bare = open_object_store(server.url(f"bare-{partitions}"), server.options, env={})
            row = commit_size(store, bare, partitions, settings.number("commits"))
            tell(f"{partitions} partitions: manifest {row.manifest_bytes} bytes, {row.commit_ms:.1f} ms")
            yield row


def commit_size(store: ObjectStore, bare: ObjectStore, partitions: int, commits: int) -> CommitSize:
    """Commits in turns with the same requests with nothing around them."""
    work = Workload(f"{partitions} x 2 KB", partitions, DELTA_BYTES)
    committer = Committer(store, work)
    committer.spent(work.deltas + 1)
    spent = committer.spent(1)
    size = store.head(manifest_key(committer.epoch)).size_bytes
    bare.put("bare/control", b"x" * 300)
    numbers = iter(range(10 * commits))
    works: dict[str, Callable[[], object]] = {
        "bare": lambda: bare_commit(bare, (partitions * DELTA_BYTES, size), next(numbers)),
        "commit": committer.commit,
    }
    took = {name: 1000 * statistics.median(values) for name, values in alternate(works, commits).items()}
    return CommitSize("s3", partitions, size, took["commit"], took["bare"], spent["put"].requests)


def measure_all(settings: Settings) -> Iterator[CommitSize | Stretch]:
    """Partitions first, which need no Spark; then epochs."""
    yield from commit_sizes(settings)
    if not settings.number("epochs"):
        return
    with open_lab() as lab, lab.driver() as driver:
        for way in settings.names("ways"):
            found = run_long(lab, driver, way, settings)
            tell(f"{way}: p50 {found[0].batch_ms:.0f} ms at first, {found[-1].batch_ms:.0f} ms at last")
            yield from found


ARGUMENTS = (
    Argument("ways", "disk,listener,sink", "disk,listener,sink", "ways"),
    Argument("epochs", "1000", "100", "epochs of each long run, a fifth of them for disk; 0: none"),
    Argument("rows", "200", "200", "rows and keys of a long run"),
    Argument("partitions", "10,100,1000", "10,100,1000", "partitions of a commit"),
    Argument("commits", "30", "15", "commits that are timed"),
)
PART = Part("growth", __doc__, measure_all, ARGUMENTS)

if __name__ == "__main__":
    PART.run(sys.argv[1:])
