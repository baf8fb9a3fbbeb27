"""Captures that fail, recorded in the store itself, so that whoever watches it from elsewhere sees them.

Best effort: a store that accepts no checkpoint may accept no such record either; then the age of the newest
checkpoint shows it. A record is removed by the next capture that works.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import decode_record, encode_record
from pyspark_checkpoint.history.manifest_reader import find_record
from pyspark_checkpoint.store.base import ObjectStore

HEALTH_PREFIX = "health/"
_MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """Why the captures of a query fail, and since when."""

    query_id: str
    message: str
    since_ms: int


def health_key(query_id: str) -> str:
    """Where a query's record is, below the URL that queries share."""
    return f"{HEALTH_PREFIX}{query_id}.json"


def put_health(parent: ObjectStore, record: HealthRecord) -> None:
    """Record why captures fail; what was recorded before is replaced."""
    fields = asdict(replace(record, message=record.message[:_MAX_MESSAGE]))
    parent.put(health_key(record.query_id), encode_record(fields))


def clear_health(parent: ObjectStore, query_id: str) -> None:
    """Captures work."""
    parent.delete([health_key(query_id)])


def find_health(parent: ObjectStore, query_id: str) -> HealthRecord | None:
    """Why a query's captures fail; None if nothing says that they do."""
    key = health_key(query_id)
    data = find_record(parent, key)
    if data is None:
        return None
    fields = decode_record(data, key)
    try:
        return HealthRecord(str(fields["query_id"]), str(fields["message"]), int(fields["since_ms"]))
    except (KeyError, TypeError, ValueError):
        raise FormatError(
            f"{key} lacks a field, or has one of another type",
            hint="remove it: the next capture that fails writes a new one",
        ) from None
