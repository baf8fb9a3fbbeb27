"""Where the sources of a query stand: one naming, one order, one comparison. Pure.

A source has the name that Spark's offset log gives it, else ``source-{index}`` by its place in the plan.
Positions are compared source by source, never as sorted values: two sources that have changed places
stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.manifest import CheckpointManifest, ConnectorCheckpoint
from pyspark_checkpoint.spark_files.logs import OffsetLog

OFFSET = "offset"
"""How the one offset of a source of Spark is called in a manifest."""


@dataclass(frozen=True, slots=True, eq=False)
class SourcePositions:
    """The sources of a plan in its order, and the offsets of each, none for one that has not begun.

    Equal if both have the same sources, each at the same offsets, in whatever order. Empty if nothing is
    known.
    """

    names: tuple[str, ...] = ()
    offsets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    def of_log(log: OffsetLog) -> SourcePositions:
        """Where ``offsets/N`` says that batch N ends. ``FormatError`` if it has a name twice."""
        names = log.names or tuple(f"source-{index}" for index in range(len(log.offsets)))
        if len(set(names)) != len(names):
            raise FormatError(
                "an offset log has a source twice", hint="give every source of the query a name of its own"
            )
        found = zip(names, log.offsets, strict=True)
        return SourcePositions(names, {name: {} if at is None else {OFFSET: at} for name, at in found})

    @staticmethod
    def of_manifest(manifest: CheckpointManifest) -> SourcePositions:
        """Where a checkpoint says that its batch ends, without notes about the sources."""
        found = manifest.source_offsets.items()
        return SourcePositions(
            manifest.source_names, {name: dict(source.offsets) for name, source in found}
        )

    def __bool__(self) -> bool:
        """Whether any source has begun."""
        return any(self.offsets.values())

    def __eq__(self, other: object) -> bool:
        return self.offsets == other.offsets if isinstance(other, SourcePositions) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset((name, frozenset(at.items())) for name, at in self.offsets.items()))

    def connectors(
        self, epoch: int, descriptions: Mapping[str, str] | None = None
    ) -> dict[str, ConnectorCheckpoint]:
        """The sources as a manifest of ``epoch`` has them, with what is said of them, in their order."""
        told = descriptions or {}
        return {
            name: ConnectorCheckpoint(
                dict(self.offsets.get(name, {})),
                epoch,
                {"description": told[name]} if name in told else {},
            )
            for name in self.names
        }
