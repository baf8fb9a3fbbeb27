"""``ckpt savepoint``: checkpoints that retention never removes."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.capture.commit_log import seal_known
from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import (
    ALL,
    DRY_RUN,
    HISTORY,
    SINK_LOCATION,
    address_of,
    argument,
    switch,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import (
    REFERENCE,
    Done,
    checkpoint_cells,
    chosen_manifest,
    run_on_histories,
)
from pyspark_checkpoint.errors import NoCheckpoint, SettingsError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.overview import Entry, entry_of
from pyspark_checkpoint.outputs.ask import OutputQuestion
from pyspark_checkpoint.outputs.pins import KeptOutput, pin_outputs, unpin_outputs
from pyspark_checkpoint.restorer.api import find_tables
from pyspark_checkpoint.spark.local_session import session_with

ABOUT = """Keep a checkpoint, the newest by default, under a name: retention never removes it.
Without NAME the savepoints are listed. Repeating it changes nothing."""
EXAMPLES = """
ckpt savepoint s3://bucket/checkpoints before-upgrade --query orders
ckpt savepoint s3://bucket/checkpoints before-upgrade --all
ckpt savepoint s3://bucket/tables/wc good --at 41
ckpt savepoint s3://bucket/tables/wc                    list them
ckpt savepoint s3://bucket/tables/wc good --remove      forget it; what only it kept is deleted
"""
ARGUMENTS = (
    *HISTORY,
    ALL,
    argument("name", nargs="?", metavar="NAME", help="letters, digits and -_.=$"),
    argument("--at", default="latest", metavar="CHECKPOINT", help=f"{REFERENCE} (the default)"),
    switch("--remove", "forget the savepoint NAME"),
    *SINK_LOCATION,
    DRY_RUN,
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """List, add or remove."""
    if args.name is None and args.remove:
        raise SettingsError("--remove needs the name of a savepoint", hint="ckpt savepoint URL lists them")
    address = address_of(args)

    def work(history: CheckpointStore, _label: str) -> Done:
        if args.name is None:
            return _list(history, console)
        return do(history, outputs, args)

    do = _remove if args.remove else _keep
    with session_with(args.conf) as spark:
        place, tables = args.sink_location, find_tables(spark)
        outputs = OutputQuestion(address.url, place=place, options=address.options, tables=tables)
        return run_on_histories(args, console, work, must_ask=args.name is not None)


def _list(history: CheckpointStore, console: Console) -> Done:
    points = history.savepoints()
    if not points:
        return Done("no savepoints", [])
    manifests = [history.load_by_id(point.checkpoint_id) for point in points]
    entries = [Entry(0) if found is None else entry_of(found) for found in manifests]
    now_ms, heads = console.clock.now_ms(), (">epoch", "made", ">size")
    kept = list(zip(points, entries, strict=True))
    rows = [(one.name, str(one.checkpoint_id), *checkpoint_cells(heads, at, now_ms)) for one, at in kept]
    records = [
        {
            "name": one.name,
            "checkpoint_id": one.checkpoint_id,
            "epoch": at.epoch,
            "timestamp_ms": at.timestamp_ms,
        }
        for one, at in kept
    ]
    head, *body = text.table(("savepoint", ">id", *heads), rows)
    told = ", ".join(f"{point.name} ({point.checkpoint_id})" for point in points)
    return Done(told, records, alone=(console.bold(head), *body))


def _keep(history: CheckpointStore, outputs: OutputQuestion, args: argparse.Namespace) -> Done:
    manifest = chosen_manifest(history, args.at)
    checkpoint_id, kept = manifest.checkpoint_id, tuple[KeptOutput, ...]()
    if not args.dry_run:
        history.savepoint(args.name, checkpoint_id)
        seal_known(history, checkpoint_id, outputs.options, typed_url=outputs.typed_url)
        kept = pin_outputs(manifest, args.name, outputs)
    verb = "would keep" if args.dry_run else "keeps"
    told = [f"{args.name} {verb} checkpoint {checkpoint_id} (epoch {manifest.epoch})", *map(str, kept)]
    record = {"name": args.name, "checkpoint_id": checkpoint_id, "epoch": manifest.epoch}
    return Done("; ".join(told), {**record, "outputs": [_record(one) for one in kept]}, alone=told)


def _record(kept: KeptOutput) -> dict[str, object]:
    return {
        "kind": kept.sink.kind,
        "target": kept.sink.target,
        "version": kept.version,
        "is_kept": kept.is_kept,
        "note": kept.note,
    }


def _remove(history: CheckpointStore, outputs: OutputQuestion, args: argparse.Namespace) -> Done:
    known = {point.name: point.checkpoint_id for point in history.savepoints()}
    if args.name not in known:
        raise NoCheckpoint(f"there is no savepoint {args.name!r}", hint="ckpt savepoint URL lists them")
    deleted, held = 0, tuple[KeptOutput, ...]()
    if not args.dry_run:
        manifest = history.load_by_id(known[args.name])
        if manifest is not None:
            held = unpin_outputs(manifest, args.name, outputs)
        deleted = history.remove_savepoint(args.name).object_count
    result = {"name": args.name, "checkpoint_id": known[args.name], "deleted_objects": deleted}
    if args.dry_run:
        return Done(f"would forget {args.name}, which keeps checkpoint {known[args.name]}", result)
    gone = f"; {text.plural(deleted, 'object')} deleted" if deleted else ""
    still = "".join(f"; an output may still keep it: {one}" for one in held)
    return Done(f"{args.name} no longer keeps checkpoint {known[args.name]}{gone}{still}", result)
