"""Which files a restore writes, in which order, and what is changed in them on the way. Pure.

Operators are named ``{number}-{Spark's name}`` in a manifest and their artifacts by the path below
``state/{number}/{partition}/``; everything else is in ``files`` under its path in the directory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark_checkpoint.errors import FormatError, Incompatible, InUse, NoCheckpoint, SettingsError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.keys import CONTROL_KEY
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.format.manifest_parts import PlannedBatch, StateRecord
from pyspark_checkpoint.outputs.ask import OutputsPlan
from pyspark_checkpoint.spark_files.logs import decode_commit_log
from pyspark_checkpoint.spark_files.names import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    STATE,
    commits_file,
    is_operator_setup,
    is_source_schema,
    offsets_file,
    parse_log,
)
from pyspark_checkpoint.spark_files.restore_points import RestorePoint, select_state
from pyspark_checkpoint.spark_files.state_artifacts import check_location_path, state_artifacts

RESTORE_MARKER = "_ckpt_restoring.json"
IN_USE = (METADATA, OFFSETS, COMMITS, STATE, SOURCES)
_VERIFY = "run ckpt verify; another checkpoint of this history may be whole"
_FRESH = "restore into a fresh location; nothing was written"


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
    """Everything that a restore of one checkpoint does. A dry run shows it, ``Restore`` obeys it."""

    checkpoint_id: int
    epoch: int
    query_id: str
    files: tuple[RestoredFile, ...]
    """In the order in which they are written."""
    batch_id: int
    """Spark's number, which is not a table's epoch where a query has taken the table over.

    It is -1 before the first batch, of which there is only the plan.
    """
    planned_batch: int | None = None
    """The batch after it, if the query runs that with the offsets that it had; None if it plans anew."""
    point: RestorePoint = RestorePoint.AFTER
    partitions: int | None = None
    """How many partitions Spark repartitions the state to; None if it stays as it is."""
    table_target: int | None = None
    """The checkpoint that the query's table is rolled back to; None if it stays as it is."""
    newest_id: int = 0
    """The newest checkpoint of the history: if it is another one, the restore records a rollback."""
    outputs: OutputsPlan = field(default_factory=OutputsPlan)
    """Which outputs go back with the query, and what has to be said of others."""
    resumes: bool = False
    """Whether an interrupted restore into the location goes on."""

    @property
    def done_batch(self) -> int:
        """The newest batch that the restored query takes for done; -1: none."""
        return self.batch_id if self.point is RestorePoint.AFTER else self.batch_id - 1

    @property
    def total_bytes(self) -> int:
        """Stored bytes to read."""
        return sum(file.ref.size_bytes for file in self.files)


def parse_point(text: str | None) -> RestorePoint | None:
    """``before``, ``after``, or None for the default."""
    if text is None:
        return None
    try:
        return RestorePoint(text)
    except ValueError:
        raise SettingsError(f"point is {text!r}", hint="choose before or after, or leave it out") from None


def plan_restore(
    manifest: CheckpointManifest,
    *,
    query_id: str | None = None,
    point: RestorePoint | None = None,
    commit: bytes | None = None,
    with_planned: bool = True,
) -> RestorePlan:
    """Plan which files are written to resume after the manifest's batch; with ``query_id`` as a clone.

    A manifest of rows and state can be restored before or after its batch. ``commit`` is what Spark
    wrote to ``commits/N`` later, if that is known: then the default is after, else before. The rows of
    a table are not part of a checkpoint location.

    If the manifest knows the plan of the next batch, that is written too, so that a batch which the output
    may have seen is run with the same offsets; not before the manifest's own batch, where it is not next,
    and not without ``with_planned``.
    """
    record = manifest.state
    chosen = _choose_point(manifest, record, point, commit)
    batch_id = _batch_of(manifest)
    with_planned = with_planned or manifest.is_start
    planned = manifest.planned if with_planned and chosen is RestorePoint.AFTER else None
    files = [RestoredFile(found.path, found.ref, Stage.STATE) for found in state_artifacts(manifest)]
    files += _loose_files(manifest, planned, is_clone=query_id is not None)
    if record is not None:
        files = _files_of_point(files, manifest, record, chosen, commit)
    _check_files(manifest, [file.path for file in files], batch_id, chosen)
    return RestorePlan(
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        query_id=query_id or manifest.query.id,
        files=tuple(sorted(files, key=lambda file: (file.stage, file.path))),
        batch_id=batch_id,
        planned_batch=None if planned is None else planned.batch_id,
        point=chosen,
    )


def _batch_of(manifest: CheckpointManifest) -> int:
    if manifest.is_start:
        return -1
    if manifest.batch_id is None:
        raise NoCheckpoint(
            f"checkpoint {manifest.checkpoint_id} is of no batch of a streaming query",
            hint="a batch job wrote it; restore a checkpoint that a streaming query made",
        )
    return manifest.batch_id


