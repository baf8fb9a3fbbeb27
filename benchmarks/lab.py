"""Where queries are compared: the ways of checkpointing, an S3 server behind a proxy, and the measuring.

``pages/RESULTS.md`` says what each way is. ``rows only`` is the sink without the state.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import tempfile
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.frame import Side, in_turns, tell
from pyspark_checkpoint import CheckpointStore
from pyspark_checkpoint.format.manifest import CheckpointManifest
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
LATER, LONG_WARM_UP = "of a later one", 10
"""So many batches of a warm-up need not wait for a slow store."""
AFTER_DATA = 2
"""The PUTs of a capture that its manifest does not count: itself, and the pointer to the newest."""
WAYS = ("alone", "disk", "stock", "tuned", "ours", "listener", "listener-stock", "sink", "rows only")
Conf = Mapping[str, str]
CONFS: dict[str, Conf] = {way: {MANAGER: FILE_MANAGER} for way in WAYS}
CONFS |= {way: {MANAGER: SPARK} for way in ("alone", "stock", "listener-stock")}
CONFS |= {"tuned": {MANAGER: TUNED, **CHECKSUMS_OFF}, "ours": {MANAGER: FILE_MANAGER, **CHECKSUMS_OFF}}
LETTERS = dict(zip(WAYS[2:], ("(a)", "(b)", "(c)", "(d)", "(d)", "(e)", "(e)"), strict=True))
LISTENERS, SINKS = ("listener", "listener-stock"), ("sink", "rows only")
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

    def results(self, name: str) -> str:
        return str(self.home / "results" / name)

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

    @property
    def where(self) -> str:
        return f"{self.query}, {self.partitions}, {self.provider}"


def query_spec(way: str, load: Load, place: Place, name: str) -> QuerySpec:
    """The query that does ``load`` in this way; its rows go nowhere, except those of the sink."""
    sink, listens = way in SINKS, way in LISTENERS
    state = "on" if way == "sink" else "off"
    options = {"path": place.store(name), "state": state, **place.store_options} if sink else {}
    if sink and load.query != "join":
        options["keyColumns"] = "window,key" if load.query == "windowed" else "key"
    partitions = {"spark.sql.shuffle.partitions": str(load.partitions)}
    confs = {**PROVIDERS[load.provider], **CONFS[way], **partitions, **load.conf}
    location, results = place.location(way, name), place.results(name)
    spec = QuerySpec(name, load.query, location, results, FOREVER, confs, load.rows, load.interval_ms)
    spec = replace(spec, keys=load.keys, format="ckpt-sink" if sink else "noop", options=options)
    if not listens:
        return spec
    store, store_options = place.store(name), dict(place.store_options)
    return replace(spec, listen=store, listen_options=store_options, listen_seconds=INTERVAL_SECONDS)


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
    failed: list[str] = field(default_factory=list)
    """What did not run; the others are measured all the same, and the end of the lab is an error."""

    @property
    def home(self) -> Path:
        return self.place.home

    def driver(
        self, name: str = "driver", conf: Conf | None = None, jars: Sequence[Path] = (), **more: Any
    ) -> Driver:
        """A driver that can run every way; a context manager."""
        log, confs = self.home / f"{name}.log", {**driver_conf(self.proxy.endpoint), **(conf or {})}
        class_path = [self.jar, *(jars or hadoop_cloud_jars())]
        return Driver(log, conf=confs, class_path=class_path, program="benchmarks.app", **more)

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
        tempfile.TemporaryDirectory(prefix="ckpt-bench-", ignore_cleanup_errors=True) as directory,
        seaweedfs() as server,
        FaultProxy(server.endpoint) as proxy,
    ):
        server.create_bucket(TUNED_BUCKET)
        options = server.options_at(proxy.endpoint) if store == "s3" else {}
        home = Path(directory)
        yield (lab := Lab(server, proxy, Place(home, options), build_jar(home / "jar")))
    if lab.failed:
        raise RuntimeError("; ".join(lab.failed))


@dataclass
class Tally:
    """What is found of one way in one situation while it is being measured."""

    batches: int = 0
    batch_ms: list[int] = field(default_factory=list)
    first_ms: list[int] = field(default_factory=list)
    phases: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    lag_seconds: list[float] = field(default_factory=list)
    captures: int = 0
    captured_batches: int = 0
    capture_puts: list[int] = field(default_factory=list)

    def add_requests(self, requests: Sequence[Request]) -> None:
        self.requests.update(request.verb for request in requests)
        self.bytes["bytes out"] += sum(request.request_bytes for request in requests)
        self.bytes["bytes in"] += sum(request.response_bytes for request in requests)

    def side(self, where: str, way: str) -> Side:
        """What is kept."""
        batches = max(1, self.batches)
        counts: dict[str, float] = {"requests": self.requests.total() / batches}
        details = {name: number / batches for name, number in (self.requests | self.bytes).items()}
        medians = {name: statistics.median(taken) for name, taken in self.phases.items() if taken}
        details |= {f"phase {name}": median for name, median in medians.items()}
        if self.captured_batches:
            details |= {"captures": self.captures, "captured batches": self.captured_batches}
        if self.lag_seconds:
            counts["s lag"] = round(statistics.median(self.lag_seconds), 3)
            counts["PUTs a capture"] = statistics.median(self.capture_puts)
        return Side(where, way, tuple(self.batch_ms), counts=counts, details=details)

    def first(self, where: str, way: str) -> Side:
        """The first batches of the queries, beside the later ones."""
        counts = {LATER: statistics.median(self.first_ms) / statistics.median(self.batch_ms)}
        return Side(f"{where}: first batch", way, tuple(self.first_ms), counts=counts)


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


PACE = Pace()


def measure(lab: Lab, driver: Driver, spec: QuerySpec, pace: Pace, tally: Tally, delay_ms: int) -> int:
    """Run a query past its warm-up, note batches and requests, and stop it; return the first one noted."""
    lab.delay(0 if pace.warm_up > LONG_WARM_UP else delay_ms)
    driver.start(spec)
    try:
        driver.wait_for(spec.name, pace.warm_up)
        lab.delay(delay_ms)
        return _measure_running(lab, driver, spec, pace, tally)
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            driver.call("stop", 120, name=spec.name)
        raise


def _measure_running(lab: Lab, driver: Driver, spec: QuerySpec, pace: Pace, tally: Tally) -> int:
    if spec.listen:  # what it asks once, at its start, is no batch's
        driver.call("flush", 150, name=spec.name, timeout_seconds=120)
    lab.proxy.clear()
    begun = driver.count_committed(spec.name)
    since = time.monotonic()
    done, seen = begun, lab.requests_of(spec.name)
    while not pace.is_over(done - begun, time.monotonic() - since):
        if done == begun and time.monotonic() - since > PATIENCE_SECONDS:
            raise RuntimeError(f"{spec.name}: no batch in {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.1)
        now = driver.count_committed(spec.name)
        if now > done:  # what a batch that the end of the turn cuts has asked for is no whole batch's
            done, seen = now, lab.requests_of(spec.name)
    tally.add_requests(seen)
    result, captures = driver.stop(spec)
    tally.batches += done - begun
    tally.batch_ms += result["batch_ms"][begun:done]
    tally.first_ms += result["batch_ms"][:1]
    for phase in PHASES:
        tally.phases[phase] += [one[phase] for one in result["duration_ms"][begun:done] if phase in one]
    if spec.listen:
        tally.captures += captures
        tally.captured_batches += len(result["committed"])
        add_captures(lab, spec, tally)
    return begun


def epochs_of(url: str, options: Mapping[str, str]) -> list[CheckpointManifest]:
    """The manifests of a history that are of a batch, oldest first."""
    history = CheckpointStore.open(url, dict(options))
    found = [history.load_by_id(number) for number in history.list_ids()]
    return [one for one in found if one is not None and one.kind.value == "epoch"]


def add_captures(lab: Lab, spec: QuerySpec, tally: Tally) -> None:
    """Seconds from each batch's commit on the disk to the manifest that covers it, and what that took."""
    location = lab.place.disk(spec.name)
    query_id = json.loads((location / "metadata").read_text())["id"]
    options = lab.server.options if lab.place.store_options else {}
    epochs = epochs_of(root_url(spec.listen, query_id), options)
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


