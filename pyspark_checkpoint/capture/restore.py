"""Executing a restore: verified bytes into a fresh location, state first and ``commits`` last.

A marker is written before anything else and removed after everything else. A restore that was
interrupted is resumed by repeating it; a location that a query uses is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import orjson

from pyspark_checkpoint.capture.location import CheckpointLocation
from pyspark_checkpoint.errors import FormatError, NotFound, RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.sealed import sha256_hex
from pyspark_checkpoint.history.parallel import iter_bounded
from pyspark_checkpoint.history.reading import ArtifactReader, WantedArtifact, stream_stored
from pyspark_checkpoint.sparkstate.logs import encode_query_id, relocate_operator_metadata
from pyspark_checkpoint.sparkstate.restore import (
    RESTORE_MARKER,
    STATE_KIND,
    RestoredFile,
    RestorePlan,
    Rewrite,
    check_fresh,
    plan_restore,
)
from pyspark_checkpoint.store.base import ObjectStore

CONCURRENCY = 8
GROUP_BYTES = 8 * 1024 * 1024
"""How much one thread reads, verifies and writes at a time. A larger file is a group of its own."""
LARGE_BYTES = 64 * 1024 * 1024
"""From here on a file goes through a temporary one instead of memory."""

Progress = Callable[[int, int], None]
"""Told after each group of files: bytes done, bytes in all."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore wrote."""

    checkpoint_id: int
    epoch: int
    query_id: str
    location: str
    files: int
    size_bytes: int
    resumed: bool


class Restore:
    """Writes one checkpoint into one location, as often as it takes until it is done."""

    def __init__(
        self,
        store: ObjectStore,
        reader: ArtifactReader,
        manifest: CheckpointManifest,
        location: CheckpointLocation,
        *,
        query_id: str | None = None,
    ) -> None:
        """With ``query_id`` the checkpoint is forked: the restored query has that id."""
        self._store = store
        self._reader = reader
        self._location = location
        self._owners = _owners(manifest)
        self.plan = plan_restore(manifest, query_id=query_id)

    def execute(self, progress: Progress | None = None) -> RestoreReport:
        """Write everything and say what was done. Every byte is verified before it is visible.

        The location stays marked as unfinished until ``finish``, and nobody else can restore into it.
        """
        plan, done = self.plan, 0
        resumed = _begin(self._location, plan)
        for _, staged in groupby(plan.files, key=lambda file: file.stage):
            groups = _groups(list(staged))
            limit = (
                CONCURRENCY if all(_size(group) <= GROUP_BYTES for group in groups) else CONCURRENCY // 2
            )
            for size_bytes in iter_bounded(self._write, groups, limit):
                done += size_bytes
                if progress is not None:
                    progress(done, plan.total_bytes)
        url = self._location.url
        return RestoreReport(
            plan.checkpoint_id, plan.epoch, plan.query_id, url, len(plan.files), plan.total_bytes, resumed
        )

    def finish(self) -> None:
        """Take the mark away: the location is whole."""
        self._location.store.delete([RESTORE_MARKER])

    def undo(self) -> None:
        """Remove what was written, because the checkpoint turned out to be damaged; the mark goes last."""
        self._location.store.delete([file.path for file in reversed(self.plan.files)])
        self.finish()

    def _write(self, group: Sequence[RestoredFile]) -> int:
        small = [file for file in group if not _is_large(file)]
        wanted = [WantedArtifact(file.ref, *self._owners.get(file.path, ("", -1))) for file in small]
        for file in group:
            if _is_large(file):
                self._write_large(file)
        for file, data in zip(small, self._reader.read_many(wanted), strict=True):
            self._location.store.put(file.path, _rewritten(file, data, self.plan, self._location.spark_url))
        return _size(group)

    def _write_large(self, file: RestoredFile) -> None:
        """Through a temporary file, so that bytes are visible only after all of them were verified."""
        with tempfile.TemporaryFile() as spool:
            for chunk in stream_stored(self._store, file.ref):
                spool.write(chunk)
            spool.seek(0)
            self._location.store.put(file.path, spool)


def find_interrupted(location: CheckpointLocation) -> str | None:
    """The query id of a restore into this location that was not finished; None if there is none."""
    try:
        fields = orjson.loads(location.store.get(RESTORE_MARKER))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        raise FormatError(f"{RESTORE_MARKER} is not what a restore writes") from None
    return str(fields["query_id"]) if isinstance(fields, dict) and "query_id" in fields else None


def _begin(location: CheckpointLocation, plan: RestorePlan) -> bool:
    """Mark the location as ours, or find that it is; says whether an interrupted restore goes on."""
    content = orjson.dumps([[file.path, file.ref.sha256] for file in plan.files])
    marker = orjson.dumps({"content_sha256": sha256_hex(content), "query_id": plan.query_id})
    try:
        found = location.store.get(RESTORE_MARKER)
    except NotFound:
        check_fresh([info.key for info in location.store.list()], is_ours=False)
        location.store.put(RESTORE_MARKER, marker, if_absent=True)
        return False
    if found != marker:
        raise RefusedError(
            "another restore into this location was interrupted",
            hint="finish that one by repeating it, or restore into a fresh location",
        )
    return True


def _owners(manifest: CheckpointManifest) -> dict[str, tuple[str, int]]:
    """Which operator and partition a state file belongs to, by its path: encryption binds it to them."""
    found: dict[str, tuple[str, int]] = {}
    for key, operator in manifest.operators.items():
        if operator.kind == STATE_KIND:
            number = key.partition("-")[0]
            for part in operator.partitions:
                for ref in part.artifacts:
                    found[f"state/{number}/{part.partition_id}/{ref.name}"] = (key, part.partition_id)
    return found


def _groups(files: Sequence[RestoredFile]) -> list[list[RestoredFile]]:
    groups: list[list[RestoredFile]] = []
    size = GROUP_BYTES
    for file in files:
        if size + file.ref.size_bytes > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.ref.size_bytes
    return groups


def _size(group: Sequence[RestoredFile]) -> int:
    return sum(file.ref.size_bytes for file in group)


def _is_large(file: RestoredFile) -> bool:
    is_plain = file.ref.data_key_id is None and file.rewrite is Rewrite.NOTHING
    return is_plain and file.ref.size_bytes > LARGE_BYTES


def _rewritten(file: RestoredFile, data: bytes, plan: RestorePlan, location_url: str) -> bytes:
    if file.rewrite is Rewrite.NOTHING:
        return data
    if file.rewrite is Rewrite.QUERY_ID:
        return encode_query_id(plan.query_id)
    if file.rewrite is Rewrite.SCHEMA_PATHS:
        return relocate_operator_metadata(data, file.path, location_url)
    raise FormatError(f"unknown rewrite {file.rewrite}")
