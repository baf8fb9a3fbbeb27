"""Large files of a location on their way to the store: never whole in memory.

A file is read once, piece by piece, into a temporary file, and goes up from there: what is sent, in parts
and again after a failure, is then what the digest was taken of, whatever becomes of the original.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from typing import IO

from pyspark_checkpoint.capture.upload_plan import UploadItem
from pyspark_checkpoint.clock import Clock
from pyspark_checkpoint.errors import Conflict, NotFound, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import RequestCount
from pyspark_checkpoint.history.staging import put_artifact_file
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone
from pyspark_checkpoint.store.base import ObjectStore

LARGE_BYTES = 16 * 1024 * 1024
"""From here on a file takes this way. Smaller ones are packed, at most a group of them in memory."""
_PIECE_BYTES = 4 * 1024 * 1024
"""A request each where the location is an object store."""
NO_ROOM = "a large file cannot be kept in a temporary one"
NO_ROOM_HINT = "set TMPDIR, of driver and executors, to a directory with room for the largest state files"
_LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""Where Spark tells its Python workers which disks are theirs."""


def is_large(item: UploadItem) -> bool:
    """Whether a file is never to be in memory whole."""
    return item.file.facts.size_bytes >= LARGE_BYTES


def upload_large(
    location: CheckpointLocation,
    store: ObjectStore,
    attempt: CheckpointId,
    items: Sequence[UploadItem],
    clock: Clock,
) -> tuple[dict[str, ArtifactRef], RequestCount]:
    """Store files as they are, one after the other, unless the store has their bytes; say where each is."""
    refs: dict[str, ArtifactRef] = {}
    puts = size_bytes = 0
    for index, item in enumerate(items):
        path = CheckpointPaths.file(attempt, index)
        try:
            with _temporary() as file:
                sha256 = _fetch(location, item, file)
                if item.earlier is not None and _is_same(item.earlier, sha256):
                    refs[item.file.path] = item.earlier
                    continue
                put_artifact_file(store, path, file, sha256, clock)
        except FileGone as error:
            error.uploaded += tuple(refs.items())
            raise
        except OSError as error:  # of the temporary file: stores have errors of their own
            raise _no_room(error) from None
        puts, size_bytes = puts + 1, size_bytes + item.file.facts.size_bytes
        refs[item.file.path] = _ref(item, path, sha256)
    return refs, RequestCount(puts, 0, size_bytes)


def _fetch(location: CheckpointLocation, item: UploadItem, file: IO[bytes]) -> str:
    """Bring a file of the location here, and return its digest. One that is another now is ``FileGone``."""
    digest, size_bytes, path = hashlib.sha256(), 0, item.file.path
    try:
        for piece in location.store.stream(path, chunk_bytes=_PIECE_BYTES):
            digest.update(piece)
            size_bytes += len(piece)
            file.write(piece)
    except NotFound:
        raise FileGone(f"{path} is gone from the checkpoint location") from None
    except Conflict:
        raise FileGone(f"{path} was written again") from None
    if size_bytes != item.file.facts.size_bytes or item.sha256 not in ("", digest.hexdigest()):
        raise FileGone(f"{path} was written again")
    return digest.hexdigest()


def _temporary() -> IO[bytes]:
    """A file without a name: where ``TMPDIR`` says, else on Spark's own disk, or the system's."""
    local = os.environ.get(_LOCAL_DIRECTORIES, "").partition(",")[0]
    is_usable = "TMPDIR" not in os.environ and os.access(local, os.W_OK)
    return tempfile.TemporaryFile(prefix="ckpt-", dir=local if is_usable else None)


def _no_room(error: OSError) -> RefusedError:
    return RefusedError(f"{NO_ROOM}: {error.strerror or type(error).__name__}", hint=NO_ROOM_HINT)


def _is_same(earlier: ArtifactRef, sha256: str) -> bool:
    return earlier.data_key_id is None and earlier.sha256 == sha256


def _ref(item: UploadItem, path: str, sha256: str) -> ArtifactRef:
    file = item.file
    return ArtifactRef(path, file.facts.size_bytes, sha256, file.is_delta, file.epoch, name=item.name)
