"""Faults of the seed system that no other test shows, and the table of all of them in the design page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import StaleAttempt
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.spark_files.fingerprint import pipeline_hash
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.manual_clock import ManualClock

ROOT = Path(__file__).parents[2]
SCHEMAS = {f"schema-{n}": f"digest {n}" for n in range(20)}
HASH = """
from pyspark_checkpoint.spark_files.fingerprint import pipeline_hash
names = {f"schema-{n}" for n in range(20)}
schemas = {name: "digest " + name.split("-")[1] for name in names}
print(pipeline_hash(["agg"], schemas, ["kafka"], "memory", "append"))
"""


def draft(store: CheckpointStore, epoch: int, text: bytes) -> CheckpointManifest:
    staged = store.stage([StagedItem(text * 100, False, epoch, "op", 0)])
    operators = {"op": OperatorSnapshotEntry((PartitionSnapshotEntry(0, staged.refs),))}
    return CheckpointManifest(checkpoint_id=0, epoch=epoch, operators=operators)


def test_the_loser_of_a_number_has_not_touched_the_winners_bytes() -> None:
    """Fault 4: both stage the same partition for the same number before either knows who has it."""
    inner = MemoryStore(clock=ManualClock())
    one = CheckpointStore(inner, clock=ManualClock("one"))
    two = CheckpointStore(inner, clock=ManualClock("two"))
    first, second = draft(one, 0, b"winner "), draft(two, 0, b"loser ")
    won = one.save(first)
    with pytest.raises(StaleAttempt):
        two.save(second)
    assert one.load_partition(won, "op", 0) == [b"winner " * 100]
    assert list(CheckpointStore(inner).verify()) == []


@pytest.mark.process
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_the_pipeline_hash_does_not_depend_on_the_order_of_a_process(seed: str) -> None:
    """Fault 13: whatever order sets have in a process, its hash is that of every other."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    printed = subprocess.run(
        [sys.executable, "-c", HASH], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert int(printed.stdout) == pipeline_hash(["agg"], SCHEMAS, ["kafka"], "memory", "append")


def test_histories_whose_prefixes_begin_alike_know_nothing_of_each_other() -> None:
    """Fault 15: pointer, numbers, pruning and orphans of one are not those of the other."""
    one = CheckpointStore(MemoryStore("clusters", "a", ManualClock()), clock=ManualClock("one"))
    two = CheckpointStore(MemoryStore("clusters", "ab", ManualClock()), clock=ManualClock("two"))
    for epoch in range(5):
        one.save(draft(one, epoch, b"one "))
    assert two.load_latest() is None
    two.save(draft(two, 0, b"two "))
    one.prune(keep=1)
    one.cleanup_orphans(grace_ms=0)
    assert two.list_ids() == [1]
    newest = two.load_latest()
    assert newest is not None
    assert two.load_partition(newest, "op", 0) == [b"two " * 100]
    assert [*one.verify(), *two.verify()] == []


def test_every_fault_has_tests_that_exist() -> None:
    """The table in docs/design.md, by name of file and function."""
    text = (ROOT / "docs" / "design.md").read_text("utf-8")
    table = text.split("## Faults of the seed system")[1]
    found = re.findall(r"^\| (\d+) \| .+ \| (.+) \|$", table, re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, 16))
    for _, tests in found:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        assert named
        for file, function in named:
            assert f"def {function}(" in (ROOT / file).read_text("utf-8"), f"{file}::{function}"
