"""``preflight``: before a query starts from a location, say whether it will go on. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark_checkpoint.capture.commit_log import find_commit
from pyspark_checkpoint.errors import NoCheckpoint, RefusedError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.ask import find_behind
from pyspark_checkpoint.outputs.ckpt_sink import LinkedSink
from pyspark_checkpoint.outputs.decide import FAIL, OutputVerdict, Resumption, decide
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.restorer.api import RestoreRequest, ask_outputs
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER, plan_restore
from pyspark_checkpoint.spark_files.listing import CheckpointListing, pinned_conf
from pyspark_checkpoint.spark_files.location import CheckpointLocation, LocationSpec
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.logs import decode_query_id
from pyspark_checkpoint.spark_files.names import METADATA
from pyspark_checkpoint.spark_files.requirements import (
    Offered,
    PreflightFinding,
    Recorded,
    Severity,
    check_preflight,
)
from pyspark_checkpoint.spark_files.skipped_batch import find_skipped_batch

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
    """Whether Spark can go on with outputs that have batches already that are not committed."""
    for output in outputs:
        resumption = Resumption.of_location(listing, decode_query_id(location.read(METADATA)))
        position, runs = output.position(resumption.query_id), output.runs_skipped_batches
        newest = position.batch_id
        if (batch_id := find_skipped_batch(listing, newest, runs_skipped_batches=runs)) is not None:
            yield PreflightFinding(
                Severity.FAILURE,
                "output",
                f"the {output} has batch {batch_id}, which is not committed: with state of format version "
                "2 every start ends with 'CheckpointInfo length: 0'",
                f"roll the output back to batch {batch_id - 1} (spark.ckpt.sink=rollback): then Spark runs "
                "the batch again",
            )
            continue
        verdict = decide(resumption, position, runs_skipped_batches=runs, choice=FAIL)
        if verdict is OutputVerdict.UNKNOWN:
            text = f"the {output} no longer says which batches it has of this query"
            yield PreflightFinding(Severity.WARNING, "output", text)
        elif verdict is not OutputVerdict.GO_ON:
            yield PreflightFinding(
                Severity.FAILURE,
                "output",
                f"the {output} has batch {newest}, the location goes on after {resumption.done_batch}: it "
                "would drop what the query writes by number",
                "roll the output back with it (ckpt rewind, or spark.ckpt.sink=rollback), or take a newer "
                "location or another target",
            )
        elif (behind := find_behind(output, position, resumption)) is not None:
            is_sure = output.records_every_batch and newest is not None
            severity = Severity.FAILURE if is_sure else Severity.WARNING
            yield PreflightFinding(severity, "output", behind.message, behind.hint or "")


def check_manifest_outputs(
    history: CheckpointStore, manifest: CheckpointManifest, request: RestoreRequest
) -> tuple[PreflightFinding, ...]:
    """Whether a query can go on from a checkpoint, as a restore would ask its outputs."""
    if manifest.batch_id is None:
        return ()
    try:
        files = plan_restore(manifest, commit=find_commit(history, manifest))
    except RefusedError as error:
        return (PreflightFinding(Severity.FAILURE, "checkpoint", error.message, error.hint or ""),)
    try:
        LinkedSink(manifest, request.url, request.options).plan(may_roll_back=False)
        _, _, outputs = ask_outputs(history, manifest, request, files)
    except RefusedError as error:
        return (PreflightFinding(Severity.FAILURE, "output", error.message, error.hint or ""),)
    return tuple(PreflightFinding(Severity.NOTE, "output", note) for note in outputs.notes)


def recorded_in_location(location: CheckpointLocation, listing: CheckpointListing) -> Recorded:
    """What a location says of the query that it is of."""
    if not listing.offsets:
        raise NoCheckpoint(
            "the location has no offset log: no query has run there",
            hint="check the path; a query that begins anew needs no preflight",
        )
    logs, newest = LocationLogs(location), max(listing.offsets)
    offsets, declared = logs.offsets(newest), logs.declared_operators(listing, newest)
    operators = tuple(info.name for _, info in sorted(declared.items()))
    return Recorded(pinned_conf(offsets.conf, listing.facts), len(offsets.offsets), operators)
