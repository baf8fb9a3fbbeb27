"""RocksDB's snapshots in a checkpoint location: what is inside one is read once and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.spark_files.listing import CheckpointListing
from pyspark_checkpoint.spark_files.location import CheckpointLocation
from pyspark_checkpoint.spark_files.logs import RocksdbZip, decode_rocksdb_zip
from pyspark_checkpoint.spark_files.names import StateFile, StateFileKind
from pyspark_checkpoint.spark_files.versions import FileFacts, StateChain, doubtful_bases, written_together


@dataclass(frozen=True, slots=True)
class OpenedZip:
    """What a snapshot says of itself, and the digest of the very bytes that say so."""

    content: RocksdbZip
    sha256: str


class SnapshotReader:
    """Opens snapshots of one location. What a listing does not show any more is forgotten."""

    def __init__(self, location: CheckpointLocation) -> None:
        self._location = location
        self._known: dict[tuple[StateFile, FileFacts], OpenedZip] = {}

    def forget_gone(self, listing: CheckpointListing) -> None:
        """Keep only what is still there, unchanged."""
        self._known = {
            (file, facts): found
            for (file, facts), found in self._known.items()
            if listing.facts.get(file.path) == facts
        }

    def shared_files(
        self, chains: Sequence[StateChain], listing: CheckpointListing
    ) -> dict[str, tuple[str, ...]]:
        """What each chosen snapshot needs beside itself, by the snapshot's path."""
        return {base.path: self._open(base, listing).content.files for base in _zips(chains)}

    def opened(self, chains: Sequence[StateChain], listing: CheckpointListing) -> dict[str, str]:
        """The digest of each chosen snapshot, as it was when it said what it needs."""
        return {base.path: self._open(base, listing).sha256 for base in _zips(chains)}

    def written_together(self, listing: CheckpointListing, version: int) -> set[StateFile]:
        """The snapshots up to ``version`` that look older than their change, and are not stale."""
        found: set[StateFile] = set()
        for files in listing.state.values():
            doubtful = doubtful_bases(version, files)
            zips = sorted((f for f in files if f.kind is StateFileKind.ZIP), key=lambda f: f.version)
            needed = {zips[at] for file in doubtful for at in _with_the_one_before(zips.index(file))}
            families = {file: self._open(file, listing).content.families for file in needed}
            found |= written_together(families, doubtful)
        return found

    def _open(self, file: StateFile, listing: CheckpointListing) -> OpenedZip:
        facts = listing.facts[file.path]
        key = file, facts
        if key not in self._known:
            data = self._location.read(file.path, facts)
            self._known[key] = OpenedZip(decode_rocksdb_zip(data, file.path), sha256_hex(data))
        return self._known[key]


def _zips(chains: Sequence[StateChain]) -> list[StateFile]:
    bases = [chain.base for chain in chains if chain.base is not None]
    return [base for base in bases if base.kind is StateFileKind.ZIP]


def _with_the_one_before(at: int) -> tuple[int, ...]:
    return (at,) if at == 0 else (at - 1, at)
