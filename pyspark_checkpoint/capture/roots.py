"""Where a query's history is below the URL that several queries share.

``{url}/{query id}/`` is a store of its own, and ``{url}/names/{name}.json`` points to the newest query of
that name. So two applications with one query name never share a history, and starting over after
deleting a checkpoint location begins a new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError, NotFound, RefusedError
from pyspark_checkpoint.format.keys import CONTROL_KEY
from pyspark_checkpoint.format.sealed import (
    FORMAT_VERSION,
    check_version,
    decode_sealed,
    encode_sealed,
    sha256_hex,
)
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.open import open_object_store

NAMES_PREFIX = "names/"
HISTORY_OPTIONS = ("encryptionKeyFile",)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_MAX_NAME = 150
_UNSAFE = re.compile(r"[^A-Za-z0-9_=-]")


@dataclass(frozen=True, slots=True)
class QueryRoot:
    """A query that has a history below a URL."""

    name: str
    query_id: str
    app_name: str
    timestamp_ms: int


def plain_options(options: Mapping[str, str] | None) -> dict[str, str]:
    """The options of the store itself, without those of the history in it."""
    return {name: value for name, value in (options or {}).items() if name not in HISTORY_OPTIONS}


def root_url(url: str, query_id: str) -> str:
    """The URL of one query's own store."""
    if _UUID.match(query_id) is None:
        raise RefusedError(f"not a query id: {query_id[:80]!r}")
    return f"{url.rstrip('/')}/{query_id}"


def name_key(name: str) -> str:
    """Where the pointer of a query name is; characters that not every store holds are spelled out."""
    safe = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8")), name)
    if len(safe) > _MAX_NAME:
        safe = f"{safe[:_MAX_NAME]}-{sha256_hex(name.encode('utf-8'))[:32]}"
    return f"{NAMES_PREFIX}{safe}.json"


def register(parent: ObjectStore, root: QueryRoot) -> None:
    """Point a query's name, or its id if it has none, at its newest history."""
    fields = {
        "version": FORMAT_VERSION,
        "name": root.name,
        "query_id": root.query_id,
        "app_name": root.app_name,
        "timestamp_ms": root.timestamp_ms,
    }
    parent.put(name_key(root.name or root.query_id), encode_sealed(fields))


def list_queries(parent: ObjectStore) -> list[QueryRoot]:
    """The queries that have a history below a URL, by name."""
    return [_decode(parent.get(info.key), info.key) for info in parent.list(NAMES_PREFIX)]


def resolve_root(url: str, query: str | None, options: Mapping[str, str] | None = None) -> str:
    """The URL of the history that is meant: ``url`` itself, or the one query below it, or the named one."""
    parent = open_object_store(url, plain_options(options))
    if query is None and _is_history(parent):
        return url
    if query is not None and _UUID.match(query) is not None:
        return root_url(url, query)
    found = list_queries(parent)
    if query is None and len(found) == 1:
        return root_url(url, found[0].query_id)
    if query is not None:
        for root in found:
            if root.name == query:
                return root_url(url, root.query_id)
    if not found:
        raise RefusedError(f"{parent.url} has no checkpoints", hint="look at the URL once more")
    names = ", ".join(sorted(root.name or root.query_id for root in found)[:20])
    raise RefusedError(
        f"{parent.url} holds the histories of several queries" if query is None else f"no query {query!r}",
        hint=f"name one of: {names}",
    )


def _is_history(store: ObjectStore) -> bool:
    try:
        store.head(CONTROL_KEY)
    except NotFound:
        return False
    return True


def _decode(data: bytes, name: str) -> QueryRoot:
    fields = decode_sealed(data, name)
    check_version(fields, name)
    try:
        return QueryRoot(
            str(fields["name"]),
            str(fields["query_id"]),
            str(fields["app_name"]),
            int(fields["timestamp_ms"]),
        )
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{name} lacks a field, or has one of another type") from None
