"""``ckpt restore``: a checkpoint location from a checkpoint."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict

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
    switch,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, describe_roll_back
from pyspark_checkpoint.history.lookup import LATEST, parse_timestamp_ms
from pyspark_checkpoint.outputs.decide import FAIL, OUTPUT_CHOICES
from pyspark_checkpoint.restorer.api import RestoreRequest, dry_run, execute_restore
from pyspark_checkpoint.restorer.plan import RestorePlan, parse_point
from pyspark_checkpoint.spark.local_session import session_with
from pyspark_checkpoint.spark_files.restore_points import RestorePoint

ABOUT = """Rebuild a query's checkpoint location from a checkpoint; the unmodified query goes on from
there. The location must be fresh. Every byte is verified before it is visible; an
interrupted restore is finished by repeating it. The history is taken over: a driver that
still runs is stopped at its next commit. With --clone the location gets a new query id, and
the history stays as it is."""
EXAMPLES = """
ckpt restore s3://bucket/checkpoints --query orders --to /fresh/location
ckpt restore s3://bucket/checkpoints --query orders --to s3a://other/location --at before-upgrade
ckpt restore /data/ckpt --to /fresh/location --epoch 41 --sink rollback --dry-run
"""
ARGUMENTS = (
    *HISTORY,
    argument("--to", required=True, metavar="LOCATION", help="a fresh checkpoint location"),
    one_of(
        argument(
            "--at",
            default=LATEST,
            metavar="CHECKPOINT",
            help=f"{REFERENCE}; latest is the newest that is whole, and the default",
        ),
        argument("--epoch", type=int, metavar="N", help="the newest checkpoint of this epoch"),
        argument("--as-of", metavar="TIME", help="the newest made by then: 2026-01-31T12:00:00Z"),
    ),
    one_of(
        argument(
            "--before",
            dest="point",
            action="store_const",
            const="before",
            help="so that Spark runs the checkpoint's batch again, and its rows are replaced",
        ),
        argument(
            "--after",
            dest="point",
            action="store_const",
            const="after",
            help="so that Spark goes on with the next batch; the default where it is known to be possible",
        ),
    ),
    switch("--clone", "as another query, with an id of its own"),
    argument(
        "--sink",
        choices=OUTPUT_CHOICES,
        default=FAIL,
        help="if an output has later batches, which it would drop: fail, roll it back too, or warn",
    ),
    *OUTPUT,
    argument(
        "--partitions", type=int, metavar="N", help="repartition the state to N (starts Spark 4.2 or newer)"
    ),
    name_values("--location-option", "an option of the location's store, if they are not the history's"),
    name_values("--sink-option", "an option of the query's table's store, if they are not the history's"),
    DRY_RUN,
)


def run(args: argparse.Namespace, console: Console) -> None:
    """Restore, or say what that would do."""
    address = address_of(args)
    request = RestoreRequest(
        address.url,
        args.to,
        args.at,
        epoch=args.epoch,
        timestamp_ms=None if args.as_of is None else parse_timestamp_ms(args.as_of, "--as-of"),
        query=address.query,
        point=parse_point(args.point),
        clone=args.clone,
        sink=args.sink,
        sink_location=args.sink_location,
        drop_others=args.drop_others,
        partitions=args.partitions,
        options=address.options,
        location_options=parse_options(args.location_option) or None,
        sink_options=parse_options(args.sink_option) or None,
    )
    with ExitStack() as stack:
        repartitions = request.partitions is not None and not args.dry_run
        spark = stack.enter_context(session_with(args.conf, is_needed=repartitions))
        if args.dry_run:
            _show_plan(dry_run(request.with_session(spark)), args, console)
            return
        progress = stack.enter_context(console.bar("restore"))
        report = execute_restore(request, spark=spark, progress=progress)
    verb = "finished the interrupted restore of" if report.resumed else "restored"
    kind = "a clone, query" if args.clone else "query"
    console.result(
        asdict(report),
        f"{verb} checkpoint {report.checkpoint_id} (epoch {report.epoch}) into {report.location}: "
        f"{text.plural(report.files, 'file')}, {text.size(report.size_bytes)}",
        f"start {kind} {report.query_id} with checkpointLocation {report.location}",
        _describe_point(report.point, report.batch_id),
        *(f"rolled back: {line}" for plan in report.rolled_back for line in describe_roll_back(plan)),
    )


def _describe_point(point: RestorePoint, batch_id: int) -> str:
    if batch_id < 0:
        return "at its start: Spark runs batch 0 with the offsets that it had"
    if point is RestorePoint.BEFORE:
        return f"before batch {batch_id}: Spark runs it again, with the same offsets, and replaces its rows"
    return f"after batch {batch_id}: Spark goes on with batch {batch_id + 1}"


def _show_plan(plan: RestorePlan, args: argparse.Namespace, console: Console) -> None:
    record = {
        "checkpoint_id": plan.checkpoint_id,
        "epoch": plan.epoch,
        "batch_id": plan.batch_id,
        "point": plan.point.value,
        "query_id": None if args.clone else plan.query_id,
        "location": args.to,
        "files": [file.path for file in plan.files],
        "size_bytes": plan.total_bytes,
        "resumes": plan.resumes,
        "sink_rollback_to": plan.table_target,
        "roll_backs": [asdict(one) for one in plan.outputs.roll_backs],
        "notes": plan.outputs.notes,
        "planned_batch": plan.planned_batch,
        "newest_id": plan.newest_id,
        "partitions": plan.partitions,
        "dry_run": True,
    }
    lines = [
        f"would restore checkpoint {plan.checkpoint_id} (epoch {plan.epoch}) into {args.to}: "
        f"{text.plural(len(plan.files), 'file')}, {text.size(plan.total_bytes)}",
        _describe_point(plan.point, plan.batch_id),
    ]
    if plan.planned_batch is not None and plan.batch_id >= 0:
        lines.append(f"batch {plan.planned_batch} runs with the offsets that it had")
    if plan.resumes:
        lines.append("would finish the restore into it that was interrupted")
    if args.clone:
        lines.append("would give it a new query id; the history stays as it is")
    elif plan.newest_id != plan.checkpoint_id:
        lines.append(f"would record a rollback from checkpoint {plan.newest_id}, and fence whoever writes")
    else:
        lines.append("would take the history over, and fence whoever writes")
    if plan.partitions is not None:
        lines.append(f"would repartition the state to {plan.partitions}, by Spark")
    if plan.table_target is not None:
        lines.append(f"would roll the query's table back to its checkpoint {plan.table_target}")
    lines += [
        f"would roll back {line}" for one in plan.outputs.roll_backs for line in describe_roll_back(one)
    ]
    lines += plan.outputs.notes
    console.result(record, *lines)
