"""Captures that fail, told in the store itself, so that whoever watches it from elsewhere sees them.

Best effort: a store that takes no checkpoint may take no such record either; then the age of the newest
checkpoint tells. A record is removed by the next capture that works.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError, NotFound
from pyspark_checkpoint.format.envelope import FORMAT_VERSION, check_version, decode_sealed, encode_sealed
from pyspark_checkpoint.store.base import ObjectStore

TROUBLE_PREFIX = "health/"
_MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the captures of a query fail, and since when."""

    query_id: str
    message: str
    since_ms: int


def trouble_key(query_id: str) -> str:
    """Where a query's record is, below the URL that queries share."""
    return f"{TROUBLE_PREFIX}{query_id}.json"


def put_trouble(parent: ObjectStore, trouble: Trouble) -> None:
    """Record why captures fail; what was recorded before is replaced."""
    fields = {
        "version": FORMAT_VERSION,
        "query_id": trouble.query_id,
        "message": trouble.message[:_MAX_MESSAGE],
        "since_ms": trouble.since_ms,
    }
    parent.put(trouble_key(trouble.query_id), encode_sealed(fields))


def clear_trouble(parent: ObjectStore, query_id: str) -> None:
    """Captures work."""
    parent.delete([trouble_key(query_id)])


def find_trouble(parent: ObjectStore, query_id: str) -> Trouble | None:
    """Why a query's captures fail; None if nothing says that they do."""
    key = trouble_key(query_id)
    try:
        fields = decode_sealed(parent.get(key), key)
    except NotFound:
        return None
    check_version(fields, key)
    try:
        return Trouble(str(fields["query_id"]), str(fields["message"]), int(fields["since_ms"]))
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{key} lacks a field, or has one of another type") from None