@dataclass(frozen=True)
class Contender:
    """A side of a comparison: how its query is made from a name, by whom it is run, and for how long."""

    way: str
    driver: Driver
    spec: Callable[[str], QuerySpec]
    pace: Pace = PACE


def way_contender(lab: Lab, driver: Driver, way: str, load: Load, pace: Pace = PACE) -> Contender:
    """The query that does ``load`` in this way."""
    return Contender(way, driver, lambda name: query_spec(way, load, lab.place, name), pace)


_numbers = itertools.count()


def run_turns(
    lab: Lab, where: str, contenders: Sequence[Contender], rounds: int, delay_ms: int
) -> dict[str, Tally]:
    """All sides in turns, each time on a fresh location; one that fails is noted, and the others go on."""
    tallies = {one.way: Tally() for one in contenders}
    for _, one in in_turns(contenders, rounds):
        if one.way in tallies:
            tally = tallies[one.way]
            before, name = tally.batches, f"q{next(_numbers)}_{''.join(filter(str.isalnum, one.way))}"
            try:
                measure(lab, one.driver, one.spec(name), one.pace, tally, delay_ms)
                tell(f"{where}, {one.way}: {tally.first_ms[-1]}, ... {tally.batch_ms[before:]} ms")
            except Exception as error:  # noqa: BLE001 - the other sides are measured all the same
                lab.failed.append(f"{where}, {one.way}: {error}".partition("\n")[0])
                tell(lab.failed[-1])
                del tallies[one.way]
    return tallies


def compare(
    lab: Lab, where: str, contenders: Sequence[Contender], rounds: int, delay_ms: int
) -> Iterator[Side]:
    """All sides in turns; a row for each."""
    for way, tally in run_turns(lab, where, contenders, rounds, delay_ms).items():
        yield tally.side(where, way)


def warm_up(lab: Lab, contenders: Sequence[Contender]) -> None:
    """Let the JVM compile what every way needs; the first batches of a driver measure the compiler.

    A way that fails here fails again where it is measured, and is told there.
    """
    before = len(lab.failed)
    run_turns(lab, "warm-up", [replace(one, pace=Pace(2, 1, 30)) for one in contenders], 1, 0)
    del lab.failed[before:]
