"""``ckpt rollback``: going back on purpose."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.capture.commit_log import seal_known
from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import DRY_RUN, HISTORY, address_of, argument
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, checkpoint_record, chosen_manifest, open_history
from pyspark_checkpoint.history.overview import entry_of

ABOUT = """Make the content of an earlier checkpoint the newest one, as a recorded rollback.
Nothing is deleted: what came after stays in the history, and can be rolled back to. Every query
that still writes is stopped at its next commit; stop it first. A query's own checkpoint location
does not change: ckpt restore makes one that fits."""
EXAMPLES = """
ckpt rollback s3://bucket/tables/wc 41
ckpt rollback s3://bucket/tables/wc before-upgrade --dry-run
"""
ARGUMENTS = (*HISTORY, argument("checkpoint", metavar="CHECKPOINT", help=REFERENCE), DRY_RUN)


def run(args: argparse.Namespace, console: Console) -> None:
    """Roll back, or say what that would do."""
    address = address_of(args)
    history = open_history(address)
    target = chosen_manifest(history, args.checkpoint)
    if args.dry_run:
        newest = max(history.list_ids())
        when = f"epoch {target.epoch}, made {text.moment(target.timestamp_ms)}"
        console.result(
            {"target": checkpoint_record(entry_of(target)), "newest_id": newest},
            f"would make checkpoint {newest + 1} of checkpoint {target.checkpoint_id} ({when}); "
            f"the newest now is {newest}",
        )
        return
    seal_known(history, target.checkpoint_id, address.options, typed_url=address.url)
    made = history.rollback(target.checkpoint_id)
    console.result(
        checkpoint_record(entry_of(made)),
        f"checkpoint {made.checkpoint_id} is the newest now, with the content of checkpoint "
        f"{target.checkpoint_id} (epoch {made.epoch}); whoever was writing is fenced",
    )
