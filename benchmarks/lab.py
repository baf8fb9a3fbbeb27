"""Where the benchmarks run: an S3 server, a proxy that delays and counts, drivers, and the measuring."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from benchmarks.records import Cell
from benchmarks.ways import TUNED_BUCKET, Load, Place, driver_conf, query_spec
from pyspark_checkpoint import CheckpointStore
from pyspark_checkpoint.capture.roots import root_url
from tests.harness.driver import Driver
from tests.harness.queries import QuerySpec
from tests.servers.hadoop import build_jar, hadoop_cloud_jars
from tests.servers.launch import S3Server, seaweedfs
from tests.servers.proxy import FaultProxy, Request

LONGEST_SECONDS = 120.0
PATIENCE_SECONDS = 600.0
_PARTS = re.compile("[/?&=]")
PHASES = ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset", "getBatch")


def verb(request: Request) -> str:
    """The verb, with LIST and multi-object delete by their own names; a copy by the server is a PUT."""
    query = request.target.partition("?")[2]
    if request.method == "GET" and any(part in query for part in ("list-type=", "prefix=", "delimiter=")):
        return "LIST"
    return "DELETES" if request.method == "POST" and query.startswith("delete") else request.method


def requests_of(name: str, others: Iterable[str], requests: Sequence[Request]) -> list[Request]:
    """Those made for the query ``name``, or for none in particular.

    Spark looks after the state of queries that have ended, once a minute: on S3 with a LIST for every
    partition, which whoever is measured at that moment must not pay for.
    """
    strangers = set(others) - {name}
    return [one for one in requests if strangers.isdisjoint(_PARTS.split(unquote(one.target)))]


@dataclass(frozen=True)
class Lab:
    """A running server with a proxy before it, and the files of this run."""

    server: S3Server
    proxy: FaultProxy
    place: Place
    jar: Path
    names: set[str] = field(default_factory=set)
    """The queries that were measured: each has its name in the targets of its requests."""

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
    """How long to measure: so many batches after the warm-up, but not longer than so many seconds."""

    batches: int = 8
    warm_up: int = 2
    longest_seconds: float = LONGEST_SECONDS


def measure(lab: Lab, driver: Driver, spec: QuerySpec, pace: Pace, tally: Tally) -> None:
    """Run a query past its warm-up, note every batch and the requests meanwhile, and stop it."""
    driver.start(spec)
    measure_on(lab, driver, spec, pace, tally)


def measure_on(lab: Lab, driver: Driver, spec: QuerySpec, pace: Pace, tally: Tally) -> None:
    """The same for a query that runs already; its warm-up counts from batch 0 on."""
    lab.names.add(spec.name)
    wait_for(driver, spec.name, pace.warm_up)
    lab.proxy.clear()
    begun = count_committed(driver, spec.name)
    until = time.monotonic() + pace.longest_seconds
    done = begun
    while done < begun + pace.batches and (done == begun or time.monotonic() < until):
        time.sleep(0.1)
        done = count_committed(driver, spec.name)
    tally.add_requests(requests_of(spec.name, lab.names, lab.proxy.requests))
    result: dict[str, Any] = driver.call("stop", 600, name=spec.name)
    tally.batches += done - begun
    tally.batch_ms += result["batch_ms"][begun:done]
    tally.durations += result["duration_ms"][begun:done]
    if spec.listen:
        driver.call("flush", 150, name=spec.name, timeout_seconds=120)
        tally.captures += driver.call("unlisten", 150, name=spec.name)
        tally.watched_batches += len(result["committed"])
        tally.lag_seconds += lags(lab, spec)


def lags(lab: Lab, spec: QuerySpec) -> list[float]:
    """Seconds from each batch's commit on the disk to the manifest that has it, of what is retained."""
    location = lab.place.disk(spec.name)
    query_id = json.loads((location / "metadata").read_text())["id"]
    history = CheckpointStore.open(root_url(spec.listen, query_id), lab.server.options)
    found = []
    for number, epoch in history.list():
        manifest = history.load_by_id(number)
        commit = location / "commits" / str(epoch)
        if manifest is not None and manifest.kind.value == "epoch" and commit.exists():
            found.append(manifest.timestamp_ms / 1000 - commit.stat().st_mtime)
    return found


def warm_up(lab: Lab, driver: Driver, ways: Sequence[str], load: Load) -> None:
    """Let the JVM compile what every way needs; the first batches of a driver measure the compiler."""
    lab.delay(0)
    for way in ways:
        spec = query_spec(way, load, lab.place, f"warm-up-{way}-{load.query}-{load.provider}")
        measure(lab, driver, spec, Pace(3, 1, 60), Tally())
