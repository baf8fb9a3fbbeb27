"""Reading what a checkpoint location says of itself: operators, offsets, commits, RocksDB's snapshots.

What cannot change is read once by an instance, so one is kept for as long as its location is watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.spark_files.listing import CheckpointListing
from pyspark_checkpoint.spark_files.location import GONE_HINT, CheckpointLocation, FileGone
from pyspark_checkpoint.spark_files.logs import (
    CommitLog,
    OffsetLog,
    OperatorInfo,
    RocksdbZip,
    decode_commit_log,
    decode_offset_log,
    decode_operator_metadata,
    decode_rocksdb_zip,
    is_keyless,
)
from pyspark_checkpoint.spark_files.names import (
    STATE,
    StateFile,
    StateFileKind,
    commits_file,
    offsets_file,
    setup_batch,
    state_directory,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, StateChain, doubtful_bases, written_together

SINGLE_PARTITION = ("globalLimit",)
"""Operators that keep all state in their first partition, whatever they declare."""


@dataclass(frozen=True, slots=True)
class OpenedZip:
    """What a snapshot says of itself, and the digest of the very bytes that say so."""

    content: RocksdbZip
    sha256: str


def _zips(chains: Sequence[StateChain]) -> list[StateFile]:
    bases = [chain.base for chain in chains if chain.base is not None]
    return [base for base in bases if base.kind is StateFileKind.ZIP]


class LocationLogs:
    """The logs of one location. Not for two threads at once."""

    def __init__(self, location: CheckpointLocation) -> None:
        self._location = location
        self._commits: dict[int, CommitLog] = {}
        self._zips: dict[tuple[StateFile, FileFacts], OpenedZip] = {}
        self._setup: dict[tuple[str, FileFacts], bytes] = {}

    def operators(self, listing: CheckpointListing, batch_id: int) -> dict[int, OperatorInfo]:
        """What the operators were at ``batch_id``. A schema that one needs and that is gone is an error."""
        return {
            number: self._completed(info, listing)
            for number, info in self.declared_operators(listing, batch_id).items()
        }

    def declared_operators(self, listing: CheckpointListing, batch_id: int) -> dict[int, OperatorInfo]:
        """What the operators say of themselves: of each the newest description up to ``batch_id``."""
        newest: dict[str, str] = {}
        for path in sorted(listing.setup_of(batch_id), key=setup_batch):
            operator, _, rest = path.removeprefix(STATE).partition("/_metadata/")
            if rest == "metadata" or rest.startswith("v2/"):
                newest[operator] = path
        read = self._read_setup
        found = (decode_operator_metadata(read(path, listing), path) for path in newest.values())
        return {info.operator: info for info in found}

    def schemas(self, listing: CheckpointListing, batch_id: int) -> dict[str, str]:
        """Digests of the operators' schema files, by what is left of their names without ids."""
        paths = (path for path in listing.setup_of(batch_id) if "chema" in path)
        return {_schema_name(path): sha256_hex(self._read_setup(path, listing)) for path in paths}

    def offsets(self, batch: int) -> OffsetLog:
        """``offsets/N``."""
        name = offsets_file(batch)
        return decode_offset_log(self._location.read(name), name)

    def commits(self, listing: CheckpointListing, batch_id: int) -> dict[int, CommitLog]:
        """The commit log of a batch; format version 2 names its files in all that are left before it."""
        has_ids = any(file.uid for files in listing.state.values() for file in files)
        found = self.read_commits(
            batch for batch in listing.commits if batch == batch_id or (has_ids and batch < batch_id)
        )
        if batch_id in listing.commits and batch_id not in found:
            raise FileGone(f"{commits_file(batch_id)} is gone from the checkpoint location", hint=GONE_HINT)
        return found

    def read_commits(self, batches: Iterable[int]) -> dict[int, CommitLog]:
        """These commit logs, each read once; one that is gone is left out."""
        found: dict[int, CommitLog] = {}
        for batch in batches:
            log = self._commits.get(batch)
            if log is None:
                name = commits_file(batch)
                try:
                    log = decode_commit_log(self._location.read(name), name)
                except FileGone:
                    continue
            found[batch] = log
        self._commits = found
        return found

    def shared_files(
        self, chains: Sequence[StateChain], listing: CheckpointListing
    ) -> dict[str, tuple[str, ...]]:
        """What each chosen snapshot of RocksDB needs beside itself, by the snapshot's path."""
        return {base.path: self._open(base, listing).content.files for base in _zips(chains)}

    def opened(self, chains: Sequence[StateChain], listing: CheckpointListing) -> dict[str, str]:
        """Digests of the chosen snapshots as they were when ``shared_files`` looked into them."""
        return {base.path: self._open(base, listing).sha256 for base in _zips(chains)}

    def written_together(self, listing: CheckpointListing, version: int) -> set[StateFile]:
        """The snapshots of RocksDB up to ``version`` that look older than their change, and are not stale.

        Those that the listing does not show any more are forgotten.
        """
        self._zips = {
            key: found for key, found in self._zips.items() if listing.facts.get(key[0].path) == key[1]
        }
        found: set[StateFile] = set()
        for files in listing.state.values():
            doubtful = doubtful_bases(version, files)
            zips = sorted((f for f in files if f.kind is StateFileKind.ZIP), key=lambda f: f.version)
            places = [zips.index(file) for file in doubtful]
            needed = {file for at in places for file in zips[max(0, at - 1) : at + 1]}
            families = {file: self._open(file, listing).content.families for file in needed}
            found |= written_together(families, doubtful)
        return found

    def _completed(self, info: OperatorInfo, listing: CheckpointListing) -> OperatorInfo:
        for path in info.schema_paths:
            name = f"{STATE}{path.rpartition('/state/')[2]}"
            if name not in listing.facts:
                raise RefusedError(
                    f"{name}, which operator {info.operator} needs, is not there",
                    hint="restore the location with ckpt restore: Spark itself cannot start from it",
                )
        schema = f"{state_directory(info.operator, 0)}_metadata/schema"
        if info.name in SINGLE_PARTITION:
            return replace(info, is_single=True)
        if schema in listing.facts and is_keyless(self._read_setup(schema, listing), schema):
            return replace(info, is_single=True)
        return info

    def _open(self, file: StateFile, listing: CheckpointListing) -> OpenedZip:
        facts = listing.facts[file.path]
        key = file, facts
        if key not in self._zips:
            data = self._location.read(file.path, facts)
            self._zips[key] = OpenedZip(decode_rocksdb_zip(data, file.path), sha256_hex(data))
        return self._zips[key]

    def _read_setup(self, path: str, listing: CheckpointListing) -> bytes:
        key = path, listing.facts[path]
        if key not in self._setup:
            self._setup[key] = self._location.read(path)
        return self._setup[key]


def _schema_name(path: str) -> str:
    """A schema file's name without the unique id that Spark gives it in newer formats."""
    head, _, tail = path.rpartition("/")
    return f"{head}/{tail.partition('_')[0]}" if "_stateSchema/" in path else path
