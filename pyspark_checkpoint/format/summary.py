"""The few fields of a manifest that listing, pruning and cleaning up need, read without the rest.

A large manifest has thousands of artifacts but few objects; a summary is read in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.envelope import check_version, decode_sealed
from pyspark_checkpoint.format.fields import optional, short_text, text_list, whole
from pyspark_checkpoint.format.keys import check_artifact_path, parse_attempt_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import Lineage, decode_lineage
from pyspark_checkpoint.format.settled import ListRef, decode_list_ref


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """What one checkpoint is, and which objects it needs."""

    number: int
    epoch: int
    timestamp_ms: int
    kind: ManifestKind
    attempt: str
    generation: int
    run_id: str
    query_name: str
    commit_nonce: str
    total_size_bytes: int
    parent_sha256: str
    deleted_sha256: str | None
    sink_names: tuple[str, ...]
    paths: frozenset[str]
    """The objects that the manifest names itself; its lists are among them, what they name is not."""
    settled: tuple[ListRef, ...] = field(default=(), repr=False)
    encryption_key_id: str | None = None
    batch_id: int | None = None
    lineage: Lineage | None = field(default=None, repr=False, compare=False)
    """The lineage of the table, if it has one."""


def summarize_manifest(manifest: CheckpointManifest) -> ManifestSummary:
    """The summary of a manifest that is at hand."""
    return ManifestSummary(
        number=manifest.checkpoint_id,
        epoch=manifest.epoch,
        timestamp_ms=manifest.timestamp_ms,
        kind=manifest.kind,
        attempt=manifest.attempt,
        generation=manifest.generation,
        run_id=manifest.run_id,
        query_name=manifest.query.name,
        commit_nonce=manifest.commit_nonce,
        total_size_bytes=manifest.total_size_bytes,
        parent_sha256=manifest.parent_sha256,
        deleted_sha256=manifest.deleted_sha256,
        encryption_key_id=manifest.encryption_key_id,
        sink_names=manifest.sink_names,
        paths=manifest.paths(),
        settled=tuple(manifest.settled()),
        batch_id=manifest.batch_id,
        lineage=None if manifest.table is None else manifest.table.lineage,
    )


def decode_summary(data: bytes, name: str) -> ManifestSummary:
    """Read the summary of a manifest from its bytes, whose digest is checked; ``name`` is for the error."""
    fields = decode_sealed(data, name)
    check_version(fields, name)
    try:
        objects = [check_artifact_path(path) for path in fields["objects"]]
        return ManifestSummary(
            number=whole(fields["checkpoint_id"], "checkpoint_id"),
            epoch=whole(fields["epoch"], "epoch"),
            batch_id=optional(whole, fields["batch_id"], "batch_id"),
            timestamp_ms=whole(fields["timestamp_ms"], "timestamp_ms"),
            kind=ManifestKind(fields["kind"]),
            attempt=short_text(fields["attempt"], "attempt"),
            generation=whole(fields["generation"], "generation"),
            run_id=short_text(fields["run_id"], "run_id"),
            query_name=short_text(fields["query"]["name"], "query.name"),
            commit_nonce=short_text(fields["commit_nonce"], "commit_nonce"),
            total_size_bytes=whole(fields["total_size_bytes"], "total_size_bytes"),
            parent_sha256=short_text(fields["parent_sha256"], "parent_sha256"),
            deleted_sha256=optional(short_text, fields["deleted_sha256"], "deleted_sha256"),
            encryption_key_id=optional(short_text, fields["encryption_key_id"], "encryption_key_id"),
            sink_names=tuple(text_list(fields["sink_names"], "sink_names")),
            paths=frozenset(objects),
            settled=tuple(decode_list_ref(row, objects) for row in _list_rows(fields)),
            lineage=_lineage(fields["table"]),
        )
    except FormatError as error:
        raise FormatError(f"{name}: {error.message}", hint=error.own_hint) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{name} lacks a field, or has one of another type") from None


def _lineage(table: Mapping[str, Any] | None) -> Lineage | None:
    stored = None if table is None else table["lineage"]
    return None if stored is None else decode_lineage(stored)


def new_bytes_in(fields: Mapping[str, Any]) -> int:
    """Bytes of the artifacts that were made for this very checkpoint, from the fields of its manifest."""
    number = fields["checkpoint_id"]
    is_new = [
        (parsed := parse_attempt_key(path)) is not None and parsed[0].number == number
        for path in fields["objects"]
    ]
    lists = sum(int(row[1]) for row in _list_rows(fields) if is_new[row[0]])
    places: dict[tuple[Any, ...], int] = {
        (where, offset, digest): size_bytes
        for where, offset, size_bytes, digest, *_ in _rows(fields)
        if (is_new[where] if type(where) is int else offset == number)
    }
    return sum(places.values()) + lists


def _list_rows(fields: Mapping[str, Any]) -> Iterator[list[Any]]:
    for operator in fields["operators"].values():
        yield from operator.get("settled", ())


def _rows(fields: Mapping[str, Any]) -> Iterator[list[Any]]:
    for operator in fields["operators"].values():
        for _, rows in operator["partitions"]:
            yield from rows
    yield from fields["files"]
