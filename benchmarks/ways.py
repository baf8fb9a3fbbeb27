"""The ways of checkpointing that are compared, each as what a query needs to run that way. Pure.

``alone`` is local disk with nothing that makes it durable elsewhere; ``disk`` the same with our file
manager.
(a) ``stock`` is S3A as it comes. (b) ``tuned`` is S3A at its best: the manager of spark-hadoop-cloud, the
connector's performance flags, and no checksum files. (c) ``ours`` is our file manager on S3A, also without
checksum files, as conf/s3-file-manager.conf has it. (d) ``listener`` is local disk with our file manager,
as the plugin sets it, and our listener; ``listener-stock`` the same with Spark's own manager. (e) ``sink``
is ckpt-sink with rows and state in one commit, on our manager too, and the only one that also writes its
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_checkpoint.listener.worker import INTERVAL_SECONDS
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG, QuerySpec
from tests.support.servers.hadoop import FILE_MANAGER, s3a_conf, spark_conf
from tests.support.servers.s3 import BUCKET

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
TUNED = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
TUNED_BUCKET = "ckpt-tuned"
CHECKSUMS_OFF = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}
PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDERS = {"hdfs": HDFS, "changelog": ROCKSDB_CHANGELOG}
FOREVER = 1_000_000
KEYS = 100_000

CONFS: dict[str, dict[str, str]] = {
    "alone": {MANAGER: SPARK},
    "disk": {MANAGER: FILE_MANAGER},
    "stock": {MANAGER: SPARK},
    "tuned": {MANAGER: TUNED, **CHECKSUMS_OFF},
    "ours": {MANAGER: FILE_MANAGER, **CHECKSUMS_OFF},
    "listener": {MANAGER: FILE_MANAGER},
    "listener-stock": {MANAGER: SPARK},
    "sink": {MANAGER: FILE_MANAGER},
}
WAYS = tuple(CONFS)
LETTERS = {
    "stock": "(a)",
    "tuned": "(b)",
    "ours": "(c)",
    "listener": "(d)",
    "listener-stock": "(d)",
    "sink": "(e)",
}
LISTENERS = ("listener", "listener-stock")
ON_DISK = ("alone", "disk", *LISTENERS, "sink")
"""Their checkpoint location is a local directory."""


@dataclass(frozen=True)
class Place:
    """Where the queries of a run keep what they keep."""

    home: Path
    store_options: Mapping[str, str]
    """How our own stores reach the server, through the proxy."""

    def location(self, way: str, name: str) -> str:
        """Where a query's checkpoint is."""
        if way in ON_DISK:
            return f"file://{self.disk(name)}"
        return f"s3a://{TUNED_BUCKET if way == 'tuned' else BUCKET}/{name}"

    def disk(self, name: str) -> Path:
        return self.home / "locations" / name

    def store(self, name: str) -> str:
        """Where our checkpoints, or a table, of a query are."""
        return f"s3://{BUCKET}/stores/{name}"


@dataclass(frozen=True)
class Load:
    """What a query has to do."""

    query: str = "windowed"
    provider: str = "hdfs"
    partitions: int = 4
    rows: int = KEYS
    keys: int = KEYS
    interval_ms: int = 0
    conf: Mapping[str, str] | None = None


def query_spec(way: str, load: Load, place: Place, name: str, *, batches: int = FOREVER) -> QuerySpec:
    """The query that does ``load`` in this way; its rows go nowhere, except those of the sink."""
    sink = way == "sink"
    options = {"path": place.store(name), "state": "on", **place.store_options} if sink else {}
    if sink and load.query != "join":
        options["keyColumns"] = "window,key" if load.query == "windowed" else "key"
    return QuerySpec(
        name=name,
        kind=load.query,
        location=place.location(way, name),
        results=str(place.home / "results" / name),
        batches=batches,
        conf={
            **PROVIDERS[load.provider],
            **CONFS[way],
            PARTITIONS: str(load.partitions),
            **(load.conf or {}),
        },
        rows=load.rows,
        keys=load.keys,
        interval_ms=load.interval_ms,
        format="ckpt-sink" if sink else "noop",
        options=options,
        listen=place.store(name) if way in LISTENERS else "",
        listen_options=dict(place.store_options) if way in LISTENERS else {},
        listen_seconds=INTERVAL_SECONDS,
    )


def driver_conf(endpoint: str) -> dict[str, str]:
    """What a driver needs for all ways: one bucket with the connector as it comes, one with it tuned."""
    tuned = s3a_conf(endpoint, bucket=TUNED_BUCKET)
    tuned[f"fs.s3a.bucket.{TUNED_BUCKET}.performance.flags"] = "*"
    return {
        **spark_conf(endpoint, file_manager=SPARK),
        **{f"spark.hadoop.{name}": value for name, value in tuned.items()},
        "spark.driver.memory": "3g",
        "spark.sql.codegen.wholeStage": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "5000",
    }
