"""Whether a query will go on from a checkpoint location: what it needs against what it will find. Pure.

Spark pins the state store and the number of partitions in the offset log, and takes those, whatever the
session says. The format of state is in no log: the names of its files say it. The number of sources and
the stateful operators come from the query, and must be those of the checkpoint.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.spark_files.state_artifacts import state_operators

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"
_SPARKS_OWN = re.compile(r"org\.apache\.spark\.sql\.execution\.streaming\.state\.(\w+)StateStoreProvider")
_TRIED = ((4, 1), (4, 2), (4, 3))


class Severity(enum.Enum):
    """What a finding means for the start of the query."""

    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One thing that does not fit, or that is good to know, and what to do about it."""

    severity: Severity
    what: str
    message: str
    cure: str = ""

    def __str__(self) -> str:
        cure = f" ({self.cure})" if self.cure else ""
        return f"{self.severity.value}: {self.what}: {self.message}{cure}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a checkpoint location or a manifest says. An empty ``spark_version`` is not known."""

    conf: Mapping[str, str]
    sources: int
    operators: tuple[str, ...]
    spark_version: str = ""

    @staticmethod
    def of_manifest(manifest: CheckpointManifest) -> Recorded:
        """What a checkpoint says of the query that it is of."""
        return Recorded(
            conf=manifest.query.conf,
            sources=len(manifest.source_offsets),
            operators=tuple(name for _, name in sorted(state_operators(manifest).items())),
            spark_version=manifest.query.spark_version,
        )

    @property
    def is_rocksdb(self) -> bool:
        """Whether the state is in RocksDB."""
        return self.conf.get(PROVIDER, "").endswith(".RocksDBStateStoreProvider")


@dataclass(frozen=True, slots=True)
class Offered:
    """What the query and its session are; None is not compared."""

    spark_version: str | None = None
    provider: str | None = None
    partitions: int | None = None
    sources: int | None = None
    operators: tuple[str, ...] | None = None


def check_preflight(recorded: Recorded, offered: Offered) -> tuple[PreflightFinding, ...]:
    """Compare; an empty answer means that everything given fits."""
    return (
        *_check_version(recorded, offered.spark_version),
        *_check_provider(recorded, offered.provider),
        *_check_partitions(recorded, offered.partitions),
        *_check_sources(recorded, offered.sources),
        *_check_operators(recorded, offered.operators),
    )


def spark_release(version: str) -> tuple[int, int] | None:
    """Major and minor number of a Spark version; None if it is not one."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def _check_version(recorded: Recorded, version: str | None) -> Iterator[PreflightFinding]:
    then = spark_release(recorded.spark_version)
    now = spark_release(version) if version is not None else None
    if now is None:
        return
    if now not in _TRIED:
        yield PreflightFinding(
            Severity.WARNING, "Spark version", f"{version} was not tried", "use Spark 4.1, 4.2 or 4.3"
        )
    if then is None or then == now:
        return
    if recorded.conf.get(FORMAT, "1") != "1" and (4, 0) in (then, now):
        yield PreflightFinding(
            Severity.FAILURE,
            "Spark version",
            f"state of format version 2 does not go from {recorded.spark_version} to {version}",
            "start it with the version that wrote it",
        )
    elif now < then:
        yield PreflightFinding(
            Severity.WARNING,
            "Spark version",
            f"the state was written by {recorded.spark_version}, which is newer than {version}",
            "Spark promises to read older state, not newer; use the version that wrote it",
        )


def _check_provider(recorded: Recorded, provider: str | None) -> Iterator[PreflightFinding]:
    pinned = recorded.conf.get(PROVIDER)
    if pinned is None:
        return
    if _SPARKS_OWN.fullmatch(pinned) is None:
        yield PreflightFinding(
            Severity.WARNING,
            "state store",
            f"the checkpoint needs the class {pinned}",
            "its jar must be on the class path of driver and executors",
        )
    if provider is not None and provider != pinned:
        yield PreflightFinding(
            Severity.NOTE,
            "state store",
            f"the session asks for {provider}, Spark will use {pinned}, which the checkpoint is pinned to",
            "to change it, start the query anew",
        )


def _check_partitions(recorded: Recorded, partitions: int | None) -> Iterator[PreflightFinding]:
    pinned = recorded.conf.get(PARTITIONS)
    if partitions is None or pinned is None or not recorded.operators or int(pinned) == partitions:
        return
    yield PreflightFinding(
        Severity.WARNING,
        "partitions",
        f"the session asks for {partitions}, Spark will use {pinned}, which the state is split in",
        f"restore with partitions={partitions}"
        if recorded.is_rocksdb
        else "state in HDFS-backed stores cannot be repartitioned",
    )


def _check_sources(recorded: Recorded, sources: int | None) -> Iterator[PreflightFinding]:
    if sources is None or sources == recorded.sources:
        return
    yield PreflightFinding(
        Severity.FAILURE,
        "sources",
        f"the checkpoint has {recorded.sources}, the query {sources}: Spark will refuse to start",
        "start the query with the sources that it had",
    )


def _check_operators(recorded: Recorded, operators: tuple[str, ...] | None) -> Iterator[PreflightFinding]:
    if operators is None or operators == recorded.operators:
        return
    then = ", ".join(recorded.operators) or "none"
    now = ", ".join(operators) or "none"
    yield PreflightFinding(
        Severity.FAILURE,
        "operators",
        f"the checkpoint has state of: {then}; the query has: {now}",
        "start the query as it was, or anew in an empty location",
    )
