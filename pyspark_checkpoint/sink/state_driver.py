"""Spark's own state of a batch, as the driver sees it: the decision before the tasks, the location after.

Before the tasks it is decided whether the state is committed with the rows. After them two ways lead to
what belongs to the batch. The location is listed as a whole: always when a run begins, and whenever
something that a task saw may have changed since. Or what the tasks saw is combined: each has listed its
own partitions, so that a commit costs the driver no listing that grows with the state.

A partition whose task ran no Python is looked at by the driver. Spark keeps some hundred files there, of
which a batch adds one or two. So where the location is a directory, only the newest versions are listed:

1. What is older was chosen by the commit of the batch before, if this process has done it. It does not
   change while a run goes on, and its bytes are in the store, whatever becomes of the files.
2. The versions before and after the batch are listed: a file that is missing, or written again, is seen.
3. A snapshot that maintenance makes of an older version is found when its partition is listed as a whole:
   once in ``WHOLE_EVERY`` batches, each partition in another one. So is a partition with a new snapshot of
   RocksDB, which needs other files beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pyspark_checkpoint.capture.commit_log import seal_head
from pyspark_checkpoint.capture.upload_plan import KnownFile
from pyspark_checkpoint.errors import CheckpointError, Diverged, RefusedError, SettingsError, Unavailable
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.sink.batch_manifest import Batch
from pyspark_checkpoint.sink.query import local_directory
from pyspark_checkpoint.sink.state_task import (
    BY_A_BATCH,
    StatePlan,
    commits_before,
    plan_present,
    plan_state,
)
from pyspark_checkpoint.sink.table_options import WriteOptions
from pyspark_checkpoint.sink.worker_cache import (
    CACHE,
    LastCommit,
    OpenLocation,
    location_key,
    open_location,
)
from pyspark_checkpoint.spark_files.inventory import (
    CapturePlan,
    OperatorFiles,
    plan_small_files,
)
from pyspark_checkpoint.spark_files.listing import CheckpointListing, sort_listing
from pyspark_checkpoint.spark_files.location import (
    CheckpointLocation,
    FileGone,
    LocationSpec,
    RememberingLocation,
)
from pyspark_checkpoint.spark_files.log_reader import LocationLogs
from pyspark_checkpoint.spark_files.logs import (
    CommitLog,
    OffsetLog,
    decode_commit_log,
    decode_offset_log,
    decode_query_id,
)
from pyspark_checkpoint.spark_files.names import (
    METADATA,
    SOURCES,
    PartitionId,
    StateFile,
    StateFileKind,
    StoreId,
    commits_file,
    is_operator_setup,
    is_source_schema,
    offsets_file,
    parse_shared_file,
    state_directory,
)
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.state_record import check_committable, plan_both_points, record_state
from pyspark_checkpoint.spark_files.versions import FileFacts, StateChain
from pyspark_checkpoint.store.parallel import run_bounded

WHOLE_EVERY = 16
_LOOKS_AT_ONCE = 8
_LOG = logging.getLogger(__name__)


def choose_state(
    options: WriteOptions, manifest: CheckpointManifest | None, *, streaming: bool, tasks: int
) -> StatePlan | None:
    """The plan of the state, None if only rows are committed.

    ``auto`` commits state where it can; ``on`` refuses where it cannot, before anything is written. So
    does ``auto`` once the run has committed state: a batch without it would be a hole that nobody sees.
    """
    if options.state == "off" or (not streaming and options.state == "auto"):
        return None
    if not streaming:
        raise SettingsError(
            "state=on is for streaming queries",
            hint="a batch job has no state: leave the option state out",
        )
    spec = find_location(options)
    reason = "the checkpoint location is not known to the sink" if spec is None else why_unreadable(spec)
    if spec is not None and reason is None:
        return plan_state(manifest, spec, tasks=tasks)
    begun = _has_state_of(options.facts.run_id, manifest)
    if options.state == "on" or begun:
        what = (
            "this run has committed its state so far, and cannot now" if begun else "state=on cannot work"
        )
        raise SettingsError(
            f"{what}: {reason}",
            hint="give the location by option('checkpointLocation', ...) or add the jar; it must be on a "
            "disk that all machines see, or on S3, GCS or Azure; or set the option state to off",
        )
    if not CACHE.warnings.find((reason,)):
        _LOG.warning("ckpt-sink commits the rows only, without Spark's state: %s", reason)
        CACHE.warnings.put((reason,), True)
    return None


def _has_state_of(run_id: str, manifest: CheckpointManifest | None) -> bool:
    """Whether a batch of this run has committed its state."""
    if manifest is None or not run_id or manifest.run_id != run_id or manifest.kind not in BY_A_BATCH:
        return False
    return manifest.state is not None


def seal_before_claim(options: WriteOptions, manifest: CheckpointManifest) -> None:
    """Record, when a run begins, that the last one finished its last batch, if it did.

    A failure costs nothing but that: the checkpoint is then restored to before its batch.
    """
    spec = find_location(options)
    if options.state == "off" or spec is None or manifest.state is None:
        return
    shared = options.shared
    key_file = {} if shared.key_file is None else {"encryptionKeyFile": shared.key_file}
    try:
        history = CheckpointStore.open(shared.path, {**shared.store_options, **key_file})
        seal_head(history, open_location(spec).location)
    except CheckpointError as error:
        _LOG.info("checkpoint %d is not sealed: %s", manifest.checkpoint_id, error)


def find_location(options: WriteOptions) -> LocationSpec | None:
    """The query's checkpoint location, None if nobody has said where it is."""
    url = options.facts.checkpoint_location
    if not url:
        return None
    directory = local_directory(url)
    if directory is not None:
        # Tasks run in directories of their own: a relative path is meant from where the driver is.
        url = str(directory.absolute())
    return LocationSpec(url, options.shared.store_options)


