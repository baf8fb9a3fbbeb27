"""The two points that a manifest of rows and state can be restored to, chosen from its names. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.format.manifest_parts import StateRecord
from pyspark_checkpoint.spark_files.inventory import unique_ids_of
from pyspark_checkpoint.spark_files.logs import CommitLog
from pyspark_checkpoint.spark_files.names import (
    StateFile,
    StoreId,
    commits_file,
    parse_shared_file,
    parse_state_file,
)
from pyspark_checkpoint.spark_files.state_record import (
    absent_owners,
    declared_operators,
    declared_owners,
    plan_store_chains,
)
from pyspark_checkpoint.spark_files.versions import FileFacts, plan_chain


class RestorePoint(enum.Enum):
    """Where a restored query goes on."""

    BEFORE = "before"
    """Spark runs the checkpoint's batch again, with the same offsets; its rows are replaced."""
    AFTER = "after"
    """Spark goes on with the next batch."""


Files = Mapping[StoreId, Mapping[StateFile, FileFacts]]


def sort_state(paths: Iterable[str]) -> dict[StoreId, dict[StateFile, FileFacts]]:
    """Versioned state files by store. A manifest names no stale file, so all are of one time."""
    found: dict[StoreId, dict[StateFile, FileFacts]] = {}
    for path in paths:
        file = parse_state_file(path)
        if file is not None:
            found.setdefault(file.owner, {})[file] = FileFacts(0, 0)
    return found


def settled_ids(files: Iterable[StateFile], batch: int) -> dict[int, str]:
    """The unique id of each version up to ``batch``, of which a manifest names one."""
    return {file.version: file.uid for file in files if file.uid and file.version <= batch}


def select_state(
    record: StateRecord, paths: Iterable[str], point: RestorePoint, commit: CommitLog | None
) -> frozenset[str]:
    """Of the state files that a manifest names, those that ``point`` needs.

    ``commit`` is the log of the record's batch, which ``AFTER`` needs. Files that RocksDB shares between
    its snapshots are all taken: names do not say whose they are, and one too many does no harm.
    """
    every = list(paths)
    version = record.batch_id + (1 if point is RestorePoint.AFTER else 0)
    commits = {} if commit is None else {record.batch_id: commit}
    operators, chosen = declared_operators(record), set[str]()
    files = sort_state(every)
    for owner, _ in absent_owners(record, files):
        plan_chain(owner, version, {}, {})  # refused: it needs files, and there are none
    for owner in declared_owners(record, files):
        named = files[owner]
        ids = settled_ids(named, record.batch_id)
        if point is RestorePoint.AFTER:
            ids |= unique_ids_of(owner, commits, record.batch_id, operators)
        chosen |= {file.path for file in plan_chain(owner, version, named, ids).files()}
    chosen |= {path for path in every if parse_shared_file(path) is not None}
    return frozenset(chosen)


def check_commit(record: StateRecord, paths: Iterable[str], commit: CommitLog) -> str | None:
    """Why ``commits/N`` does not belong to what a manifest names; None if it does.

    In format version 1 the log names no files, and nothing can be said against it.
    """
    try:
        select_state(record, paths, RestorePoint.AFTER, commit)
    except RefusedError as error:
        return f"{commits_file(record.batch_id)} speaks of other state: {error.message}"
    return None


def check_state(record: StateRecord, paths: Iterable[str]) -> Iterator[str]:
    """What is missing of the state before and after the record's batch, or does not belong there."""
    files = sort_state(paths)
    declared = declared_owners(record, files)
    for owner, lacking in absent_owners(record, files):
        yield f"state {owner.directory} is declared and has no file: {lacking} partitions of it lack"
    for owner in declared:
        named = files[owner]
        try:
            plan_store_chains(owner, record.batch_id, named, settled_ids(named, record.batch_id))
        except RefusedError as error:
            yield error.message
    yield from _check_versions(record, files)
    for owner in sorted(files.keys() - set(declared)):
        yield f"state {owner.directory} is named and not declared"


def _check_versions(record: StateRecord, files: Files) -> Iterator[str]:
    for owner, named in sorted(files.items()):
        ids: dict[int, set[str]] = {}
        for file in named:
            if file.version > record.batch_id + 1:
                yield f"{file.path} is of a later batch than {record.batch_id}"
            if file.uid and file.version <= record.batch_id:
                ids.setdefault(file.version, set()).add(file.uid)
        for version, found in sorted(ids.items()):
            if len(found) > 1:
                yield f"version {version} of state {owner.directory} is named by {len(found)} attempts"
