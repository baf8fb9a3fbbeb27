"""The table of a store: enough to read it, to go on with it, and to refuse another."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import Lineage, TableRecord, TableShape
from pyspark_checkpoint.table.schema import TableSchema

TABLE_KIND = "table"
"""The ``kind`` of the operator entry that holds a table's partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo(TableShape):
    """The table of a store.

    ``first_epoch`` is the epoch of Spark's batch 0 of the query that writes now; it is not 0 when a
    query has taken over the table of another. ``batch``: no streaming query wrote this epoch.
    """

    schema: TableSchema
    first_epoch: int = 0
    batch: bool = False

    def record(self, lineage: Lineage | None = None) -> TableRecord:
        """What goes into the manifest."""
        schema_json = orjson.dumps(self.schema.to_json()).decode("utf-8")
        return TableRecord(schema_json=schema_json, lineage=lineage, **self.shape())

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
            schema=schema,
            first_epoch=0 if manifest.batch_id is None else manifest.epoch - manifest.batch_id,
            batch=manifest.batch_id is None,
            **found.shape(),
        )