def why_unreadable(spec: LocationSpec) -> str | None:
    """Why the location cannot be read from Python; None if it can.

    A location that does not answer now is an error, also for ``auto``: it would commit this batch without
    its state, and the next one with it.
    """
    if CACHE.readable.find(location_key(spec)):
        return None
    if spec.is_foreign:
        return f"checkpoint locations on {spec.url.partition(':')[0]}: are not read from Python"
    try:
        open_location(spec).location.read(METADATA)
    except Unavailable:
        raise
    except CheckpointError as error:
        return f"the driver cannot read {spec.url}: {error.message}"
    CACHE.readable.put(location_key(spec), True)
    return None


@dataclass(frozen=True, slots=True)
class StateReading:
    """What a batch commits besides its rows, and what says so."""

    captured: CapturePlan
    record: StateRecord
    offsets: OffsetLog
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
    opened: OpenLocation,
    head: StatePlan,
    files: Mapping[str, ArtifactRef],
    before: LastCommit | None,
) -> StateReading:
    """Find what belongs to a batch. Refused if a partition is not there before and after it.

    ``files`` are the head's small files, by path.
    """
    last = files.get(offsets_file(batch.batch_id - 1))
    if before is not None and last is not None and may_combine(batch, head, before):
        reading = _combine(batch, opened, head, last, before)
        if reading is not None:
            return reading
    return _list_all(batch, opened, head, {} if before is None else before.files)


def may_combine(batch: Batch, head: StatePlan, before: LastCommit) -> bool:
    """Whether what the tasks saw is what is there now.

    So it is if the batch before is of the same run, and this process has listed the location in it: then
    no earlier attempt has left files of the version that this batch makes. And if no task had a second
    attempt, by a retry, by speculation or because its stage ran again: then each of those files was
    written once.
    """
    return (
        head.record is not None
        and head.record.batch_id == batch.batch_id - 1
        and before.batch_id < batch.batch_id
        and head.head_run == batch.facts.run_id
        and before.newest_version <= batch.batch_id
        and batch.facts.once
    )


