"""``preflight``: before a query starts from a location, say whether it will go on. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark_checkpoint.errors import NoCheckpoint
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.spark_files.listing import CheckpointListing, pinned_conf
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.logs import decode_offset_log, decode_operator_metadata, decode_query_id
from pyspark_checkpoint.spark_files.names import METADATA, offsets_file, setup_batch
from pyspark_checkpoint.spark_files.requirements import (
    Offered,
    PreflightFinding,
    Recorded,
    Severity,
    check_preflight,
)
from pyspark_checkpoint.spark_files.skipped_batch import find_skipped_batch
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND, parse_operator_key

_INTERRUPTED = PreflightFinding(
    Severity.FAILURE, "location", "a restore into it was interrupted", "repeat that restore"
)


def preflight(
    location: str | LocationSpec,
    *,
    spark_version: str | None = None,
    provider: str | None = None,
    partitions: int | None = None,
    sources: int | None = None,
    operators: Sequence[str] | None = None,
    outputs: Sequence[Output] = (),
    options: Mapping[str, str] | None = None,
) -> tuple[PreflightFinding, ...]:
    """Say what stands against starting a query from a checkpoint location. Reads; changes nothing.

    Give what is known of the query and its session; what is None is not compared.

    Args:
        location: The checkpoint location.
        spark_version: Of the session, for example ``4.2.0``.
        provider: The class of the state store that the session asks for.
        partitions: ``spark.sql.shuffle.partitions`` of the session.
        sources: How many sources the query has.
        operators: Spark's names of the query's stateful operators, in their order, as progress events
            show them.
        outputs: Where the query writes to: each is asked which batches it has.
        options: Options of the location's store.

    Returns:
        What was found, each with its cure; empty if nothing stands against it.

    Raises:
        NoCheckpoint: No query has run in the location.
        StoreError: The location cannot be read.
        FormatError: Its logs are damaged.
        SettingsError: The URL or an option is not valid.
    """
    spec = LocationSpec(location, options or {}) if isinstance(location, str) else location
    opened = spec.open()
    listing = opened.listing()
    if RESTORE_MARKER in listing.facts:
        return (_INTERRUPTED,)  # what is there may be half of it: nothing to compare with
    recorded = recorded_in_location(opened, listing)
    offered = Offered(
        spark_version, provider, partitions, sources, None if operators is None else tuple(operators)
    )
    newest = max(listing.offsets)
    notes = (
        PreflightFinding(Severity.NOTE, "location", f"batch {newest} is not committed, and runs again"),
    )
    return (
        *(() if newest in listing.commits else notes),
        *check_preflight(recorded, offered),
        *_check_outputs(opened, listing, outputs),
    )


def _check_outputs(
    location: CheckpointLocation, listing: CheckpointListing, outputs: Sequence[Output]
) -> Iterator[PreflightFinding]:
    """Whether Spark can run the batch that it planned last, where an output has it already."""
    for output in outputs:
        newest = output.position(decode_query_id(location.read(METADATA))).batch_id
        runs = output.runs_skipped_batches
        if (batch_id := find_skipped_batch(listing, newest, runs_skipped_batches=runs)) is not None:
            yield PreflightFinding(
                Severity.FAILURE,
                "output",
                f"the {output} has batch {batch_id}, which is not committed: with state of format version "
                "2 every start ends with 'CheckpointInfo length: 0'",
                f"roll the output back to batch {batch_id - 1}: then Spark runs the batch again",
            )


def recorded_in_location(location: CheckpointLocation, listing: CheckpointListing) -> Recorded:
    """What a location says of the query that it is of."""
    if not listing.offsets:
        raise NoCheckpoint(
            "the location has no offset log: no query has run there",
            hint="check the path; a query that begins anew needs no preflight",
        )
    name = offsets_file(max(listing.offsets))
    offsets = decode_offset_log(location.read(name), name)
    return Recorded(
        pinned_conf(offsets.conf, listing.facts), len(offsets.offsets), _operators(location, listing)
    )


def recorded_in_manifest(manifest: CheckpointManifest) -> Recorded:
    """What a checkpoint says of the query that it is of."""
    operators = {
        parse_operator_key(key): key.partition("-")[2]
        for key, operator in manifest.operators.items()
        if operator.kind == STATE_KIND
    }
    return Recorded(
        conf=manifest.query.conf,
        sources=len(manifest.source_offsets),
        operators=tuple(name for _, name in sorted(operators.items())),
        spark_version=manifest.query.spark_version,
    )


def _operators(location: CheckpointLocation, listing: CheckpointListing) -> tuple[str, ...]:
    newest: dict[int, str] = {}
    for path in sorted(listing.setup, key=setup_batch):
        if "/_metadata/metadata" in path or "/_metadata/v2/" in path:
            info = decode_operator_metadata(location.read(path), path)
            newest[info.operator] = info.name
    return tuple(name for _, name in sorted(newest.items()))
