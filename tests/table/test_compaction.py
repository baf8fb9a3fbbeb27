"""The rule of compaction, played through for many epochs: short chains, few bytes, nobody pays at once."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.table.compaction import (
    SETTLED_BYTES,
    CompactionPlan,
    Link,
    is_compaction_due,
    level_name,
    parse_level,
    plan_compaction,
    tail_start,
)


class Played:
    """A partition whose deltas have a size and whose snapshot never grows beyond one."""

    ratio = 1
    """How much larger rows are in memory than they are stored."""

    def __init__(self, partition: int, *, keyed: bool, delta: int, table: int, max_deltas: int) -> None:
        self.partition, self.keyed, self.max_deltas = partition, keyed, max_deltas
        self.delta, self.table = delta, table
        self.chain: list[Link] = []
        self.changed = self.written = self.longest = self.largest = 0

    def play(self, epoch: int) -> bool:
        plan = plan_compaction(
            self.chain,
            keyed=self.keyed,
            partition=self.partition,
            epoch=epoch,
            max_deltas=self.max_deltas,
        )
        if plan is not None:
            size = sum(link.size_bytes for link in self.chain[plan.first : plan.end])
            if self.keyed:
                size = min(size, self.table)
            decoded = sum(link.decoded_bytes for link in self.chain[plan.first : plan.end])
            self.largest = max(self.largest, decoded)
            merged = Link(size, plan.level is not None, plan.level or 0, decoded)
            self.chain[plan.first : plan.end] = [merged]
            self.written += size
        self.chain.append(Link(self.delta, True, 0, self.delta * self.ratio))
        self.changed += self.delta
        self.written += self.delta
        self.longest = max(self.longest, len(self.chain))
        return plan is not None


@pytest.mark.parametrize("table", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("max_deltas", [4, 10])
def test_keyed_chains_stay_short_and_writing_stays_cheap(table: int, max_deltas: int) -> None:
    """Deltas of 100 bytes on tables of up to 10,000 times that: never more than a few times the change."""
    played = Played(0, keyed=True, delta=100, table=table, max_deltas=max_deltas)
    for epoch in range(5_000):
        played.play(epoch)
    assert played.written <= 8 * played.changed
    assert played.longest <= max_deltas * 6


def test_rolling_whenever_deltas_are_many_would_not_be_cheap() -> None:
    """The same play with a full snapshot at each turn: this is what the levels are for."""
    written = changed = 0
    for epoch in range(5_000):
        written += 100 + (1_000_000 if is_compaction_due(0, epoch, 10) else 0)
        changed += 100
    assert written > 500 * changed


@pytest.mark.parametrize("ratio", [1, 16, 1000])
@pytest.mark.parametrize("share", [1000, 64, 3])
def test_without_keys_a_join_is_bounded_by_what_its_rows_take_in_memory(ratio: int, share: int) -> None:
    """However well they are compressed; and the part of the chain that is still joined stays short."""
    played = Played(0, keyed=False, delta=SETTLED_BYTES // share // ratio, table=0, max_deltas=4)
    played.ratio = ratio
    for epoch in range(3_000):
        played.play(epoch)
    assert played.largest <= SETTLED_BYTES
    assert played.written <= 7 * played.changed
    tail = len(played.chain) - tail_start([link.decoded_bytes for link in played.chain])
    assert tail <= 4 * 8
    assert len(played.chain) <= tail + 4 + 4 * (3_000 // share)


def test_a_delta_that_is_too_large_to_join_does_not_keep_others_from_being_joined() -> None:
    """It is settled at once; the small ones after it are joined among themselves."""
    chain = [Link(1, True, 0, 2 * SETTLED_BYTES), *[Link(1, True, 0, 10)] * 5]
    assert plan_compaction(chain, keyed=False, partition=0, epoch=10, max_deltas=10) == CompactionPlan(
        1, 6, 1
    )
    chain = [*[Link(1, True, 0, 10)] * 5, Link(1, True, 0, 2 * SETTLED_BYTES)]
    assert plan_compaction(chain, keyed=False, partition=0, epoch=10, max_deltas=10) is None


def test_no_epoch_pays_for_all_partitions() -> None:
    """Forty partitions that look alike take turns: never more than an eighth of them at once."""
    partitions = [Played(p, keyed=True, delta=100, table=5_000, max_deltas=10) for p in range(40)]
    for epoch in range(500):
        assert sum(partition.play(epoch) for partition in partitions) <= 5


def test_deltas_that_outweigh_the_snapshot_become_the_snapshot() -> None:
    """And lighter ones are merged among themselves."""
    heavy = [Link(100, False), Link(60, True), Link(60, True)]
    assert plan_compaction(heavy, keyed=True, partition=0, epoch=10, max_deltas=10) == CompactionPlan(
        0, 3, None
    )
    light = [Link(100, False), Link(6, True), Link(6, True)]
    assert plan_compaction(light, keyed=True, partition=0, epoch=10, max_deltas=10) == CompactionPlan(
        1, 3, 1
    )


def test_a_full_level_goes_up_together() -> None:
    """Nine deltas of level 1 and the new ones make one of level 2."""
    chain = [Link(10**6, False), *[Link(10, True, 1)] * 9, Link(1, True), Link(1, True)]
    assert plan_compaction(chain, keyed=True, partition=0, epoch=10, max_deltas=10) == CompactionPlan(
        1, 12, 2
    )


def test_out_of_turn_and_without_deltas_nothing_is_rewritten() -> None:
    """Reading a chain that needs nothing costs nothing."""
    assert plan_compaction([Link(1, True)] * 9, keyed=True, partition=0, epoch=11, max_deltas=10) is None
    assert plan_compaction([Link(1, False)], keyed=True, partition=0, epoch=10, max_deltas=10) is None


@pytest.mark.parametrize("keyed", [True, False])
def test_a_plan_with_max_deltas_of_one_comes_to_an_end(keyed: bool) -> None:
    """With maxDeltas 1 also an empty level counts as full; the plan still comes to an end."""
    played = Played(0, keyed=keyed, delta=100, table=1_000_000, max_deltas=1)
    played.chain = [Link(1_000_000, False)]
    for epoch in range(100):
        played.play(epoch)
    assert played.longest <= 10
    chain = [Link(100, False), Link(1, True), Link(1, True)]
    assert plan_compaction(chain, keyed=True, partition=0, epoch=0, max_deltas=1) == CompactionPlan(1, 3, 1)


def test_levels_are_told_by_names() -> None:
    """Built and parsed as a pair; another name is damage."""
    for level in range(5):
        assert parse_level(level_name(level)) == level
    for name in ("partition-3", "level-", "level-\u00b2"):
        with pytest.raises(FormatError):
            parse_level(name)
