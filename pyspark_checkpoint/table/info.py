"""What a manifest records of the table: enough to read it, to go on with it, and to refuse another."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.table.schema import TableSchema

TABLE_KIND = "table"
"""The ``kind`` of the operator entry that holds a table's partitions."""


class TableMode(enum.Enum):
    """What an epoch does to the table."""

    APPEND = "append"
    """Adds its rows."""
    UPSERT = "upsert"
    """Replaces the rows of its keys."""
    COMPLETE = "complete"
    """Replaces all rows."""


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

    def to_json(self) -> dict[str, Any]:
        """What goes into the manifest."""
        return {
            "operator": self.operator,
            "schema": self.schema.to_json(),
            "mode": self.mode.value,
            "keys": list(self.keys),
            "sequence_column": self.sequence_column,
            "op_column": self.op_column,
            "routed": self.routed,
            "partitions": self.partitions,
            "vnodes": self.vnodes,
            "first_epoch": self.first_epoch,
            "batch": self.batch,
            "replaces": self.replaces,
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> TableInfo:
        """Read back what ``to_json`` gave."""
        try:
            return TableInfo(
                operator=str(fields["operator"]),
                schema=TableSchema.from_json(fields["schema"]),
                mode=TableMode(fields["mode"]),
                keys=tuple(str(key) for key in fields["keys"]),
                sequence_column=fields["sequence_column"],
                op_column=fields["op_column"],
                routed=bool(fields["routed"]),
                partitions=int(fields["partitions"]),
                vnodes=int(fields["vnodes"]),
                first_epoch=int(fields["first_epoch"]),
                batch=bool(fields["batch"]),
                replaces=bool(fields["replaces"]),
            )
        except (KeyError, TypeError, ValueError):
            raise FormatError("a manifest's table lacks a field, or has one of another type") from None
