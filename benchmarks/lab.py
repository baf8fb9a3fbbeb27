"""Where the benchmarks run: an S3 server, a proxy that delays and counts, drivers, and the measuring."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.records import Cell
from benchmarks.ways import TUNED_BUCKET, Load, Place, driver_conf, query_spec
from pyspark_checkpoint import CheckpointStore
from pyspark_checkpoint.registry.queries import root_url
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.hadoop import build_jar, hadoop_cloud_jars
from tests.support.servers.launch import S3Server, seaweedfs
from tests.support.servers.proxy import FaultProxy, Request

LONGEST_SECONDS = 120.0
PATIENCE_SECONDS = 600.0
PHASES = ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset", "getBatch")


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
def open_lab() -> Iterator[Lab]:
    """Start everything that a part needs except Spark."""
    with (
        TemporaryDirectory(prefix="ckpt-bench-", ignore_cleanup_errors=True) as directory,
        seaweedfs() as server,
        FaultProxy(server.endpoint) as proxy,
    ):
        home = Path(directory)
        client = server.client()
        client.create_bucket(Bucket=TUNED_BUCKET)
        client.close()
        place = Place(home, server.options_at(proxy.endpoint))
        yield Lab(server, proxy, place, build_jar(home / "jar"))


@dataclass
class Tally:
    """What is found of one way in one situation while it is being measured."""

    batches: int = 0
    batch_ms: list[int] = field(default_factory=list)
    durations: list[dict[str, int]] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    bytes_out: int = 0
    bytes_in: int = 0
    lag_seconds: list[float] = field(default_factory=list)
    captures: int = 0
    watched_batches: int = 0

    def add_requests(self, requests: Sequence[Request]) -> None:
        self.requests.update(map(verb, requests))
        self.bytes_out += sum(request.request_bytes for request in requests)
        self.bytes_in += sum(request.response_bytes for request in requests)

    def cell(self, way: str, load: Load, delay_ms: int) -> Cell:
        """The value that is kept."""
        phases = {
            phase: statistics.median(found[phase] for found in self.durations if phase in found)
            for phase in PHASES
            if any(phase in found for found in self.durations)
        }
        return Cell(
            way=way,
            query=load.query,
            partitions=load.partitions,
            provider=load.provider,
            delay_ms=delay_ms,
            batches=self.batches,
            batch_ms=tuple(self.batch_ms),
            phases_ms=phases,
            requests=dict(self.requests),
            bytes_out=self.bytes_out,
            bytes_in=self.bytes_in,
            lag_seconds=tuple(round(lag, 3) for lag in self.lag_seconds),
            captures=self.captures,
            watched_batches=self.watched_batches,
        )


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
    longest_seconds: float = LONGEST_SECONDS
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
        tally.lag_seconds += lags(lab, spec)


def lags(lab: Lab, spec: QuerySpec) -> list[float]:
    """Seconds from each batch's commit on the disk to the manifest that covers it."""
    location = lab.place.disk(spec.name)
    query_id = json.loads((location / "metadata").read_text())["id"]
    history = CheckpointStore.open(root_url(spec.listen, query_id), lab.server.options)
    manifests = [history.load_by_id(number) for number, _ in history.list()]
    captured = [
        (found.epoch, found.timestamp_ms / 1000)
        for found in manifests
        if found is not None and found.kind.value == "epoch"
    ]
    commits = (location / "commits").glob("[0-9]*")
    return lags_of({int(path.name): path.stat().st_mtime for path in commits}, captured)


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
