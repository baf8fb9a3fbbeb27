"""How fast a checkpoint comes back: ours, a recursive copy by rclone, and the raw parallel download.

All are of the same bytes from the same store into files, in turns. A restore hashes every byte and is on
the disk when it returns; the other rows show what each of these two costs by itself.

    python -m benchmarks.restore [--quick] [--sizes 100,1000] [--rounds 5] [--stores s3,file]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.by_hand import REMOTE, rclone
from benchmarks.frame import Argument, Part, Settings, Side, in_turns, tell
from benchmarks.report import run_and_show
from pyspark_checkpoint import restore
from tests.support.made_location import MadeLocation, capture
from tests.support.servers.launch import S3Server, seaweedfs

THREADS = 8
BATCHES = 8
CHUNK = 1 << 20


@dataclass(frozen=True)
class Stored:
    """A checkpoint in a directory or on S3, there with the same location as plain objects beside it."""

    url: str
    server: S3Server | None
    keys: tuple[str, ...]
    plain: str
    size_bytes: int

    def restore(self, to: Path) -> None:
        restore(self.url, str(to), clone=True, options=self.server.options if self.server else {})

    def copy(self, server: S3Server, to: Path) -> None:
        """What people do: everything below the location, by rclone."""
        rclone(server.endpoint, "copy", self.plain, str(to), transfers=THREADS).check()

    def download(self, to: Path, *, hashed: bool = False, durable: bool = False) -> None:
        """The checkpoint's objects by the SDK or the disk alone, some at a time, each into a file."""
        to.mkdir(parents=True)
        client: Any = self.server.client() if self.server else None

        def chunks(key: str) -> Iterator[bytes]:
            if self.server is None:
                with Path(key).open("rb", buffering=0) as file:
                    yield from iter(lambda: file.read(CHUNK), b"")
            else:
                yield from client.get_object(Bucket=self.server.bucket, Key=key)["Body"].iter_chunks(CHUNK)

        def fetch(pair: tuple[int, str]) -> None:
            digest = hashlib.sha256()
            with (to / str(pair[0])).open("wb") as file:
                for chunk in chunks(pair[1]):
                    if hashed:
                        digest.update(chunk)
                    file.write(chunk)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, enumerate(self.keys)))
        if client is not None:
            client.close()

    def ways(self) -> dict[str, Callable[[Path], None]]:
        return {
            "restore": self.restore,
            **({"recursive copy": partial(self.copy, self.server)} if self.server else {}),
            "raw download": self.download,
            "raw download, hashed": partial(self.download, hashed=True),
            "raw download, on the disk": partial(self.download, durable=True),
            "raw download, hashed and on the disk": partial(self.download, hashed=True, durable=True),
        }


def store(server: S3Server | None, megabytes: int, home: Path) -> Stored:
    """Make a location of this size, a checkpoint of it, and, on S3, a plain copy of it."""
    made = MadeLocation(home / "made", state_bytes=megabytes * 1_000_000 // (2 * BATCHES))
    made.commit(*range(BATCHES))
    prefix = f"restore-{megabytes}"
    url = server.url(prefix) if server else str(home / prefix)
    (manifest,) = capture(made, url, BATCHES - 1, options=server.options if server else {})
    plain = f"{REMOTE}:{server.bucket}/{prefix}-plain" if server else ""
    if server:
        rclone(server.endpoint, "copy", str(made.path), plain).check()
    shutil.rmtree(made.path)
    keys = tuple(f"{prefix if server else url}/{path}" for path in sorted(manifest.paths()))
    return Stored(url, server, keys, plain, sum(ref.size_bytes for ref in manifest.artifacts()))


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every size in every store in every way, in turns."""
    for kind in settings.names("stores"):
        starting = seaweedfs() if kind == "s3" else nullcontext()
        with TemporaryDirectory(prefix="ckpt-bench-") as name, starting as server:
            home, to = Path(name), Path(name) / "to"
            for megabytes in settings.numbers("sizes"):
                stored = store(server, megabytes, home)
                seconds: dict[str, list[float]] = {how: [] for how in stored.ways()}
                for _, (how, function) in in_turns(stored.ways().items(), settings.number("rounds")):
                    began = time.monotonic()
                    function(to)
                    seconds[how].append(round(time.monotonic() - began, 4))
                    shutil.rmtree(to)
                    os.sync()
                for how, taken in seconds.items():
                    row = Side(f"{megabytes} MB, {kind}", how, tuple(taken), "s")
                    tell(f"{row.where}, {how}: {stored.size_bytes / 1e6 / row.p50:.0f} MB/s")
                    yield row


ARGUMENTS = (
    Argument("sizes", "100,1000", "100", "megabytes of state"),
    Argument("rounds", "8", "4", "rounds"),
    Argument("stores", "s3", "s3", "s3, file"),
)
PART = Part("restore", __doc__, measure_all, ARGUMENTS)

if __name__ == "__main__":
    run_and_show(PART)
