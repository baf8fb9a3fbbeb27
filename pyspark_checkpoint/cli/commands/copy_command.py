"""``ckpt copy``: a history in another address."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import (
    ALL,
    DRY_RUN,
    HISTORY_STORE,
    address_of,
    argument,
    name_values,
    parse_options,
)
from pyspark_checkpoint.cli.console import Console, error_line
from pyspark_checkpoint.cli.histories import problem_record
from pyspark_checkpoint.errors import CheckpointError, SettingsError
from pyspark_checkpoint.history.copy_plan import CopyPlan
from pyspark_checkpoint.registry.copy_queries import CopyRequest, HistoryCopy, copy_histories

ABOUT = """Copy a history, or the histories of all queries below SOURCE, to another store on any
cloud. Everything is verified on the way. Repeating it brings what is new, and finishes what was
interrupted. A target that holds another history, or has gone its own way, is refused."""
EXAMPLES = """
ckpt copy s3://bucket/checkpoints gs://other/checkpoints --target-option project=p1
ckpt copy s3://bucket/checkpoints /backup --query orders --savepoint before-upgrade
ckpt copy /data/ckpt /backup/ckpt --dry-run
"""
ARGUMENTS = (
    argument("url", metavar="SOURCE", help="a history, or a URL with queries below it"),
    argument("target", metavar="TARGET", help="where the copy is, or goes"),
    HISTORY_STORE,
    ALL,
    name_values("--target-option", "an option of the target's store; without any the source's are used"),
    argument(
        "--checkpoint", action="append", type=int, default=[], metavar="ID", help="only this; repeatable"
    ),
    argument("--savepoint", action="append", default=[], metavar="NAME", help="only this; repeatable"),
    DRY_RUN,
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Copy, or say what that would bring."""
    address = address_of(args)
    if any(checkpoint_id < 1 for checkpoint_id in args.checkpoint):
        raise SettingsError("checkpoint ids begin at 1", hint="ckpt list shows them")
    request = CopyRequest(
        address.url, args.target, address.query, frozenset(args.checkpoint), frozenset(args.savepoint)
    )
    done: list[tuple[HistoryCopy, CopyPlan | CheckpointError]] = []
    with console.bar("copy") as bar:
        for item, plan in copy_histories(
            request,
            options=address.options,
            target_options=parse_options(args.target_option) or address.options,
            progress=bar,
            dry_run=args.dry_run,
        ):
            done.append((item, plan))
    verb = "would bring" if args.dry_run else "brought"
    console.result(
        [_record(item, plan, dry_run=args.dry_run) for item, plan in done],
        *(
            f"{item.target_url}: {verb} {_told(plan)}"
            if isinstance(plan, CopyPlan)
            else console.bad(f"query {item.label} is not copied: {error_line(plan)}")
            for item, plan in done
        ),
    )
    failed = [plan for _, plan in done if not isinstance(plan, CopyPlan)]
    console.hints(error.hint for error in failed)
    return bool(failed)


def _told(plan: CopyPlan) -> str:
    ids = tuple(sorted({*plan.manifests, *plan.below}))
    if not ids:
        return "nothing: it has all of it"
    parts = f"{text.plural(len(ids), 'checkpoint')} ({text.ranges(ids)})"
    parts += f", {text.plural(len(plan.objects), 'object')}"
    if plan.pins:
        parts += f", savepoints: {', '.join(sorted(plan.pins))}"
    return parts


def _record(item: HistoryCopy, made: CopyPlan | CheckpointError, *, dry_run: bool) -> dict[str, object]:
    plan = made if isinstance(made, CopyPlan) else None
    return {
        "source": item.source_url or None,
        "target": item.target_url,
        "query_id": None if item.root is None else item.root.query_id,
        "name": None if item.root is None else item.root.name,
        "checkpoint_ids": [] if plan is None else sorted({*plan.manifests, *plan.below}),
        "savepoints": [] if plan is None else sorted(plan.pins),
        "objects": 0 if plan is None else len(plan.objects),
        "begins_anew": plan is not None and plan.rebase,
        "dry_run": dry_run,
        **problem_record(made if isinstance(made, CheckpointError) else None),
    }
