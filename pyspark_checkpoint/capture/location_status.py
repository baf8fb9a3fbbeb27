"""Whether a checkpoint location fits its history when its query starts. Needs no Spark.

A location that is behind would write batches twice; one that has diverged would put its batches after those
of another lineage. Both are recognized by what the location had when the query started: once it has run on,
nothing shows them any more.

Right after a rollback the location of before it is ahead of the history, as one is whose last batches were
not captured. It is recognized by the batches that it has: the very files of a checkpoint that was given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError, MissingKey
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.fields import number_in
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.history.artifact_reader import ArtifactReader, WantedArtifact
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone
from pyspark_checkpoint.spark_files.logs import OffsetLog, decode_offset_log
from pyspark_checkpoint.spark_files.names import COMMITS, OFFSETS, offsets_file
from pyspark_checkpoint.spark_files.positions import SourcePositions

FAIL, WARN, RESTORE = STALE_CHOICES = ("fail", "warn", "restore")
"""What happens to a query whose location is behind its history, or has diverged from it."""
_MAX_CLAIMS = 50
"""How many starts without a capture are looked behind."""


@dataclass(frozen=True, slots=True)
class LocationStatus:
    """A location at the start of a run: its newest committed batch, None if it had none."""

    location: CheckpointLocation
    newest: int | None

    @staticmethod
    def of(location: CheckpointLocation) -> LocationStatus:
        """Look at a location."""
        return LocationStatus(location, location.listing(OFFSETS, COMMITS).newest_committed)

    def find_problem(self, head: CheckpointManifest | None, run_id: str) -> str | None:
        """Why the run must not go on from here; None if it may. ``head`` is its history's newest."""
        if head is None or head.run_id == run_id or head.batch_id is None:
            return None
        batch = head.batch_id
        if self.newest is None or self.newest < batch:
            return (
                f"checkpoint location is behind: it is at batch {self.newest}, its history at {batch}; "
                "running on would repeat batches whose output is written"
            )
        offsets = self._offsets(batch) if head.source_offsets else None
        if offsets is not None and SourcePositions.of_log(offsets) != SourcePositions.of_manifest(head):
            return (
                f"checkpoint location has diverged: offsets of batch {batch} differ from checkpoint "
                f"{head.checkpoint_id}"
            )
        return None

    def find_rolled_back(
        self, history: CheckpointStore, head: CheckpointManifest | None, run_id: str
    ) -> str | None:
        """Whether the location has batches that a rollback has given up, and which; None if not.

        Costs nothing unless the history was just rolled back, and nothing was captured since.
        """
        if head is None or head.run_id == run_id or head.batch_id is None:
            return None
        if self.newest is None or self.newest <= head.batch_id:
            return None
        if not _follows_rollback(history, head):
            return None
        reader, batch = history.reader(), head.batch_id
        for given_up in _given_up(history, head):
            for ref in given_up.files:
                if self._has_later_batch(ref, batch, reader):
                    return (
                        f"checkpoint location has diverged: it has {ref.name} of checkpoint "
                        f"{given_up.checkpoint_id}, and its history was rolled back to batch {batch}: "
                        "running on would undo that"
                    )
        return None

    def _has_later_batch(self, ref: ArtifactRef, batch: int, reader: ArtifactReader) -> bool:
        """Whether a checkpoint's offset log of a batch after ``batch`` is the location's too, to the byte.

        It has the time at which the batch was planned, so that another run of the batch has another one.
        """
        folder, _, rest = ref.name.partition("/")
        number = number_in(rest)
        if folder != "offsets" or number is None or number <= batch:
            return False
        try:
            return reader.has_bytes(WantedArtifact(ref), self.location.read(ref.name))
        except (FileGone, FormatError, MissingKey):
            return False  # purged since, damaged, or its key is retired: it proves nothing

    def _offsets(self, batch: int) -> OffsetLog | None:
        """An offset log; None if Spark has purged it since."""
        name = offsets_file(batch)
        try:
            return decode_offset_log(self.location.read(name), name)
        except FileGone:
            return None


def _follows_rollback(history: CheckpointStore, head: CheckpointManifest) -> bool:
    """Whether nothing but claims came after the last rollback. One that is damaged may be a rollback."""
    manifest = head
    for _ in range(_MAX_CLAIMS):
        if manifest.kind is not ManifestKind.CLAIM:
            return manifest.kind is ManifestKind.ROLLBACK
        try:
            before = find_checkpoint(history.store, manifest.parent_id, mac=history.authenticator())
        except FormatError:
            return True
        if before is None:
            return False
        manifest = before.manifest
    return False


def _given_up(history: CheckpointStore, head: CheckpointManifest) -> Iterator[CheckpointManifest]:
    """What is left of checkpoints of later epochs than the head's: epochs fall only by a rollback."""
    for number in reversed(history.list_ids()):
        try:
            found = find_checkpoint(history.store, number, mac=history.authenticator())
        except FormatError:
            continue  # it proves nothing
        if found is not None and found.manifest.epoch > head.epoch:
            yield found.manifest
