"""Taking a checkpoint of one query: list, plan, upload what is new, publish. No Spark needed.

Nothing here blocks the query, and nothing of the query's is changed. What Spark purges or rewrites
while it is read is noticed, and the capture begins again from a new listing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark_checkpoint.capture.describe import CapturedLogs, QueryFacts, draft_manifest
from pyspark_checkpoint.capture.location import CheckpointLocation, FileGone
from pyspark_checkpoint.capture.upload import UploadedGroup, UploadTarget, upload_group
from pyspark_checkpoint.capture.uploads import (
    KnownFile,
    UploadItem,
    UploadPlan,
    artifacts_by_path,
    plan_uploads,
)
from pyspark_checkpoint.errors import RefusedError, StaleAttempt
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CheckpointId
from pyspark_checkpoint.format.manifest import CheckpointManifest, RequestCount
from pyspark_checkpoint.format.pack import DEFAULT_BOUNDS
from pyspark_checkpoint.format.sealed import sha256_hex
from pyspark_checkpoint.history.commit import Run
from pyspark_checkpoint.sparkstate.capture import CapturePlan, plan_capture, plan_chains
from pyspark_checkpoint.sparkstate.chain import FileFacts, StateChain
from pyspark_checkpoint.sparkstate.directory import CheckpointListing, check_capturable
from pyspark_checkpoint.sparkstate.logs import (
    CommitLog,
    OffsetLog,
    OperatorInfo,
    decode_commit_log,
    decode_offset_log,
    decode_operator_metadata,
    decode_query_id,
    rocksdb_zip_files,
)
from pyspark_checkpoint.sparkstate.names import METADATA, StateFileKind, setup_batch
from pyspark_checkpoint.sparkstate.preflight import PARTITIONS
from pyspark_checkpoint.sparkstate.schema import is_keyless

_ATTEMPTS = 5
SINGLE_PARTITION = ("globalLimit",)
"""Operators that keep all state in their first partition, whatever they declare."""


class Uploader(Protocol):
    """Uploads groups of files somewhere else than in this process: on the executors."""

    def __call__(
        self, groups: Sequence[tuple[UploadItem, ...]], target: UploadTarget
    ) -> list[UploadedGroup]:
        """Upload every group, and return one answer a group."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A listing and what was read with it: enough to plan, all of one moment."""

    plan: CapturePlan
    logs: CapturedLogs


