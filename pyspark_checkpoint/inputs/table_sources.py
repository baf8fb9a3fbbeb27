"""Tables that a query reads as a stream: Delta, Iceberg and the changes of a ckpt-sink table.

Each keeps a history that somebody shortens: VACUUM and the clean-up of Delta's log, the expiry of Iceberg's
snapshots, the retention of ckpt-sink. What a query has not read may be in the part that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from pyspark_checkpoint.errors import NotFound
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.inputs.offset_reader import InputState
from pyspark_checkpoint.outputs.delta_log import DeltaLog
from pyspark_checkpoint.outputs.iceberg_table import IcebergOutput
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.parallel import DEFAULT_CONCURRENCY, iter_bounded

MAX_FILES = 1_000
"""So many data files are looked for, those that are read next first."""


def decide_delta(version: int, commits: Iterable[int]) -> tuple[InputState, str]:
    """Whether a log with these commits has ``version`` and all that came later."""
    found = set(commits)
    newest = max(found, default=-1)
    if version > newest + 1:
        return (
            InputState.LOST,
            f"the table is at version {newest}, before {version}: it is another table now",
        )
    missing = next((number for number in range(version, newest + 1) if number not in found), None)
    if missing is not None:
        return InputState.LOST, f"commit {missing} is gone, and the query reads from version {version} on"
    return InputState.KEPT, f"the log has versions {version} to {newest}" if version <= newest else (
        f"the table has nothing after version {newest} yet"
    )


def ask_delta(fields: Mapping[str, int], log: DeltaLog) -> tuple[InputState, str]:
    """Look for the commits that a Delta source reads next, and for the files that they added.

    A source that is still within the table's first snapshot reads that snapshot's files too. Those are not
    looked for, and that is said.
    """
    version = max(fields["reservoirVersion"], 0)
    state, reason = decide_delta(version, log.commits)
    if state is not InputState.KEPT:
        return state, reason
    if fields.get("isStartingVersion") or fields.get("isInitialSnapshot"):
        return InputState.UNKNOWN, f"{reason}; the query is still within the snapshot of version {version}"
    files = _added(log, version, fields["index"])
    gone = missing_files(log.store, files[:MAX_FILES])
    if gone is not None:
        return InputState.LOST, f"{reason}, but the data file {gone} is gone: VACUUM removed it"
    return state, reason if len(files) <= MAX_FILES else f"{reason}; {MAX_FILES} data files were looked for"


def missing_files(store: ObjectStore, names: Iterable[str]) -> str | None:
    """The first of these objects that is not there."""

    def found(name: str) -> str | None:
        try:
            store.head(name)
        except NotFound:
            return name
        return None

    return next(filter(None, iter_bounded(found, names, DEFAULT_CONCURRENCY)), None)


def _added(log: DeltaLog, first: int, index: int) -> list[str]:
    """The data files of the commits from ``first`` on that are read after ``index``, in that order.

    No more than those of the commit in which there are enough. Files named by a whole URL belong to another
    table (a shallow clone) and are left out.
    """
    found = list[str]()
    for version in range(first, log.newest + 1):
        actions = [action for _, action in log.actions(version, {"add"}) if action.get("dataChange", True)]
        unread = actions[max(index + 1, 0) :] if version == first else actions
        paths = [str(action.get("path")) for action in unread]
        found += [unquote(path) for path in paths if ":" not in path and not path.startswith("/")]
        if len(found) > MAX_FILES:
            break
    return found


def ask_iceberg(fields: Mapping[str, int], table: IcebergOutput) -> tuple[InputState, str]:
    """Look for the snapshot at which an Iceberg source stands among those of the current one."""
    ancestors = table.ancestors()
    if ancestors is None:
        return InputState.UNKNOWN, "which metadata of the table is the current one is known to its catalog"
    return decide_iceberg(fields["snapshot_id"], ancestors)


def decide_iceberg(snapshot: int, ancestors: Iterable[int]) -> tuple[InputState, str]:
    """Whether a source can go on from a snapshot: it walks from the current one back to it."""
    if snapshot < 0:
        return InputState.KEPT, "the query has read no snapshot yet"
    if snapshot in set(ancestors):
        return InputState.KEPT, f"the table still has snapshot {snapshot}"
    return InputState.LOST, f"snapshot {snapshot} has expired, or the table went back before it"


def ask_changes(fields: Mapping[str, int], history: CheckpointStore) -> tuple[InputState, str]:
    """Whether a ckpt-sink table still has the epoch that follows on what was served."""
    if fields["checkpoint_id"] <= 0:
        return InputState.KEPT, "the query has read no epoch yet"
    return decide_changes(fields["checkpoint_id"], fields["epoch"], history.list())


def decide_changes(
    checkpoint_id: int, epoch: int, kept: Iterable[tuple[int, int]]
) -> tuple[InputState, str]:
    """The same from the numbers and epochs of the checkpoints that the table's history still has."""
    later = min(((number, of) for number, of in kept if number > checkpoint_id), default=None)
    if later is not None and later[1] > epoch + 1:
        return InputState.LOST, f"epochs {epoch + 1} to {later[1] - 1} of the table are pruned"
    return InputState.KEPT, f"the table has every epoch after {epoch}"
