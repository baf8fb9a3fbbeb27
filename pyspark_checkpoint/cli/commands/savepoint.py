"""``ckpt savepoint``: checkpoints that retention never removes."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.capture import operations
from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import add_dry_run, add_json, add_store, place_of
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.target import REFERENCE, open_history, read_manifest
from pyspark_checkpoint.errors import RefusedError, SettingsError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore

ABOUT = """Keep a checkpoint, the newest by default, under a name: retention never removes it.
Without NAME the savepoints are listed. Repeating it changes nothing."""
EXAMPLES = """
ckpt savepoint s3://bucket/checkpoints before-upgrade --query orders
ckpt savepoint s3://bucket/tables/wc good --at 41
ckpt savepoint s3://bucket/tables/wc                    list them
ckpt savepoint s3://bucket/tables/wc good --remove      forget it; what only it kept is deleted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_store(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="letters, digits and -_.=$")
    parser.add_argument("--at", default="latest", metavar="CHECKPOINT", help=f"{REFERENCE} (the default)")
    parser.add_argument("--remove", action="store_true", help="forget the savepoint NAME")
    add_dry_run(parser)
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """List, add or remove."""
    place = place_of(args)
    history = open_history(place)
    if args.name is None:
        if args.remove:
            raise SettingsError(
                "--remove needs the name of a savepoint", hint="ckpt savepoint URL lists them"
            )
        return _list(history, args, console)
    if args.remove:
        return _remove(history, args, console)
    manifest = read_manifest(history, args.at)
    if not args.dry_run:
        operations.savepoint(
            place.url, args.name, query=place.query, at=manifest.checkpoint_id, options=place.options
        )
    if args.json:
        console.json({"name": args.name, "checkpoint_id": manifest.checkpoint_id, "epoch": manifest.epoch})
    else:
        verb = "would keep" if args.dry_run else "keeps"
        console.line(f"{args.name} {verb} checkpoint {manifest.checkpoint_id} (epoch {manifest.epoch})")
    return exits.DONE


def _list(history: CheckpointStore, args: argparse.Namespace, console: Console) -> int:
    found = [(point, history.load_by_id(point.number)) for point in history.savepoints()]
    if args.json:
        console.json(
            [
                {
                    "name": point.name,
                    "checkpoint_id": point.number,
                    "epoch": None if manifest is None else manifest.epoch,
                    "timestamp_ms": None if manifest is None else manifest.timestamp_ms,
                }
                for point, manifest in found
            ]
        )
    elif not found:
        console.line("no savepoints")
    else:
        rows = [
            (
                point.name,
                str(point.number),
                "" if manifest is None else str(manifest.epoch),
                "" if manifest is None else text.moment(manifest.timestamp_ms),
                "" if manifest is None else text.size(manifest.total_size_bytes),
            )
            for point, manifest in found
        ]
        console.table(("savepoint", ">id", ">epoch", "made", ">size"), rows)
    return exits.DONE


def _remove(history: CheckpointStore, args: argparse.Namespace, console: Console) -> int:
    known = {point.name: point.number for point in history.savepoints()}
    if args.name not in known:
        raise RefusedError(f"there is no savepoint {args.name!r}", hint="ckpt savepoint URL lists them")
    deleted = 0 if args.dry_run else history.remove_savepoint(args.name).object_count
    if args.json:
        console.json({"name": args.name, "checkpoint_id": known[args.name], "deleted_objects": deleted})
    elif args.dry_run:
        console.line(f"would forget {args.name}, which keeps checkpoint {known[args.name]}")
    else:
        gone = f"; {text.plural(deleted, 'object')} deleted" if deleted else ""
        console.line(f"{args.name} no longer keeps checkpoint {known[args.name]}{gone}")
    return exits.DONE
