"""``ckpt show``: one checkpoint, whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import HISTORY, WINDOW, address_of, argument
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import (
    OUTPUT_HEADS,
    REFERENCE,
    chosen_manifest,
    open_history,
    output_rows,
    source_rows,
)
from pyspark_checkpoint.cli.windows import find_recovery_window, output_lines, window_lines, window_record
from pyspark_checkpoint.format.manifest import CheckpointManifest, OperatorSnapshotEntry
from pyspark_checkpoint.format.manifest_codec import manifest_fields
from pyspark_checkpoint.history.overview import Entry, entry_of

ABOUT = (
    """Show one checkpoint: whose it is, where its sources stand, what its operators hold, what it cost."""
)
EXAMPLES = """
ckpt show s3://bucket/tables/wc                                     the newest
ckpt show s3://bucket/checkpoints before-upgrade --query orders     a savepoint
ckpt show /data/ckpt 42 --json                                      its manifest
"""
_OFFSETS = 8
ARGUMENTS = (
    *HISTORY,
    argument("checkpoint", nargs="?", default="latest", metavar="CHECKPOINT", help=REFERENCE),
    *WINDOW,
)


def run(args: argparse.Namespace, console: Console) -> None:
    """Print it."""
    history = open_history(address_of(args))
    manifest = chosen_manifest(history, args.checkpoint)
    entries = history.overview().entries if args.window else ()
    window = find_recovery_window(history, entries, args)
    if console.as_json:
        record = {"recovery_window": window_record(window)} if window is not None else {}
        console.json(manifest_record(manifest) | record)
        return
    names = [found.name for found in history.savepoints() if found.checkpoint_id == manifest.checkpoint_id]
    _show(manifest, entry_of(manifest, names), console)
    if window is not None:
        console.title("recovery window")
        console.lines((*output_lines(window), *window_lines(window)))


def manifest_record(manifest: CheckpointManifest) -> dict[str, Any]:
    """The manifest's fields, and how far its sinks are."""
    statuses = {sink: status.value for sink, status in manifest.sink_commit_statuses.items()}
    return {**manifest_fields(manifest), "sink_commit_statuses": statuses}


def _show(manifest: CheckpointManifest, entry: Entry, console: Console) -> None:
    console.lines(text.pairs(_facts(manifest, entry, console.clock.now_ms())))
    sources = source_rows(manifest.source_offsets, _OFFSETS)
    console.section("sources", ("source", "offset", ">at"), sources)
    heads = ("operator", "kind", ">partitions", ">snapshots", ">deltas", ">size")
    console.section("operators", heads, [_operator_row(*item) for item in manifest.operators.items()])
    console.section("outputs", OUTPUT_HEADS, output_rows(manifest.sinks))
    console.section("sinks", ("sink", ">epoch", "status"), _sink_rows(manifest))
    files = [(ref.name, text.size(ref.size_bytes), "yes" if ref.inline else "") for ref in manifest.files]
    console.section("files", ("file", ">size", "in the manifest"), files)


def _facts(manifest: CheckpointManifest, entry: Entry, now_ms: int) -> Iterator[tuple[str, str]]:
    query, cost = manifest.query, entry.requests
    rolled = f" of checkpoint {manifest.rollback_of}" if manifest.rollback_of is not None else ""
    yield "checkpoint", f"{manifest.checkpoint_id} ({manifest.kind.value}{rolled})"
    yield "epoch", str(manifest.epoch)
    yield "batch", "" if manifest.batch_id is None else str(manifest.batch_id)
    yield "made", f"{text.moment(manifest.timestamp_ms)}, {text.age(manifest.timestamp_ms, now_ms)} ago"
    yield "savepoints", ", ".join(entry.savepoints)
    yield "size", f"{text.size(entry.total_size_bytes)}, {text.size(entry.new_bytes)} of it new"
    yield (
        "cost",
        f"{text.plural(cost.puts, 'PUT')}, {text.plural(cost.gets, 'GET')}, {text.size(cost.bytes)} sent"
        + (f", {text.span(entry.staged_ms)}" if entry.staged_ms is not None else ""),
    )
    yield "query", f"{query.name} {query.id}".strip()
    yield "app", query.app_name
    yield "location", query.checkpoint_location
    yield "Spark", query.spark_version
    yield "run", f"{manifest.run_id} (generation {manifest.generation})"
    yield "batch watermark", text.moment(manifest.batch_watermark_ms or None)
    yield "next watermark", text.moment(manifest.next_watermark_ms or None)
    yield "table at", manifest.table_store_checkpoint_path or ""
    if manifest.table is not None:
        keys = ", ".join(manifest.table.keys) or "none"
        yield "table", f"{manifest.table.mode.value}, keys: {keys}"
    yield "key", manifest.encryption_key_id or ""


def _operator_row(name: str, entry: OperatorSnapshotEntry) -> tuple[str, ...]:
    refs = [ref for part in entry.partitions for ref in part.artifacts]
    deltas = sum(1 for ref in refs if ref.is_delta)
    settled = sum(ref.part_count for ref in entry.settled)
    counts = (len(entry.partitions), len(refs) - deltas, deltas + settled)
    return (name, entry.kind, *(f"{count:,}" for count in counts), text.size(entry.total_bytes))


def _sink_rows(manifest: CheckpointManifest) -> list[tuple[str, str, str]]:
    own = "" if manifest.table is None else manifest.table.operator
    rows = []
    for sink in manifest.sink_names:
        status = manifest.sink_commit_statuses.get(sink)
        told = "in this checkpoint" if sink == own else "" if status is None else status.value
        rows.append((sink, str(manifest.sink_epochs.get(sink, "")), told))
    return rows
