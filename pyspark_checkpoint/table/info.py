"""The table of a store: enough to read it, to go on with it, and to refuse another."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import Lineage, TableMode, TableRecord
from pyspark_checkpoint.table.schema import TableSchema

TABLE_KIND = "table"
"""The ``kind`` of the operator entry that holds a table's partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """The table of a store. ``routed``: row r is in partition ``pmod(hash(keys), partitions)``.

    ``first_epoch`` is the epoch of Spark's batch 0 of the query that writes now; it is not 0 when a
    query has taken over the table of another. ``batch``: no streaming query wrote this epoch.
    ``replaces``: this epoch replaced all rows.
    """

    operator: str
    schema: TableSchema
    mode: TableMode
    keys: tuple[str, ...] = ()
    sequence_column: str | None = None
    op_column: str | None = None
    routed: bool = False
    partitions: int = 0
    vnodes: int = 0
    first_epoch: int = 0
    batch: bool = False
    replaces: bool = False

    def record(self, lineage: Lineage | None = None) -> TableRecord:
        """What goes into the manifest."""
        return TableRecord(
            operator=self.operator,
            schema_json=orjson.dumps(self.schema.to_json()).decode("utf-8"),
            mode=self.mode,
            keys=self.keys,
            sequence_column=self.sequence_column,
            op_column=self.op_column,
            routed=self.routed,
            partitions=self.partitions,
            vnodes=self.vnodes,
            replaces=self.replaces,
            lineage=lineage,
        )

    @staticmethod
    def of_manifest(manifest: CheckpointManifest) -> TableInfo:
        """The table that a checkpoint has rows of. ``FormatError`` if it has none, or a damaged schema."""
        found = manifest.table
        if found is None:
            raise FormatError(
                f"checkpoint {manifest.checkpoint_id} has no table",
                hint="read a store that a ckpt-sink wrote",
            )
        try:
            schema = TableSchema.from_json(orjson.loads(found.schema_json))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise FormatError(
                f"the table's schema in checkpoint {manifest.checkpoint_id} is not one of Spark",
                hint="run ckpt verify; restore the manifest from a copy of the store",
            ) from None
        return TableInfo(
            operator=found.operator,
            schema=schema,
            mode=found.mode,
            keys=found.keys,
            sequence_column=found.sequence_column,
            op_column=found.op_column,
            routed=found.routed,
            partitions=found.partitions,
            vnodes=found.vnodes,
            first_epoch=0 if manifest.batch_id is None else manifest.epoch - manifest.batch_id,
            batch=manifest.batch_id is None,
            replaces=found.replaces,
        )
