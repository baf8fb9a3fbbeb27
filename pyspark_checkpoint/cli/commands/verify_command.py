"""``ckpt verify``: proof that a history is whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import ALL, HISTORY, argument, switch
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, Done, resolve_id, run_on_histories
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.verify import Finding

ABOUT = """Prove a history, or those of all queries below URL: every record, the chain of manifests,
every stored byte against its SHA-256. Changes nothing. Needs no key; with one the manifests'
authenticity is proved as well. The exit status is 0 only if nothing is wrong."""
EXAMPLES = """
ckpt verify s3://bucket/checkpoints                every query below it
ckpt verify s3://bucket/checkpoints --query orders
ckpt verify s3://bucket/tables/wc latest           only one checkpoint
ckpt verify /data/ckpt --quick                     records, manifests and chain; no artifact is read
"""
_HINT = (
    "a query goes on from the newest good checkpoint (ckpt restore --at latest); damaged "
    "objects can be brought back from a copy"
)
ARGUMENTS = (
    *HISTORY,
    ALL,
    argument("checkpoint", nargs="?", metavar="CHECKPOINT", help=f"only this one: {REFERENCE}"),
    switch("--quick", "do not read artifacts"),
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Look, and print what is wrong."""
    if args.quick and args.checkpoint is not None:
        raise SettingsError(
            "--quick is for a whole history", hint="leave CHECKPOINT out, or read its artifacts"
        )

    def work(history: CheckpointStore, label: str) -> Done:
        findings = _findings(history, args, console, f"verify {label}".strip())
        result = [asdict(finding) for finding in findings]
        if findings:
            where = "" if label else f" in {history.store.url}"
            line = f"{text.plural(len(findings), 'finding')}{where}"
            return Done(line, result, [told for one in findings for told in _lines(one)], hint=_HINT)
        head = "" if label or args.checkpoint is not None else f"{history.store.url}: "
        return Done(console.good(head + _good(history, args)), result)

    return run_on_histories(args, console, work)


def _findings(
    history: CheckpointStore, args: argparse.Namespace, console: Console, label: str
) -> Sequence[Finding]:
    if args.checkpoint is not None:
        return history.validate_checkpoint(resolve_id(history, args.checkpoint)).issues
    with console.bar(label) as progress:
        return list(history.verify(read_artifacts=not args.quick, progress=progress))


def _lines(finding: Finding) -> Iterator[str]:
    yield str(finding)
    if finding.expected is not None or finding.actual is not None:
        yield f"  expected {finding.expected or 'nothing'}, found {finding.actual or 'nothing'}"


def _good(history: CheckpointStore, args: argparse.Namespace) -> str:
    what = "every byte" if not args.quick else "records, manifests and chain"
    if args.checkpoint is not None:
        return f"checkpoint {resolve_id(history, args.checkpoint)} is good: {what} checked"
    return f"{text.plural(len(history.list_ids()), 'checkpoint')}, all good: {what} checked"