def _nothing(_: Sequence[StateChain]) -> Mapping[str, str]:
    """Whoever looked into a snapshot has collected it with what it needs."""
    return {}


@dataclass(frozen=True, slots=True)
class _Look:
    """The location, as it was listed, or combined from what the tasks saw."""

    location: CheckpointLocation
    listing: CheckpointListing
    newest: int
    commits: Mapping[int, CommitLog]
    shared: Callable[[Sequence[StateChain]], Mapping[str, tuple[str, ...]]]
    """What each chosen snapshot of RocksDB needs beside itself."""
    known: Mapping[str, KnownFile]
    together: Set[StateFile] = frozenset()
    digests: Callable[[Sequence[StateChain]], Mapping[str, str]] = _nothing


def _list_all(
    batch: Batch, opened: OpenLocation, head: StatePlan, known: Mapping[str, KnownFile]
) -> StateReading:
    location, logs, number = opened.location, opened.logs, batch.batch_id
    listing = location.listing()
    check_committable(listing, number)
    query_id = decode_query_id(location.read(METADATA))
    if batch.facts.query_id and query_id != batch.facts.query_id:
        raise Diverged(
            f"the checkpoint location is of query {query_id}, not {batch.facts.query_id}",
            hint="each query has a checkpoint location of its own: check the option checkpointLocation",
        )
    look = _Look(
        location,
        listing,
        newest=max((file.version for files in listing.state.values() for file in files), default=0),
        commits=commits_before(logs, listing, number, head.settled()),
        shared=lambda chains: logs.shared_files(chains, listing),
        digests=lambda chains: logs.opened(chains, listing),
        known=known,
        together=logs.written_together(listing, number + 1),
    )
    try:
        return _read(batch, opened, head, look)
    except FileGone:
        raise
    except RefusedError as error:
        off = "set the option state to off, and rows alone are committed"
        error.hint = f"{error.hint}; or {off}" if error.hint else off
        raise


def _combine(
    batch: Batch, opened: OpenLocation, head: StatePlan, offsets: ArtifactRef, before: LastCommit
) -> StateReading | None:
    """The same from what the tasks saw; None if they did not see everything.

    ``offsets`` is the log of the batch before, which the head has.
    """
    here, number = opened.location, batch.batch_id
    seen = {file.path: file.facts for part in batch.parts for file in part.state}
    looks = _plan_looks(batch, head, sort_listing(seen).state, before)
    if looks is None:
        return None
    last, this = commits_file(number - 1), offsets_file(number)
    read = {last: here.read(last), this: batch.facts.offsets.encode("utf-8") or here.read(this)}
    earlier = offsets_file(number - 1)
    known = {**before.files, earlier: KnownFile(FileFacts(offsets.size_bytes, 0), offsets)}
    lasting = (path for path in before.files if _is_lasting(path))
    facts = {path: known[path].facts for path in (*lasting, earlier)}
    facts |= {path: FileFacts(len(data), 0) for path, data in read.items()}
    facts |= here.facts(SOURCES)
    look = _Look(
        RememberingLocation(here, read),
        sort_listing({**facts, **seen, **look_at(here, list(looks.values()))}),
        newest=before.newest_version,
        commits={number - 1: decode_commit_log(read[last], last)},
        shared=lambda chains: shared_among(chains, seen),
        known=known,
    )
    if looks:
        look = _with_snapshots(look, opened.logs, looks, number)
    try:
        return _read(batch, opened, head, look)
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


def _read(batch: Batch, opened: OpenLocation, head: StatePlan, look: _Look) -> StateReading:
    listing, number = look.listing, batch.batch_id
    operators = opened.logs.operators(listing, number)
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
    captured = CapturePlan(number, planned, small)
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
        look.commits,
        opened.logs.schemas(listing, number),
        listing,
        look.newest,
        look.location,
        look.known,
        look.digests(chains),
    )


