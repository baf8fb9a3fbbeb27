"""Which files a restore writes, in which order, and what is changed in them on the way. Pure.

Operators are named ``{number}-{Spark's name}`` in a manifest and their artifacts by the path below
``state/{number}/{partition}/``; everything else is in ``files`` under its path in the directory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError, RefusedError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.sparkstate.names import METADATA, is_operator_setup, parse_log

STATE_KIND = "spark-state"
RESTORE_MARKER = "_ckpt_restoring.json"
IN_USE = (METADATA, "offsets/", "commits/", "state/", "sources/")


class Rewrite(enum.Enum):
    """What changes in a file between store and location."""

    NOTHING = "nothing"
    QUERY_ID = "query id"
    SCHEMA_PATHS = "schema paths"


class Stage(enum.IntEnum):
    """The order in which files become visible: a location without ``commits`` is not finished."""

    STATE = 0
    SETUP = 1
    SOURCES = 2
    METADATA = 3
    OFFSETS = 4
    COMMITS = 5


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """One file to write."""

    path: str
    ref: ArtifactRef
    stage: Stage
    rewrite: Rewrite = Rewrite.NOTHING


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """All files of a restore in the order of their stages."""

    checkpoint_id: int
    epoch: int
    query_id: str
    files: tuple[RestoredFile, ...]

    @property
    def total_bytes(self) -> int:
        """Stored bytes to read."""
        return sum(file.ref.size_bytes for file in self.files)


def operator_key(number: int, name: str) -> str:
    """How an operator of Spark is named in a manifest."""
    return f"{number}-{name}"


def parse_operator_key(key: str) -> int:
    """The number of an operator of Spark, from its name in a manifest."""
    number, dash, _ = key.partition("-")
    if not dash or not number.isdigit():
        raise FormatError(f"operator {key!r} is not one that a capture of Spark's state writes")
    return int(number)


def plan_restore(manifest: CheckpointManifest, *, query_id: str | None = None) -> RestorePlan:
    """Plan to resume right after the manifest's epoch; with ``query_id`` as a fork under that id."""
    files = [*_state_files(manifest), *_loose_files(manifest, is_fork=query_id is not None)]
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        raise FormatError(f"checkpoint {manifest.checkpoint_id} names a file twice")
    needed = {METADATA, f"offsets/{manifest.epoch}", f"commits/{manifest.epoch}"}
    if manifest.epoch > 0:
        needed.add(f"offsets/{manifest.epoch - 1}")
    missing = needed - set(paths)
    if missing:
        raise RefusedError(
            f"checkpoint {manifest.checkpoint_id} does not hold {sorted(missing)[0]}",
            hint="it is not a checkpoint of a streaming query's own state",
        )
    return RestorePlan(
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        query_id=query_id or manifest.query.id,
        files=tuple(sorted(files, key=lambda file: (file.stage, file.path))),
    )


def check_fresh(keys: Sequence[str], *, is_ours: bool) -> None:
    """Refuse a location that a query uses. ``is_ours``: our marker of an unfinished restore is there."""
    taken = sorted(key for key in keys if key.startswith(IN_USE))
    if taken and not is_ours:
        raise RefusedError(
            f"the location is in use: it has {taken[0]}",
            hint="restore into a fresh location; nothing was written",
        )


def _state_files(manifest: CheckpointManifest) -> Iterator[RestoredFile]:
    for key, operator in manifest.operators.items():
        if operator.kind != STATE_KIND:
            continue
        number = parse_operator_key(key)
        for part in operator.partitions:
            for ref in part.artifacts:
                path = _checked(f"state/{number}/{part.partition_id}/{ref.name}", ref)
                yield RestoredFile(path, ref, Stage.STATE)


def _loose_files(manifest: CheckpointManifest, *, is_fork: bool) -> Iterator[RestoredFile]:
    for ref in manifest.files:
        path = _checked(ref.name, ref)
        if path == METADATA:
            rewrite = Rewrite.QUERY_ID if is_fork else Rewrite.NOTHING
            yield RestoredFile(path, ref, Stage.METADATA, rewrite)
        elif (log := parse_log(path)) is not None:
            yield RestoredFile(path, ref, Stage.OFFSETS if log[0] == "offsets" else Stage.COMMITS)
        elif path.startswith("sources/"):
            yield RestoredFile(path, ref, Stage.SOURCES)
        elif is_operator_setup(path):
            has_paths = "/_metadata/v2/" in path
            yield RestoredFile(
                path, ref, Stage.SETUP, Rewrite.SCHEMA_PATHS if has_paths else Rewrite.NOTHING
            )
        else:
            raise FormatError(
                f"checkpoint {manifest.checkpoint_id} names {path!r}, which Spark does not write"
            )


def _checked(path: str, ref: ArtifactRef) -> str:
    parts = path.split("/")
    if not ref.name or any(part in ("", ".", "..") for part in parts) or "\\" in path:
        raise FormatError(
            f"a manifest names the file {path[:200]!r}, which is not below a checkpoint location"
        )
    return path
