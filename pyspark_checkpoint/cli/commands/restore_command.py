"""``ckpt restore``: a checkpoint location from a checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import (
    Address,
    add_dry_run,
    add_options,
    add_store,
    address_of,
    parse_options,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.moments import parse_timestamp_ms
from pyspark_checkpoint.restorer import api as operations
from pyspark_checkpoint.restorer.api import RestoreRequest
from pyspark_checkpoint.restorer.execute import RestoreReport
from pyspark_checkpoint.restorer.preview import preview_restore
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.spark_files.state_record import find_state_record

ABOUT = """Rebuild a query's checkpoint location from a checkpoint; the unmodified query goes on from
there. The location must be fresh. Every byte is verified before it is visible; an
interrupted restore is finished by repeating it. The history is taken over: a driver that
still runs is stopped at its next commit. With --clone the location gets a new query id, and
the history stays as it is."""
EXAMPLES = """
ckpt restore s3://bucket/checkpoints --query orders --to /fresh/location
ckpt restore s3://bucket/checkpoints --query orders --to s3a://other/location --at before-upgrade
ckpt restore /data/ckpt --to /fresh/location --epoch 41 --rollback-sink --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_store(parser)
    parser.add_argument("--to", required=True, metavar="LOCATION", help="a fresh checkpoint location")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--at",
        default=operations.LATEST,
        metavar="CHECKPOINT",
        help=f"{REFERENCE}; latest is the newest that is whole, and the default",
    )
    which.add_argument("--epoch", type=int, metavar="N", help="the newest checkpoint of this epoch")
    which.add_argument("--as-of", metavar="TIME", help="the newest made by then: 2026-01-31T12:00:00Z")
    point = parser.add_mutually_exclusive_group()
    point.add_argument(
        "--before",
        dest="point",
        action="store_const",
        const="before",
        help="so that Spark runs the checkpoint's batch again, and its rows are replaced",
    )
    point.add_argument(
        "--after",
        dest="point",
        action="store_const",
        const="after",
        help="so that Spark goes on with the next batch; the default where it is known to be possible",
    )
    parser.add_argument("--clone", action="store_true", help="as another query, with an id of its own")
    parser.add_argument(
        "--rollback-sink",
        action="store_true",
        help="roll the query's ckpt-sink table back to the same epoch",
    )
    parser.add_argument(
        "--partitions",
        type=int,
        metavar="N",
        help="repartition the state to N (starts Spark 4.2 or newer)",
    )
    for name, what in (("location", "location"), ("sink", "query's table")):
        told = f"an option of the {what}'s store, if they are not the history's"
        add_options(parser, f"--{name}-option", told)
    add_dry_run(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Restore, or say what that would do."""
    address = address_of(args)
    request = _request(args, address)
    settings: dict[str, Any] = {
        "options": address.options,
        "location_options": parse_options(args.location_option) or None,
        "sink_options": parse_options(args.sink_option) or None,
        "clone": args.clone,
        "rollback_sink": args.rollback_sink,
    }
    if args.dry_run:
        return _preview(request, settings, args, console)
    choice = {
        "epoch": request.epoch,
        "timestamp_ms": request.timestamp_ms,
        "query": request.query,
        "point": args.point,
    }
    with console.bar("restore") as progress:
        report = _restore(args, request, {**settings, **choice, "progress": progress})
    again = "finished the interrupted restore of" if report.resumed else "restored"
    kind = "a clone, query" if args.clone else "query"
    console.result(
        asdict(report),
        f"{again} checkpoint {report.checkpoint_id} (epoch {report.epoch}) into {report.location}: "
        f"{text.plural(report.files, 'file')}, {text.size(report.size_bytes)}",
        f"start {kind} {report.query_id} with checkpointLocation {report.location}",
        _told_point(report.point, report.batch),
    )
    return exits.DONE


def _request(args: argparse.Namespace, address: Address) -> RestoreRequest:
    at, epoch = args.at, args.epoch
    if at.startswith("epoch=") and at.removeprefix("epoch=").isdigit():
        at, epoch = operations.LATEST, int(at.removeprefix("epoch="))
    timestamp_ms = None if args.as_of is None else parse_timestamp_ms(args.as_of, "--as-of")
    return RestoreRequest(
        address.url, args.to, at, epoch, timestamp_ms, address.query, operations.parse_point(args.point)
    )


def _restore(args: argparse.Namespace, request: RestoreRequest, settings: dict[str, Any]) -> RestoreReport:
    if args.partitions is None:
        return operations.restore(request.url, request.to, request.at, **settings)
    from pyspark_checkpoint.restorer import repartition as rescale  # noqa: PLC0415
    from pyspark_checkpoint.spark.local_session import local_session  # noqa: PLC0415

    with local_session() as spark:
        return rescale.restore(
            request.url, request.to, request.at, partitions=args.partitions, spark=spark, **settings
        )


def _told_point(point: RestorePoint, batch: int) -> str:
    if point is RestorePoint.BEFORE:
        return f"before batch {batch}: Spark runs it again, with the same offsets, and replaces its rows"
    return f"after batch {batch}: Spark goes on with batch {batch + 1}"


def _repartitions(manifest: CheckpointManifest, request: RestoreRequest, args: argparse.Namespace) -> bool:
    if args.partitions is None:
        return False
    from pyspark_checkpoint.restorer import repartition as rescale  # noqa: PLC0415

    if not rescale.must_split(manifest, args.partitions, is_clone=args.clone):
        return False
    if find_state_record(manifest) is not None:
        choice = {"query": request.query, "point": args.point, "options": address_of(args).options}
        rescale.refuse_unfinished(request.url, manifest, choice)
    return True


def _preview(
    request: RestoreRequest, settings: dict[str, Any], args: argparse.Namespace, console: Console
) -> int:
    if args.partitions is not None and args.partitions < 1:
        raise SettingsError(f"--partitions is {args.partitions}", hint="at least one is needed")
    preview = preview_restore(request, **settings)
    plan = preview.plan
    repartitions = _repartitions(preview.manifest, request, args)
    record = {
        "checkpoint_id": plan.checkpoint_id,
        "epoch": plan.epoch,
        "batch": plan.batch,
        "point": plan.point.value,
        "query_id": None if args.clone else plan.query_id,
        "location": request.to,
        "files": [file.path for file in plan.files],
        "size_bytes": plan.total_bytes,
        "resumes": preview.resumes,
        "sink_rollback_to": preview.sink_target,
        "newest_id": preview.newest_id,
        "repartitions": repartitions,
        "dry_run": True,
    }
    lines = [
        f"would restore checkpoint {plan.checkpoint_id} (epoch {plan.epoch}) into {request.to}: "
        f"{text.plural(len(plan.files), 'file')}, {text.size(plan.total_bytes)}",
        _told_point(plan.point, plan.batch),
    ]
    if preview.resumes:
        lines.append("would finish the restore into it that was interrupted")
    if args.clone:
        lines.append("would give it a new query id; the history stays as it is")
    elif preview.newest_id != plan.checkpoint_id:
        lines.append(
            f"would record a rollback from checkpoint {preview.newest_id}, and fence whoever writes"
        )
    else:
        lines.append("would take the history over, and fence whoever writes")
    if repartitions:
        lines.append(f"would repartition the state to {args.partitions} partitions, by Spark")
    if preview.sink_target is not None:
        lines.append(f"would roll the query's table back to its checkpoint {preview.sink_target}")
    console.result(record, *lines)
    return exits.DONE
