"""The one module that reaches into the JVM (py4j): what Python's streaming API does not say of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pyspark_checkpoint.errors import RefusedError


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """What the JVM knows of a query that is starting or running."""

    checkpoint_location: str
    output_mode: str
    sink: str
    is_micro_batch: bool


def find_running_query(spark: SparkSession, query_id: str) -> RunningQuery | None:
    """What the JVM says of the query ``query_id``; None if it is not running any more."""
    try:
        execution = _active_queries(spark).get(_uuid(spark, query_id))
        if execution is None:
            return None
        return RunningQuery(
            checkpoint_location=str(execution.resolvedCheckpointRoot()),
            output_mode=str(execution.outputMode().toString()),
            sink=str(execution.sink().toString()),
            is_micro_batch=execution.getClass().getSimpleName() == "MicroBatchExecution",
        )
    except Py4JError as error:
        raise RefusedError(
            "this Spark does not say where a query's checkpoint location is",
            hint="Spark 4.1 to 4.3 with a classic session is needed; under Connect use the server's side",
        ) from error


def stop_query(spark: SparkSession, query_id: str) -> None:
    """Stop a query that is running; one that is not is left alone."""
    query = spark.streams.get(query_id)
    if query is not None:
        query.stop()


def hadoop_settings(spark: SparkSession) -> dict[str, str]:
    """How Spark itself reaches object stores: what a checkpoint location on one is read with."""
    found = spark.sparkContext.getConf().getAll()
    return {name: value for name, value in found if name.startswith("spark.hadoop.fs.")}


def is_local(spark: SparkSession) -> bool:
    """Whether the executors run in the driver's own process."""
    return str(spark.sparkContext.master).startswith("local")


def _active_queries(spark: SparkSession) -> Any:
    return spark._jsparkSession.sharedState().activeStreamingQueries()


def _uuid(spark: SparkSession, query_id: str) -> Any:
    jvm = spark._jvm
    if jvm is None:
        raise RefusedError("the Spark session has ended")
    return jvm.java.util.UUID.fromString(query_id)
