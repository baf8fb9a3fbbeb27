"""The schema of a table: Spark's own JSON, what it is in Arrow, and how it may change.

A schema is kept as the dictionary that Spark's ``StructType.json()`` gives, without the notes that
Spark leaves in a field's metadata for itself. Inside nested types everything is nullable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.table.types import arrow_type, relaxed, type_text, unhashable_field

DELETED_COLUMN = "_ckpt_deleted"
"""The column of a delta that is true for rows that delete their key."""
RESERVED_PREFIX = "_ckpt_"
_KEPT_METADATA = ("__COLLATIONS", "__CHAR_VARCHAR_TYPE_STRING", "comment")


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name, Spark's type of it, and whether it may be null."""

    name: str
    spark_type: Any
    nullable: bool
    metadata: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The field as Spark writes it."""
        return {
            "name": self.name,
            "type": self.spark_type,
            "nullable": self.nullable,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table in their order."""

    fields: tuple[Field, ...]

    @staticmethod
    def from_json(schema: Mapping[str, Any]) -> TableSchema:
        """Read what Spark's ``StructType.json()`` gives, parsed."""
        return TableSchema(tuple(_field(field) for field in schema["fields"]))

    def to_json(self) -> dict[str, Any]:
        """The schema as Spark writes it."""
        return {"type": "struct", "fields": [field.to_json() for field in self.fields]}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in self.fields)

    def field(self, name: str) -> Field:
        """The column ``name``."""
        return next(field for field in self.fields if field.name == name)

    def without(self, names: Sequence[str]) -> TableSchema:
        """The same columns but those."""
        return TableSchema(tuple(field for field in self.fields if field.name not in names))

    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's rows; timestamps are in UTC."""
        return pa.schema(
            [pa.field(f.name, arrow_type(f.spark_type, f.name), nullable=f.nullable) for f in self.fields]
        )

    def text(self) -> str:
        """The schema on one line, for messages."""
        return ", ".join(
            f"{f.name} {type_text(f.spark_type)}{'' if f.nullable else ' not null'}" for f in self.fields
        )


def _field(field: Mapping[str, Any]) -> Field:
    metadata = {k: v for k, v in (field.get("metadata") or {}).items() if k in _KEPT_METADATA}
    return Field(str(field["name"]), relaxed(field["type"]), bool(field["nullable"]), metadata)


def raw_arrow_schema(schema: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema that Spark expects for exactly this schema, nullability included."""
    return pa.schema(
        [
            pa.field(f["name"], arrow_type(f["type"], f["name"]), nullable=bool(f["nullable"]))
            for f in schema["fields"]
        ]
    )


def check_schema(schema: TableSchema) -> None:
    """Refuse columns that cannot be stored: types without an Arrow form, and names that are ours."""
    if not schema.fields:
        raise RefusedError(
            "a table needs at least one column", hint="select the columns that the table is to have"
        )
    often = Counter(name.lower() for name in schema.names)
    twice = sorted({name for name in schema.names if often[name.lower()] > 1})
    if twice:
        raise RefusedError(
            f"column names differ in upper and lower case only: {', '.join(twice)}",
            hint="rename one of them: most readers do not tell them apart",
        )
    for name in schema.names:
        if name.lower().startswith(RESERVED_PREFIX):
            raise RefusedError(
                f"column {name}: names that begin with {RESERVED_PREFIX} are reserved",
                hint="rename the column",
            )
    schema.arrow()


def check_keys(schema: TableSchema, keys: Sequence[str]) -> None:
    """Refuse key columns whose equality Spark's hash does not define: maps, variants, collations."""
    for name in keys:
        found = unhashable_field(schema.field(name).to_json())
        if found is not None:
            raise RefusedError(
                f"key column {name} is {type_text(schema.field(name).spark_type)}: {found} cannot be one",
                hint="derive a key of a plain type, for example with to_json(...) or cast(... as string)",
            )


def resolve_columns(schema: TableSchema, wanted: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the names as the schema has them; letters may differ in case, as in Spark."""
    by_lower = {name.lower(): name for name in schema.names}
    missing = [name for name in wanted if name.lower() not in by_lower]
    if missing:
        raise SettingsError(
            f"{option}: no column {', '.join(missing)}", hint=f"the columns are {', '.join(schema.names)}"
        )
    found = tuple(by_lower[name.lower()] for name in wanted)
    if len(set(found)) != len(found):
        raise SettingsError(
            f"{option} names a column twice: {', '.join(wanted)}", hint="name each column once"
        )
    return found


def evolve_schema(recorded: TableSchema, incoming: TableSchema) -> TableSchema:
    """Return the schema of a table that goes on with rows of ``incoming``.

    Columns may be added if they are nullable, and a column may become nullable; old rows read as null
    there. Everything else is refused with a message that shows both schemas.
    """
    given = {field.name: field for field in incoming.fields}
    had = set(recorded.names)
    problems = [f"column {name} is gone" for name in recorded.names if name not in given]
    fields: list[Field] = []
    for old in recorded.fields:
        if old.name not in given:
            continue
        new = given[old.name]
        if not same_type(old.spark_type, new.spark_type):
            problems.append(
                f"column {old.name} was {type_text(old.spark_type)} and is {type_text(new.spark_type)}"
            )
        fields.append(Field(old.name, old.spark_type, old.nullable or new.nullable, old.metadata))
    for new in incoming.fields:
        if new.name in had:
            continue
        if not new.nullable:
            problems.append(
                f"column {new.name} is new and not nullable, but older rows have no value for it"
            )
        fields.append(new)
    if problems:
        raise RefusedError(
            f"the schema changed: {'; '.join(problems)}. The table has ({recorded.text()}), "
            f"the query gives ({incoming.text()})",
            hint="a table takes new nullable columns; for anything else write to another path",
        )
    return TableSchema(tuple(fields))


def same_type(one: Any, other: Any) -> bool:
    """Whether two types hold the same values; nullability inside and metadata do not matter."""
    return type_text(one) == type_text(other)
