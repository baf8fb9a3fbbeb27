"""What a batch of ckpt-sink takes in which tasks compact, beside the others of the same query.

Upserts of all keys of a table on S3. The manifests say which batches have compacted: those after which a
partition has no more artifacts than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from benchmarks.frame import Argument, Part, Settings, Side
from benchmarks.lab import Pace, Tally, measure, open_lab
from benchmarks.peers import OURS, Case, contender
from pyspark_checkpoint import CheckpointStore

WARM_UP = 2


def compacting(chains: Sequence[Mapping[int, int]]) -> set[int]:
    """The batches that made a chain of a partition no longer, by the chains after each batch. Pure."""
    pairs = enumerate(pairwise(chains), 1)
    return {batch for batch, (old, new) in pairs if any(new[part] <= many for part, many in old.items())}


def chains_of(table: str, options: Mapping[str, str]) -> list[dict[int, int]]:
    """How many artifacts each partition had after each batch."""
    history = CheckpointStore.open(table, dict(options))
    found = [history.load_by_id(number) for number, _ in sorted(history.list())]
    manifests = {one.epoch: one for one in found if one is not None and one.kind.value == "epoch"}
    return [
        {part.partition_id: len(part.artifacts) for part in manifests[epoch].operators["table"].partitions}
        for epoch in sorted(manifests)
    ]


def measure_all(settings: Settings) -> Iterator[Side]:
    """One long query for every number of partitions."""
    with open_lab() as lab, lab.driver() as driver:
        for partitions in settings.numbers("partitions"):
            case = Case("upsert", settings.number("rows"), partitions)
            spec = contender(lab, driver, case, OURS).spec(f"compaction_{partitions}")
            spec.options.update(retain="1000", maxDeltas=settings["max-deltas"])
            tally = Tally()
            pace = Pace(settings.number("batches"), WARM_UP, 600)
            measure(lab, driver, spec, pace, tally, settings.number("delay"))
            batches = compacting(chains_of(spec.options["table"], lab.server.options))
            found: dict[bool, list[int]] = {True: [], False: []}
            for batch, taken in enumerate(tally.batch_ms, WARM_UP):
                found[batch in batches].append(taken)
            yield Side(case.where, "without", tuple(found[False]))
            yield Side(case.where, "with compaction", tuple(found[True]))


PART = Part(
    "compaction",
    __doc__,
    measure_all,
    (
        Argument("partitions", "4", "4", "partitions of the table"),
        Argument("rows", "1000000", "100000", "rows and keys"),
        Argument("batches", "40", "14", "measured batches"),
        Argument("max-deltas", "10", "10", "batches after which a partition is compacted"),
        Argument("delay", "20", "20", "milliseconds added to every request"),
    ),
)
