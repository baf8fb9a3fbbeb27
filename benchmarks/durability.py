"""Batch time with ``durability=batch``, beside the same queries with ``async`` captures and with none.

An application a way, so that the plugin of one does nothing to the others; the queries run in turns, on
fresh locations, with 10,000 rows and keys a batch and stores on an S3 server behind a proxy that delays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import SparkSession

from benchmarks.frame import Settings, Side
from benchmarks.lab import MANAGER, Lab, Load, Pace, compare, open_lab, way_contender
from pyspark_checkpoint import configure
from tests.support.servers.hadoop import FILE_MANAGER

NONE, ASYNC, BATCH = WAYS = ("no capture", "async", "batch")


def conf_of(lab: Lab, way: str) -> dict[str, str]:
    """The confs of an application: what ``configure`` adds to a session; all have our file manager."""
    ours = {MANAGER: FILE_MANAGER}
    if way == NONE:
        return ours
    url, options = f"s3://{lab.server.bucket}/durability-{way}", dict(lab.place.store_options)
    builder = configure(SparkSession.Builder(), url, durability=way, options=options)
    return ours | {name: str(value) for name, value in builder._options.items()}


def measure_all(settings: Settings) -> Iterator[Side]:
    """All applications at once, one query at a time."""
    load = Load("total", "hdfs", 2, settings.number("keys"), settings.number("keys"))
    pace = Pace(settings.number("batches"), 4)
    with open_lab() as lab, contextlib.ExitStack() as stack:
        contenders = []
        for way in WAYS:
            driver = stack.enter_context(lab.driver(way.replace(" ", "-"), conf_of(lab, way)))
            contenders.append(replace(way_contender(lab, driver, "disk", load, pace), way=way))
        for delay_ms in settings.numbers("delays"):
            for side in compare(lab, f"{delay_ms} ms", contenders, settings.number("rounds"), delay_ms):
                yield replace(side, counts={})  # captures wait for no batch: their requests are no batch's
