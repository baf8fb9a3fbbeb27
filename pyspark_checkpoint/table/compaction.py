"""When a partition's chain of deltas is rewritten, and into what. Pure: the same chain gives the same plan.

A chain is at most one snapshot and the deltas on top of it. Three things must hold at once: the chain
to read stays short, no batch pays for all partitions, and what is written stays within a small factor
of what changed, also when little changes in a large table. So

* a partition is compacted once in ``max_deltas`` epochs, each partition in another epoch;
* then deltas that outweigh the snapshot become the new snapshot: that doubles at most what
  was written since the last one;
* lighter deltas are merged among themselves instead, in levels: the newest into one of level 1,
  ``max_deltas`` of level 1 into one of level 2, and so on. Each byte is rewritten once a level, and
  there are as many levels as the number of deltas that outweigh the snapshot has digits (base
  ``max_deltas``);
* a table without keys is only joined, and only at its end: the newest artifacts that take up to
  ``SETTLED_BYTES`` in memory, all together, are its tail. What lies before the tail is settled and never
  read again, so that memory stays bounded however large the table and its rows grow, and however well they
  are compressed.

What is rewritten in epoch N covers epochs up to N-1 only, so that a replacement of N can build on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_checkpoint.errors import FormatError

DEFAULT_MAX_DELTAS = 10
SETTLED_BYTES = 256 * 1024 * 1024
"""What a join of a table without keys may take in memory: decoded, not as it is stored."""
_LEVEL_PREFIX = "level-"
_LEVEL = re.compile(rf"{_LEVEL_PREFIX}([0-9]{{1,9}})")


@dataclass(frozen=True, slots=True)
class Link:
    """What a plan must know of one artifact of a chain."""

    size_bytes: int
    is_delta: bool
    level: int = 0
    decoded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Rewrite the artifacts of a chain from position ``first`` on, up to ``end``, into one.

    ``level`` is the level of the merged delta; None means a snapshot of everything.
    """

    first: int
    end: int
    level: int | None


def level_name(level: int) -> str:
    """The artifact's name that says its level; a plain delta has none."""
    return f"{_LEVEL_PREFIX}{level}" if level else ""


def parse_level(name: str) -> int:
    """Read back what ``level_name`` gave."""
    if not name:
        return 0
    match = _LEVEL.fullmatch(name)
    if match is None:
        raise FormatError(f"a table's artifact has the name {name[:80]!r}")
    return int(match[1])


def is_compaction_due(partition: int, epoch: int, max_deltas: int) -> bool:
    """Whether ``partition`` may rewrite its chain in ``epoch``."""
    return (epoch + partition) % max_deltas == 0


def plan_compaction(
    chain: Sequence[Link], *, keyed: bool, partition: int, epoch: int, max_deltas: int
) -> CompactionPlan | None:
    """Decide what ``partition`` rewrites in ``epoch``; ``chain`` holds epochs before it only."""
    first_delta = next((at for at, link in enumerate(chain) if link.is_delta), len(chain))
    if not keyed:
        first_delta = max(first_delta, tail_start([link.decoded_bytes for link in chain]))
    deltas = chain[first_delta:]
    if not deltas or not is_compaction_due(partition, epoch, max_deltas):
        return None
    if keyed and _weight(deltas) >= _weight(chain[:first_delta]):
        return CompactionPlan(0, len(chain), None)
    return _plan_merge(chain, first_delta, max_deltas)


def tail_start(decoded_bytes: Sequence[int]) -> int:
    """Where the tail of a chain without keys begins: all after it fits into ``SETTLED_BYTES``.

    What is before it can be in no later plan: plans reach to the end of the chain, which only grows.
    """
    at, total = len(decoded_bytes), 0
    while at and total + decoded_bytes[at - 1] <= SETTLED_BYTES:
        at -= 1
        total += decoded_bytes[at]
    return at


def _plan_merge(chain: Sequence[Link], first_delta: int, max_deltas: int) -> CompactionPlan | None:
    first = _trailing(chain, len(chain), first_delta, 0)
    if len(chain) - first < 2:
        return None
    level = 1
    while True:
        lower = _trailing(chain, first, first_delta, level)
        if lower == first or first - lower + 1 < max_deltas:
            break  # an empty level never goes up, not even where one delta fills a level
        first, level = lower, level + 1
    return CompactionPlan(first, len(chain), level)


def _trailing(chain: Sequence[Link], end: int, first_delta: int, level: int) -> int:
    """Where the run of deltas of ``level`` that ends at ``end`` begins."""
    at = end
    while at > first_delta and chain[at - 1].level == level:
        at -= 1
    return at


def _weight(links: Sequence[Link]) -> int:
    return sum(link.size_bytes for link in links)
