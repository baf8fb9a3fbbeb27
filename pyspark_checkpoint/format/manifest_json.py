"""Manifests as bytes and back. Tables of objects and data keys keep a large manifest small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import Tables, decode_artifact, encode_artifact
from pyspark_checkpoint.format.keys import check_artifact_path
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    ManifestKind,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
    RequestCount,
)
from pyspark_checkpoint.format.sealed import Mac, check_version, decode_sealed, encode_sealed

_PLAIN = (
    "checkpoint_id",
    "epoch",
    "version",
    "timestamp_ms",
    "commit_nonce",
    "attempt",
    "parent_id",
    "parent_sha256",
    "generation",
    "run_id",
    "instance_id",
    "table_store_checkpoint_path",
    "watermark",
    "pipeline_hash",
    "vnode_count",
    "partition_count",
    "encryption_key_id",
    "state_checksum",
    "rollback_of",
    "deleted_sha256",
)
_PLAIN_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(
        (
            "checkpoint_id",
            "epoch",
            "version",
            "timestamp_ms",
            "parent_id",
            "generation",
            "vnode_count",
            "partition_count",
        ),
        (int,),
    ),
    **dict.fromkeys(
        ("commit_nonce", "attempt", "parent_sha256", "run_id", "instance_id"),
        (str,),
    ),
    **dict.fromkeys(("watermark", "pipeline_hash", "rollback_of"), (int, type(None))),
    **dict.fromkeys(
        ("table_store_checkpoint_path", "encryption_key_id", "state_checksum", "deleted_sha256"),
        (str, type(None)),
    ),
}


def encode_manifest(manifest: CheckpointManifest, *, mac: Mac | None = None) -> bytes:
    """Return the bytes of a manifest; equal manifests give equal bytes."""
    return encode_sealed(manifest_fields(manifest), mac=mac)


def manifest_fields(manifest: CheckpointManifest) -> dict[str, Any]:
    """Return the stored fields of a manifest, as ``ckpt show --json`` prints them."""
    tables = Tables()
    operators = {name: _encode_operator(op, tables) for name, op in sorted(manifest.operators.items())}
    files = [encode_artifact(ref, tables) for ref in manifest.files]
    fields: dict[str, Any] = {name: getattr(manifest, name) for name in _PLAIN}
    fields |= {
        "kind": manifest.kind.value,
        "query": {
            "id": manifest.query.id,
            "name": manifest.query.name,
            "checkpoint_location": manifest.query.checkpoint_location,
            "spark_version": manifest.query.spark_version,
            "app_name": manifest.query.app_name,
            "conf": dict(manifest.query.conf),
        },
        "operators": operators,
        "files": files,
        "objects": tables.objects(),
        "data_keys": tables.data_keys(),
        "source_offsets": _encode_connectors(manifest.source_offsets),
        "table_offsets": _encode_connectors(manifest.table_offsets),
        "source_names": list(manifest.source_names),
        "source_watermarks": dict(manifest.source_watermarks),
        "sink_names": list(manifest.sink_names),
        "earlier_runs": list(manifest.earlier_runs),
        "sink_epochs": dict(manifest.sink_epochs),
        "vnodes": None if manifest.vnodes is None else list(manifest.vnodes),
        "table": None if manifest.table is None else dict(manifest.table),
        "total_size_bytes": manifest.total_size_bytes,
        "requests": {
            "puts": manifest.requests.puts,
            "gets": manifest.requests.gets,
            "bytes": manifest.requests.bytes,
        },
    }
    return fields


def decode_manifest(data: bytes, name: str, *, mac: Mac | None = None) -> CheckpointManifest:
    """Read a manifest back; ``name`` is its key, for the error."""
    fields = decode_sealed(data, name, mac=mac)
    check_version(fields, name)
    try:
        return _from_fields(fields)
    except FormatError as error:
        raise FormatError(f"{name}: {error.message}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{name} lacks a field, or has one of another type") from None


def _from_fields(fields: dict[str, Any]) -> CheckpointManifest:
    plain = {name: fields[name] for name in _PLAIN}
    for name, value in plain.items():
        if type(value) not in _PLAIN_TYPES[name]:
            raise FormatError(f"field {name} has another type")
    objects = [check_artifact_path(path) for path in _strings(fields["objects"])]
    data_keys = _strings(fields["data_keys"])
    vnodes, table = fields["vnodes"], fields["table"]
    if table is not None and not isinstance(table, dict):
        raise FormatError("field table has another type")
    manifest = CheckpointManifest(
        **plain,
        kind=ManifestKind(fields["kind"]),
        query=QueryInfo(**fields["query"]),
        operators={
            name: _decode_operator(operator, objects, data_keys)
            for name, operator in fields["operators"].items()
        },
        files=tuple(decode_artifact(row, objects, data_keys) for row in fields["files"]),
        source_offsets=_decode_connectors(fields["source_offsets"]),
        table_offsets=_decode_connectors(fields["table_offsets"]),
        source_names=tuple(_strings(fields["source_names"])),
        source_watermarks={str(k): int(v) for k, v in fields["source_watermarks"].items()},
        sink_names=tuple(_strings(fields["sink_names"])),
        earlier_runs=tuple(_strings(fields["earlier_runs"])),
        sink_epochs={str(k): int(v) for k, v in fields["sink_epochs"].items()},
        vnodes=None if vnodes is None else tuple(int(v) for v in vnodes),
        table=_table(fields["table"]),
        requests=RequestCount(**fields["requests"]),
    )
    if fields["total_size_bytes"] != manifest.total_size_bytes:
        raise FormatError("total_size_bytes is not the sum of its artifacts")
    return manifest


def _encode_operator(operator: OperatorSnapshotEntry, tables: Tables) -> dict[str, Any]:
    partitions = [
        [part.partition_id, [encode_artifact(ref, tables) for ref in part.artifacts]]
        for part in operator.partitions
    ]
    return {"kind": operator.kind, "partitions": partitions, "total_bytes": operator.total_bytes}


def _decode_operator(
    fields: Mapping[str, Any], objects: list[str], data_keys: list[str]
) -> OperatorSnapshotEntry:
    partitions = tuple(
        PartitionSnapshotEntry(int(number), tuple(decode_artifact(row, objects, data_keys) for row in rows))
        for number, rows in fields["partitions"]
    )
    return OperatorSnapshotEntry(partitions, str(fields["kind"]))


def _encode_connectors(connectors: Mapping[str, ConnectorCheckpoint]) -> dict[str, Any]:
    return {
        name: {"offsets": dict(c.offsets), "epoch": c.epoch, "metadata": dict(c.metadata)}
        for name, c in connectors.items()
    }


def _decode_connectors(fields: Mapping[str, Any]) -> dict[str, ConnectorCheckpoint]:
    return {name: ConnectorCheckpoint(**connector) for name, connector in fields.items()}


def _strings(values: Any) -> list[str]:
    if not isinstance(values, list) or any(type(v) is not str for v in values):
        raise FormatError("a list of names has something else in it")
    return values


def _table(value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise FormatError("field table has another type")
    return value
