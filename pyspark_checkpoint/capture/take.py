"""Taking a checkpoint of one query: list, plan, upload what is new, publish. No Spark needed.

Nothing here blocks the query, and nothing of the query's is changed. What Spark purges or rewrites
while it is read is noticed, and the capture begins again from a new listing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from pyspark_checkpoint.sparkstate.chain import StateChain
from pyspark_checkpoint.sparkstate.directory import CheckpointListing
from pyspark_checkpoint.sparkstate.logs import (
    OperatorInfo,
    decode_commit_log,
    decode_offset_log,
    decode_operator_metadata,
    decode_query_id,
    rocksdb_zip_files,
)
from pyspark_checkpoint.sparkstate.names import METADATA, StateFileKind

_ATTEMPTS = 5


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
        operators = self._operators(listing)
        commits = {
            batch: decode_commit_log(read(f"commits/{batch}"), f"commits/{batch}")
            for batch in self._needed_commits(listing, epoch)
        }
        chains = plan_chains(listing, epoch, commits, operators)
        offsets = decode_offset_log(read(f"offsets/{epoch}"), f"offsets/{epoch}")
        plan = plan_capture(
            listing,
            epoch,
            chains=chains,
            shared=self._shared_files(chains),
            operators=operators,
            offsets=offsets,
        )
        schemas = {_schema_name(path): sha256_hex(read(path)) for path in listing.setup if "chema" in path}
        return _Reading(plan, CapturedLogs(offsets, commits[epoch], schemas))

    def _check_query(self, query_id: str) -> None:
        if query_id != self.facts.query.id:
            raise RefusedError(
                f"the checkpoint location is of query {query_id}, not of {self.facts.query.id}"
            )

    def _operators(self, listing: CheckpointListing) -> dict[int, OperatorInfo]:
        found: dict[int, tuple[int, OperatorInfo]] = {}
        for path in listing.setup:
            if "/_metadata/metadata" in path:
                rank = -1
            elif "/_metadata/v2/" in path:
                rank = int(path.rsplit("/", 1)[-1])
            else:
                continue
            info = decode_operator_metadata(self.location.read(path), path)
            if info.operator not in found or found[info.operator][0] < rank:
                found[info.operator] = (rank, info)
        return {operator: info for operator, (_, info) in found.items()}

    def _needed_commits(self, listing: CheckpointListing, epoch: int) -> list[int]:
        """Format version 2 names its files in the commit logs: those back to the oldest file's version."""
        has_ids = any(file.uid for files in listing.state.values() for file in files)
        if not has_ids:
            return [epoch] if epoch in listing.commits else []
        return [batch for batch in listing.commits if batch <= epoch]

    def _shared_files(self, chains: Sequence[StateChain]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for chain in chains:
            base = chain.base
            if base is not None and base.kind is StateFileKind.ZIP:
                found[base.path] = rocksdb_zip_files(self.location.read(base.path), base.path)
        return found

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
