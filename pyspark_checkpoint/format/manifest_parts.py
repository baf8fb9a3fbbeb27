"""The typed parts of a manifest, each with its stored form: table, state, sinks, what is planned ahead.

Every part is decoded and checked to its last field here, so that whoever holds one need not ask again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyspark_checkpoint.format.fields import (
    bad_field,
    flag,
    items,
    mapping,
    optional,
    record,
    short_text,
    text,
    text_list,
    whole,
)

MAX_SCHEMA_LETTERS = 8 * 1024 * 1024
MAX_KEYS = 10_000
MAX_STORES = 10_000
MAX_PARTITIONS = 2**31 - 1
MAX_SINKS = 1_000
MAX_PLANNED_FILES = 1_000
_SINK_KIND = re.compile(r"[a-z][a-z0-9-]{0,39}\Z")
_TABLE_FIELDS = (
    "operator",
    "schema_json",
    "mode",
    "keys",
    "sequence_column",
    "op_column",
    "routed",
    "partitions",
    "vnodes",
    "replaces",
    "lineage",
)
_POSITION_FIELDS = ("checkpoint_id", "epoch", "digest")
_SINK_FIELDS = ("kind", "target", "application_id", "batch_id", "native_version", "location")


class TableMode(enum.Enum):
    """What an epoch does to the table."""

    APPEND = "append"
    """Adds its rows."""
    UPSERT = "upsert"
    """Replaces the rows of its keys."""
    COMPLETE = "complete"
    """Replaces all rows."""


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """An epoch of a table and the checkpoint that wrote its rows: how far a consumer is, for example.

    Without a checkpoint a consumer was given nothing, and does not want the epochs up to ``epoch``.
    ``lineage`` is a digest of the epoch's rows and of all epochs before it; empty if nobody has said.
    """

    checkpoint_id: int
    epoch: int
    lineage: str = ""

    def is_behind(self, other: FeedPosition) -> bool:
        """Whether a consumer that went from ``other`` to here would go back."""
        return self.epoch < other.epoch or self.checkpoint_id < other.checkpoint_id


@dataclass(frozen=True, slots=True)
class Lineage:
    """The place of an epoch among those of its table; claims and rollbacks repeat it with the rows.

    ``position`` names the checkpoint that wrote the rows. ``before`` is the epoch that they follow on,
    None for the first one.
    """

    position: FeedPosition
    before: FeedPosition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """How a table keeps rows. ``routed``: row r is in partition ``pmod(hash(keys), partitions)``.

    ``replaces``: this epoch replaced all rows.
    """

    operator: str
    mode: TableMode
    keys: tuple[str, ...] = ()
    sequence_column: str | None = None
    op_column: str | None = None
    routed: bool = False
    partitions: int = 0
    vnodes: int = 0
    replaces: bool = False

    def shape(self) -> dict[str, Any]:
        """The fields of the shape alone, by name."""
        return {each.name: getattr(self, each.name) for each in fields(TableShape)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord(TableShape):
    """The table that a sink keeps, as its manifest records it; ``table.info`` gives it its schema.

    ``schema_json`` is what Spark's ``StructType.json()`` gives.
    """

    schema_json: str
    lineage: Lineage | None = None


@dataclass(frozen=True, slots=True)
class DeclaredStore:
    """A state store that must be there, in all its partitions."""

    operator: int
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class StateRecord:
    """What a manifest records of Spark's state that it names beside the table's rows.

    ``batch_id`` is the manifest's own and is stored once. ``modified_ms`` has the times of the files whose
    names may be used again, which are those of version ``batch_id + 1`` in format version 1, and RocksDB's
    snapshots: a file of that name, size and time is the one that the manifest names.
    """

    batch_id: int
    stores: tuple[DeclaredStore, ...] = ()
    modified_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """Where a query's rows go, as far as that is known without asking the sink.

    ``target`` is a place or a name without credentials, ``application_id`` the id under which the sink
    remembers batches (the query's), ``native_version`` the sink's own name for what it has then,
    ``location`` where a table lies whose target is its name in a catalog. Empty texts and None where
    nobody has said.
    """

    kind: str
    target: str = ""
    application_id: str = ""
    batch_id: int | None = None
    native_version: str = ""
    location: str = ""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that Spark has planned and not run, and which of the manifest's ``files`` are of its plan.

    They are not part of the checkpoint of the manifest's own batch.
    """

    batch_id: int
    files: tuple[str, ...]


def encode_table(table: TableRecord) -> dict[str, Any]:
    """The stored form of a table's record."""
    return {
        "operator": table.operator,
        "schema_json": table.schema_json,
        "mode": table.mode.value,
        "keys": list(table.keys),
        "sequence_column": table.sequence_column,
        "op_column": table.op_column,
        "routed": table.routed,
        "partitions": table.partitions,
        "vnodes": table.vnodes,
        "replaces": table.replaces,
        "lineage": None if table.lineage is None else encode_lineage(table.lineage),
    }


def decode_table(value: Any) -> TableRecord:
    """Read ``encode_table`` back."""
    fields = record(value, "table", _TABLE_FIELDS)
    modes = {mode.value: mode for mode in TableMode}
    mode = modes.get(text(fields["mode"], "table.mode"))
    if mode is None:
        raise bad_field("table.mode", f"is none of {', '.join(modes)}")
    lineage = fields["lineage"]
    return TableRecord(
        operator=short_text(fields["operator"], "table.operator"),
        schema_json=text(fields["schema_json"], "table.schema_json", MAX_SCHEMA_LETTERS),
        mode=mode,
        keys=tuple(text_list(fields["keys"], "table.keys", MAX_KEYS)),
        sequence_column=optional(short_text, fields["sequence_column"], "table.sequence_column"),
        op_column=optional(short_text, fields["op_column"], "table.op_column"),
        routed=flag(fields["routed"], "table.routed"),
        partitions=whole(fields["partitions"], "table.partitions", 0, MAX_PARTITIONS),
        vnodes=whole(fields["vnodes"], "table.vnodes", 0, MAX_PARTITIONS),
        replaces=flag(fields["replaces"], "table.replaces"),
        lineage=None if lineage is None else decode_lineage(lineage),
    )


def encode_lineage(lineage: Lineage) -> dict[str, Any]:
    """The stored form of a table's lineage."""
    before = None if lineage.before is None else _encode_position(lineage.before)
    return {**_encode_position(lineage.position), "before": before}


def decode_lineage(value: Any) -> Lineage:
    """Read ``encode_lineage`` back."""
    fields = record(value, "table.lineage", (*_POSITION_FIELDS, "before"))
    position = _decode_position({name: fields[name] for name in _POSITION_FIELDS})
    before = fields["before"]
    return Lineage(position, None if before is None else _decode_position(before))


def encode_state(state: StateRecord) -> dict[str, Any]:
    """The stored form of a state's record; its batch is the manifest's."""
    return {
        "stores": [[store.operator, store.name, store.partitions] for store in state.stores],
        "modified_ms": dict(state.modified_ms),
    }


def decode_state(value: Any, batch_id: int | None) -> StateRecord:
    """Read ``encode_state`` back; ``batch_id`` is the manifest's, without which there is no state."""
    fields = record(value, "state", ("stores", "modified_ms"))
    if batch_id is None:
        raise bad_field("state", "belongs to no batch: batch_id is null")
    stores = []
    for row in items(fields["stores"], "state.stores", MAX_STORES):
        if len(items(row, "state.stores")) != 3:
            raise bad_field("state.stores", "has a row of another length")
        operator, name, partitions = row
        stores.append(
            DeclaredStore(
                whole(operator, "state.stores", 0, MAX_PARTITIONS),
                short_text(name, "state.stores"),
                whole(partitions, "state.stores", 0, MAX_PARTITIONS),
            )
        )
    if len({(store.operator, store.name) for store in stores}) != len(stores):
        raise bad_field("state.stores", "declares a store twice")
    times = {
        short_text(path, "state.modified_ms"): whole(ms, "state.modified_ms")
        for path, ms in mapping(fields["modified_ms"], "state.modified_ms").items()
    }
    return StateRecord(batch_id, tuple(stores), times)


def encode_sink(sink: SinkRecord) -> dict[str, Any]:
    """The stored form of a sink's record."""
    return {
        "kind": sink.kind,
        "target": sink.target,
        "application_id": sink.application_id,
        "batch_id": sink.batch_id,
        "native_version": sink.native_version,
        "location": sink.location,
    }


def decode_sinks(value: Any) -> tuple[SinkRecord, ...]:
    """Read the records of a manifest's sinks."""
    return tuple(_decode_sink(one) for one in items(value, "sinks", MAX_SINKS))


def encode_planned(planned: PlannedBatch) -> dict[str, Any]:
    """The stored form of a batch that is planned."""
    return {"batch_id": planned.batch_id, "files": list(planned.files)}


def decode_planned(value: Any) -> PlannedBatch:
    """Read ``encode_planned`` back."""
    fields = record(value, "planned", ("batch_id", "files"))
    names = text_list(fields["files"], "planned.files", MAX_PLANNED_FILES)
    if len(set(names)) != len(names):
        raise bad_field("planned.files", "has a name twice")
    return PlannedBatch(whole(fields["batch_id"], "planned.batch_id"), tuple(names))


def _encode_position(position: FeedPosition) -> dict[str, Any]:
    return {
        "checkpoint_id": position.checkpoint_id,
        "epoch": position.epoch,
        "digest": position.lineage,
    }


def _decode_position(value: Any) -> FeedPosition:
    fields = record(value, "table.lineage", _POSITION_FIELDS)
    return FeedPosition(
        whole(fields["checkpoint_id"], "table.lineage", 1),
        whole(fields["epoch"], "table.lineage"),
        text(fields["digest"], "table.lineage", 64),
    )


def _decode_sink(value: Any) -> SinkRecord:
    fields = record(value, "sinks", _SINK_FIELDS)
    kind = text(fields["kind"], "sinks")
    if _SINK_KIND.match(kind) is None:
        raise bad_field("sinks", "has a kind that is no word of small letters")
    return SinkRecord(
        kind,
        short_text(fields["target"], "sinks"),
        short_text(fields["application_id"], "sinks"),
        optional(whole, fields["batch_id"], "sinks"),
        short_text(fields["native_version"], "sinks"),
        short_text(fields["location"], "sinks"),
    )
