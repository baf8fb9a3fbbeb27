"""Spark's small files as values: offsets, commits, the query's id, operator metadata, schemas. Pure.

``state/op/0/_metadata/schema`` is written by Java's DataOutputStream: a version, then the key's and the
value's schema as JSON, whole in version 1 and in counted pieces in version 2.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from pyspark_checkpoint.errors import FormatError

TORN_LOG = "Spark cannot read it either: restore the checkpoint location with ckpt restore"
NO_OFFSET = "-"
DEFAULT_FAMILY = "default"
MAX_ZIP_METADATA_BYTES = 64 * 1024 * 1024
"""What a snapshot of RocksDB may say of its files: enough for half a million of them."""
_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """``offsets/N``: where batch N ends in every source, and the settings that the query is pinned to."""

    watermark_ms: int
    timestamp_ms: int
    conf: Mapping[str, str]
    offsets: tuple[str | None, ...]
    """The JSON text of each source's end offset, in the order of the sources; None where it has none."""
    names: tuple[str, ...] = ()
    """The sources' names, in the same order, where the query names them (version 2 of the log)."""


@dataclass(frozen=True, slots=True)
class CommitLog:
    """``commits/N``: batch N is done. In format version 2 it names the state files that count."""

    next_watermark_ms: int
    unique_ids: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """By operator, then by partition: the unique id of each of its stores, at version N + 1."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A state store that an operator declares, and in how many partitions."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """What Spark wrote down about a stateful operator."""

    operator: int
    name: str
    stores: tuple[StoreInfo, ...]
    schema_paths: tuple[str, ...] = ()
    """Where Spark says that the schemas are, absolute; empty for operators of the older metadata."""
    is_single: bool = False
    """Whether all state is in the first partition, although the operator declares more."""


@dataclass(frozen=True, slots=True)
class RocksdbZip:
    """What a snapshot of RocksDB says of itself."""

    files: tuple[str, ...]
    """What it needs beside itself, relative to its state store's directory."""
    families: frozenset[str] = frozenset()
    """Its column families; a store that has only the default one has none here."""


def decode_offset_log(data: bytes, name: str) -> OffsetLog:
    """Read ``offsets/N``."""
    lines = _log_lines(data, name, minimum=2)
    head = _json(lines[1], name)
    names, values = _sources(lines, name)
    offsets = tuple(None if value == NO_OFFSET else value for value in values)
    try:
        conf = {str(k): str(v) for k, v in (head.get("conf") or {}).items()}
        return OffsetLog(int(head["batchWatermarkMs"]), int(head["batchTimestampMs"]), conf, offsets, names)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{name} lacks a field that Spark 4 writes", hint=TORN_LOG) from None


def _sources(lines: Sequence[str], name: str) -> tuple[tuple[str, ...], Sequence[str]]:
    """Version 1 has an offset a line; version 2, of queries that name their sources, ``name:offset``."""
    if lines[0] == "v1":
        return (), lines[2:]
    if lines[0] != "v2":
        raise FormatError(
            f"{name} is of version {lines[0][1:]}", hint="versions 1 and 2 are known; upgrade this package"
        )
    pairs = [line.partition(":") for line in lines[2:]]
    if any(not source or not colon for source, colon, _ in pairs):
        raise FormatError(f"{name} is torn or not a log of Spark", hint=TORN_LOG)
    return tuple(source for source, _, _ in pairs), [value for _, _, value in pairs]


def decode_commit_log(data: bytes, name: str) -> CommitLog:
    """Read ``commits/N``."""
    lines = _log_lines(data, name, minimum=2)
    head = _json(lines[1], name)
    ids = head.get("stateUniqueIds") or {}
    try:
        unique = {
            int(operator): tuple(tuple(str(uid) for uid in stores) for stores in partitions)
            for operator, partitions in ids.items()
        }
        return CommitLog(int(head.get("nextBatchWatermarkMs", 0)), unique)
    except (TypeError, ValueError, AttributeError):
        raise FormatError(f"{name} lacks a field that Spark 4 writes", hint=TORN_LOG) from None


def decode_query_id(data: bytes) -> str:
    """Read the query's id from ``metadata``."""
    query_id = _json(data.decode("utf-8", "replace"), "metadata").get("id")
    if not isinstance(query_id, str) or not query_id:
        raise FormatError("metadata has no query id", hint=TORN_LOG)
    return query_id


def encode_query_id(query_id: str) -> bytes:
    """Write ``metadata`` as Spark does."""
    return orjson.dumps({"id": query_id})


def decode_operator_metadata(data: bytes, name: str) -> OperatorInfo:
    """Read ``state/op/_metadata/metadata`` or a file of ``state/op/_metadata/v2``."""
    lines = _log_lines(data, name, minimum=2)
    fields = _json(lines[1], name)
    try:
        info = fields["operatorInfo"]
        stores = tuple(
            StoreInfo(str(store["storeName"]), int(store["numPartitions"]))
            for store in fields["stateStoreInfo"]
        )
        paths = tuple(
            str(path)
            for store in fields["stateStoreInfo"]
            for path in store.get("stateSchemaFilePaths") or ()
        )
        return OperatorInfo(int(info["operatorId"]), str(info["operatorName"]), stores, paths)
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{name} lacks a field that Spark 4 writes", hint=TORN_LOG) from None


