"""``ckpt diff``: what changed between two checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import (
    HISTORY,
    Address,
    address_of,
    argument,
    name_values,
    parse_options,
    switch,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, chosen_manifest, open_history
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.manifest_diff import (
    ArtifactCount,
    Change,
    ManifestDifference,
    Move,
    OperatorChange,
    SourceChange,
    compare_manifests,
)
from pyspark_checkpoint.history.settle import unfolded_apart

ABOUT = """Show what changed from checkpoint A to checkpoint B: for each source how far its offsets
moved, for each operator what was added, changed and dropped. With --rows the rows
themselves are compared, by Spark: those of the table, or those of an operator's state."""
EXAMPLES = """
ckpt diff s3://bucket/tables/wc 41 42
ckpt diff s3://bucket/checkpoints before-upgrade --query orders        against the newest
ckpt diff s3://bucket/tables/wc epoch=7 latest --rows --limit 5
"""
_MOVES = 12
ARGUMENTS = (
    *HISTORY,
    argument("before", metavar="A", help=REFERENCE),
    argument("after", nargs="?", default="latest", metavar="B", help="the same; latest by default"),
    switch("--rows", "compare rows too (starts Spark)"),
    argument("--limit", type=int, default=20, metavar="N", help="with --rows: show N rows (20)"),
    argument("--operator", metavar="NAME", help="with --rows: which operator's state, by name or number"),
    name_values(
        "--state-option",
        "with --rows: an option of Spark's statestore reader, for example joinSide=left",
    ),
)


def run(args: argparse.Namespace, console: Console) -> None:
    """Compare and print."""
    address = address_of(args)
    history = open_history(address)
    before, after = chosen_manifest(history, args.before), chosen_manifest(history, args.after)
    difference = compare_manifests(*unfolded_apart(history.store, before, after))
    record: dict[str, Any] = difference_record(difference)
    if not console.as_json:
        _show(difference, console)
    if args.rows:
        record["rows"] = _compare_rows(history, address, args, before, after)
        if not console.as_json:
            _show_rows(record["rows"], console)
    if console.as_json:
        console.json(record)


def _compare_rows(
    history: CheckpointStore,
    address: Address,
    args: argparse.Namespace,
    before: CheckpointManifest,
    after: CheckpointManifest,
) -> dict[str, Any]:
    from pyspark_checkpoint.restorer.checkpoint_rows import (  # noqa: PLC0415 - few need it
        check_rows,
        compare_rows,
        open_rows,
    )

    for manifest in (before, after):
        check_rows(manifest, args.operator)
    with open_rows(history, address.options, args.operator, parse_options(args.state_option)) as source:
        found = compare_rows(source.rows(before), source.rows(after), source.keys(after))
        return {"counts": found.counts(), "sample": found.sample(args.limit)}


def difference_record(difference: ManifestDifference) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "before": difference.before,
        "after": difference.after,
        "epochs": list(difference.epochs),
        "batches": list(difference.batches),
        "timestamps_ms": list(difference.timestamps_ms),
        "total_size_bytes": list(difference.sizes_bytes),
        "sources": [_source_record(source) for source in difference.sources],
        "operators": [_operator_record(operator) for operator in difference.operators],
        "files": [{"name": name, "change": change.value} for name, change in difference.files],
        "facts": [_move_record(move) for move in difference.facts],
    }


def _move_record(move: Move) -> dict[str, Any]:
    return {"name": move.name, "before": move.before, "after": move.after, "distance": move.distance}


def _source_record(source: SourceChange) -> dict[str, Any]:
    return {
        "name": source.name,
        "change": source.change.value,
        "distance": source.distance,
        "offsets": [_move_record(move) for move in source.moves],
    }


