"""``restore``, and with ``partitions`` the split of its state anew, by Spark's own offline repartition.

Without ``partitions`` and without a session no Spark is needed, and none is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_checkpoint.capture.commit_log import find_commit
from pyspark_checkpoint.errors import RefusedError, SettingsError, StoreError
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import plain_options, resolve_root
from pyspark_checkpoint.restorer import api as operations
from pyspark_checkpoint.restorer.execute import RestoreReport
from pyspark_checkpoint.restorer.preflight import recorded_in_manifest
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.restore_points import RestorePoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def restore(
    url: str,
    to: str,
    at: int | str = operations.LATEST,
    *,
    partitions: int | None = None,
    spark: SparkSession | None = None,
    **settings: Any,
) -> RestoreReport:
    """Rebuild a checkpoint location; the unmodified query goes on from there. See ``capture.operations``.

    With ``partitions`` the state is split in that many: Spark (4.2 or newer, state in RocksDB) adds a
    batch to the location that does it, in ``spark`` or the active session. The location is marked as
    unfinished until that is done: a restore that was killed before is finished by repeating it. What is
    known not to be possible is refused before anything is written. With ``spark`` the executors write what
    is large, and the location may be on any file system that Hadoop reaches.
    """
    if partitions is None:
        return _restore(url, to, at, spark, settings)
    if partitions < 1:
        raise SettingsError(f"partitions is {partitions}", hint="at least one is needed")
    session = spark or _active_session()
    manager = _checkpoint_manager(session)
    wanted = operations.find_manifest(url, at, **_choice(settings))
    if not must_split(wanted, partitions, is_clone=bool(settings.get("clone"))):
        return _restore(url, to, at, spark, settings)
    chosen = {name: value for name, value in settings.items() if name not in ("epoch", "timestamp_ms")}
    if wanted.state is not None:
        refuse_unfinished(url, wanted, settings)
        chosen["point"] = RestorePoint.AFTER.value
    where = _reachable_url(session, _location(session, to, settings))
    chosen["split"] = lambda: manager.repartition(where, partitions)
    return _restore(url, to, wanted.checkpoint_id, session, chosen)


def _restore(
    url: str, to: str, at: int | str, spark: SparkSession | None, settings: dict[str, Any]
) -> RestoreReport:
    if spark is None:
        return operations.restore(url, to, at, **settings)
    from pyspark_checkpoint.restorer.executor_writes import ExecutorRestore  # noqa: PLC0415 - needs Spark

    location = _location(spark, to, settings)
    if location.is_foreign:
        return operations.restore(url, location, at, **settings)
    options = settings.get("options")
    root = resolve_root(url, settings.get("query"), options)
    spread = ExecutorRestore(spark, root, plain_options(options), location)
    return operations.restore(url, location, at, spread=spread, **settings)


def _location(spark: SparkSession, to: str, settings: dict[str, Any]) -> LocationSpec:
    from pyspark_checkpoint.spark.hadoop_store import location_spec  # noqa: PLC0415 - needs Spark

    given = settings.get("location_options")
    return location_spec(spark, to, plain_options(settings.get("options") if given is None else given))


def _reachable_url(spark: SparkSession, location: LocationSpec) -> str:
    """The location as Spark finds it; refused if Spark has no file system for it."""
    from pyspark_checkpoint.spark.jvm import HadoopFiles  # noqa: PLC0415 - needs Spark

    where = location.spark_url
    if where.startswith("file:"):
        return where
    if where.startswith("abfss:") and "@" not in where:
        raise RefusedError(
            f"Spark splits the state, and does not find {location.url} without the name of its account",
            hint="type abfss://container@account.dfs.core.windows.net/path, or give the option accountName",
        )
    try:
        HadoopFiles(spark).qualified_path(where)
    except StoreError as error:
        raise RefusedError(
            f"Spark splits the state, and does not reach {where}: {error.message}",
            hint="start Spark with the file system's jar and its spark.hadoop.fs settings, or restore "
            "without partitions",
        ) from None
    return where


def _choice(settings: dict[str, Any]) -> dict[str, Any]:
    names = ("epoch", "timestamp_ms", "query", "options")
    return {name: settings[name] for name in names if name in settings}


def must_split(manifest: CheckpointManifest, partitions: int, *, is_clone: bool) -> bool:
    """Whether the state has to be split anew to have so many partitions; refused where it cannot be."""
    recorded = recorded_in_manifest(manifest)
    if not recorded.operators or recorded.conf.get(PARTITIONS) == str(partitions):
        return False
    if not recorded.is_rocksdb:
        raise RefusedError(
            f"checkpoint {manifest.checkpoint_id} has its state in HDFS-backed stores, which Spark cannot "
            "split anew",
            hint="restore it without partitions; only RocksDB state can be split",
        )
    if manifest.table_store_checkpoint_path is not None and not is_clone:
        raise RefusedError(
            f"the table {manifest.table_store_checkpoint_path} has the query's rows without its state: the "
            "batch by which Spark splits the state never reaches it, and it would refuse the next one",
            hint="restore without partitions and run the query with the sink's option state=on: its "
            "checkpoints, which are in the table, can be split; or restore a clone that writes to another "
            "table",
        )
    return True


def refuse_unfinished(url: str, manifest: CheckpointManifest, settings: dict[str, Any]) -> None:
    """Spark splits the state of a batch that is finished, and of no other."""
    if settings.get("point") == RestorePoint.BEFORE.value:
        raise SettingsError("state is split after a batch, and point is before", hint="leave point out")
    options = settings.get("options")
    history = CheckpointStore.open(resolve_root(url, settings.get("query"), options), options)
    if find_commit(history, manifest) is None:
        raise RefusedError(
            f"whether Spark finished the batch of checkpoint {manifest.checkpoint_id} is not known, and it "
            "splits the state of finished batches only",
            hint="restore an earlier epoch; or restore without partitions, let the query run and stop, by "
            "which its newest checkpoint is sealed, and split that one",
        )


def _active_session() -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only a rescale needs Spark

    session = SparkSession.getActiveSession()
    if session is None:
        raise SettingsError("a rescale runs in Spark, and there is no session", hint="give spark=")
    return session


def _checkpoint_manager(spark: SparkSession) -> Any:
    manager = getattr(spark, "_streamingCheckpointManager", None)
    if manager is None:
        raise RefusedError(
            f"Spark {spark.version} cannot split state anew",
            hint="use Spark 4.2 or newer with a classic session, or restore without partitions",
        )
    return manager
