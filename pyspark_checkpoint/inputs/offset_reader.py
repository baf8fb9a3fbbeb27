"""What the offset of a source says: which kind of source it is, and where it stands. Pure.

Offsets are JSON texts that connectors wrote and a checkpoint repeats. Nothing in them is trusted: what has
not exactly the known form is of no known kind.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_OFFSET_LETTERS = 16 << 20
_LONG = 2**63
_MAX_PLACE = 2_000
_BRACKETS = re.compile(r"(\w+)\[(.*)\]\Z", re.DOTALL)


class InputKind(enum.Enum):
    """What a query reads from."""

    KAFKA = "kafka"
    DELTA = "delta"
    ICEBERG = "iceberg"
    FILE = "file"
    CKPT_SINK = "ckpt-sink"
    RATE = "rate"
    MEMORY = "memory"
    SOCKET = "socket"
    OTHER = "other"


class InputState(enum.Enum):
    """What is known of the rows after a checkpoint."""

    KEPT = "kept"
    """The source has them."""
    LOST = "lost"
    """The source had them, or should, and has them no longer."""
    NOT_KEPT = "not kept"
    """This kind of source keeps no row once it has given it."""
    UNKNOWN = "unknown"
    """The source could not be asked."""


@dataclass(frozen=True, slots=True)
class InputOffset:
    """Where a source stands after a checkpoint's batch.

    Attributes:
        kind: The kind of source that writes offsets like this one.
        fields: The offset's own fields, checked for the kind; for Kafka the offset of every partition by
            topic and number.
        place: Where the source is, as far as Spark's description of it says; it may be false.
    """

    kind: InputKind
    fields: Mapping[Any, int]
    place: str = ""


@dataclass(frozen=True, slots=True)
class InputFinding:
    """What is known of one source. ``reason`` is a sentence for people, without credentials."""

    source: str
    kind: InputKind
    state: InputState
    reason: str
    place: str = ""

    def __str__(self) -> str:
        place = f" {self.place}" if self.place else ""
        return f"{self.source} ({self.kind.value}{place}): {self.state.value}: {self.reason}"


def read_offset(text: str, description: str = "") -> InputOffset:
    """Say which kind of source wrote an offset. One that has no known form is of kind ``OTHER``."""
    found = _BRACKETS.search(description)
    kind_name, place = (found[1], found[2][:_MAX_PLACE]) if found else (description, "")
    try:
        value = orjson.loads(text) if len(text) <= MAX_OFFSET_LETTERS else None
    except orjson.JSONDecodeError:
        value = None
    if _is_whole(value):
        for prefix, counted in _COUNTED.items():
            if kind_name.startswith(prefix):
                return InputOffset(counted, {}, place)
    elif isinstance(value, dict):
        for kind, names in _FORMS.items():
            if all(_is_whole(value.get(name)) for name in names):
                fields = {name: int(field) for name, field in value.items() if _is_number(field)}
                return InputOffset(kind, fields, place)
        if kind_name.startswith("RatePerMicroBatch"):
            return InputOffset(InputKind.RATE, {}, place)
        partitions = _kafka_partitions(value)
        if partitions is not None and (partitions or kind_name.startswith("Kafka")):
            return InputOffset(InputKind.KAFKA, partitions, place)
    return InputOffset(InputKind.OTHER, {}, place)


_COUNTED = {
    "RateStream": InputKind.RATE,
    "MemoryStream": InputKind.MEMORY,
    "TextSocket": InputKind.SOCKET,
}
"""Sources whose offset is a number, by how Spark describes them."""
_FORMS: Mapping[InputKind, tuple[str, ...]] = {
    InputKind.FILE: ("logOffset",),
    InputKind.DELTA: ("reservoirVersion", "index"),
    InputKind.ICEBERG: ("snapshot_id", "position"),
    InputKind.CKPT_SINK: ("checkpoint_id", "epoch"),
}


def _kafka_partitions(value: dict[str, Any]) -> dict[Any, int] | None:
    found = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            return None
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdigit() and len(number) < 10 and _is_whole(offset)):
                return None
            found[topic, int(number)] = offset
    return found


def _is_whole(value: object) -> bool:
    return type(value) is int and -_LONG <= value < _LONG


def _is_number(value: object) -> bool:
    return isinstance(value, bool) or _is_whole(value)