def _choose_point(
    manifest: CheckpointManifest,
    record: StateRecord | None,
    point: RestorePoint | None,
    commit: bytes | None,
) -> RestorePoint:
    if record is None:
        if point is RestorePoint.BEFORE:
            raise NoCheckpoint(
                f"checkpoint {manifest.checkpoint_id} holds the state after its batch only",
                hint="restore the checkpoint of the epoch before",
            )
        return RestorePoint.AFTER
    if point is RestorePoint.AFTER and commit is None:
        raise NoCheckpoint(
            f"checkpoint {manifest.checkpoint_id} does not know whether Spark finished batch "
            f"{record.batch_id}: it was neither sealed nor followed by another one",
            hint="restore before it: Spark then runs the batch again, and the table replaces its rows",
        )
    return point or (RestorePoint.BEFORE if commit is None else RestorePoint.AFTER)


def _files_of_point(
    files: Sequence[RestoredFile],
    manifest: CheckpointManifest,
    record: StateRecord,
    point: RestorePoint,
    commit: bytes | None,
) -> list[RestoredFile]:
    name = commits_file(record.batch_id)
    log = None if commit is None else decode_commit_log(commit, name)
    state = [file.path for file in files if file.stage is Stage.STATE]
    wanted = select_state(record, state, point, log)
    chosen = [file for file in files if file.stage is not Stage.STATE or file.path in wanted]
    if point is RestorePoint.AFTER and commit is not None:
        ref = ArtifactRef.of_inline(commit, is_delta=False, epoch=manifest.epoch, name=name)
        chosen.append(RestoredFile(name, ref, Stage.COMMITS))
    return chosen


def _check_files(
    manifest: CheckpointManifest, paths: Sequence[str], batch_id: int, point: RestorePoint
) -> None:
    if len(set(paths)) != len(paths):
        raise FormatError(f"checkpoint {manifest.checkpoint_id} names a file twice", hint=_VERIFY)
    committed = batch_id if point is RestorePoint.AFTER else batch_id - 1
    needed = {METADATA, offsets_file(max(0, batch_id))}
    if batch_id > 0:
        needed.add(offsets_file(batch_id - 1))
    if committed >= 0:
        needed.add(commits_file(committed))
    missing = needed - set(paths)
    if missing:
        raise Incompatible(
            f"checkpoint {manifest.checkpoint_id} does not hold {sorted(missing)[0]}",
            hint="it is not a checkpoint of a streaming query's own state"
            if manifest.table is None
            else "it holds a table's rows only: the sink wrote it with state=off, or could not read the "
            "checkpoint location",
        )


def check_fresh(keys: Sequence[str], *, is_ours: bool) -> None:
    """Refuse a location that a query uses. ``is_ours``: our marker of an unfinished restore is there."""
    taken = sorted(key for key in keys if key.startswith(IN_USE))
    if taken and not is_ours:
        raise InUse(f"the location is in use: it has {taken[0]}", hint=_FRESH)
    if CONTROL_KEY in keys:
        raise InUse("the location is a store of checkpoints, not a place for a query", hint=_FRESH)


def _planned_paths(manifest: CheckpointManifest) -> frozenset[str]:
    """The files of the batch that is planned: its offsets and logs of sources, and nothing else."""
    if manifest.planned is None:
        return frozenset()
    paths, offsets = frozenset(manifest.planned.files), offsets_file(manifest.planned.batch_id)
    if offsets not in paths or not all(path.startswith(SOURCES) for path in paths - {offsets}):
        raise FormatError(
            f"checkpoint {manifest.checkpoint_id} names strange files for batch "
            f"{manifest.planned.batch_id}, which is planned",
            hint=_VERIFY,
        )
    return paths


def _loose_files(
    manifest: CheckpointManifest, planned: PlannedBatch | None, *, is_clone: bool
) -> Iterator[RestoredFile]:
    ahead = _planned_paths(manifest)
    for ref in manifest.files:
        path = check_location_path(ref.name, ref)
        if path in ahead and planned is None:
            continue
        if path == METADATA:
            rewrite = Rewrite.QUERY_ID if is_clone else Rewrite.NOTHING
            yield RestoredFile(path, ref, Stage.METADATA, rewrite)
        elif (log := parse_log(path)) is not None:
            yield RestoredFile(path, ref, Stage.OFFSETS if log[0] == "offsets" else Stage.COMMITS)
        elif path.startswith(SOURCES) or is_source_schema(path):
            yield RestoredFile(path, ref, Stage.SOURCES)
        elif is_operator_setup(path):
            rewrite = Rewrite.SCHEMA_PATHS if "/_metadata/v2/" in path else Rewrite.NOTHING
            yield RestoredFile(path, ref, Stage.SETUP, rewrite)
        else:
            raise FormatError(
                f"checkpoint {manifest.checkpoint_id} names {path!r}, which Spark does not write",
                hint=_VERIFY,
            )
