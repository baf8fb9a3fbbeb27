"""Each store beside its SDK called directly: requests/s and MB/s for put and get, and the ratio.

Both sides run in this process, with the same threads against the same server, in turns within each
round (ours, bare, bare, ours), so that whatever else the machine does hits both. The ratio is ours
over bare, as the median over the rounds: 1.00 is no cost, and the aim is at least 0.90. ``cpu`` is the
same for processor time of this process, which other programs disturb less than they do wall time.

    python -m benchmarks.bench_stores [--backends file,s3,gs,az] [--sizes 10KB,1MB,100MB] [--rounds 15]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare_stores import Bare, BareAzure, BareDisk, BareGcs, BareS3
from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.store.base import ObjectStore
from tests.support.servers.launch import azurite, fake_gcs, seaweedfs

AIM = 0.90
CONCURRENCY = 4


@dataclass(frozen=True)
class Size:
    """How large the objects are, how many make a measurement, and by how many threads."""

    name: str
    size_bytes: int
    count: int
    threads: int


SIZES = (
    Size("10KB", 10_000, 80, CONCURRENCY),
    Size("1MB", 1_000_000, 16, CONCURRENCY),
    Size("100MB", 100_000_000, 1, 1),
)


@dataclass(frozen=True)
class Pair:
    """One store, opened by us and reached without us."""

    scheme: str
    ours: ObjectStore
    bare: Bare
    bare_prefix: str
    """What the bare side puts before a key so that our store sees, and can delete, its objects."""


@dataclass(frozen=True)
class Took:
    """What some requests took together."""

    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    scheme: str
    verb: str
    size: Size
    ours: float
    bare: float
    ratio: float
    cpu_ratio: float

    def __str__(self) -> str:
        megabytes = self.size.size_bytes / 1e6
        mark = "" if max(self.ratio, self.cpu_ratio) >= AIM else "  below the aim"
        ours = f"{self.ours:9.1f} {self.ours * megabytes:8.1f}"
        bare = f"{self.bare:9.1f} {self.bare * megabytes:8.1f}"
        name = f"{self.scheme:5} {self.verb:4} {self.size.name:>6}"
        return f"{name} {ours}   {bare}   {self.ratio:5.2f} {self.cpu_ratio:5.2f}{mark}"


HEADER = (
    f"{'':17} {'ours':>9} {'':8}   {'bare SDK':>9} {'':8}   ours/bare\n"
    f"{'store verb   size':17} {'req/s':>9} {'MB/s':>8}   {'req/s':>9} {'MB/s':>8}   {'wall':>5} {'cpu':>5}"
)


def measure(work: Callable[[int], object], size: Size, pool: ThreadPoolExecutor) -> Took:
    """Time ``work(0..count-1)`` spread over the pool."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in pool.map(work, range(size.count)):
        pass
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def run_size(pair: Pair, size: Size, rounds: int) -> Iterator[Row]:
    """Measure puts and gets of one size in alternating order."""
    data = os.urandom(size.size_bytes)
    took: dict[str, list[tuple[Took, Took]]] = {"put": [], "get": []}
    with ThreadPoolExecutor(size.threads) as pool:
        for number in range(rounds + 1):
            ours = [f"ours-{number}-{index}" for index in range(size.count)]
            bare = [f"bare-{number}-{index}" for index in range(size.count)]
            works: dict[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
                "put": (
                    lambda i, keys=ours: pair.ours.put(keys[i], data),  # type: ignore[misc]
                    lambda i, keys=bare: pair.bare.put(pair.bare_prefix + keys[i], data),  # type: ignore[misc]
                ),
                "get": (
                    lambda i, keys=ours: _whole(pair.ours.get(keys[i]), size),  # type: ignore[misc]
                    lambda i, keys=bare: _whole(pair.bare.get(pair.bare_prefix + keys[i]), size),  # type: ignore[misc]
                ),
            }
            for verb, (with_us, without_us) in works.items():
                if number % 2:
                    one = measure(with_us, size, pool)
                    two = measure(without_us, size, pool)
                else:
                    two = measure(without_us, size, pool)
                    one = measure(with_us, size, pool)
                if number:  # the first round warms both sides up
                    took[verb].append((one, two))
            pair.ours.delete([*ours, *bare])
    for verb, pairs in took.items():
        yield _row(pair.scheme, verb, size, pairs)


def _whole(data: bytes, size: Size) -> None:
    assert len(data) == size.size_bytes


def _row(scheme: str, verb: str, size: Size, pairs: list[tuple[Took, Took]]) -> Row:
    return Row(
        scheme,
        verb,
        size,
        ours=size.count / statistics.median(ours.wall_seconds for ours, _ in pairs),
        bare=size.count / statistics.median(bare.wall_seconds for _, bare in pairs),
        ratio=statistics.median(bare.wall_seconds / ours.wall_seconds for ours, bare in pairs),
        cpu_ratio=statistics.median(bare.cpu_seconds / ours.cpu_seconds for ours, bare in pairs),
    )


@contextlib.contextmanager
def opened(scheme: str) -> Iterator[Pair]:
    """Start what the scheme needs, and open it both ways."""
    if scheme == "file":
        with tempfile.TemporaryDirectory(prefix="ckpt-bench-") as root:
            yield Pair(scheme, open_object_store(root), BareDisk(Path(root)), "")
    elif scheme == "s3":
        with seaweedfs() as s3:
            store = open_object_store(s3.url("bench"), s3.options, env={})
            yield Pair(scheme, store, BareS3(s3, CONCURRENCY), "bench/")
    elif scheme == "gs":
        with fake_gcs() as gs:
            store = open_object_store(gs.url("bench"), gs.options, env={})
            yield Pair(scheme, store, BareGcs(gs), "bench/")
    else:
        with azurite() as az:
            store = open_object_store(az.url("bench"), az.options, env={})
            yield Pair(scheme, store, BareAzure(az, CONCURRENCY), "bench/")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="file,s3,gs,az")
    parser.add_argument("--sizes", default=",".join(size.name for size in SIZES))
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    rows: list[Row] = []
    print(HEADER, flush=True)
    for scheme in chosen.backends.split(","):
        with opened(scheme) as pair:
            for size in SIZES:
                if size.name in chosen.sizes.split(","):
                    for row in run_size(pair, size, chosen.rounds):
                        rows.append(row)
                        print(row, flush=True)
            pair.ours.close()
    below = sum(1 for row in rows if max(row.ratio, row.cpu_ratio) < AIM)
    print(
        f"\n{CONCURRENCY} threads (100MB: one object at a time), median of {chosen.rounds} rounds; ", end=""
    )
    print(f"{len(rows) - below} of {len(rows)} at least {AIM:.2f} of the bare SDK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
