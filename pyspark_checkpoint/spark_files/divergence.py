"""Whether a checkpoint location holds the state that a table's newest checkpoint names. Pure.

An old disk may come back that has diverged: a batch that ran again elsewhere gave other rows and other
state. Going on from it would put state beside rows that do not belong to it. Batches by which Spark
only repartitions a query's state never reach a sink, and are no divergence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.spark_files.inventory import unique_ids_of
from pyspark_checkpoint.spark_files.logs import CommitLog, OffsetLog, OperatorInfo
from pyspark_checkpoint.spark_files.names import StateFile, parse_state_file
from pyspark_checkpoint.spark_files.requirements import PARTITIONS


def find_divergence(
    batch: int,
    held: Mapping[str, ArtifactRef],
    found: Mapping[str, ArtifactRef],
    operators: Mapping[int, OperatorInfo],
    commits: Mapping[int, CommitLog],
) -> str | None:
    """What tells the location from the head, None if nothing does.

    ``held`` is what the head names and ``found`` what the location has, by path; a file of ``held`` that
    is unchanged there is the same artifact in both. Only versions up to ``batch`` count, which is the
    state that ``batch`` began from. Of that one ``found`` must have the decisive files: a location that
    lacks one cannot be told from another attempt's, as where a snapshot is all that the head names.
    """
    files = parsed_files(held)
    decisive = set(decisive_files(files, batch))
    for path, file in files.items():
        is_own = path in decisive or (file.uid is None and not file.kind.is_base and file.version <= batch)
        ref = found.get(path)
        if ref is None and path in decisive:
            return f"{path} is not there"
        if is_own and ref is not None and ref.sha256 != held[path].sha256:
            return f"{path} has other bytes"
    return find_other_ids(batch, files.values(), operators, commits)


def parsed_files(paths: Iterable[str]) -> dict[str, StateFile]:
    """The versioned state files among ``paths``."""
    return {path: file for path in paths if (file := parse_state_file(path)) is not None}


def decisive_files(files: Mapping[str, StateFile], version: int) -> Iterator[str]:
    """Of the files that a manifest names, those by which one attempt's ``version`` differs from another's.

    A store's change; or its base, where that is all that is named: RocksDB without a changelog has no
    more. In format version 2 names say who wrote them, and no bytes need to be compared.
    """
    of_version = {path: file for path, file in files.items() if file.version == version and not file.uid}
    changed = {file.owner for file in of_version.values() if not file.kind.is_base}
    for path, file in of_version.items():
        if not file.kind.is_base or file.owner not in changed:
            yield path


def find_other_ids(
    batch: int,
    files: Collection[StateFile],
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


def only_split(logs: Sequence[OffsetLog]) -> bool:
    """Whether every batch after the first only repartitioned the state.

    Spark's offline repartition writes the offset log of the last batch again, with another number of
    partitions and not a letter more. A batch that read nothing still has a time of its own.
    """
    return all(_is_split(before, after) for before, after in pairwise(logs))


def _is_split(before: OffsetLog, after: OffsetLog) -> bool:
    if before.conf.get(PARTITIONS) == after.conf.get(PARTITIONS):
        return False
    return replace(before, conf=_others(before.conf)) == replace(after, conf=_others(after.conf))


def _others(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name != PARTITIONS}
