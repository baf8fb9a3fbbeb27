"""Batches by which Spark splits a query's state anew, and which never reach a sink. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from pyspark_checkpoint.spark_files.logs import OffsetLog
from pyspark_checkpoint.spark_files.requirements import PARTITIONS


def only_split(logs: Sequence[OffsetLog]) -> bool:
    """Whether every batch after the first only split the state anew.

    Spark's offline repartition writes the offset log of the last batch again, with another number of
    partitions and not a letter more. A batch that read nothing still has a time of its own.
    """
    return all(_is_split(before, after) for before, after in pairwise(logs))


def _is_split(before: OffsetLog, after: OffsetLog) -> bool:
    if before.conf.get(PARTITIONS) == after.conf.get(PARTITIONS):
        return False
    return replace(before, conf=_others(before.conf)) == replace(after, conf=_others(after.conf))


def _others(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name != PARTITIONS}
