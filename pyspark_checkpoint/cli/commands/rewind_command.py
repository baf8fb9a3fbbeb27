"""``ckpt rewind``: history, outputs and location of a query, back to a checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import (
    DRY_RUN,
    HISTORY,
    OUTPUT,
    address_of,
    argument,
    name_values,
    one_of,
    parse_options,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, describe_roll_back
from pyspark_checkpoint.history.lookup import parse_timestamp_ms
from pyspark_checkpoint.outputs.decide import OUTPUT_CHOICES, ROLLBACK
from pyspark_checkpoint.restorer.rewind import RewindPlan, RewindReport, rewind
from pyspark_checkpoint.spark.local_session import session_with

ABOUT = """Take a query back to a checkpoint, whole: its history, its outputs and its checkpoint
location. Stop the query first. The unmodified query then goes on from there. Whoever still writes is
fenced; the location that was there is kept beside the new one. Look with --dry-run first: it prints
exactly what is done. An interrupted rewind is finished by repeating it."""
EXAMPLES = """
ckpt rewind s3://bucket/checkpoints --query orders --at before-deployment --dry-run
ckpt rewind s3://bucket/checkpoints --query orders --at before-deployment
ckpt rewind /data/ckpt --query orders --time 2026-01-31T12:00:00Z
"""
_MAX_MOVES = 20
ARGUMENTS = (
    *HISTORY,
    one_of(
        argument("--at", metavar="CHECKPOINT", help=REFERENCE),
        argument("--epoch", type=int, metavar="N", help="the newest checkpoint of this epoch"),
        argument("--time", metavar="TIME", help="the newest made by then: 2026-01-31T12:00:00Z"),
        required=True,
    ),
    argument(
        "--to", metavar="LOCATION", help="the checkpoint location, if not where the query had it last"
    ),
    argument(
        "--sink",
        choices=OUTPUT_CHOICES,
        default=ROLLBACK,
        help="what happens to an output that has later batches: it goes back too, unless said otherwise",
    ),
    *OUTPUT,
    name_values(
        "--source-option",
        "what a source reads with, such as kafka.bootstrap.servers=HOST, so that it can be asked",
    ),
    name_values("--location-option", "an option of the location's store, if they are not the history's"),
    name_values("--sink-option", "an option of the output's store, if they are not the history's"),
    DRY_RUN,
)


def run(args: argparse.Namespace, console: Console) -> None:
    """Go back, or say what that would do."""
    address = address_of(args)
    with session_with(args.conf) as spark, console.bar("rewind") as progress:
        done = rewind(
            address.url,
            query=address.query,
            at=args.at,
            epoch=args.epoch,
            timestamp_ms=None if args.time is None else parse_timestamp_ms(args.time, "--time"),
            to=args.to,
            sink=args.sink,
            drop_others=args.drop_others,
            sink_location=args.sink_location,
            spark=spark,
            options=address.options,
            location_options=parse_options(args.location_option) or None,
            sink_options=parse_options(args.sink_option) or None,
            source_options=parse_options(args.source_option),
            dry_run=args.dry_run,
            progress=progress,
        )
    console.result(_record(done), *_plan_lines(done.plan, done), *_done_lines(done))


def _record(done: RewindReport) -> dict[str, Any]:
    plan, files = done.plan, done.plan.restore
    return {
        "checkpoint_id": files.checkpoint_id,
        "epoch": files.epoch,
        "batch_id": files.batch_id,
        "newest_id": files.newest_id,
        "query_id": files.query_id,
        "location": plan.location,
        "in_place": plan.in_place,
        "files": len(files.files),
        "size_bytes": files.total_bytes,
        "planned_batch": files.planned_batch,
        "inputs": [asdict(one) for one in plan.inputs],
        "sources": [asdict(move) for move in plan.moves],
        "roll_backs": [asdict(one) for one in files.outputs.roll_backs],
        "sink_rollback_to": files.table_target,
        "readers": plan.readers,
        "notes": files.outputs.notes,
        "set_aside": done.set_aside or None,
        "dry_run": done.restored is None,
    }


def _plan_lines(plan: RewindPlan, done: RewindReport) -> list[str]:
    files, word = plan.restore, "would go" if done.restored is None else "went"
    lines = [
        f"query {files.query_id} {word} back to batch {files.done_batch} (checkpoint {files.checkpoint_id})"
    ]
    if files.newest_id != files.checkpoint_id:
        lines.append(f"history: from checkpoint {files.newest_id}, by a recorded rollback")
    else:
        lines.append("history: taken over")
    shown = plan.moves[:_MAX_MOVES]
    lines += [
        text.short(f"source {one.source} {one.name}: from {one.before} to {one.after}", 160)
        for one in shown
    ]
    if len(plan.moves) > len(shown):
        lines.append(f"and {len(plan.moves) - len(shown)} more offsets")
    lines += [f"input: {finding}" for finding in plan.inputs]
    going = [line for one in files.outputs.roll_backs for line in describe_roll_back(one)]
    lines += [f"output: {line}" for line in going]
    if files.table_target is not None:
        lines.append(f"output: the query's table, to its checkpoint {files.table_target}")
    if not going and files.table_target is None:
        lines.append("output: nothing to go back")
    lines += [f"readers: {line}" for line in plan.readers]
    where = "in its own place" if plan.in_place or not plan.is_there else "beside it, and then in its place"
    size = f"{text.plural(len(files.files), 'file')}, {text.size(files.total_bytes)}"
    lines.append(f"location: {plan.location}, written {where}: {size}")
    if files.planned_batch is not None:
        lines.append(f"batch {files.planned_batch} runs again with the offsets that it had")
    return [*lines, *files.outputs.notes]


def _done_lines(done: RewindReport) -> list[str]:
    if done.restored is None:
        return ["nothing was changed; see that the query is stopped before you go back"]
    kept = [f"the location as it was is kept as {done.set_aside}"] if done.set_aside else []
    return [*kept, f"start query {done.restored.query_id} with checkpointLocation {done.plan.location}"]
