"""``configure``: a session whose every streaming query is checkpointed, from a pip install alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_checkpoint import __version__
from pyspark_checkpoint.errors import RefusedError
from pyspark_checkpoint.jar import find_jar
from pyspark_checkpoint.plugin.plugin_settings import conf_of, option_conf

PLUGIN = "io.github.pysparkcheckpoint.CheckpointPlugin"


def configure(
    builder: SparkSession.Builder,
    url: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
    **settings: Any,
) -> SparkSession.Builder:
    """Add the jar, the plugin and their settings to a session that is not started yet; returns ``builder``.

    ``settings`` are those of docs/plugin.md in Python's spelling: ``restore="missing"``, ``retain=50``.
    ``options`` are the store's. Without ``url`` only the checkpoint file manager is set.
    """
    known: dict[str, str] = builder._options
    _check_not_started(known)
    confs = dict(option_conf(name, value) for name, value in (options or {}).items())
    confs |= dict(conf_of(name, value) for name, value in settings.items())
    if url is not None:
        confs |= dict([conf_of("url", url)])
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
        raise RefusedError(
            "under Spark Connect the plugin belongs to the server", hint="give these confs to the server"
        )
    if SparkContext._active_spark_context is not None:
        raise RefusedError(
            "Spark is running already, and takes no plugins any more",
            hint="call configure before the first getOrCreate, or use checkpoint(spark, url)",
        )


def _with(others: str | None, ours: str) -> str:
    names = [name for name in (others or "").split(",") if name]
    return ",".join(names if ours in names else [*names, ours])
