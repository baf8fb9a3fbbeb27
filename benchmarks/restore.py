"""How fast a checkpoint comes back: ours, a recursive copy by rclone, and the raw parallel download.

All are of the same bytes from the same store into files, in turns. A restore hashes every byte and is on
the disk when it returns; the other rows show what each of these two costs by itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.frame import Settings, Side, time_turns
from pyspark_checkpoint import restore
from tests.support.made_location import MadeLocation, capture
from tests.support.servers.launch import S3Server, seaweedfs
from tests.support.servers.s3 import REMOTE, run_rclone

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

    def download(self, to: Path, *, hashed: bool = False, durable: bool = False) -> None:
        """The checkpoint's objects by the SDK or the disk alone, some at a time, each into a file."""
        to.mkdir(parents=True)
        client = self.server.client() if self.server else None

        def chunks(key: str) -> Iterator[bytes]:
            if self.server is None or client is None:
                with Path(key).open("rb", buffering=0) as file:
                    yield from iter(lambda: file.read(CHUNK), b"")
            else:
                yield from client.get_object(Bucket=self.server.bucket, Key=key)["Body"].iter_chunks(CHUNK)

        def fetch(number: int, key: str) -> None:
            digest = hashlib.sha256()
            with (to / str(number)).open("wb") as file:
                for chunk in chunks(key):
                    if hashed:
                        digest.update(chunk)
                    file.write(chunk)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, range(len(self.keys)), self.keys))
        if client is not None:
            client.close()

    def ways(self, to: Path) -> dict[str, Callable[[], object]]:
        """Ours; what people do, which copies everything below the location; and what is in a restore."""
        options, endpoint = (self.server.options, self.server.endpoint) if self.server else ({}, "")
        copying = partial(run_rclone, endpoint, "copy", self.plain, str(to), transfers=THREADS, check=True)
        return {
            "restore": partial(restore, self.url, str(to), clone=True, options=options),
            **({"recursive copy": copying} if self.server else {}),
            "raw download": partial(self.download, to),
            "raw download, hashed": partial(self.download, to, hashed=True),
            "raw download, on the disk": partial(self.download, to, durable=True),
            "raw download, hashed and on the disk": partial(self.download, to, hashed=True, durable=True),
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
        run_rclone(server.endpoint, "copy", str(made.path), plain, check=True)
    shutil.rmtree(made.path)
    keys = (f"{prefix if server else url}/{path}" for path in sorted(manifest.paths()))
    return Stored(url, server, tuple(keys), plain)


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every size in every store in every way, in turns."""
    for kind in settings.names("stores"):
        starting = seaweedfs() if kind == "s3" else nullcontext()
        with TemporaryDirectory(prefix="ckpt-bench-") as name, starting as server:
            to = Path(name) / "to"

            def clean(to: Path = to) -> None:
                shutil.rmtree(to)
                os.sync()

            for megabytes in settings.numbers("sizes"):
                ways = store(server, megabytes, Path(name)).ways(to)
                where = f"{megabytes} MB, {kind}"
                yield from time_turns(where, ways, settings.number("rounds"), "s", after=clean)
