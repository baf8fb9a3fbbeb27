"""What of a checkpoint location belongs to a batch, once all its tasks are done.

Two ways lead to the same answer. The location is listed as a whole: always when a run begins, and
whenever something a task saw may have changed since. Or what the tasks saw is put together: each has
listed its own partitions, so that a commit costs the driver no listing that grows with the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from pyspark_checkpoint.capture.upload_plan import KnownFile
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.sink.batch_manifest import Batch
from pyspark_checkpoint.sink.state_plan import StatePlan
from pyspark_checkpoint.sink.state_task import WatchedLocation, commits_before, plan_present
from pyspark_checkpoint.spark_files.inventory import CapturePlan, plan_small_files
from pyspark_checkpoint.spark_files.listing import CheckpointListing, sort_listing
from pyspark_checkpoint.spark_files.location import CheckpointLocation, FileGone, RememberingLocation
from pyspark_checkpoint.spark_files.logs import (
    CommitLog,
    OffsetLog,
    OperatorInfo,
    decode_commit_log,
    decode_offset_log,
    decode_query_id,
)
from pyspark_checkpoint.spark_files.names import (
    METADATA,
    StateFile,
    StateFileKind,
    StoreId,
    is_operator_setup,
    is_source_schema,
    parse_shared_file,
)
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.state_record import (
    check_committable,
    plan_both_points,
    record_state,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, StateChain

SOURCES = "sources/"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the last commit of a run in this process has left; there may be others in between elsewhere."""

    batch: int
    newest: int
    """The newest version that any state file had when the whole location was listed."""
    files: Mapping[str, KnownFile] = field(default_factory=dict)
    """Spark's small files, by path."""


@dataclass(frozen=True, slots=True)
class StateReading:
    """What a batch commits besides its rows, and what says so."""

    captured: CapturePlan
    record: StateRecord
    offsets: OffsetLog
    operators: Mapping[int, OperatorInfo]
    commits: Mapping[int, CommitLog]
    schemas: Mapping[str, str]
    listing: CheckpointListing
    newest: int
    location: CheckpointLocation
    """The location; what was read of it is not read again."""
    known: Mapping[str, KnownFile]
    """The small files that are the head's without a look."""
    opened: Mapping[str, str]
    """The digests of the snapshots of RocksDB that were looked into here."""


def read_state(
    batch: Batch,
    watched: WatchedLocation,
    head: StatePlan,
    files: Mapping[str, ArtifactRef],
    before: Remembered | None,
) -> StateReading:
    """Find what belongs to a batch. Refused if a partition is not there before and after it.

    ``files`` are the head's small files, by path.
    """
    last = files.get(f"offsets/{batch.batch_id - 1}")
    if before is not None and last is not None and may_put_together(batch, head, before):
        reading = _put_together(batch, watched, head, last, before)
        if reading is not None:
            return reading
    return _list_all(batch, watched, head, {} if before is None else before.files)


def may_put_together(batch: Batch, head: StatePlan, before: Remembered) -> bool:
    """Whether what the tasks saw is what is there now.

    So it is if the batch before is of the same run, and this process has listed the location in it: then
    no earlier attempt has left files of the version that this batch makes. And if no task had a second
    attempt, by a retry, by speculation or because its stage ran again: then each of those files was
    written once.
    """
    record, number = head.record, batch.batch_id
    return (
        record is not None
        and record.batch_id == number - 1
        and before.batch < number
        and head.head_run == batch.facts.run_id
        and before.newest <= number
        and batch.facts.once
    )


def _nothing(_: Sequence[StateChain]) -> Mapping[str, str]:
    """Whoever looked into a snapshot has taken it with what it needs."""
    return {}


@dataclass(frozen=True, slots=True)
class _Look:
    """The location, as it was listed or put together."""

    location: CheckpointLocation
    listing: CheckpointListing
    newest: int
    commits: Mapping[int, CommitLog]
    shared: Callable[[Sequence[StateChain]], Mapping[str, tuple[str, ...]]]
    """What each chosen snapshot of RocksDB needs beside itself."""
    known: Mapping[str, KnownFile]
    together: Set[StateFile] = frozenset()
    opened: Callable[[Sequence[StateChain]], Mapping[str, str]] = _nothing


