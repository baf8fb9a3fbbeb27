"""A running query's checkpoint copied by rclone, as people do by hand; and does a query start on the copy?

A query with known results runs; meanwhile its checkpoint is copied several times. Then the query is
started on every copy, and each batch that it makes is compared with what it must be. Beside it the same
with checkpoints that the listener made of a running query.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.frame import Settings, Side, tell
from benchmarks.lab import Lab, Load, open_lab, query_spec
from benchmarks.two_drivers import wrong_batches
from pyspark_checkpoint import open_object_store, restore
from tests.support.drivers import outcome as outcomes
from tests.support.drivers.driver import Driver
from tests.support.drivers.queries import QuerySpec
from tests.support.servers.proxy import FaultProxy
from tests.support.servers.s3 import REMOTE, run_rclone

GOES_ON, WRONG, NO_START, ANEW = "goes on", "has wrong results", "does not start", "begins at batch 0"
MORE_BATCHES = 3
WAYS = {
    "s3": ("stock", "rclone copy, S3 to S3"),
    "disk": ("alone", "rclone copy, local disk to S3"),
    "ours": ("listener", "ours: restore of the newest checkpoint"),
}


@dataclass(frozen=True)
class Copy:
    """What was copied, in what time, before anybody tried it."""

    seconds: float
    location: str
    counts: dict[str, float]
    exit_code: int = 0


def copy_by_rclone(lab: Lab, proxy: FaultProxy, spec: QuerySpec, name: str) -> Copy:
    """Copy the location to another prefix of the bucket."""
    bucket, source = lab.server.bucket, spec.location.removeprefix("file://")
    source = source.replace("s3a://", f"{REMOTE}:")
    began = time.monotonic()
    code = run_rclone(proxy.endpoint, "copy", source, f"{REMOTE}:{bucket}/{name}").returncode
    seconds = time.monotonic() - began
    listed = open_object_store(lab.server.url(name), lab.server.options, env={}).list("")
    found = [info.size_bytes for info in listed]
    return Copy(seconds, f"s3a://{bucket}/{name}", sizes(found), code)


def copy_by_restore(lab: Lab, proxy: FaultProxy, spec: QuerySpec, name: str) -> Copy:
    """Restore the listener's newest checkpoint beside the running query."""
    to = lab.home / "restored" / name
    began = time.monotonic()
    options = lab.server.options_at(proxy.endpoint)
    restore(spec.listen, str(to), query=spec.name, clone=True, options=options)
    seconds = time.monotonic() - began
    found = [path.stat().st_size for path in to.rglob("*") if path.is_file()]
    return Copy(seconds, f"file://{to}", sizes(found))


def sizes(found: Sequence[int]) -> dict[str, float]:
    return {"MB": sum(found) / 1e6, "files": len(found)}


def try_copy(driver: Driver, spec: QuerySpec, copy: Copy, name: str) -> list[str]:
    """Start the query on a copy, and say what it makes."""
    results = Path(spec.results).with_name(name)
    other = replace(spec, name=name, location=copy.location, results=str(results), listen="")
    try:
        driver.start(other)
        driver.wait_for(name, MORE_BATCHES, 120)
        driver.stop(other)
        outcome = judge(sorted(outcomes.batches(other)), wrong_batches(other))
    except RuntimeError as error:
        outcome = f"{NO_START}: {first_cause(str(error))}"
    code = copy.exit_code
    return [outcome, *([f"rclone ended with exit code {code}"] if code else [])]


def judge(batches: Sequence[int], wrong: int) -> str:
    """What became of a query, by the batches that it made on a copy and how many were wrong. Pure."""
    if not batches:
        return f"{NO_START}: no batch in 120 s"
    return WRONG if wrong else ANEW if batches[0] == 0 else GOES_ON


def first_cause(text: str) -> str:
    """The line of a failure that says most, without the stack and without this machine's paths."""
    text = re.sub(r"file:/\S+", "file:...", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = ("CANNOT", "does not exist", "not found")
    telling = [line for line in lines if any(word in line for word in words)]
    return (telling or lines or ["no message"])[0][:160]


def measure_way(lab: Lab, driver: Driver, what: str, settings: Settings) -> Side:
    """Copies of one running query, then a start on each of them."""
    way, title = WAYS[what]
    rows, before, delay = (settings.number(name) for name in ("rows", "before", "delay"))
    load, copies = Load("total", "hdfs", 4, rows, rows), list[Copy]()
    spec = replace(query_spec(way, load, lab.place, f"by-hand-{what}"), format="", options={})
    lab.delay(delay)
    driver.start(spec)
    with FaultProxy(lab.server.endpoint, delay_seconds=delay / 1000) as proxy:  # it counts the copies alone
        for number in range(settings.number("tries")):
            driver.wait_for(spec.name, before + 3 * number)
            proxy.clear()
            copier = copy_by_restore if what == "ours" else copy_by_rclone
            copy = copier(lab, proxy, spec, f"copy-{what}-{number}")
            copies.append(replace(copy, counts=copy.counts | {"requests": len(proxy.requests)}))
    driver.wait_for(spec.name, before + 3 * len(copies))
    driver.stop(spec)
    became: Counter[str] = Counter()
    for number, copy in enumerate(copies):
        became.update(found := try_copy(driver, spec, copy, f"try-{what}-{number}"))
        tell(f"{title}: {copy.seconds:.1f} s, {', '.join(found)}")
    counts = {name: statistics.median(copy.counts[name] for copy in copies) for name in copies[0].counts}
    seconds = tuple(round(copy.seconds, 2) for copy in copies)
    return Side(f"{len(copies)} copies", title, seconds, "s", counts | dict(became))


def measure_all(settings: Settings) -> Iterator[Side]:
    """The three ways, one after the other."""
    with open_lab() as lab, lab.driver() as driver:
        for what in settings.names("what"):
            yield measure_way(lab, driver, what, settings)
