"""``ckpt gc``: removing what no checkpoint needs."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import ALL, DRY_RUN, HISTORY, argument, parse_span_ms
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import Done, run_on_histories
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.orphans import OrphanPlan, execute_orphans

ABOUT = """Remove objects that no checkpoint needs and none can come to need: what failed tasks, lost
races and crashed drivers left. Lists the store; run it now and then, not after every batch.
Safe while a query writes."""
EXAMPLES = """
ckpt gc s3://bucket/tables/wc --dry-run
ckpt gc s3://bucket/tables/wc --grace 1h
ckpt gc s3://bucket/checkpoints --all               every query below it
"""
_SHOWN = 20
ARGUMENTS = (
    *HISTORY,
    ALL,
    argument("--grace", default="24h", metavar="AGE", help="leave what is younger (24h)"),
    DRY_RUN,
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Clean up, or say what that would remove."""
    grace_ms = parse_span_ms(args.grace)

    def work(history: CheckpointStore, _label: str) -> Done:
        plan = history.plan_cleanup(grace_ms=grace_ms)
        if not args.dry_run:
            execute_orphans(history.store, plan)
        return _done(plan, args)

    return run_on_histories(args, console, work, must_ask=True)


def _done(plan: OrphanPlan, args: argparse.Namespace) -> Done:
    result = {
        "objects": list(plan.keys),
        "size_bytes": plan.size_bytes,
        "young": plan.young_count,
        "stopped": plan.stopped,
        "dry_run": args.dry_run,
    }
    if plan.stopped is not None:
        return Done(f"removed nothing: {plan.stopped}", result)
    verb = "would remove" if args.dry_run else "removed"
    more = [f"  {key}" for key in plan.keys[:_SHOWN]] if args.dry_run else []
    if args.dry_run and len(plan.keys) > _SHOWN:
        more.append(f"  and {len(plan.keys) - _SHOWN} more; --json names all")
    if plan.young_count:
        more.append(f"{text.plural(plan.young_count, 'more object')} younger than {args.grace}")
    line = f"{verb} {text.plural(len(plan.keys), 'object')}, {text.size(plan.size_bytes)}"
    return Done(line, result, more)
