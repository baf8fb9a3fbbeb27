"""``ckpt preflight``: will the query start?"""

from __future__ import annotations

import argparse

from pyspark_checkpoint.capture.sink_description import CKPT_SINK
from pyspark_checkpoint.cli.arguments import (
    HISTORY_STORE,
    SINK_LOCATION,
    Address,
    address_of,
    argument,
    group,
)
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import REFERENCE, chosen_manifest, open_history
from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.format.manifest_parts import SinkRecord
from pyspark_checkpoint.outputs.ask import OutputQuestion, can_be_asked
from pyspark_checkpoint.outputs.ckpt_sink import CkptSinkOutput
from pyspark_checkpoint.outputs.iceberg_table import FindTable
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.registry.queries import plain_options
from pyspark_checkpoint.restorer.api import RestoreRequest, find_tables
from pyspark_checkpoint.restorer.preflight import check_manifest_outputs, preflight
from pyspark_checkpoint.spark.local_session import session_with
from pyspark_checkpoint.spark_files.requirements import (
    Offered,
    PreflightFinding,
    Recorded,
    Severity,
    check_preflight,
)

ABOUT = """Say whether a query will go on from a checkpoint location, or with --at from a
checkpoint of a history, before it is started. Give what is known of the query and its session; what
is not given is not compared. The exit status is 0 if nothing stands against the start."""
EXAMPLES = """
ckpt preflight /fresh/location --spark-version 4.2.0 --sources 1
ckpt preflight /fresh/location --sink delta:s3://bucket/tables/orders
ckpt preflight s3://bucket/checkpoints --query orders --at latest --partitions 400
"""
ARGUMENTS = (
    argument("url", metavar="LOCATION", help="a checkpoint location, or with --at a history"),
    argument("--at", metavar="CHECKPOINT", help=REFERENCE),
    HISTORY_STORE,
    argument(
        "--sink",
        metavar="KIND:PLACE",
        help="where the query writes to, which is asked: file:PATH, delta:PATH, ckpt-sink:URL, "
        "iceberg:PATH or iceberg:NAME; with --at what the checkpoint says",
    ),
    *SINK_LOCATION,
    group(
        "the query and its session",
        argument("--spark-version", metavar="V", help="for example 4.2.0"),
        argument("--provider", metavar="CLASS", help="the state store that the session asks for"),
        argument("--partitions", type=int, metavar="N", help="spark.sql.shuffle.partitions"),
        argument("--sources", type=int, metavar="N", help="how many sources the query has"),
        argument(
            "--operators", metavar="A,B", help="Spark's names of its stateful operators, in their order"
        ),
    ),
)
_NOT_ASKED = PreflightFinding(
    Severity.NOTE,
    "output",
    "it was not asked which batches it has: a location does not say where its query writes to",
    "give --sink KIND:PLACE; or ask with --at, for a checkpoint knows its output",
)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Compare, and print what stands against it."""
    findings = _findings(args)
    failed = any(found.severity is Severity.FAILURE for found in findings)
    paint = {Severity.FAILURE: console.bad, Severity.WARNING: console.warn, Severity.NOTE: console.dim}
    records, lines = [], []
    for found in findings:
        severity = found.severity.value
        records.append(
            {"severity": severity, "what": found.what, "message": found.message, "cure": found.cure}
        )
        lines.append(paint[found.severity](f"{severity}: {found.what}: {found.message}"))
        lines += [f"  hint: {found.cure}"] if found.cure else []
    good = console.good("nothing that was given stands against the start")
    console.result(records, *lines, "the query will not start from here" if failed else good)
    return failed


def _findings(args: argparse.Namespace) -> tuple[PreflightFinding, ...]:
    address = address_of(args)
    operators = None
    if args.operators is not None:
        operators = tuple(name.strip() for name in args.operators.split(",") if name.strip())
    with session_with(args.conf) as spark:
        tables = find_tables(spark)
        if args.at is None:
            found = preflight(
                address.url,
                spark_version=args.spark_version,
                provider=args.provider,
                partitions=args.partitions,
                sources=args.sources,
                operators=operators,
                outputs=() if args.sink is None else (_output(args.sink, address, tables),),
                options=plain_options(address.options),
            )
            return found if args.sink is not None else (*found, _NOT_ASKED)
        history = open_history(address)
        manifest = chosen_manifest(history, args.at)
        offered = Offered(args.spark_version, args.provider, args.partitions, args.sources, operators)
        request = RestoreRequest(
            address.url,
            "",
            args.at,
            sink_location=args.sink_location,
            options=address.options,
            tables=tables,
        )
        return (
            *check_preflight(Recorded.of_manifest(manifest), offered),
            *check_manifest_outputs(history, manifest, request),
        )


def _output(typed: str, address: Address, tables: FindTable) -> Output:
    """The output that was typed as its kind and its place."""
    kind, _, place = typed.partition(":")
    sink = SinkRecord(kind, place)
    if kind == CKPT_SINK and place:
        return CkptSinkOutput(place, address.options)
    question = OutputQuestion(place, place=place, options=address.options, tables=tables)
    output = question.open(sink) if place and can_be_asked(sink) else None
    if output is None:
        raise SettingsError(
            f"--sink is {typed!r}",
            hint="give file:PATH, delta:PATH, ckpt-sink:URL, iceberg:PATH, or iceberg:NAME with --conf "
            "for its catalog or pyiceberg configured for it",
        )
    return output
