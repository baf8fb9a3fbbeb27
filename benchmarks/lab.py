"""Where queries are compared: the ways of checkpointing, an S3 server behind a proxy, and the measuring.

``alone`` is local disk with nothing that makes it durable elsewhere; ``disk`` the same with our manager.
(a) ``stock`` is S3A as it comes. (b) ``tuned`` is S3A at its best: the manager of spark-hadoop-cloud, the
connector's performance flags, and no checksum files. (c) ``ours`` is our file manager on S3A, also without
checksum files. (d) ``listener`` is local disk with our file manager, as the plugin sets it, and our
listener; ``listener-stock`` the same with Spark's own manager. (e) ``sink`` is ckpt-sink with rows and
state in one commit, on our manager too, and the only one that also writes its rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.frame import Cell
from pyspark_checkpoint import CheckpointStore
from pyspark_checkpoint.listener.worker import INTERVAL_SECONDS
from pyspark_checkpoint.registry.queries import root_url
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import HDFS, ROCKSDB_CHANGELOG, QuerySpec
from tests.support.servers.hadoop import FILE_MANAGER, build_jar, hadoop_cloud_jars, s3a_conf, spark_conf
from tests.support.servers.launch import seaweedfs
from tests.support.servers.proxy import FaultProxy, Request
from tests.support.servers.s3 import BUCKET, S3Server

PATIENCE_SECONDS = 600.0
PHASES = ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset", "getBatch")
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
TUNED = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
TUNED_BUCKET = "ckpt-tuned"
CHECKSUMS_OFF = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}
PROVIDERS = {"hdfs": HDFS, "changelog": ROCKSDB_CHANGELOG}
FOREVER = 1_000_000
AFTER_DATA = 2
"""The PUTs of a capture that its manifest does not count: itself, and the pointer to the newest."""
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
LETTERS = dict(zip(WAYS[2:], ("(a)", "(b)", "(c)", "(d)", "(d)", "(e)"), strict=True))
LISTENERS = ("listener", "listener-stock")
ON_S3 = ("stock", "tuned", "ours")
"""Their checkpoint location is on S3; that of the others is a local directory."""


@dataclass(frozen=True)
class Place:
    """Where the queries of a run keep what they keep; ``store_options`` reach the server by the proxy."""

    home: Path
    store_options: Mapping[str, str]

    def location(self, way: str, name: str) -> str:
        if way in ON_S3:
            return f"s3a://{TUNED_BUCKET if way == 'tuned' else BUCKET}/{name}"
        return f"file://{self.disk(name)}"

    def disk(self, name: str) -> Path:
        return self.home / "locations" / name

    def store(self, name: str) -> str:
        """Where our checkpoints, or a table, of a query are."""
        return f"s3://{BUCKET}/stores/{name}" if self.store_options else str(self.home / "stores" / name)


@dataclass(frozen=True)
class Load:
    """What a query has to do."""

    query: str = "windowed"
    provider: str = "hdfs"
    partitions: int = 4
    rows: int = 100_000
    keys: int = 100_000
    interval_ms: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)


def query_spec(way: str, load: Load, place: Place, name: str) -> QuerySpec:
    """The query that does ``load`` in this way; its rows go nowhere, except those of the sink."""
    sink, listens = way == "sink", way in LISTENERS
    options = {"path": place.store(name), "state": "on", **place.store_options} if sink else {}
    if sink and load.query != "join":
        options["keyColumns"] = "window,key" if load.query == "windowed" else "key"
    confs = {**PROVIDERS[load.provider], **CONFS[way], "spark.sql.shuffle.partitions": str(load.partitions)}
    return QuerySpec(
        name=name,
        kind=load.query,
        location=place.location(way, name),
        results=str(place.home / "results" / name),
        batches=FOREVER,
        conf={**confs, **load.conf},
        rows=load.rows,
        keys=load.keys,
        interval_ms=load.interval_ms,
        format="ckpt-sink" if sink else "noop",
        options=options,
        listen=place.store(name) if listens else "",
        listen_options=dict(place.store_options) if listens else {},
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


def verb(request: Request) -> str:
    """The verb, with LIST and multi-object delete by their own names; a copy by the server is a PUT."""
    query = request.target.partition("?")[2]
    if request.method == "GET" and any(part in query for part in ("list-type=", "prefix=", "delimiter=")):
        return "LIST"
    return "DELETES" if request.method == "POST" and query.startswith("delete") else request.method


def concerns(request: Request, name: str) -> bool:
    """Whether a request is for the query of this name, or does not say for which (a delete of many).

    Spark looks after the state of queries that have ended, once a minute: on S3 with a LIST for every
    partition, which whoever is measured at that moment must not pay for.
    """
    path, _, query = request.target.partition("?")
    key = path.lstrip("/").partition("/")[2]
    named = key or urllib.parse.parse_qs(query).get("prefix", [""])[0]
    return not named or name in named.split("/")


@dataclass(frozen=True)
class Lab:
    """A running server with a proxy before it, and the files of this run."""

    server: S3Server
    proxy: FaultProxy
    place: Place
    jar: Path

    @property
    def home(self) -> Path:
        return self.place.home

    def driver(self, name: str = "driver") -> Driver:
        """A driver that can run every way; a context manager."""
        jars = [self.jar, *hadoop_cloud_jars()]
        return Driver(self.home / f"{name}.log", conf=driver_conf(self.proxy.endpoint), class_path=jars)

    def delay(self, milliseconds: float) -> None:
        """How long every request waits from now on."""
        self.proxy.delay_seconds = milliseconds / 1000

    def requests_of(self, name: str) -> list[Request]:
        """What came by for a query since the proxy was cleared."""
        return [request for request in self.proxy.requests if concerns(request, name)]


@contextlib.contextmanager
def open_lab(store: str = "s3") -> Iterator[Lab]:
    """Start all that a part needs except Spark; ``store`` is where our checkpoints go: s3 or file."""
    with (
        TemporaryDirectory(prefix="ckpt-bench-", ignore_cleanup_errors=True) as directory,
        seaweedfs() as server,
        FaultProxy(server.endpoint) as proxy,
    ):
        client = server.client()
        client.create_bucket(Bucket=TUNED_BUCKET)
        client.close()
        options = server.options_at(proxy.endpoint) if store == "s3" else {}
        home = Path(directory)
        yield Lab(server, proxy, Place(home, options), build_jar(home / "jar"))


@dataclass
class Tally:
    """What is found of one way in one situation while it is being measured; named as in ``Cell``."""

    batches: int = 0
    batch_ms: list[int] = field(default_factory=list)
    durations: list[dict[str, int]] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    bytes_out: int = 0
    bytes_in: int = 0
    lag_seconds: list[float] = field(default_factory=list)
    captures: int = 0
    watched_batches: int = 0
    capture_puts: list[int] = field(default_factory=list)

    def add_requests(self, requests: Sequence[Request]) -> None:
        self.requests.update(map(verb, requests))
        self.bytes_out += sum(request.request_bytes for request in requests)
        self.bytes_in += sum(request.response_bytes for request in requests)

    def cell(self, way: str, load: Load, delay_ms: int) -> Cell:
        """The value that is kept."""
        found = {phase: [one[phase] for one in self.durations if phase in one] for phase in PHASES}
        values: dict[str, Any] = {
            **{name: value for name, value in vars(self).items() if name != "durations"},
            "batch_ms": tuple(self.batch_ms),
            "phases_ms": {phase: statistics.median(taken) for phase, taken in found.items() if taken},
            "requests": dict(self.requests),
            "lag_seconds": tuple(round(lag, 3) for lag in self.lag_seconds),
            "capture_puts": tuple(self.capture_puts),
        }
        return Cell(way, load.query, load.partitions, load.provider, delay_ms, **values)


def count_committed(driver: Driver, name: str) -> int:
    """How many batches a query has done; one that is not running any more is an error."""
    result = driver.call("poll", name=name)
    if not result["active"]:
        raise RuntimeError(f"{name} ended: {result['error']}")
    return len(result["committed"])


def wait_for(driver: Driver, name: str, batches: int, seconds: float = PATIENCE_SECONDS) -> int:
    """Wait until a query has done so many batches, or the time is over; say how many it has done."""
    deadline = time.monotonic() + seconds
    while (done := count_committed(driver, name)) < batches and time.monotonic() < deadline:
        time.sleep(0.1)
    return done


@dataclass(frozen=True)
class Pace:
    """How long to measure after the warm-up: so many batches and seconds, but not longer than so long."""

    batches: int = 8
    warm_up: int = 2
    longest_seconds: float = 120.0
    shortest_seconds: float = 0.0
    """For what does not happen in every batch."""

    def is_over(self, batches: int, seconds: float) -> bool:
        """Whether this was enough; without a single batch it never is."""
        enough = batches >= self.batches and seconds >= self.shortest_seconds
        return batches > 0 and (enough or seconds >= self.longest_seconds)


def measure(lab: Lab, driver: Driver, spec: QuerySpec, pace: Pace, tally: Tally) -> None:
    """Run a query past its warm-up, note every batch and the requests meanwhile, and stop it."""
    driver.start(spec)
    try:
        measure_on(lab, driver, spec, pace, tally)
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            driver.call("stop", 120, name=spec.name)
        raise


def measure_on(lab: Lab, driver: Driver, spec: QuerySpec, pace: Pace, tally: Tally) -> None:
    """The same for a query that runs already; its warm-up counts from batch 0 on."""
    wait_for(driver, spec.name, pace.warm_up)
    if spec.listen:  # what it asks once, at its start, is no batch's
        driver.call("flush", 150, name=spec.name, timeout_seconds=120)
    lab.proxy.clear()
    begun = count_committed(driver, spec.name)
    since = time.monotonic()
    done, seen = begun, lab.requests_of(spec.name)
    while not pace.is_over(done - begun, time.monotonic() - since):
        if done == begun and time.monotonic() - since > PATIENCE_SECONDS:
            raise RuntimeError(f"{spec.name}: no batch in {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.1)
        now = count_committed(driver, spec.name)
        if now > done:  # what a batch that the end of the turn cuts has asked for is no whole batch's
            done, seen = now, lab.requests_of(spec.name)
    tally.add_requests(seen)
    result: dict[str, Any] = driver.call("stop", 600, name=spec.name)
    tally.batches += done - begun
    tally.batch_ms += result["batch_ms"][begun:done]
    tally.durations += result["duration_ms"][begun:done]
    if spec.listen:
        if not driver.call("flush", 150, name=spec.name, timeout_seconds=120):
            raise RuntimeError(f"{spec.name}: what it committed is not in the store")
        tally.captures += driver.call("unlisten", 150, name=spec.name)
        tally.watched_batches += len(result["committed"])
        add_captures(lab, spec, tally)


def add_captures(lab: Lab, spec: QuerySpec, tally: Tally) -> None:
    """Seconds from each batch's commit on the disk to the manifest that covers it, and what that took."""
    location = lab.place.disk(spec.name)
    query_id = json.loads((location / "metadata").read_text())["id"]
    options = lab.server.options if lab.place.store_options else {}
    history = CheckpointStore.open(root_url(spec.listen, query_id), options)
    found = [history.load_by_id(number) for number, _ in history.list()]
    epochs = [one for one in found if one is not None and one.kind.value == "epoch"]
    captured = [(one.epoch, one.timestamp_ms / 1000) for one in epochs]
    commits = (location / "commits").glob("[0-9]*")
    tally.lag_seconds += lags_of({int(path.name): path.stat().st_mtime for path in commits}, captured)
    tally.capture_puts += [one.requests.puts + AFTER_DATA for one in epochs]


