"""Manifests as bytes and back. Tables of objects and data keys keep a large manifest small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.artifact import Tables, decode_artifact, encode_artifact
from pyspark_checkpoint.format.envelope import Mac, check_version, decode_sealed, encode_sealed, plain_only
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
from pyspark_checkpoint.format.settled import decode_list_ref, encode_list_ref

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
    """Return the bytes of a manifest; equal manifests give equal bytes.

    ``RefusedError`` for a manifest that could not be read back: a value of another type, a digest or a
    path that no reader would accept. Such bytes, once committed, would be a head that nobody can read.
    """
    try:
        fields = manifest_fields(manifest)
        _check_readable(fields)
        return encode_sealed(fields, mac=mac)
    except FormatError as error:
        reason = error.message
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error)
    raise RefusedError(
        f"checkpoint {manifest.checkpoint_id} has a value that no manifest can hold: {reason}",
        hint="nothing was written; a manifest has whole numbers, texts and digests where it says so",
    )


def _check_readable(fields: dict[str, Any]) -> None:
    """Read the fields back, all but the rows of artifacts, which ``encode_artifact`` has checked."""
    bare = {
        name: {**operator, "partitions": [], "settled": []}
        for name, operator in fields["operators"].items()
    }
    _from_fields({**fields, "operators": bare, "files": [], "total_size_bytes": 0})
    for operator in fields["operators"].values():
        for number, _ in operator["partitions"]:
            _whole(number)


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
    """Read a manifest back; ``name`` is its key, for the error.

    With ``plain_only`` for ``mac`` one that is encrypted, or names anything encrypted, is damage.
    """
    fields = decode_sealed(data, name, mac=mac)
    check_version(fields, name)
    if mac is plain_only and (fields.get("encryption_key_id") is not None or fields.get("data_keys")):
        raise FormatError(
            f"{name} is encrypted, but the key that authenticates it is gone from the store",
            hint="ckpt verify names the record below keys/ that is gone; restore it from a copy",
        )
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
    vnodes = fields["vnodes"]
    manifest = CheckpointManifest(
        **plain,
        kind=ManifestKind(fields["kind"]),
        query=_decode_query(fields["query"]),
        operators={
            name: _decode_operator(operator, objects, data_keys)
            for name, operator in fields["operators"].items()
        },
        files=tuple(decode_artifact(row, objects, data_keys) for row in fields["files"]),
        source_offsets=_decode_connectors(fields["source_offsets"]),
        table_offsets=_decode_connectors(fields["table_offsets"]),
        source_names=tuple(_strings(fields["source_names"])),
        source_watermarks={name: _whole(value) for name, value in fields["source_watermarks"].items()},
        sink_names=tuple(_strings(fields["sink_names"])),
        earlier_runs=tuple(_strings(fields["earlier_runs"])),
        sink_epochs={name: _whole(value) for name, value in fields["sink_epochs"].items()},
        vnodes=None if vnodes is None else tuple(_whole(vnode) for vnode in vnodes),
        table=_table(fields["table"]),
        requests=RequestCount(**{name: _whole(value) for name, value in fields["requests"].items()}),
    )
    if fields["total_size_bytes"] != manifest.total_size_bytes:
        raise FormatError("total_size_bytes is not the sum of its artifacts")
    return manifest


def _encode_operator(operator: OperatorSnapshotEntry, tables: Tables) -> dict[str, Any]:
    partitions = [
        [part.partition_id, [encode_artifact(ref, tables) for ref in part.artifacts]]
        for part in operator.partitions
    ]
    fields = {"kind": operator.kind, "partitions": partitions, "total_bytes": operator.total_bytes}
    if operator.settled:
        fields["settled"] = [encode_list_ref(ref, tables) for ref in operator.settled]
    return fields


def _decode_operator(
    fields: Mapping[str, Any], objects: list[str], data_keys: list[str]
) -> OperatorSnapshotEntry:
    partitions = tuple(
        PartitionSnapshotEntry(
            _whole(number), tuple(decode_artifact(row, objects, data_keys) for row in rows)
        )
        for number, rows in fields["partitions"]
    )
    settled = tuple(decode_list_ref(row, objects) for row in fields.get("settled", ()))
    return OperatorSnapshotEntry(partitions, _text(fields["kind"]), settled)


def _decode_query(fields: Mapping[str, Any]) -> QueryInfo:
    texts = {name: _text(value) for name, value in fields.items() if name != "conf"}
    return QueryInfo(**texts, conf=_texts(fields["conf"]))


def _encode_connectors(connectors: Mapping[str, ConnectorCheckpoint]) -> dict[str, Any]:
    return {
        name: {"offsets": dict(c.offsets), "epoch": c.epoch, "metadata": dict(c.metadata)}
        for name, c in connectors.items()
    }


def _decode_connectors(fields: Mapping[str, Any]) -> dict[str, ConnectorCheckpoint]:
    return {
        name: ConnectorCheckpoint(
            _texts(connector["offsets"]), _whole(connector["epoch"]), _texts(connector["metadata"])
        )
        for name, connector in fields.items()
    }


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise FormatError("a number is something else")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise FormatError("a text is something else")
    return value


def _texts(values: Any) -> dict[str, str]:
    if type(values) is not dict or any(type(value) is not str for value in values.values()):
        raise FormatError("a mapping of texts has something else in it")
    return values


def _strings(values: Any) -> list[str]:
    if not isinstance(values, list) or any(type(v) is not str for v in values):
        raise FormatError("a list of names has something else in it")
    return values


def _table(value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise FormatError("field table has another type")
    return value
