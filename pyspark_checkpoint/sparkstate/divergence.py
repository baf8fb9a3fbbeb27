"""Whether a checkpoint location holds the state that a table's newest checkpoint names. Pure.

An old disk may come back whose query went another way: a batch that ran again elsewhere gave other
rows and other state. Going on from it would put state beside rows that do not belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.sparkstate.capture import unique_ids_of
from pyspark_checkpoint.sparkstate.logs import CommitLog, OperatorInfo
from pyspark_checkpoint.sparkstate.names import StateFile, parse_state_file


def find_divergence(
    batch: int,
    held: Mapping[str, ArtifactRef],
    found: Mapping[str, ArtifactRef],
    operators: Mapping[int, OperatorInfo],
    commits: Mapping[int, CommitLog],
) -> str | None:
    """What tells the location from the head, None if nothing does.

    ``held`` is what the head names and ``found`` what is to be committed, by path. Only changes up to
    version ``batch`` count, which is the state that ``batch`` began from: bases may be written again by
    maintenance, and encrypted bytes cannot be compared.
    """
    files = {path: file for path in held if (file := parse_state_file(path)) is not None}
    for path, file in files.items():
        ref = found.get(path)
        if file.kind.is_base or file.version > batch or ref is None or file.uid is not None:
            continue
        if ref.sha256 != held[path].sha256 and ref.data_key_id is None:
            return f"{path} has other bytes"
    return _find_other_ids(batch, list(files.values()), operators, commits)


def _find_other_ids(
    batch: int,
    files: list[StateFile],
    operators: Mapping[int, OperatorInfo],
    commits: Mapping[int, CommitLog],
) -> str | None:
    """Format version 2: the attempt that made version ``batch`` must be one that the head names."""
    named = {(file.owner, file.uid) for file in files if file.version == batch and file.uid}
    for owner in sorted({owner for owner, _ in named}):
        uid = unique_ids_of(owner, commits, batch - 1, operators).get(batch)
        if uid is not None and (owner, uid) not in named:
            return f"version {batch} of state {owner.directory} is of attempt {uid}"
    return None