def lags_of(committed: Mapping[int, float], captured: Sequence[tuple[int, float]]) -> list[float]:
    """Seconds from each batch to the first capture of it or of a later one, of what is retained. Pure.

    ``captured`` are (epoch, time), oldest first. What the oldest took together cannot be told.
    """
    found = []
    before = captured[0][0] - 1 if captured else 0
    for epoch, at in captured:
        found += [at - committed[batch] for batch in range(before + 1, epoch + 1) if batch in committed]
        before = max(before, epoch)
    return found


def warm_up(lab: Lab, driver: Driver, ways: Sequence[str], load: Load) -> None:
    """Let the JVM compile what every way needs; the first batches of a driver measure the compiler.

    A way that fails here fails again where it is measured, and is told there.
    """
    lab.delay(0)
    for way in ways:
        spec = query_spec(way, load, lab.place, f"warm-up-{way}-{load.query}-{load.provider}")
        with contextlib.suppress(RuntimeError):
            measure(lab, driver, spec, Pace(3, 1, 60), Tally())


def local_spark(name: str, **confs: str | int) -> SparkSession:
    """A session with two slots, as on the smallest machine, for benchmarks that need no server."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    quiet = ("spark.ui.enabled", "spark.ui.showConsoleProgress", "spark.sql.streaming.ui.enabled")
    builder = SparkSession.builder.master("local[2]").appName(name)
    for conf, value in {**dict.fromkeys(quiet, "false"), "spark.driver.host": "127.0.0.1", **confs}.items():
        builder = builder.config(conf, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def batch_times(query: StreamingQuery, batches: int, phase: str) -> list[int]:
    """Milliseconds of one of Spark's phases, in the first batches that have it.

    Each event is fetched once, because asking costs time too.
    """
    seen: dict[int, int] = {}
    fetched = 0
    while len(seen) < batches:
        if (failure := query.exception()) is not None:
            raise failure
        events = query._jsq.recentProgress()
        for number in range(fetched, len(events)):
            event = json.loads(events[number].json())
            if phase in event["durationMs"]:
                seen[event["batchId"]] = event["durationMs"][phase]
        fetched = len(events)
        time.sleep(0.1)
    return [seen[number] for number in sorted(seen)[:batches]]
