"""``ckpt prune``: removing old checkpoints."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import ALL, DRY_RUN, HISTORY, argument, parse_span_ms
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import Done, run_on_histories
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.retention import PrunePlan, PruneResult

ABOUT = """Remove old checkpoints and what only they need. Savepoints and the newest checkpoint
always stay. With both limits a checkpoint goes only if both let it go. Safe while a query writes; a
crash leaves nothing that the next prune does not finish."""
EXAMPLES = """
ckpt prune s3://bucket/tables/wc --keep 20
ckpt prune s3://bucket/tables/wc --newer-than 7d --dry-run
ckpt prune s3://bucket/checkpoints --keep 20 --all      every query below it
"""
ARGUMENTS = (
    *HISTORY,
    ALL,
    argument("--keep", type=int, metavar="N", help="keep the newest N epochs"),
    argument("--newer-than", metavar="AGE", help="keep what is younger: 12h, 7d"),
    DRY_RUN,
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Prune, or say what that would remove."""
    if args.keep is None and args.newer_than is None:
        raise SettingsError("nothing says what to keep", hint="give --keep N or --newer-than AGE, or both")
    limit_ms = None
    if args.newer_than is not None:
        limit_ms = console.clock.now_ms() - parse_span_ms(args.newer_than)

    def work(history: CheckpointStore, _label: str) -> Done:
        plan = history.plan_prune(args.keep, keep_newer_than_ms=limit_ms)
        if plan is None:
            return Done("no checkpoint yet", None)
        result = None if args.dry_run else history.execute_prune(plan)
        return Done(_line(plan, result), _record(plan, result))

    return run_on_histories(args, console, work, must_ask=True)


def _record(plan: PrunePlan, result: PruneResult | None) -> dict[str, object]:
    return {
        "floor": plan.floor,
        "removed": list(plan.removed if result is None else result.removal.checkpoint_ids),
        "kept": list(plan.kept),
        "pinned": list(plan.pinned),
        "deleted_objects": 0 if result is None else result.removal.object_count,
        "stopped": None if result is None else result.stopped,
        "dry_run": result is None,
    }


def _line(plan: PrunePlan, result: PruneResult | None) -> str:
    kept = f"{text.ranges(plan.kept)} stay" if len(plan.kept) > 1 else f"{text.ranges(plan.kept)} stays"
    if plan.pinned:
        kept += f", and savepoints at {text.ranges(plan.pinned)}"
    if result is None:
        return f"would remove {_checkpoints(plan.removed)}; {kept}"
    if result.stopped is not None:
        return f"removed nothing: {result.stopped}"
    objects = text.plural(result.removal.object_count, "object")
    return f"removed {_checkpoints(result.removal.checkpoint_ids)}, {objects} in all; {kept}"


def _checkpoints(numbers: tuple[int, ...]) -> str:
    return f"{text.plural(len(numbers), 'checkpoint')} ({text.ranges(numbers)})" if numbers else "nothing"
