"""``ckpt verify``: proof that a history is whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from pyspark_checkpoint.cli import exits, text
from pyspark_checkpoint.cli.arguments import add_all, add_json, add_store, place_of
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.queries import Done, Query, find_several, run_on_each
from pyspark_checkpoint.cli.target import REFERENCE, find_number, open_history
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
    "  hint: a query goes on from the newest good checkpoint (ckpt restore --at latest); damaged "
    "objects can be brought back from a copy"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add_store(parser)
    add_all(parser)
    parser.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT", help=f"only this one: {REFERENCE}")
    parser.add_argument("--quick", action="store_true", help="do not read artifacts")
    add_json(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Look, and print what is wrong."""
    if args.quick and args.checkpoint is not None:
        raise SettingsError(
            "--quick is for a whole history", hint="leave CHECKPOINT out, or read its artifacts"
        )
    place, damaged = place_of(args), list[str]()

    def work(history: CheckpointStore, query: Query) -> Done:
        findings = _findings(history, args, console, f"verify {query.label}")
        result = [asdict(finding) for finding in findings]
        if findings:
            damaged.append(query.label)
            more = tuple(line for finding in findings for line in _finding_lines(finding))
            return Done(text.plural(len(findings), "finding"), result, more, is_wrong=True)
        return Done(console.good(_good(history, args)), result)

    names = find_several(place, every=args.all)
    if names is not None:
        status = run_on_each(place, names, console, work, as_json=args.json)
        if damaged and not args.json:
            console.note(_HINT)
        return status
    history = open_history(place)
    findings = _findings(history, args, console, "verify")
    if args.json:
        console.json([asdict(finding) for finding in findings])
    else:
        _show(history, findings, args, console)
    return exits.FOUND if findings else exits.DONE


def _findings(
    history: CheckpointStore, args: argparse.Namespace, console: Console, label: str
) -> Sequence[Finding]:
    if args.checkpoint is not None:
        return history.validate_checkpoint(find_number(history, args.checkpoint)).issues
    with console.bar(label) as progress:
        return list(history.verify(read_artifacts=not args.quick, progress=progress))


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield str(finding)
    if finding.expected is not None or finding.actual is not None:
        yield f"  expected {finding.expected or 'nothing'}, found {finding.actual or 'nothing'}"


def _show(
    history: CheckpointStore, findings: Sequence[Finding], args: argparse.Namespace, console: Console
) -> None:
    for finding in findings:
        line, *more = _finding_lines(finding)
        console.line(console.bad(line))
        console.lines(more)
    if findings:
        console.line(f"{text.plural(len(findings), 'finding')} in {history.store.url}")
        console.note(_HINT)
        return
    head = f"{history.store.url}: " if args.checkpoint is None else ""
    console.line(console.good(head + _good(history, args)))


def _good(history: CheckpointStore, args: argparse.Namespace) -> str:
    what = "every byte" if not args.quick else "records, manifests and chain"
    if args.checkpoint is not None:
        return f"checkpoint {find_number(history, args.checkpoint)} is good: {what} checked"
    return f"{text.plural(len(history.list_ids()), 'checkpoint')}, all good: {what} checked"