def relocate_operator_metadata(data: bytes, name: str, new_location: str) -> bytes:
    """Point the absolute schema paths of operator metadata at a new checkpoint location.

    Spark writes them for operators with named column families (transformWithState, newer joins) and
    fails at another location unless they are rewritten. What stands after ``/state/`` is kept.
    """
    lines = _log_lines(data, name, minimum=2)
    fields = _json(lines[1], name)
    for store in fields.get("stateStoreInfo", []):
        paths = store.get("stateSchemaFilePaths")
        if paths:
            store["stateSchemaFilePaths"] = [_relocated(path, new_location, name) for path in paths]
    rest = lines[2:]
    return "\n".join([lines[0], orjson.dumps(fields).decode("utf-8"), *rest]).encode("utf-8")


def decode_rocksdb_zip(data: bytes, name: str) -> RocksdbZip:
    """Read what a snapshot of RocksDB says of itself."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("metadata") as member:
            content = member.read(MAX_ZIP_METADATA_BYTES + 1)
            if len(content) > MAX_ZIP_METADATA_BYTES:
                raise FormatError(
                    f"{name} has over {MAX_ZIP_METADATA_BYTES} bytes to say of its files", hint=TORN_LOG
                )
            text = content.decode("utf-8")
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, UnicodeDecodeError):
        raise FormatError(f"{name} is not a snapshot of RocksDB that Spark wrote", hint=TORN_LOG) from None
    lines = _log_lines(text.encode("utf-8"), name, minimum=2)
    fields = _json(lines[1], name)
    try:
        tables = [f"SSTs/{file['dfsSstFileName']}" for file in fields["sstFiles"]]
        logs = [f"logs/{file['dfsLogFileName']}" for file in fields.get("logFiles") or []]
        families = frozenset(str(family) for family in fields.get("columnFamilyMapping") or {})
    except (KeyError, TypeError):
        raise FormatError(f"{name} names its files in a way that Spark 4 does not", hint=TORN_LOG) from None
    for file in (*tables, *logs):
        if file.count("/") != 1 or file.endswith("/") or ".." in file:
            raise FormatError(f"{name} names {file!r}, which is not beside it", hint=TORN_LOG)
    return RocksdbZip(tuple(sorted(tables + logs)), families - {DEFAULT_FAMILY})


def file_source_offset(offset: str | None) -> int | None:
    """The last entry of a file source's log that an offset includes; None for other kinds of source."""
    if offset is None:
        return None
    try:
        fields = orjson.loads(offset)
    except orjson.JSONDecodeError:
        return None
    value = fields.get("logOffset") if isinstance(fields, dict) else None
    return value if type(value) is int else None


def _relocated(path: str, new_location: str, name: str) -> str:
    head, found, tail = path.rpartition("/state/")
    if not found or not head or ".." in tail:
        raise FormatError(
            f"{name} names the schema {path!r}, which is not below a checkpoint location", hint=TORN_LOG
        )
    return f"{new_location.rstrip('/')}/state/{tail}"


def _log_lines(data: bytes, name: str, minimum: int) -> Sequence[str]:
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise FormatError(f"{name} is not text", hint=TORN_LOG) from None
    if len(lines) < minimum or not lines[0].startswith("v") or not lines[0][1:].isdigit():
        raise FormatError(f"{name} is torn or not a log of Spark", hint=TORN_LOG)
    return lines


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise FormatError(f"{name} is torn or not a log of Spark", hint=TORN_LOG) from None
    if not isinstance(fields, dict):
        raise FormatError(f"{name} is not a log of Spark", hint=TORN_LOG)
    return fields


def is_keyless(data: bytes, name: str) -> bool:
    """Whether a store's key has no column: a global aggregation, which fills its first partition only."""
    version, rest = _text(data, name)
    if version == "v1":
        key, _ = _text(rest, name)
    elif version == "v2":
        key = _pieces(rest, name)
    else:
        return False
    try:
        return bool(orjson.loads(key)["fields"] == [])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise FormatError(f"{name} is not a schema that Spark 4 writes", hint=TORN_LOG) from None


def _pieces(data: bytes, name: str) -> str:
    if len(data) < _INT.size:
        raise FormatError(f"{name} is cut short", hint=TORN_LOG)
    count, rest = _INT.unpack_from(data)[0], data[_INT.size :]
    pieces = []
    for _ in range(count):
        piece, rest = _text(rest, name)
        pieces.append(piece)
    return "".join(pieces)


def _text(data: bytes, name: str) -> tuple[str, bytes]:
    if len(data) < _SHORT.size:
        raise FormatError(f"{name} is cut short", hint=TORN_LOG)
    end = _SHORT.size + _SHORT.unpack_from(data)[0]
    if len(data) < end:
        raise FormatError(f"{name} is cut short", hint=TORN_LOG)
    return data[_SHORT.size : end].decode("utf-8", "replace"), data[end:]
