"""What Spark does for a restore: repartition state, and write large state from the executors.

The state of a checkpoint has as many partitions as its query had. Spark (4.2 or newer) repartitions state
in RocksDB offline, by a batch that it adds to the restored location. Whether that is possible is decided
here first, before anything is written. Nothing here imports Spark before a session is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_checkpoint.errors import (
    FormatError,
    NoCheckpoint,
    SettingsError,
    StoreError,
    Unsupported,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.restorer.execute import Spread, write_plain
from pyspark_checkpoint.restorer.plan import RestoredFile
from pyspark_checkpoint.spark_files.inventory import NODES_HINT
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.names import STATE
from pyspark_checkpoint.spark_files.requirements import PARTITIONS, Recorded
from pyspark_checkpoint.spark_files.restore_points import RestorePoint
from pyspark_checkpoint.store.open import open_object_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOB = "checkpoint restore"
_WITHOUT = "or restore without partitions"


def needs_repartition(manifest: CheckpointManifest, partitions: int, *, is_clone: bool) -> bool:
    """Whether state has to be repartitioned to have so many; refused where it cannot be. Pure."""
    recorded = Recorded.of_manifest(manifest)
    if not recorded.operators or recorded.conf.get(PARTITIONS) == str(partitions):
        return False
    if not recorded.is_rocksdb:
        raise Unsupported(
            f"checkpoint {manifest.checkpoint_id} has its state in HDFS-backed stores, which Spark cannot "
            "repartition",
            hint="restore it without partitions; only RocksDB state can be repartitioned",
        )
    if manifest.table_store_checkpoint_path is not None and not is_clone:
        raise Unsupported(
            f"the table {manifest.table_store_checkpoint_path} has the query's rows without its state: the "
            "batch by which Spark repartitions state never reaches it, and it would refuse the next one",
            hint="restore without partitions and run the query with the sink's option state=on: its "
            "checkpoints, which are in the table, can be repartitioned; or restore a clone that writes to "
            "another table",
        )
    return True


def repartition_point(
    manifest: CheckpointManifest, point: RestorePoint | None, commit: bytes | None
) -> RestorePoint | None:
    """The point to restore before a repartition: Spark repartitions the state of finished batches. Pure."""
    if manifest.state is None:
        return point
    if point is RestorePoint.BEFORE:
        raise SettingsError(
            "state is repartitioned after a batch, and point is before", hint="leave point out"
        )
    if commit is None:
        raise NoCheckpoint(
            f"checkpoint {manifest.checkpoint_id} does not know whether Spark finished its batch, and "
            "Spark repartitions the state of finished batches only",
            hint="restore an earlier epoch; or restore without partitions, let the query run and stop, by "
            "which its newest checkpoint is sealed, and repartition that one",
        )
    return RestorePoint.AFTER


class SparkSide:
    """A session, for what a restore needs it for."""

    def __init__(self, spark: SparkSession, manager: Any = None) -> None:
        """``manager`` is Spark's own offline repartition."""
        self._spark = spark
        self._manager = manager

    @staticmethod
    def find(spark: SparkSession | None, *, must_repartition: bool) -> SparkSide | None:
        """The session that was given, or the active one if state is repartitioned; refused if it cannot."""
        if not must_repartition:
            return None if spark is None else SparkSide(spark)
        session = spark or _active_session()
        manager = getattr(session, "_streamingCheckpointManager", None)
        if manager is None:
            raise Unsupported(
                f"Spark {session.version} cannot repartition state",
                hint=f"use Spark 4.2 or newer with a classic session, {_WITHOUT}",
            )
        return SparkSide(session, manager)

    def reach(self, location: LocationSpec) -> LocationSpec:
        """The location, which may be on any file system that the session reaches."""
        from pyspark_checkpoint.spark.hadoop_store import location_spec  # noqa: PLC0415 - needs Spark

        return replace(location, opener=location_spec(self._spark, location.url, location.options).opener)

    def repartition_url(self, location: LocationSpec) -> str:
        """The location as Spark finds it; refused if Spark has no file system for it."""
        from pyspark_checkpoint.spark.jvm import HadoopFiles  # noqa: PLC0415 - needs Spark

        url = location.spark_url
        if url.startswith("file:"):
            return url
        if url.startswith("abfss:") and "@" not in url:
            raise Unsupported(
                f"Spark repartitions the state, and does not find {location.url} without the name of its "
                "account",
                hint="type abfss://container@account.dfs.core.windows.net/path, or give the option "
                "accountName",
            )
        try:
            HadoopFiles(self._spark).qualified_path(url)
        except StoreError as error:
            raise Unsupported(
                f"Spark repartitions the state, and does not reach {url}: {error.message}",
                hint=f"start Spark with the file system's jar and its spark.hadoop.fs settings, {_WITHOUT}",
            ) from None
        return url

    def repartition(self, url: str, partitions: int) -> None:
        """Let Spark add the batch that repartitions; what it refuses is its own error."""
        self._manager.repartition(url, partitions)

    def writer(self, url: str, options: Mapping[str, str], location: LocationSpec) -> Spread | None:
        """Writes groups of state files as tasks of a Spark job; None where executors cannot write.

        ``url`` is the query's own store. A task that runs twice does no harm.
        """
        if location.is_foreign:
            return None
        return lambda groups: _write_in_tasks(self._spark, url, dict(options), location, groups)


def _write_in_tasks(
    spark: SparkSession,
    url: str,
    options: dict[str, str],
    location: LocationSpec,
    groups: Sequence[Sequence[RestoredFile]],
) -> Iterator[int]:
    """Write every group. A task verifies every byte; the driver, that all files are here."""
    sent = [tuple(group) for group in groups]
    target = LocationSpec(location.url, dict(location.options), location.becomes)

    def work(group: Sequence[RestoredFile]) -> int | FormatError:
        try:
            return write_plain(open_object_store(url, options), target.open(), group)
        except FormatError as error:
            return error

    context = spark.sparkContext
    context.setJobDescription(_JOB)
    for answer in context.parallelize(sent, len(sent)).map(work).collect():
        if isinstance(answer, FormatError):
            raise answer
        yield answer
    found = {info.key: info.size_bytes for info in location.open().store.list(STATE)}
    for file in (file for group in sent for file in group):
        if found.get(file.path) != file.ref.size_bytes:  # executors may have written to disks of their own
            raise Unsupported(f"an executor has written {file.path}, and it is not here", hint=NODES_HINT)


def _active_session() -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only a repartition needs Spark

    session = SparkSession.getActiveSession()
    if session is None:
        raise SettingsError("Spark repartitions state, and there is no session", hint="give spark=")
    return session
