"""Manifests as bytes and back. Tables of objects and data keys keep a large manifest small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.artifact import Tables, decode_artifact, encode_artifact
from pyspark_checkpoint.format.envelope import Mac, check_version, decode_sealed, encode_sealed, plain_only
from pyspark_checkpoint.format.fields import (
    bad_field,
    items,
    mapping,
    optional,
    record,
    short_text,
    signed_number,
    text_list,
    text_map,
    whole,
)
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
from pyspark_checkpoint.format.manifest_parts import (
    decode_planned,
    decode_sinks,
    decode_state,
    decode_table,
    encode_planned,
    encode_sink,
    encode_state,
    encode_table,
)
from pyspark_checkpoint.format.settled import decode_list_ref, encode_list_ref

_PLAIN: Mapping[str, Callable[[Any, str], Any]] = {
    "checkpoint_id": whole,
    "epoch": whole,
    "batch_id": partial(optional, whole),
    "version": whole,
    "timestamp_ms": whole,
    "commit_nonce": short_text,
    "attempt": short_text,
    "parent_id": whole,
    "parent_sha256": short_text,
    "generation": whole,
    "run_id": short_text,
    "instance_id": short_text,
    "table_store_checkpoint_path": partial(optional, short_text),
    "batch_watermark_ms": partial(optional, signed_number),
    "next_watermark_ms": partial(optional, signed_number),
    "pipeline_hash": partial(optional, whole),
    "vnode_count": whole,
    "partition_count": whole,
    "share": partial(optional, short_text),
    "assignment_version": partial(optional, whole),
    "encryption_key_id": partial(optional, short_text),
    "state_checksum": partial(optional, short_text),
    "rollback_of": partial(optional, whole),
    "deleted_sha256": partial(optional, short_text),
}
"""The fields that are stored as they are, and what each may hold."""
_OPERATOR_FIELDS = {"kind", "partitions", "total_bytes"}
_QUERY_TEXTS = ("id", "name", "checkpoint_location", "spark_version", "app_name")
_REQUEST_FIELDS = ("puts", "gets", "bytes")


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
        name: {"kind": operator["kind"], "partitions": [], "total_bytes": 0}
        for name, operator in fields["operators"].items()
    }
    _from_fields({**fields, "operators": bare, "files": [], "total_size_bytes": 0})
    for operator in fields["operators"].values():
        for number, _ in operator["partitions"]:
            whole(number, "operators")


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
        "rollbacks": [list(pair) for pair in manifest.rollbacks],
        "sink_epochs": dict(manifest.sink_epochs),
        "vnodes": None if manifest.vnodes is None else list(manifest.vnodes),
        "sinks": [encode_sink(sink) for sink in manifest.sinks],
        "table": None if manifest.table is None else encode_table(manifest.table),
        "state": None if manifest.state is None else encode_state(manifest.state),
        "planned": None if manifest.planned is None else encode_planned(manifest.planned),
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
        raise FormatError(f"{name}: {error.message}", hint=error.own_hint) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{name} lacks a field, or has one of another type") from None


def _from_fields(fields: dict[str, Any]) -> CheckpointManifest:
    record(fields, "manifest", _FIELDS)
    plain = {name: check(fields[name], name) for name, check in _PLAIN.items()}
    objects = [check_artifact_path(path) for path in text_list(fields["objects"], "objects")]
    data_keys = text_list(fields["data_keys"], "data_keys")
    vnodes, table, state, planned = (fields[name] for name in ("vnodes", "table", "state", "planned"))
    manifest = CheckpointManifest(
        **plain,
        kind=_decode_kind(fields["kind"]),
        query=decode_query(fields["query"]),
        operators={
            name: _decode_operator(operator, objects, data_keys)
            for name, operator in mapping(fields["operators"], "operators").items()
        },
        files=tuple(decode_artifact(row, objects, data_keys) for row in items(fields["files"], "files")),
        source_offsets=_decode_connectors(fields["source_offsets"], "source_offsets"),
        table_offsets=_decode_connectors(fields["table_offsets"], "table_offsets"),
        source_names=tuple(text_list(fields["source_names"], "source_names")),
        source_watermarks=_decode_numbers(fields["source_watermarks"], "source_watermarks", signed_number),
        sink_names=tuple(text_list(fields["sink_names"], "sink_names")),
        earlier_runs=tuple(text_list(fields["earlier_runs"], "earlier_runs")),
        rollbacks=tuple(_decode_rollback(row) for row in items(fields["rollbacks"], "rollbacks", 64)),
        sink_epochs=_decode_numbers(fields["sink_epochs"], "sink_epochs", whole),
        sinks=decode_sinks(fields["sinks"]),
        vnodes=None if vnodes is None else tuple(whole(one, "vnodes") for one in items(vnodes, "vnodes")),
        table=None if table is None else decode_table(table),
        state=None if state is None else decode_state(state, plain["batch_id"]),
        planned=None if planned is None else decode_planned(planned),
        requests=decode_requests(fields["requests"]),
    )
    if fields["total_size_bytes"] != manifest.total_size_bytes:
        raise FormatError("total_size_bytes is not the sum of its artifacts")
    return manifest


def _decode_rollback(row: Any) -> tuple[int, int]:
    number, batch_id = items(row, "rollbacks", 2)
    return whole(number, "rollbacks"), whole(batch_id, "rollbacks")


def _encode_operator(operator: OperatorSnapshotEntry, tables: Tables) -> dict[str, Any]:
    partitions = [
        [part.partition_id, [encode_artifact(ref, tables) for ref in part.artifacts]]
        for part in operator.partitions
    ]
    fields = {"kind": operator.kind, "partitions": partitions, "total_bytes": operator.total_bytes}
    if operator.settled:
        fields["settled"] = [encode_list_ref(ref, tables) for ref in operator.settled]
    return fields


def _decode_operator(fields: Any, objects: list[str], data_keys: list[str]) -> OperatorSnapshotEntry:
    if fields.keys() - {"settled"} != _OPERATOR_FIELDS:
        raise bad_field("operators", "has an entry that lacks a field, or has an unknown one")
    partitions = tuple(
        PartitionSnapshotEntry(
            whole(number, "operators"), tuple(decode_artifact(row, objects, data_keys) for row in rows)
        )
        for number, rows in fields["partitions"]
    )
    settled = tuple(decode_list_ref(row, objects) for row in fields.get("settled", ()))
    entry = OperatorSnapshotEntry(partitions, short_text(fields["kind"], "operators"), settled)
    if whole(fields["total_bytes"], "operators") != entry.total_bytes:
        raise bad_field("operators", "has total_bytes that are not the sum of its artifacts")
    return entry


def _decode_kind(value: Any) -> ManifestKind:
    try:
        return ManifestKind(short_text(value, "kind"))
    except ValueError:
        raise bad_field("kind", f"is {value[:40]!r}, which this version does not know") from None


def decode_query(value: Any) -> QueryInfo:
    """Read what a manifest says of its query."""
    fields = record(value, "query", (*_QUERY_TEXTS, "conf"))
    texts = {name: short_text(fields[name], f"query.{name}") for name in _QUERY_TEXTS}
    return QueryInfo(**texts, conf=text_map(fields["conf"], "query.conf"))


def decode_requests(value: Any) -> RequestCount:
    """Read what a manifest says that it cost."""
    fields = record(value, "requests", _REQUEST_FIELDS)
    return RequestCount(**_decode_numbers(fields, "requests", whole))


def _encode_connectors(connectors: Mapping[str, ConnectorCheckpoint]) -> dict[str, Any]:
    return {
        name: {"offsets": dict(c.offsets), "epoch": c.epoch, "metadata": dict(c.metadata)}
        for name, c in connectors.items()
    }


def _decode_connectors(value: Any, name: str) -> dict[str, ConnectorCheckpoint]:
    found = {}
    for source, one in mapping(value, name).items():
        fields = record(one, name, ("offsets", "epoch", "metadata"))
        found[source] = ConnectorCheckpoint(
            text_map(fields["offsets"], name),
            whole(fields["epoch"], name),
            text_map(fields["metadata"], name),
        )
    return found


def _decode_numbers(value: Any, name: str, check: Callable[[Any, str], int]) -> dict[str, int]:
    return {key: check(one, name) for key, one in mapping(value, name).items()}


_FIELDS = tuple(manifest_fields(CheckpointManifest.new(1, 0)))