def _offsets(batch: Batch, location: CheckpointLocation) -> OffsetLog:
    name = offsets_file(batch.batch_id)
    data = batch.facts.offsets.encode("utf-8") or location.read(name)
    return decode_offset_log(data, name)


# --- partitions that no task has looked at ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """What is asked of one partition, and what is known of it already."""

    prefixes: tuple[str, ...]
    whole: str
    """The prefix of all its files."""
    known: Mapping[str, FileFacts]


def plan_looks(
    record: StateRecord, last: Sequence[OperatorFiles], seen: Set[PartitionId], batch_id: int, epoch: int
) -> dict[PartitionId, PartitionLook]:
    """Decide what to ask of each partition that was not ``seen`` by a task. Pure.

    ``last`` has the files that the commit of the batch before has chosen, of every partition; ``epoch`` is
    that of this batch.
    """
    stores: dict[int, list[str]] = {}
    for store in record.stores:
        stores.setdefault(store.operator, []).append(store.name)
    return {
        (info.operator, partition): _plan_look(
            [StoreId(info.operator, partition, store) for store in stores.get(info.operator, ())],
            state_directory(info.operator, partition),
            # A file of version V was written by the epoch of batch V - 1: the newest ones are asked for.
            {file.path: file.facts for file in files if file.epoch < epoch - 1},
            batch_id,
        )
        for info in last
        for partition, files in info.partitions.items()
        if (info.operator, partition) not in seen
    }


def _plan_look(
    stores: Sequence[StoreId], whole: str, known: Mapping[str, FileFacts], batch_id: int
) -> PartitionLook:
    if any((store.partition + batch_id) % WHOLE_EVERY == 0 for store in stores):
        return PartitionLook((whole,), whole, {})
    newest = (batch_id, batch_id + 1)
    prefixes = (f"{store.directory}/{version}" for store in stores for version in newest)
    return PartitionLook(tuple(prefixes), whole, known)


def look_at(location: CheckpointLocation, looks: Sequence[PartitionLook]) -> dict[str, FileFacts]:
    """The state files of these partitions: what is known, and what is there of the rest now."""
    found: dict[str, FileFacts] = {}
    for one in run_bounded(lambda one: _look(location, one), looks, _LOOKS_AT_ONCE):
        found |= one
    return found


def _look(location: CheckpointLocation, one: PartitionLook) -> dict[str, FileFacts]:
    found = location.facts(*one.prefixes)
    if one.prefixes == (one.whole,):
        return found
    if any(path.endswith(f".{StateFileKind.ZIP.value}") for path in found):
        return location.facts(one.whole)
    return {**one.known, **found}


def _plan_looks(
    batch: Batch, head: StatePlan, seen: Iterable[StoreId], before: LastCommit
) -> dict[PartitionId, PartitionLook] | None:
    """What the driver must look at because no task did; None if it may as well list the whole location.

    An object store names a thousand files a request, so that one listing of everything asks less.
    """
    if head.record is None:
        return None
    places = {(owner.operator, owner.partition) for owner in seen}
    looks = plan_looks(head.record, before.state, places, batch.batch_id, batch.epoch)
    is_remembered = before.batch_id == batch.batch_id - 1
    if looks and not (is_remembered and local_directory(head.location.url) is not None):
        return None
    return looks


def _with_snapshots(look: _Look, logs: LocationLogs, looks: Container[PartitionId], number: int) -> _Look:
    """What the snapshots of RocksDB say that no task has looked into."""
    listing, by_tasks = look.listing, look.shared
    here = {owner: files for owner, files in listing.state.items() if owner.place in looks}

    def chosen(chains: Sequence[StateChain]) -> list[StateChain]:
        return [chain for chain in chains if chain.owner in here]

    return replace(
        look,
        shared=lambda chains: {**by_tasks(chains), **logs.shared_files(chosen(chains), listing)},
        digests=lambda chains: logs.opened(chosen(chains), listing),
        together=logs.written_together(replace(listing, state=here), number + 1),
    )
