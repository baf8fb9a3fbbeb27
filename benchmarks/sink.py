"""ckpt-sink beside noop, an empty Python Arrow sink (the floor) and Spark's Parquet file sink.

Large batches go to local disk, after nothing, a shuffle, or an aggregation. Small ones go to S3 by as many
tasks as a cluster has by default, beside noop and the empty sink behind the same shuffle. ``peers`` has
Iceberg and Delta Lake, ``growth`` what many batches cost.

``compaction`` has the batches in which tasks compact beside the others of the same query: upserts of all
keys of a table on S3. They are those after which a partition has no more artifacts than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product

from benchmarks.app import EMPTY_FORMAT
from benchmarks.frame import Settings, Side
from benchmarks.lab import FOREVER, Contender, Lab, Pace, Tally, compare, epochs_of, measure, open_lab
from benchmarks.peers import OURS, Case, contender, measure_case
from tests.support.drivers.queries import QuerySpec

ON_DISK = {
    "empty": (EMPTY_FORMAT, "append"),
    "ckpt-sink append": (OURS, "append"),
    "parquet files": ("parquet", "append"),
    "empty behind the shuffle": (EMPTY_FORMAT, "shuffled"),
    "ckpt-sink keyed append": (OURS, "append"),
    "empty behind the aggregation": (EMPTY_FORMAT, "complete totals"),
    "ckpt-sink keyed after it": (OURS, "totals"),
}
"""The formats and kinds of queries."""
SMALL = (OURS, "noop", EMPTY_FORMAT)


def disk_spec(lab: Lab, way: str, rows: int, partitions: int, name: str) -> QuerySpec:
    """A query from memory to a table on disk."""
    sink, kind = ON_DISK[way]
    options = {"table": str(lab.home / "tables" / name)} if sink != EMPTY_FORMAT else {}
    options |= {"keyColumns": "key"} if "keyed" in way else {}
    conf = {"spark.sql.shuffle.partitions": str(partitions)}
    location, results = f"file://{lab.place.disk(name)}", lab.place.results(name)
    return QuerySpec(name, kind, location, results, FOREVER, conf, rows, 0, sink, options)


def measure_all(settings: Settings) -> Iterator[Side]:
    """Every number of rows on disk, then small batches of every number of tasks."""
    with open_lab() as lab, lab.driver() as driver:
        partitions, pace = settings.number("partitions"), Pace(settings.number("batches"), 2)
        for rows in settings.numbers("rows"):
            specs = {way: partial(disk_spec, lab, way, rows, partitions) for way in ON_DISK}
            sides = [Contender(way, driver, spec, pace) for way, spec in specs.items()]
            yield from compare(lab, f"{rows:,} rows", sides, settings.number("rounds"), 0)
        pace = Pace(settings.number("batches"), 1, 60)
        for kind, many in product(("append", "upsert"), settings.numbers("tasks")):
            case = Case(kind, 10_000, many)
            yield from measure_case(lab, driver, case, dict.fromkeys(SMALL, pace), settings)


def compacting(chains: Sequence[Mapping[int, int]]) -> set[int]:
    """The batches that made a chain of a partition no longer, by the chains after each batch. Pure."""
    pairs = enumerate(pairwise(chains), 1)
    return {batch for batch, (old, new) in pairs if any(new[part] <= many for part, many in old.items())}


def chains_of(table: str, options: Mapping[str, str]) -> list[dict[int, int]]:
    """How many artifacts each partition had after each batch."""
    parts = [one.operators["table"].partitions for one in epochs_of(table, options)]
    return [{part.partition_id: len(part.artifacts) for part in one} for one in parts]


def measure_compaction(settings: Settings) -> Iterator[Side]:
    """One long query for every number of partitions."""
    with open_lab() as lab, lab.driver() as driver:
        for partitions in settings.numbers("partitions"):
            case = Case("upsert", settings.number("rows"), partitions)
            spec = contender(lab, driver, case, OURS).spec(f"compaction_{partitions}")
            spec.options.update(retain="1000", maxDeltas=settings["max-deltas"])
            tally = Tally()
            pace = Pace(settings.number("batches"), 2, 600)
            first = measure(lab, driver, spec, pace, tally, settings.number("delay"))
            batches = compacting(chains_of(spec.options["table"], lab.server.options))
            found: dict[bool, list[int]] = {True: [], False: []}
            for batch, taken in enumerate(tally.batch_ms, first):
                found[batch in batches].append(taken)
            yield Side(case.where, "without", tuple(found[False]))
            yield Side(case.where, "with compaction", tuple(found[True]))
