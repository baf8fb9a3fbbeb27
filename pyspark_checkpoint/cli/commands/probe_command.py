"""``ckpt probe``: what a store can promise, tried and not believed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import STORE, URL, address_of
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.cli.histories import open_parent
from pyspark_checkpoint.store.meter import MeteredStore, MeterSnapshot
from pyspark_checkpoint.store.probe import ProbeResult, probe_conditions

ABOUT = """Find out what a store can promise, by trying to make it break its word on a few small
objects below _probe/, which are removed. The exit status is 0 only if two drivers on this
store are kept apart."""
EXAMPLES = """
ckpt probe s3://bucket/prefix
ckpt probe s3://bucket/prefix --option endpoint=http://127.0.0.1:9000 --option anonymous=true --json
"""
_PROMISES = (
    ("create_exclusive", "a key is created once", "two drivers may overwrite each other's checkpoints"),
    ("create_races_exclusive", "of creates at the same time one wins", "two drivers may both commit"),
    ("swap_honoured", "a swap from an outdated version is refused", "savepoints and pruning may be lost"),
    ("swap_of_absent_refused", "a swap of an absent key is refused", "a lost control record may be missed"),
    (
        "nonce_kept",
        "an object says whose put made it",
        "a lost answer is settled by reading the bytes instead",
    ),
)
ARGUMENTS = (URL, STORE)


def run(args: argparse.Namespace, console: Console) -> bool:
    """Try it and print what held."""
    store = MeteredStore(open_parent(address_of(args)))
    result = probe_conditions(store)
    cost = store.snapshot()
    record = {
        **asdict(result),
        "conditional": result.conditional,
        "url": store.url,
        "notes": list(caveats(store.url)),
        "milliseconds": dict(_times(cost)),
    }
    console.result(record, *_lines(result, cost, store.url, console))
    if result.conditional:
        return False
    console.hints(["use another store, or accept the risk with the option allowUnsafeStore=true"])
    return True


def _lines(result: ProbeResult, cost: MeterSnapshot, url: str, console: Console) -> Iterator[str]:
    rows = [
        (
            "yes" if getattr(result, name) else "no" if name == "nonce_kept" else "NO",
            promise,
            "" if getattr(result, name) else otherwise,
        )
        for name, promise, otherwise in _PROMISES
    ]
    yield url
    yield from text.table(("", "promise", "if not"), rows)
    for caveat in caveats(url):
        yield f"note: {caveat}"
    times = ", ".join(f"{verb} {value:g} ms" for verb, value in _times(cost))
    yield f"a request took: {times}"
    if result.conditional:
        yield console.good("two drivers on this store are kept apart")
    else:
        yield console.bad("nothing keeps two drivers on this store from overwriting each other")


def caveats(url: str) -> Iterator[str]:
    """What no probe can find out, and follows from the kind of store. Pure."""
    if url.startswith("memory:"):
        yield "nothing in it outlives this process"
    elif url.startswith("file:"):
        yield "on several machines it works only on a disk that all of them share, with link(2) on it"
        yield "it is as durable as that disk"


def _times(cost: MeterSnapshot) -> Iterator[tuple[str, float]]:
    for verb in ("put", "get", "head", "delete"):
        count = cost[verb]
        if count.requests:
            yield verb, round(count.seconds / count.requests * 1000, 1)
