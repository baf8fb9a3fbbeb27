"""How fast a checkpoint comes back: ours, a recursive copy by rclone, and the raw parallel download.

All are of the same bytes from the same server into files, in turns. A restore hashes every byte and is on
the disk when it returns; the other rows show what each of these two costs by itself.

    python -m benchmarks.restore [--quick] [--sizes 100,1000] [--rounds 5]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.part import Argument, Part, Settings, run_part, tell
from benchmarks.rclone import REMOTE, rclone
from benchmarks.records import Restored
from pyspark_checkpoint import restore
from tests.support.made_location import MadeLocation, capture
from tests.support.servers.launch import S3Server, seaweedfs

THREADS = 8
BATCHES = 8
CHUNK = 1 << 20


@dataclass(frozen=True)
class Stored:
    """A checkpoint in a store, and the same location as plain objects beside it."""

    server: S3Server
    url: str
    keys: tuple[str, ...]
    plain: str
    size_bytes: int

    def restore(self, to: Path) -> None:
        restore(self.url, str(to), clone=True, options=self.server.options)

    def copy(self, to: Path) -> None:
        """What people do: everything below the location, by rclone."""
        source = f"{REMOTE}:{self.server.bucket}/{self.plain}"
        done = rclone(self.server.endpoint, "copy", source, str(to), transfers=THREADS)
        if done.exit_code != 0:
            raise RuntimeError(done.message)

    def download(self, to: Path, *, hashed: bool = False, durable: bool = False) -> None:
        """The checkpoint's objects by the SDK alone, some at a time, each into a file."""
        to.mkdir(parents=True)
        client = self.server.client()

        def fetch(pair: tuple[int, str]) -> None:
            body: Any = client.get_object(Bucket=self.server.bucket, Key=pair[1])["Body"]
            digest = hashlib.sha256()
            with (to / str(pair[0])).open("wb") as file:
                for chunk in body.iter_chunks(CHUNK):
                    if hashed:
                        digest.update(chunk)
                    file.write(chunk)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, enumerate(self.keys)))
        client.close()

    def ways(self) -> dict[str, Callable[[Path], None]]:
        return {
            "ours": self.restore,
            "recursive copy": self.copy,
            "raw download": self.download,
            "raw download, hashed": lambda to: self.download(to, hashed=True),
            "raw download, on the disk": lambda to: self.download(to, durable=True),
            "raw download, hashed and on the disk": lambda to: self.download(to, hashed=True, durable=True),
        }


def store(server: S3Server, megabytes: int, home: Path) -> Stored:
    """Make a location of this size, a checkpoint of it, and a plain copy of it."""
    made = MadeLocation(home / "made", state_bytes=megabytes * 1_000_000 // (2 * BATCHES))
    made.commit(*range(BATCHES))
    prefix = f"restore-{megabytes}"
    url = server.url(prefix)
    (manifest,) = capture(made, url, BATCHES - 1, options=server.options)
    plain = f"{prefix}-plain"
    up = rclone(server.endpoint, "copy", str(made.path), f"{REMOTE}:{server.bucket}/{plain}")
    if up.exit_code != 0:
        raise RuntimeError(up.message)
    shutil.rmtree(made.path)
    keys = tuple(f"{prefix}/{path}" for path in sorted(manifest.paths()))
    return Stored(server, url, keys, plain, sum(ref.size_bytes for ref in manifest.artifacts()))


def measure_all(settings: Settings) -> Iterator[Restored]:
    """Every size in every way, in turns."""
    with TemporaryDirectory(prefix="ckpt-bench-") as name, seaweedfs() as server:
        home = Path(name)
        for megabytes in settings.numbers("sizes"):
            stored = store(server, megabytes, home)
            seconds: dict[str, list[float]] = {how: [] for how in stored.ways()}
            for turn in range(settings.number("rounds")):
                order = list(stored.ways().items())
                for how, function in order if turn % 2 == 0 else reversed(order):
                    to = home / "to"
                    began = time.monotonic()
                    function(to)
                    seconds[how].append(round(time.monotonic() - began, 4))
                    shutil.rmtree(to)
                    os.sync()
            for how, taken in seconds.items():
                row = Restored(how, stored.size_bytes, tuple(taken))
                tell(f"{megabytes} MB, {how}: {stored.size_bytes / 1e6 / row.p50:.0f} MB/s")
                yield row


ARGUMENTS = (
    Argument("sizes", "100,1000", "100", "megabytes of state"),
    Argument("rounds", "8", "4", "rounds"),
)
PART = Part("restore", (__doc__ or "").partition("\n")[0], ARGUMENTS, measure_all, "benchmarks.restore")

if __name__ == "__main__":
    run_part(PART, sys.argv[1:])