def _operator_record(operator: OperatorChange) -> dict[str, Any]:
    def count(found: ArtifactCount) -> dict[str, int]:
        return {"artifacts": found.count, "size_bytes": found.size_bytes}

    return {
        "name": operator.name,
        "kind": operator.kind,
        "change": operator.change.value,
        "partitions": [operator.partitions_before, operator.partitions_after],
        "partitions_changed": operator.partitions_changed,
        "total_size_bytes": [operator.bytes_before, operator.bytes_after],
        "added": count(operator.added),
        "dropped": count(operator.dropped),
        "kept": count(operator.kept),
    }


def _told_batches(batches: tuple[int | None, int | None]) -> str:
    before, after = ("none" if batch is None else str(batch) for batch in batches)
    return f"{before} -> {after}"


def _show(difference: ManifestDifference, console: Console) -> None:
    epochs, times, sizes = difference.epochs, difference.timestamps_ms, difference.sizes_bytes
    console.lines(
        text.pairs(
            (
                ("checkpoints", f"{difference.before} -> {difference.after}"),
                ("epochs", f"{epochs[0]} -> {epochs[1]} ({text.signed(epochs[1] - epochs[0])})"),
                ("batches", _told_batches(difference.batches)),
                ("made", f"{text.moment(times[0])} -> {text.moment(times[1])}"),
                ("apart", text.span(times[1] - times[0])),
                ("size", f"{text.size(sizes[0])} -> {text.size(sizes[1])}"),
            )
        )
    )
    moved = ("source", "offset", ">from", ">to", ">moved")
    console.section("sources", moved, list(_source_rows(difference)))
    heads = ("operator", "", ">partitions", ">size", ">added", ">dropped", ">kept")
    console.section("operators", heads, [_operator_row(operator) for operator in difference.operators])
    console.section("files", ("file", ""), [(name, change.value) for name, change in difference.files])
    facts = [(move.name, _cell(move.before), _cell(move.after)) for move in difference.facts]
    console.section("also", ("what", "from", "to"), facts)


def _source_rows(difference: ManifestDifference) -> Iterator[tuple[str, ...]]:
    for source in difference.sources:
        if source.change is Change.SAME:
            yield source.name, "", "", "", "not at all"
            continue
        for at, move in enumerate(source.moves[:_MOVES]):
            distance = "" if move.distance is None else text.signed(move.distance)
            name = source.name if at == 0 else ""
            yield name, move.name, _cell(move.before), _cell(move.after), distance or source.change.value
        if len(source.moves) > _MOVES:
            yield "", f"and {len(source.moves) - _MOVES} more", "", "", ""
        if len(source.moves) > 1 and source.distance is not None:
            yield "", "together", "", "", text.signed(source.distance)


def _operator_row(operator: OperatorChange) -> tuple[str, ...]:
    def told(found: ArtifactCount) -> str:
        return f"{found.count:,} ({text.size(found.size_bytes)})" if found.count else ""

    partitions = (
        f"{operator.partitions_changed} of {operator.partitions_after or operator.partitions_before}"
    )
    grown = operator.bytes_after - operator.bytes_before
    size = f"{text.size(operator.bytes_after)} ({text.signed_size(grown)})"
    parts = (told(operator.added), told(operator.dropped), told(operator.kept))
    return operator.name, operator.change.value, partitions, size, *parts


def _cell(value: str | None) -> str:
    return "-" if value is None else text.short(value, 50)


def _show_rows(rows: dict[str, Any], console: Console) -> None:
    console.title("rows")
    counts = rows["counts"]
    console.line(", ".join(f"{count:,} {change}" for change, count in counts.items()) or "no difference")
    mark = {"added": "+", "dropped": "-", "changed": "~"}
    for row in rows["sample"]:
        if row["change"] == "changed":
            console.line(f"~ {row['before']}")
            console.line(f"  {row['after']}")
        else:
            times = f"  ({row['count']} times)" if row["count"] > 1 else ""
            console.line(f"{mark[row['change']]} {row['after'] or row['before']}{times}")
    missing = sum(counts.values()) - sum(row["count"] for row in rows["sample"])
    if missing > 0:
        console.line(f"and {missing:,} more")
