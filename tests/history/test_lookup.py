"""Choosing a checkpoint by number, name, epoch or time, for everybody who lets people choose."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import NoCheckpoint
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.lookup import choose_number


def test_a_checkpoint_is_chosen_in_every_way_that_people_have() -> None:
    """A word that is a number is one, and ``epoch=N`` an epoch, whatever savepoints are called."""
    history = CheckpointStore.open("memory://chosen")
    with pytest.raises(NoCheckpoint, match="has no checkpoint"):
        choose_number(history.store)
    made = [history.save(CheckpointManifest.new(0, epoch)) for epoch in (5, 6, 7)]
    for name, checkpoint_id in (("good", 2), ("epoch=7", 1)):
        history.savepoint(name, checkpoint_id)
    assert choose_number(history.store) == choose_number(history.store, "latest") == 3
    assert choose_number(history.store, 2) == choose_number(history.store, " 2 ") == 2
    assert choose_number(history.store, "good") == 2
    assert choose_number(history.store, "3") == choose_number(history.store, "epoch=7") == 3
    assert choose_number(history.store, epoch=6) == 2
    assert choose_number(history.store, savepoint="epoch=7") == 1
    assert choose_number(history.store, timestamp_ms=made[-1].timestamp_ms) == 3
    history.rollback(1)
    assert choose_number(history.store, epoch=5) == choose_number(history.store) == 4


def test_what_is_not_there_is_named() -> None:
    """With the store's URL, and the command that shows what there is."""
    history = CheckpointStore.open("memory://not-there")
    history.save(CheckpointManifest.new(0, 5))
    for choice, said in (
        ({"at": "nowhere"}, "no savepoint 'nowhere'"),
        ({"at": "epoch=9"}, "no epoch 9"),
        ({"epoch": 9}, "no epoch 9"),
        ({"savepoint": "2"}, "no savepoint '2'"),
        ({"savepoint": "latest"}, "no savepoint 'latest'"),
        ({"timestamp_ms": 1}, "no checkpoint of that time or before"),
    ):
        with pytest.raises(NoCheckpoint, match=said) as refused:
            choose_number(history.store, **choice)
        assert "ckpt list" in str(refused.value)