class QueryCapture:
    """Captures one run of one query into its own store. Not for two threads at once."""

    def __init__(
        self, location: CheckpointLocation, run: Run, facts: QueryFacts, uploader: Uploader | None = None
    ) -> None:
        self.location = location
        self.run = run
        self.facts = facts
        self._uploader = uploader
        self._known: dict[str, KnownFile] = {}
        self._commits: dict[int, CommitLog] = {}
        self._zips: dict[tuple[str, FileFacts], tuple[str, ...]] = {}

    def newest_committed(self) -> int | None:
        """The newest batch that can be captured."""
        return self.location.listing().newest_committed

    def capture(self, epoch: int | None = None) -> CheckpointManifest | None:
        """Checkpoint ``epoch``, the newest committed batch by default; None if there is none yet.

        The run has claimed the store before. An epoch that this run has captured costs no upload.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._capture(epoch)
            except (FileGone, StaleAttempt):
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _capture(self, epoch: int | None) -> CheckpointManifest | None:
        listing = self.location.listing()
        wanted = listing.newest_committed if epoch is None else epoch
        if wanted is None:
            return None
        reading = self._read(listing, wanted)
        attempt = self.run.attempt()
        head = self.run.head
        earlier = artifacts_by_path(head.manifest) if head is not None else {}
        uploads = plan_uploads(reading.plan, earlier, self._known)
        refs, requests = self._upload(uploads, attempt)
        draft = draft_manifest(reading.plan, self.facts, reading.logs, refs, requests)
        manifest = self.run.publish(draft, attempt)
        self._remember(reading.plan, artifacts_by_path(manifest))
        return manifest

    def _read(self, listing: CheckpointListing, epoch: int) -> _Reading:
        read = self.location.read
        if METADATA in listing.facts:
            self._check_query(decode_query_id(read(METADATA)))
        operators = self._operators(listing, epoch)
        check_capturable(listing, epoch)
        commits = self._read_commits(listing, epoch)
        offsets = self._read_offsets(epoch)
        pinned = int(offsets.conf[PARTITIONS]) if PARTITIONS in offsets.conf else None
        chains = plan_chains(listing, epoch, commits, operators, partitions=pinned)
        plan = plan_capture(
            listing,
            epoch,
            chains=chains,
            shared=self._shared_files(chains, listing),
            operators=operators,
            offsets=offsets,
            newest_offsets=self._read_offsets(max(listing.offsets)),
        )
        setup = listing.setup_of(epoch)
        schemas = {_schema_name(path): sha256_hex(read(path)) for path in setup if "chema" in path}
        return _Reading(plan, CapturedLogs(offsets, commits[epoch], schemas))

    def _check_query(self, query_id: str) -> None:
        if query_id != self.facts.query.id:
            raise RefusedError(
                f"the checkpoint location is of query {query_id}, not of {self.facts.query.id}"
            )

    def _operators(self, listing: CheckpointListing, epoch: int) -> dict[int, OperatorInfo]:
        """What the operators were at ``epoch``: of each the newest description up to then."""
        newest: dict[str, str] = {}
        for path in sorted(listing.setup_of(epoch), key=setup_batch):
            operator, _, rest = path.removeprefix("state/").partition("/_metadata/")
            if rest == "metadata" or rest.startswith("v2/"):
                newest[operator] = path
        found = (decode_operator_metadata(self.location.read(path), path) for path in newest.values())
        return {info.operator: self._completed(info, listing) for info in found}

    def _completed(self, info: OperatorInfo, listing: CheckpointListing) -> OperatorInfo:
        for path in info.schema_paths:
            name = f"state/{path.rpartition('/state/')[2]}"
            if name not in listing.facts:
                raise RefusedError(f"{name}, which operator {info.operator} needs, is not there")
        schema = f"state/{info.operator}/0/_metadata/schema"
        if info.name in SINGLE_PARTITION:
            return replace(info, is_single=True)
        if schema in listing.facts and is_keyless(self.location.read(schema), schema):
            return replace(info, is_single=True)
        return info

    def _read_offsets(self, batch: int) -> OffsetLog:
        name = f"offsets/{batch}"
        return decode_offset_log(self.location.read(name), name)

    def _read_commits(self, listing: CheckpointListing, epoch: int) -> dict[int, CommitLog]:
        """Format version 2 names its files in the commit logs: all that are left. Each is read once."""
        has_ids = any(file.uid for files in listing.state.values() for file in files)
        wanted = [batch for batch in listing.commits if batch == epoch or (has_ids and batch < epoch)]
        self._commits = {
            batch: self._commits.get(batch)
            or decode_commit_log(self.location.read(f"commits/{batch}"), f"commits/{batch}")
            for batch in wanted
        }
        return self._commits

    def _shared_files(
        self, chains: Sequence[StateChain], listing: CheckpointListing
    ) -> dict[str, tuple[str, ...]]:
        """What each chosen snapshot of RocksDB needs beside itself. Each snapshot is opened once."""
        found: dict[tuple[str, FileFacts], tuple[str, ...]] = {}
        for chain in chains:
            base = chain.base
            if base is not None and base.kind is StateFileKind.ZIP:
                key = base.path, listing.facts[base.path]
                found[key] = self._zips.get(key) or rocksdb_zip_files(
                    self.location.read(base.path), base.path
                )
        self._zips = found
        return {path: files for (path, _), files in found.items()}

    def _upload(
        self, uploads: UploadPlan, attempt: CheckpointId
    ) -> tuple[dict[str, ArtifactRef], RequestCount]:
        target = UploadTarget(self.run.store, attempt.number, self.run.store_id or "", self.run.cipher)
        clock = self.run.clock
        answers = [upload_group(self.location, target, uploads.here, clock=clock, bounds=DEFAULT_BOUNDS)]
        if self._uploader is not None and uploads.groups:
            answers += self._uploader(uploads.groups, target)
        else:
            answers += [upload_group(self.location, target, group, clock=clock) for group in uploads.groups]
        refs = dict(uploads.reused)
        for answer in answers:
            refs |= dict(answer.refs)
        wanted = {item.file.path for group in (uploads.here, *uploads.groups) for item in group}
        missing = wanted - refs.keys()
        if missing:
            raise RefusedError(f"{len(missing)} files were not uploaded, {sorted(missing)[0]} among them")
        return refs, RequestCount(
            sum(answer.requests.puts for answer in answers),
            sum(answer.requests.gets for answer in answers),
            sum(answer.requests.bytes for answer in answers),
        )

    def _remember(self, plan: CapturePlan, refs: dict[str, ArtifactRef]) -> None:
        self._known = {
            file.path: KnownFile(file.facts, refs[file.path])
            for file in plan.all_files()
            if file.path in refs
        }


def _schema_name(path: str) -> str:
    """A schema file's name without the unique id that Spark gives it in newer formats."""
    head, _, tail = path.rpartition("/")
    return f"{head}/{tail.partition('_')[0]}" if "_stateSchema/" in path else path
