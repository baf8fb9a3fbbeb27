"""What checkpoints cost a query, and how fast they come back.

A 100 thousand key aggregation runs with and without the listener, in turns within one session, so that
whatever else the machine does hits both. Restores are timed beside a plain parallel download of the
same objects into files, in turns as well.

    python -m benchmarks.bench_capture

Environment: KEYS (100000), BATCHES a turn (12), TURNS (3), RESTORE_MB (128), ROUNDS (5), STORES (file,s3).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_checkpoint import CheckpointListener, CheckpointStore, checkpoint, open_object_store, restore
from pyspark_checkpoint.capture.roots import root_url
from tests.capture.made import MadeLocation, capture
from tests.servers.launch import seaweedfs

KEYS = int(os.environ.get("KEYS", "100000"))
BATCHES = int(os.environ.get("BATCHES", "12"))
TURNS = int(os.environ.get("TURNS", "3"))
RESTORE_MB = int(os.environ.get("RESTORE_MB", "128"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
STORES = os.environ.get("STORES", "file,s3").split(",")
WARM_UP = 3
THREADS = 8
WATCHED, ALONE = "watched", "alone"


@dataclass
class Timings:
    """What was measured of the batches."""

    batch_ms: dict[str, list[int]] = field(default_factory=lambda: {WATCHED: [], ALONE: []})
    captures: int = 0
    batches: int = 0


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Two slots, as on the smallest machine."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("bench-capture")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


def run_turn(spark: SparkSession, name: str, location: Path, timings: Timings) -> str:
    """Run one query for some batches, and note how long each took once it was warm."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", KEYS).load()
    frame = source.selectExpr(f"value % {KEYS} as k", "value").groupBy("k").sum("value")
    writer = frame.writeStream.outputMode("update").format("noop").queryName(name)
    query = writer.option("checkpointLocation", str(location)).start()
    while len(query.recentProgress) < BATCHES + WARM_UP and query.isActive:
        time.sleep(0.1)
    query.stop()
    done = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    timings.batch_ms[name] += done[WARM_UP : WARM_UP + BATCHES]
    return str(query.id)


def measure_batches(spark: SparkSession, directory: Path) -> None:
    """With and without the listener, in turns; then what the watched query's history says."""
    url, timings, query_id = str(directory / "store"), Timings(), ""
    listener: CheckpointListener = checkpoint(spark, url, queries=lambda name: name == WATCHED, retain=1000)
    for turn in range(TURNS):
        for name in (WATCHED, ALONE) if turn % 2 == 0 else (ALONE, WATCHED):
            found = run_turn(spark, name, directory / name, timings)
            query_id = found if name == WATCHED else query_id
            listener.flush(120)
    listener.close()
    spark.streams.removeListener(listener)
    watched, alone = (statistics.median(timings.batch_ms[name]) for name in (WATCHED, ALONE))
    print(f"batch of {KEYS} keys, p50 of {len(timings.batch_ms[ALONE])}: {alone:.0f} ms alone, ", end="")
    print(f"{watched:.0f} ms with the listener: {watched / alone:.3f}x (aim: 1.03)")
    report_history(url, query_id, directory / WATCHED)


def report_history(url: str, query_id: str, location: Path) -> None:
    """Seconds from a batch's commit to its manifest, and what an epoch costs."""
    history = CheckpointStore.open(root_url(url, query_id))
    delays, puts, sizes = [], [], []
    for number, epoch in history.list():
        manifest = history.load_by_id(number)
        commit = location / "commits" / str(epoch)
        if manifest is None or manifest.kind.value != "epoch" or not commit.exists():
            continue
        delays.append(manifest.timestamp_ms / 1000 - commit.stat().st_mtime)
        puts.append(manifest.requests.puts + 2)
        sizes.append(manifest.requests.bytes)
    batches = len(list((location / "commits").glob("[0-9]*")))
    quantiles = sorted(delays)
    print(
        f"commit to manifest: p50 {statistics.median(delays):.2f} s (aim: 1), "
        f"p90 {quantiles[int(len(quantiles) * 0.9)]:.2f} s; {len(delays)} captures of {batches} batches"
    )
    print(
        f"a capture: {statistics.median(puts):.0f} PUTs with manifest and pointer, "
        f"{statistics.median(sizes) / 1e6:.2f} MB"
    )


def download(url: str, options: dict[str, str], paths: list[str], to: Path, *, durable: bool) -> None:
    """The plain way: every object into a file, a few at a time, unchecked; if ``durable``, on the disk."""
    store = open_object_store(url, options)
    to.mkdir(parents=True)

    def fetch(pair: tuple[int, str]) -> None:
        with (to / str(pair[0])).open("wb") as file:
            for chunk in store.stream(pair[1]):
                file.write(chunk)
            if durable:
                file.flush()
                os.fsync(file.fileno())

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(fetch, enumerate(paths)))
    store.close()


def measure_restore(name: str, url: str, options: dict[str, str], directory: Path) -> None:
    """A restore of RESTORE_MB beside downloads of the same objects, in turns.

    A restore verifies every byte and is on the disk when it returns; a plain download does neither.
    """
    batches = 8
    made = MadeLocation(directory / "made", state_bytes=RESTORE_MB * 1_000_000 // (2 * batches))
    made.commit(*range(batches))
    (manifest,) = capture(made, url, batches - 1, options=options)
    paths = sorted(manifest.paths())
    kinds = ("restore", "download", "fsynced")
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        for what in kinds if number % 2 == 0 else reversed(kinds):
            to = directory / f"{what}-{number}"
            began = time.monotonic()
            if what == "restore":
                restore(url, str(to), clone=True, options=options)
            else:
                download(url, options, paths, to, durable=what == "fsynced")
            seconds[what].append(time.monotonic() - began)
            shutil.rmtree(to)
    middle = {what: statistics.median(values) for what, values in seconds.items()}
    size = sum(ref.size_bytes for ref in manifest.artifacts()) / 1e6
    print(f"{name}: restore of {size:.0f} MB, p50 of {ROUNDS}: {size / middle['restore']:.0f} MB/s")
    words = {"fsynced": "a download that is on the disk too", "download": "a plain download"}
    for what, text in words.items():
        print(
            f"  {text}: {size / middle[what]:.0f} MB/s; the restore has "
            f"{middle[what] / middle['restore']:.2f} of it (aim: 0.8)"
        )


def main() -> None:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if "file" in STORES:
            (directory / "file").mkdir()
            measure_restore("file", str(directory / "file" / "store"), {}, directory / "file")
        if "s3" in STORES:
            (directory / "s3").mkdir()
            with seaweedfs() as server:
                measure_restore("s3", server.url("bench-capture"), server.options, directory / "s3")
        with session() as spark:
            measure_batches(spark, directory)


if __name__ == "__main__":
    main()