def _list_all(
    batch: Batch, watched: WatchedLocation, head: StatePlan, known: Mapping[str, KnownFile]
) -> StateReading:
    location, logs, number = watched.location, watched.logs, batch.batch_id
    listing = location.listing()
    check_committable(listing, number)
    query_id = decode_query_id(location.read(METADATA))
    if batch.facts.query_id and query_id != batch.facts.query_id:
        raise RefusedError(f"the checkpoint location is of query {query_id}, not {batch.facts.query_id}")
    look = _Look(
        location,
        listing,
        newest=max((file.version for files in listing.state.values() for file in files), default=0),
        commits=commits_before(logs, listing, number, head.settled()),
        shared=lambda chains: logs.shared_files(chains, listing),
        opened=lambda chains: logs.opened(chains, listing),
        known=known,
        together=logs.written_together(listing, number + 1),
    )
    try:
        return _plan(batch, watched, head, look)
    except FileGone:
        raise
    except RefusedError as error:
        hint = f"{error.hint}; or set the option state to off, and rows alone are committed"
        raise RefusedError(error.message, hint=hint) from error


def _put_together(
    batch: Batch, watched: WatchedLocation, head: StatePlan, offsets: ArtifactRef, before: Remembered
) -> StateReading | None:
    """The same from what the tasks saw; None if they did not see everything.

    ``offsets`` is the log of the batch before, which the head has.
    """
    here, number = watched.location, batch.batch_id
    seen = {file.path: file.facts for part in batch.parts for file in part.state}
    last, this = f"commits/{number - 1}", f"offsets/{number}"
    read = {last: here.read(last), this: batch.facts.offsets.encode("utf-8") or here.read(this)}
    earlier = f"offsets/{number - 1}"
    known = {**before.files, earlier: KnownFile(FileFacts(offsets.size_bytes, 0), offsets)}
    lasting = (path for path in before.files if _is_lasting(path))
    facts = {path: known[path].facts for path in (*lasting, earlier)}
    facts |= {path: FileFacts(len(data), 0) for path, data in read.items()}
    facts |= here.listing(SOURCES).facts
    look = _Look(
        RememberingLocation(here, read),
        sort_listing(facts | seen),
        newest=before.newest,
        commits={number - 1: decode_commit_log(read[last], last)},
        shared=lambda chains: shared_among(chains, seen),
        known=known,
    )
    try:
        return _plan(batch, watched, head, look)
    except RefusedError:
        # A task could not see a partition, because another one still wrote it. The driver can by now.
        return None


def _is_lasting(path: str) -> bool:
    """Whether a small file is the same for as long as a run goes on: sources change schemas at a start."""
    return path == METADATA or is_operator_setup(path) or is_source_schema(path)


def shared_among(chains: Iterable[StateChain], paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """For each snapshot of RocksDB in the chains, the files that its store shares; all that were seen."""
    by_owner: dict[StoreId, list[str]] = {}
    for path in paths:
        owner = parse_shared_file(path)
        if owner is not None:
            by_owner.setdefault(owner, []).append(path.removeprefix(f"{owner.directory}/"))
    bases = (chain.base for chain in chains if chain.base is not None)
    return {base.path: tuple(sorted(by_owner.get(base.owner, ()))) for base in bases}


def _plan(batch: Batch, watched: WatchedLocation, head: StatePlan, look: _Look) -> StateReading:
    listing, number = look.listing, batch.batch_id
    operators = watched.logs.operators(listing, number)
    offsets = _offsets(batch, look.location)
    pinned = int(offsets.conf[PARTITIONS]) if PARTITIONS in offsets.conf else None
    chains = plan_both_points(
        listing,
        number,
        look.commits,
        operators,
        partitions=pinned,
        together=look.together,
        settled=head.settled(),
    )
    first_epoch = batch.epoch - number
    planned = plan_present(chains, listing, look.shared(chains), operators, first_epoch)
    small = plan_small_files(listing, number, offsets, is_committed=False, epoch=batch.epoch)
    captured = CapturePlan(batch.epoch, planned, small)
    changeable = [
        file
        for chain in chains
        for file in chain.files()
        if file.version == number + 1 or file.kind is StateFileKind.ZIP
    ]
    return StateReading(
        captured,
        record_state(number, operators, captured.all_files(), changeable, partitions=pinned),
        offsets,
        operators,
        look.commits,
        watched.logs.schemas(listing, number),
        listing,
        look.newest,
        look.location,
        look.known,
        look.opened(chains),
    )


def _offsets(batch: Batch, location: CheckpointLocation) -> OffsetLog:
    name = f"offsets/{batch.batch_id}"
    data = batch.facts.offsets.encode("utf-8") or location.read(name)
    return decode_offset_log(data, name)
