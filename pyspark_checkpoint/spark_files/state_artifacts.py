"""The state files that a manifest names: operators, paths, owners. Pure.

Operators are named ``{number}-{Spark's name}`` in a manifest and their artifacts by the path below
``state/{number}/{partition}/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.spark_files.names import state_directory

STATE_KIND = "spark-state"
"""The kind of an operator whose partitions hold files of Spark's state stores."""
_UNSAFE_PARTS = frozenset(("", ".", ".."))
_OPERATOR = re.compile(r"([0-9]{1,9})-")


class StateArtifact(NamedTuple):
    """One file of a state store: its path in a checkpoint location, and whose it is."""

    path: str
    ref: ArtifactRef
    operator: str
    partition: int


def operator_key(number: int, name: str) -> str:
    """How an operator of Spark is named in a manifest."""
    return f"{number}-{name}"


def parse_operator_key(key: str) -> int:
    """The number of an operator of Spark, from its name in a manifest."""
    match = _OPERATOR.match(key)
    if match is None:
        raise FormatError(f"operator {key!r} is not one that a capture of Spark's state writes")
    return int(match[1])


def state_artifacts(manifest: CheckpointManifest) -> Iterator[StateArtifact]:
    """Every state file that a manifest names. A path that leaves a checkpoint location is refused."""
    for key, operator in manifest.operators.items():
        if operator.kind != STATE_KIND:
            continue
        number = parse_operator_key(key)
        for part in operator.partitions:
            for ref in part.artifacts:
                path = check_location_path(f"{state_directory(number, part.partition_id)}{ref.name}", ref)
                yield StateArtifact(path, ref, key, part.partition_id)


def state_refs(manifest: CheckpointManifest) -> dict[str, ArtifactRef]:
    """The state files that a manifest names, by their paths in a checkpoint location."""
    return {found.path: found.ref for found in state_artifacts(manifest)}


def state_operators(manifest: CheckpointManifest) -> dict[int, str]:
    """How Spark calls the operators that a manifest has state of, by their numbers."""
    keys = (key for key, operator in manifest.operators.items() if operator.kind == STATE_KIND)
    return {parse_operator_key(key): key.partition("-")[2] for key in keys}


def state_owners(manifest: CheckpointManifest) -> dict[str, tuple[str, int]]:
    """Which operator and partition a state file belongs to, by its path: encryption binds it to them."""
    return {found.path: (found.operator, found.partition) for found in state_artifacts(manifest)}


def check_location_path(path: str, ref: ArtifactRef) -> str:
    """Return a path that a manifest names if it is below a checkpoint location, else refuse it."""
    parts = path.split("/")
    if not ref.name or not _UNSAFE_PARTS.isdisjoint(parts) or "\\" in path:
        raise FormatError(
            f"a manifest names the file {path[:200]!r}, which is not below a checkpoint location"
        )
    return path
