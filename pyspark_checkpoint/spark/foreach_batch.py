"""``idempotent_options``: what ``foreachBatch`` gives to Delta with a write. See ``outputs.idempotent``."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from pyspark_checkpoint.errors import SettingsError
from pyspark_checkpoint.outputs.idempotent import application_id, read_lineages
from pyspark_checkpoint.spark.hadoop_store import location_spec
from pyspark_checkpoint.spark.jvm import check_classic, find_running_query, hadoop_settings
from pyspark_checkpoint.spark_files.location import LocationSpec, location_options


def idempotent_options(
    query_id: str,
    batch_id: int,
    *,
    location: str | None = None,
    spark: SparkSession | None = None,
    options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Options by which Delta takes each batch of ``foreachBatch`` once, also after a restore.

    They are the same when Spark repeats a batch after a crash, so that Delta drops what it has already, and
    others for a batch that was planned anew after a restore to an older one, so that its rows are taken.
    A function that writes twice to one table gives each write an id of its own: add to ``txnAppId``.

    Args:
        query_id: The query's id, as ``StreamingQuery.id`` has it.
        batch_id: The batch, as ``foreachBatch`` gives it.
        location: The query's checkpoint location; by default the running query is asked.
        spark: The session in which the query runs; by default the active one.
        options: Options of the location's store; by default what Spark itself reaches it with.

    Returns:
        ``txnAppId`` and ``txnVersion``, for a ``DataFrameWriter``; for MERGE they are settings of the
        session, below ``spark.databricks.delta.write``.

    Raises:
        SettingsError: No query of this id runs, and no location is given.
        Unsupported: The session is one of Spark Connect, and no location is given.
        FormatError: What a restore has noted in the location is damaged.
        StoreError: The location cannot be reached.
    """
    if location is not None and spark is None:
        spec = LocationSpec(location, options or {})
    else:
        session = spark or SparkSession.getActiveSession()
        if session is None:
            raise SettingsError(
                "there is no active Spark session",
                hint="give the one of the batch (spark=batch.sparkSession), or the location (location=)",
            )
        spec = _find_location(session, query_id, location, options)
    store = spec.open().store
    try:
        lineages = read_lineages(store)
    finally:
        store.close()
    return {"txnAppId": application_id(str(query_id), batch_id, lineages), "txnVersion": str(batch_id)}


def _find_location(
    spark: SparkSession, query_id: str, location: str | None, options: Mapping[str, str] | None
) -> LocationSpec:
    check_classic(spark)
    if location is None:
        query = find_running_query(spark, query_id)
        if query is None:
            raise SettingsError(
                f"no query {query_id} runs in this session",
                hint="give the id of the query whose batch it is, or its checkpoint location (location=)",
            )
        location = query.checkpoint_location
    if options is None:
        is_local = location.startswith(("/", "file:"))
        options = {} if is_local else location_options(location, hadoop_settings(spark), {})
    return location_spec(spark, location, options)
