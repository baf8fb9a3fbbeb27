"""The names of files in a Spark checkpoint directory, built and parsed; paths are relative to it.

Spark 4.1 to 4.3. A state store is one (operator, partition, store name); the store named ``default``
has no directory of its own. Format version 2 puts a unique id of the writing attempt into the name.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import lru_cache

DEFAULT_STORE = "default"
METADATA = "metadata"
OFFSETS, COMMITS, STATE, SOURCES = "offsets/", "commits/", "state/", "sources/"
"""The directories of a checkpoint location."""

LINEAGE = "_ckpt_lineage.json"
"""Not Spark's: in which a restore notes from which batch on Spark plans anew (``outputs.idempotent``)."""

_PARSED_NAMES = 32_768
_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_STORE = re.compile(r"state/(\d+)/(\d+)/(?:([^/_][^/]*)/)?([^/]+)\Z")
_VERSIONED = re.compile(rf"(\d+)(?:_({_UID}))?\.(delta|snapshot|changelog|zip)\Z")
_SHARED = re.compile(r"state/(\d+)/(\d+)/(?:([^/_][^/]*)/)?(SSTs|logs)/([^/]+)\Z")
_SETUP = re.compile(
    r"state/(\d+)/(?:_metadata|_stateSchema)/.+\Z|state/(\d+)/\d+/(?:[^/_][^/]*/)?_metadata/schema\Z"
)
_LOG = re.compile(r"(offsets|commits)/(\d+)\Z")
_SOURCE = re.compile(r"sources/([^/]+)/(.+)\Z")
_SPARKS_OWN = ("state", "offsets", "commits", "sources")
_SOURCE_SCHEMA = re.compile(r"(?:[^/]+/){0,8}(?:_schema_log_[^/]+|_schemas)(?:/[^/]+){0,8}\Z")
_SETUP_BATCH = re.compile(r"state/\d+/(?:_metadata/v2/(\d+)|_stateSchema/[^/]+/(\d+)_[^/]+)\Z")


def offsets_file(batch_id: int) -> str:
    """The entry of the offset log by which Spark plans a batch."""
    return f"{OFFSETS}{batch_id}"


def commits_file(batch_id: int) -> str:
    """The entry of the commit log by which Spark marks a batch as done."""
    return f"{COMMITS}{batch_id}"


def state_directory(operator: int, partition: int | str) -> str:
    """Where the files of one partition of an operator are, with a slash at its end."""
    return f"{STATE}{operator}/{partition}/"


class StateFileKind(enum.Enum):
    """What a versioned state file holds. A base stands alone; a change needs the version before it."""

    DELTA = "delta"
    SNAPSHOT = "snapshot"
    CHANGELOG = "changelog"
    ZIP = "zip"

    @property
    def is_base(self) -> bool:
        """Whether the file gives its version without another one before it."""
        return self in (StateFileKind.SNAPSHOT, StateFileKind.ZIP)


PartitionId = tuple[int, int]
"""An operator, and a partition of its state."""


@dataclass(frozen=True, slots=True, order=True)
class StoreId:
    """One state store instance: Spark keeps one for each operator, partition and store name."""

    operator: int
    partition: int
    store: str = DEFAULT_STORE

    @property
    def place(self) -> PartitionId:
        """The partition of the operator, which several stores may share."""
        return self.operator, self.partition

    @property
    def directory(self) -> str:
        """Where its files are, relative to the checkpoint directory."""
        base = f"state/{self.operator}/{self.partition}"
        return base if self.store == DEFAULT_STORE else f"{base}/{self.store}"


@dataclass(frozen=True, slots=True)
class StateFile:
    """A versioned file of a state store: version = batch id + 1. ``uid`` is None in format version 1."""

    owner: StoreId
    version: int
    kind: StateFileKind
    uid: str | None = None

    @property
    def path(self) -> str:
        """Its name again."""
        uid = f"_{self.uid}" if self.uid else ""
        return f"{self.owner.directory}/{self.version}{uid}.{self.kind.value}"


@lru_cache(maxsize=_PARSED_NAMES)
def parse_state_file(path: str) -> StateFile | None:
    """What a versioned state file's name says; None for every other file.

    Remembered, because a commit asks of each file that its manifest names, batch after batch.
    """
    place = _STORE.match(path)
    if place is None:
        return None
    name = _VERSIONED.match(place[4])
    if name is None:
        return None
    owner = StoreId(int(place[1]), int(place[2]), place[3] or DEFAULT_STORE)
    return StateFile(owner, int(name[1]), StateFileKind(name[3]), name[2])


def parse_shared_file(path: str) -> StoreId | None:
    """The state store that an SST or log file of RocksDB belongs to; None for every other file."""
    match = _SHARED.match(path)
    return StoreId(int(match[1]), int(match[2]), match[3] or DEFAULT_STORE) if match else None


def partition_of(path: str) -> int:
    """The partition of a state file, whatever it is: ``state/<operator>/<partition>/...``."""
    return int(path.split("/", 3)[2])


def is_operator_setup(path: str) -> bool:
    """Whether a file describes an operator (its metadata, its schemas) rather than its state."""
    return _SETUP.match(path) is not None


def parse_log(path: str) -> tuple[str, int] | None:
    """The log (``offsets`` or ``commits``) and the batch of one of its files; None for every other file."""
    match = _LOG.match(path)
    return (match[1], int(match[2])) if match else None


def setup_batch(path: str) -> int:
    """The batch that an operator's file was written for; 0 for those that Spark writes once."""
    match = _SETUP_BATCH.match(path)
    return int(match[1] or match[2]) if match else 0


def parse_source_file(path: str) -> tuple[str, str] | None:
    """The source that keeps this file, and the file's name; None for every other file.

    A source is called by its place, or by the name that the user gave it (offset log version 2).
    """
    match = _SOURCE.match(path)
    return (match[1], match[2]) if match else None


def is_source_schema(path: str) -> bool:
    """Whether a file is of a schema log that a source keeps in the location beside what is Spark's own.

    Delta's source (``_schema_log_*``) and others (``_schemas``) write there which schema they read with.
    What a restore notes there of the query's lineage goes the same way.
    """
    is_of_a_source = path.partition("/")[0] not in _SPARKS_OWN and _SOURCE_SCHEMA.match(path) is not None
    return is_of_a_source or path == LINEAGE


def is_checksum(path: str) -> bool:
    """Whether a file is a checksum beside another: they are made anew and never needed."""
    return path.endswith(".crc")
