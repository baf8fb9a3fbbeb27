"""``configure``: a session whose every streaming query is checkpointed, from a pip install alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_checkpoint import __version__
from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.jar import find_jar
from pyspark_checkpoint.plugin.plugin_settings import PREFIX, SETTINGS, option_conf

PLUGIN = "io.github.pysparkcheckpoint.CheckpointPlugin"


def configure(
    builder: SparkSession.Builder,
    url: str | None = None,
    *,
    app: str | None = None,
    restore: str | int | None = None,
    restore_timeout_seconds: float | None = None,
    queries: str | None = None,
    interval_seconds: float | None = None,
    durability: str | None = None,
    durability_timeout_seconds: float | None = None,
    poll_seconds: float | None = None,
    retain: int | None = None,
    stale: str | None = None,
    sink: str | None = None,
    stop_when_fenced: bool | None = None,
    start_timeout_seconds: float | None = None,
    stop_timeout_seconds: float | None = None,
    file_manager: str | None = None,
    file_manager_allow_unfenced: bool | None = None,
    file_manager_memory_bytes: str | int | None = None,
    file_manager_spool_directory: str | None = None,
    options: Mapping[str, str] | None = None,
) -> SparkSession.Builder:
    """Add the jar, the plugin and their settings to a session that is not started yet.

    What is None is left to Spark's own configuration, or to the default in ``docs/plugin.md``.

    Args:
        builder: The session's builder. What it has in ``spark.jars`` and ``spark.plugins`` stays.
        url: Where checkpoints go. Without it only the checkpoint file manager is set.
        app: Whose checkpoints they are, for the restore; by default the application's name.
        restore: ``never``, ``missing``, a checkpoint's number or a savepoint's name: what a checkpoint
            location that is not there is restored from, before the application begins.
        restore_timeout_seconds: How long that may take.
        queries: Names of the queries that are checkpointed, with ``*`` and commas.
        interval_seconds: How long captures of one query lie apart at least.
        durability: ``async``, or ``batch``: no batch begins before the one before it is in the store.
        durability_timeout_seconds: How long a batch waits for that before its query fails.
        poll_seconds: How often to look for batches whose events were dropped.
        retain: How many epochs of a query are kept at least, besides savepoints.
        stale: ``fail``, ``warn`` or ``restore``: a query whose location is behind its history.
        sink: ``fail`` or ``warn``: an automatic restore whose query writes to files, Delta or Iceberg that
            have later batches already.
        stop_when_fenced: Whether a query is stopped when another driver has taken its history over.
        start_timeout_seconds: How long the start of a query waits for the look at its history.
        stop_timeout_seconds: How long the end of the application waits for the last checkpoints.
        file_manager: ``auto`` or ``off``: our file manager for object stores and local disks.
        file_manager_allow_unfenced: Whether it runs on a store without conditional create.
        file_manager_memory_bytes: What open files of one JVM hold in memory: a number, or ``64m``.
        file_manager_spool_directory: Where the rest waits.
        options: Options of the store; credentials get names that Spark hides.

    Returns:
        ``builder``, for ``getOrCreate()``.

    Raises:
        SettingsError: An option is unknown, or the jar is not there.
        Unsupported: Spark runs already, or the builder is one of Spark Connect.
    """
    given = dict(locals())
    known: dict[str, str] = builder._options
    _check_not_started(known)
    confs = dict(option_conf(name, value) for name, value in (options or {}).items())
    for setting in SETTINGS:
        value = given[setting.argument]
        if value is not None:
            confs[f"{PREFIX}{setting.name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    confs["spark.jars"] = _with(known.get("spark.jars"), str(find_jar(__version__)))
    confs["spark.plugins"] = _with(known.get("spark.plugins"), PLUGIN)
    # The plugin's own Python is this one; which one the executors have is not ours to say.
    confs.setdefault(
        "spark.pyspark.driver.python", known.get("spark.pyspark.driver.python", sys.executable)
    )
    for name, value in confs.items():
        builder = builder.config(name, value)
    return builder


def _check_not_started(known: Mapping[str, str]) -> None:
    if "spark.remote" in known or "SPARK_REMOTE" in os.environ:
        raise Unsupported(
            "under Spark Connect the plugin belongs to the server", hint="give these confs to the server"
        )
    if SparkContext._active_spark_context is not None:
        raise Unsupported(
            "Spark is running already, and takes no plugins any more",
            hint="call configure before the first getOrCreate, or use checkpoint(spark, url)",
        )


def _with(others: str | None, ours: str) -> str:
    names = [name for name in (others or "").split(",") if name]
    return ",".join(names if ours in names else [*names, ours])
