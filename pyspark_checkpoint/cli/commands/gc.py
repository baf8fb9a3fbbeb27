"""``ckpt gc``: removing what no checkpoint needs."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import add_dry_run, add_json, add_store, parse_span_ms, place_of
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.target import open_history
from pyspark_checkpoint.history.orphans import execute_orphans

ABOUT = """Remove objects that no checkpoint needs and none can come to need: what failed tasks, lost
races and crashed drivers left. Lists the store; run it now and then, not after every batch.
Safe while a query writes."""
EXAMPLES = """
ckpt gc s3://bucket/tables/wc --dry-run
ckpt gc s3://bucket/tables/wc --grace 1h
"""
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_store(parser)
    parser.add_argument("--grace", default="24h", metavar="AGE", help="leave what is younger (24h)")
    add_dry_run(parser)
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Clean up, or say what that would remove."""
    history = open_history(place_of(args))
    plan = history.plan_cleanup(grace_ms=parse_span_ms(args.grace))
    if not args.dry_run:
        execute_orphans(history.store, plan)
    if args.json:
        console.json(
            {
                "objects": list(plan.keys),
                "size_bytes": plan.size_bytes,
                "young": plan.young_count,
                "stopped": plan.stopped,
                "dry_run": args.dry_run,
            }
        )
        return exits.DONE
    if plan.stopped is not None:
        console.line(f"removed nothing: {plan.stopped}")
        return exits.DONE
    verb = "would remove" if args.dry_run else "removed"
    console.line(f"{verb} {text.plural(len(plan.keys), 'object')}, {text.size(plan.size_bytes)}")
    if args.dry_run:
        console.lines(f"  {key}" for key in plan.keys[:_SHOWN])
        if len(plan.keys) > _SHOWN:
            console.line(f"  and {len(plan.keys) - _SHOWN} more; --json names all")
    if plan.young_count:
        console.line(f"{text.plural(plan.young_count, 'more object')} younger than {args.grace}")
    return exits.DONE
