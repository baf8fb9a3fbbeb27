"""How fast a restore is beside a download of the same objects into files.

Four ways to get the bytes, in turns, each eight at a time, from the same store:

* ``restore``: every byte verified by its SHA-256 before it has a name, files and names on the disk when it
  returns, manifest and logs read, the location looked at;
* ``download``: what people do, a tool that writes files. The faster of two: the service's own (boto3's
  ``download_file``, ``shutil.copyfile``), and this package's client. Nothing is verified, and nothing waits
  for the disk: a power cut afterwards loses it;
* ``synced``: the same, and each file is on the disk;
* ``checked``: the same, and the SHA-256 of each is taken as it passes: the least that keeps a restore's
  promise.

A ratio is the restore's speed over the other's. The processor's seconds of this process are given beside
the seconds that passed: on few cores they are what a restore costs more. The first round is not counted.

The last line is arithmetic: where the processor is what limits both, nothing that hashes every byte can be
faster, beside the plain download, than its seconds over the sum of its seconds and the hash's. Where the
network limits both, hashing costs no time, because it goes on while bytes are awaited.

    python -m benchmarks.restores

Environment: RESTORE_MB (128), ROUNDS (9), STORES (file,s3).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.config import Config

from pyspark_checkpoint import open_object_store
from pyspark_checkpoint.restorer.api import restore
from tests.support.made_location import MadeLocation, capture
from tests.support.servers.launch import seaweedfs

RESTORE_MB = int(os.environ.get("RESTORE_MB", "128"))
ROUNDS = int(os.environ.get("ROUNDS", "9"))
STORES = os.environ.get("STORES", "file,s3").split(",")
THREADS = 8
FILES = 16

Fetch = Callable[[str, Path], object]
"""Brings one object into a file."""


@dataclass
class Place:
    """A store that holds a checkpoint, and the objects that it consists of."""

    url: str
    options: dict[str, str]
    paths: list[str] = field(default_factory=list)
    size_bytes: int = 0


def make_checkpoint(place: Place, directory: Path) -> None:
    """A checkpoint of RESTORE_MB in state files that are large enough to be objects of their own."""
    batches = FILES // 2
    made = MadeLocation(directory / "made", state_bytes=RESTORE_MB * 1_000_000 // FILES)
    made.commit(*range(batches))
    (manifest,) = capture(made, place.url, batches - 1, options=place.options)
    place.paths = sorted(manifest.paths())
    place.size_bytes = sum(ref.size_bytes for ref in manifest.artifacts())


def download(place: Place, to: Path, fetch: Fetch) -> None:
    """Every object into a file of its own, a few at a time."""
    to.mkdir(parents=True)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda at: fetch(place.paths[at], to / str(at)), range(len(place.paths))))


def by_our_client(place: Place, *, synced: bool = False, checked: bool = False) -> Fetch:
    """This package's client; the bytes go to the file as they come."""
    store = open_object_store(place.url, place.options)

    def fetch(path: str, to: Path) -> None:
        digest = hashlib.sha256()
        with to.open("wb", buffering=0) as file:
            for chunk in store.stream(path):
                if checked:
                    digest.update(chunk)
                file.write(chunk)
            if synced:
                os.fsync(file.fileno())

    return fetch


def by_the_services_tool(place: Place) -> Fetch:
    """What comes with the service: boto3's transfers, or the operating system's copy."""
    if "://" not in place.url:
        return lambda path, to: shutil.copyfile(Path(place.url, path), to)
    bucket, _, prefix = place.url.removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=place.options["endpoint"],
        region_name=place.options.get("region"),
        aws_access_key_id=place.options["accessKey"],
        aws_secret_access_key=place.options["secretKey"],
        config=Config(max_pool_connections=THREADS * 10, s3={"addressing_style": "path"}),
    )
    return lambda path, to: client.download_file(bucket, f"{prefix}/{path}", str(to))


def ways(place: Place) -> dict[str, Callable[[Path], object]]:
    """What is measured, by name. A client is made anew each time, as a command makes it."""
    return {
        "restore": lambda to: restore(place.url, str(to), clone=True, options=place.options),
        "tool": lambda to: download(place, to, by_the_services_tool(place)),
        "client": lambda to: download(place, to, by_our_client(place)),
        "synced": lambda to: download(place, to, by_our_client(place, synced=True)),
        "checked": lambda to: download(place, to, by_our_client(place, synced=True, checked=True)),
    }


def timed(work: Callable[[Path], object], to: Path) -> tuple[float, float]:
    """Seconds, and seconds of the processor."""
    os.sync()
    began, busy = time.monotonic(), time.process_time()
    work(to)
    took = time.monotonic() - began, time.process_time() - busy
    shutil.rmtree(to)
    return took


def measure(name: str, place: Place, directory: Path) -> None:
    """All ways in turns, in another order each round; then the ratios."""
    make_checkpoint(place, directory)
    seconds: dict[str, list[tuple[float, float]]] = {}
    todo = ways(place)
    for number in range(ROUNDS + 1):
        order = list(todo)
        for what in order[number % len(order) :] + order[: number % len(order)]:
            took = timed(todo[what], directory / f"{what}-{number}")
            if number:
                seconds.setdefault(what, []).append(took)
    middle = {what: statistics.median(took[0] for took in taken) for what, taken in seconds.items()}
    busy = {what: statistics.median(took[1] for took in taken) for what, taken in seconds.items()}
    for line in report(name, place.size_bytes / 1e6, middle, busy, hash_seconds(place.size_bytes)):
        print(line)


def hash_seconds(size_bytes: int) -> float:
    """What SHA-256 of so many bytes takes of one processor, from its cache: the median of five."""
    piece, taken = os.urandom(256 * 1024), []
    for _ in range(5):
        digest, busy = hashlib.sha256(), time.process_time()
        for _ in range(size_bytes // len(piece)):
            digest.update(piece)
        taken.append(time.process_time() - busy)
    return statistics.median(taken)


def report(
    name: str, size_mb: float, middle: dict[str, float], busy: dict[str, float], hashing: float
) -> Iterator[str]:
    """The figures, with what each of them means."""
    plain = min("tool", "client", key=lambda what: middle[what])
    yield (
        f"{name}: restore of {size_mb:.0f} MB, p50 of {ROUNDS}: {size_mb / middle['restore']:.0f} MB/s, "
        f"{busy['restore']:.2f} s of the processor"
    )
    words = {
        plain: f"a plain download ({plain}): not verified, not on the disk (aim: 0.8)",
        "synced": "a download that is on the disk, as the restore is; not verified",
        "checked": "a download that is on the disk and hashed: what the restore promises",
    }
    for what, text in words.items():
        yield (
            f"  {middle[what] / middle['restore']:.2f} of {text}: {size_mb / middle[what]:.0f} MB/s, "
            f"{busy[what]:.2f} s of the processor"
        )
    most = busy[plain] / (busy[plain] + hashing)
    yield (
        f"  SHA-256 alone: {hashing:.2f} s of the processor. Beside the plain download "
        f"{busy[plain]:.2f} / ({busy[plain]:.2f} + {hashing:.2f}) = {most:.2f} is the most that is possible"
    )


def measure_restores(directory: Path) -> None:
    """From a directory and from S3."""
    if "file" in STORES:
        (directory / "file").mkdir()
        measure("file", Place(str(directory / "file" / "store"), {}), directory / "file")
    if "s3" in STORES:
        (directory / "s3").mkdir()
        with seaweedfs() as server:
            measure("s3", Place(server.url("bench-restores"), server.options), directory / "s3")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name_:
        measure_restores(Path(name_))
