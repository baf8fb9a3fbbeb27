"""``ckpt read``: rows of a checkpoint, by Spark."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import orjson

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import (
    HISTORY,
    address_of,
    argument,
    name_values,
    parse_options,
    switch,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, chosen_manifest, open_history
from pyspark_checkpoint.restorer.checkpoint_rows import check_rows, choose_rows, collect_rows, open_rows

if TYPE_CHECKING:
    from pyspark_checkpoint.restorer.checkpoint_rows import DataFrame

ABOUT = """Read rows at a checkpoint: those of a ckpt-sink table, or those of a query's operator
state. Starts a Spark of its own on this machine. State is restored into a temporary directory
first."""
EXAMPLES = """
ckpt read s3://bucket/tables/wc                                         the newest rows
ckpt read s3://bucket/tables/wc before-upgrade --where "count > 10" --columns word,count
ckpt read s3://bucket/checkpoints --query orders --operator 0 --json    an operator's state
ckpt read s3://bucket/tables/wc epoch=7 --out /tmp/wc --format parquet
"""
FORMATS = ("parquet", "csv", "json")
_CELL = 60
ARGUMENTS = (
    *HISTORY,
    argument("checkpoint", nargs="?", default="latest", metavar="CHECKPOINT", help=REFERENCE),
    argument("--where", metavar="SQL", help="only rows for which this is true"),
    argument("--columns", metavar="A,B", help="only these columns"),
    argument("--limit", type=int, default=20, metavar="N", help="at most N rows (20); 0 is all"),
    switch("--count", "only say how many rows there are"),
    argument("--operator", metavar="NAME", help="an operator's state, by name or number"),
    name_values(
        "--state-option", "an option of Spark's statestore reader: joinSide=left, stateVarName=total"
    ),
    argument("--out", metavar="PATH", help="write all rows there instead of printing them"),
    argument("--format", choices=FORMATS, default=FORMATS[0], help="of --out (parquet)"),
)


def run(args: argparse.Namespace, console: Console) -> None:
    """Read and print, or write."""
    address = address_of(args)
    history = open_history(address)
    manifest = chosen_manifest(history, args.checkpoint)
    check_rows(manifest, args.operator)
    columns = [name.strip() for name in (args.columns or "").split(",") if name.strip()]
    with open_rows(history, address.options, args.operator, parse_options(args.state_option)) as source:
        _put(choose_rows(source.rows(manifest), args.where, columns), args, console)


def _put(rows: DataFrame, args: argparse.Namespace, console: Console) -> None:
    if args.count:
        count = rows.count()
        console.result({"count": count}, f"{count:,}")
    elif args.out is not None:
        rows.write.format(args.format).save(args.out)
        console.note(f"written to {args.out} as {args.format}")
    elif console.as_json:
        console.json(collect_rows(rows, args.limit))
    else:
        _show(rows.columns, collect_rows(rows, args.limit), args.limit, console)


def _show(columns: list[str], rows: list[dict[str, Any]], limit: int, console: Console) -> None:
    if not rows:
        console.line("no rows")
        return
    numeric = {name for name in columns if all(isinstance(row[name], int | float | None) for row in rows)}
    heads = [f">{name}" if name in numeric else name for name in columns]
    console.table(heads, [[_cell(row[name]) for name in columns] for row in rows])
    if 0 < limit == len(rows):
        console.line(console.dim(f"{text.plural(limit, 'row')} at most; --limit 0 shows all"))


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    shown = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text.short(shown, _CELL)
