"""Where a checkpoint location stands beside its history when its query starts. Needs no Spark.

A location that is behind would write again what is written; one that went another way would put its
batches after those of somebody else. Both are told by what the location had when the query started: once
it has run on, nothing tells them any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_checkpoint.capture.location import CheckpointLocation, FileGone
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.rules import source_positions
from pyspark_checkpoint.sparkstate.logs import OffsetLog, decode_offset_log


@dataclass(frozen=True, slots=True)
class Standing:
    """A location at the start of a run: its newest committed batch, None if it had none."""

    location: CheckpointLocation
    newest: int | None

    @staticmethod
    def of(location: CheckpointLocation) -> Standing:
        """Look at a location."""
        return Standing(location, location.listing("offsets/", "commits/").newest_committed)

    def find_problem(self, head: CheckpointManifest | None, run_id: str) -> str | None:
        """Why the run must not go on from here; None if it may. ``head`` is its history's newest."""
        if head is None or head.run_id == run_id:
            return None
        if self.newest is None or self.newest < head.epoch:
            return (
                f"its checkpoint location is at batch {self.newest}, its history at {head.epoch}: "
                "running on would repeat batches whose output is written"
            )
        offsets = self._offsets(head.epoch) if head.source_offsets else None
        if offsets is not None and _positions(offsets) != _recorded(head):
            return (
                f"its checkpoint location has other offsets at batch {head.epoch} than its history: "
                "it went another way, and its output is not what the history says"
            )
        return None

    def _offsets(self, batch: int) -> OffsetLog | None:
        """An offset log; None if Spark has purged it since."""
        name = f"offsets/{batch}"
        try:
            return decode_offset_log(self.location.read(name), name)
        except FileGone:
            return None


def _recorded(manifest: CheckpointManifest) -> list[str]:
    return sorted(offsets.get("offset", "") for offsets in source_positions(manifest).values())


def _positions(log: OffsetLog) -> list[str]:
    return sorted(offset or "" for offset in log.offsets)
