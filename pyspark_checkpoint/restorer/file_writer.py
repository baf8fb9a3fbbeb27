"""Writing the files of a restore: each whole or not there; all of them durable when ``sync`` returns.

On a disk bytes go to a hidden file, which is renamed. Large ones are brought to the disk by threads of
their own, while others are read and verified; nothing waits for the disk before ``sync``. Elsewhere a put
is durable by itself.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pyspark_checkpoint.clock import SYSTEM_CLOCK
from pyspark_checkpoint.spark_files.location import CheckpointLocation
from pyspark_checkpoint.store.base import check_key
from pyspark_checkpoint.store.local.local_errors import Translated
from pyspark_checkpoint.store.local.local_files import sync, sync_directory
from pyspark_checkpoint.store.parallel import run_bounded
from pyspark_checkpoint.store.url import parse_store_url

_SYNCS = 4
_FEW = 8
_HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp")
_SYNC_NOW_BYTES = 1024 * 1024


class LocationWriter:
    """Writes into a location by its store. Threads may share it."""

    whole_bytes = 64 * 1024 * 1024
    """Up to this size a file is better written whole, from memory, than in pieces."""

    def __init__(self, location: CheckpointLocation) -> None:
        self._location = location

    def write(self, path: str, data: bytes) -> None:
        """Write a file, replacing what is there."""
        self._location.store.put(path, data)

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file piece by piece; it is visible only if the pieces end without an error."""
        with tempfile.TemporaryFile() as spool:
            for chunk in chunks:
                spool.write(chunk)
            spool.seek(0)
            self._location.store.put(path, spool)

    def sync(self) -> None:
        """What was written survives the machine when this returns."""


class DiskWriter(LocationWriter):
    """Writes into a directory."""

    whole_bytes = 0

    def __init__(self, location: CheckpointLocation, root: Path) -> None:
        super().__init__(location)
        self._root = root
        self._written: list[Path] = []
        self._waiting: list[Path] = []
        self._syncs: list[Future[None]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def write(self, path: str, data: bytes) -> None:
        """Write a file, replacing what is there."""
        self.write_chunks(path, [data])

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file piece by piece under the kind of hidden name that Spark uses, then rename it."""
        target = self._root / check_key(path)
        hidden = target.with_name(f".{target.name}.{SYSTEM_CLOCK.uuid7()}.tmp")
        with Translated("put", path, str(self._root)):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with hidden.open("xb", buffering=0) as file:
                    size_bytes = sum(_write_all(file.fileno(), chunk) for chunk in chunks)
                hidden.replace(target)
            except BaseException:
                hidden.unlink(missing_ok=True)
                raise
        with self._lock:
            self._written.append(target)
            if size_bytes < _SYNC_NOW_BYTES:
                self._waiting.append(target)
                return
            self._pool = self._pool or ThreadPoolExecutor(_SYNCS, "ckpt-sync")
            self._syncs.append(self._pool.submit(_sync_file, target))

    def sync(self) -> None:
        """Bring to the disk what was written since the last time: files first, then their directories."""
        with self._lock:
            written, self._written = self._written, []
            waiting, self._waiting = self._waiting, []
            syncs, self._syncs = self._syncs, []
            pool, self._pool = self._pool, None
        with Translated("put", "", str(self._root)):
            run_bounded(_sync_file, waiting, _SYNCS if len(waiting) > _FEW else 1)
            for under_way in syncs:
                under_way.result()
            if pool is not None:
                pool.shutdown()
            for directory in sorted(_directories(written, self._root)):
                sync_directory(directory)


def location_writer(location: CheckpointLocation) -> LocationWriter:
    """What writes into ``location`` the fastest."""
    if not location.spec.is_foreign and parse_store_url(location.url).scheme == "file":
        return DiskWriter(location, Path(parse_store_url(location.url).path))
    return LocationWriter(location)


def is_left_over(path: str) -> bool:
    """Whether a file was being written, by us, when the process was killed."""
    return _HIDDEN.fullmatch(path.rpartition("/")[2]) is not None


def _write_all(handle: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    return len(data)


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def _directories(files: Iterable[Path], root: Path) -> set[Path]:
    found: set[Path] = {root} if root.exists() else set()
    for file in files:
        for directory in file.parents:
            if directory in found or directory == root.parent:
                break
            found.add(directory)
    return found
