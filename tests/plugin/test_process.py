"""What the side process says of a query that starts. Nothing is started here."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.plugin.plugin_settings import parse_plugin_settings
from pyspark_checkpoint.plugin.process import check_holdable

OURS = "io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager"


@pytest.mark.parametrize(
    ("execution", "manager", "problem"),
    [
        ("MicroBatchExecution", OURS, None),
        ("AsyncProgressTrackingMicroBatchExecution", OURS, "does not log every batch"),
        ("MicroBatchExecution", "org.example.Manager", "is 'org.example.Manager', which is not ours"),
        ("MicroBatchExecution", "", "is '', which is not ours"),
    ],
)
def test_a_query_whose_batches_cannot_be_held_is_refused_with_the_reason(
    execution: str, manager: str, problem: str | None
) -> None:
    """It would run without what it asks for, and nobody would know."""
    event = {"execution": execution, "file_manager": manager}
    if problem is None:
        check_holdable(event)
        return
    with pytest.raises(Unsupported, match=problem) as refused:
        check_holdable(event)
    assert "spark.ckpt.durability" in (refused.value.hint or "")


def test_batches_are_held_of_the_queries_that_are_checkpointed_and_only_if_asked_for() -> None:
    confs = {"spark.ckpt.url": "s3://bucket/checkpoints", "spark.ckpt.queries": "orders*"}
    held = parse_plugin_settings({**confs, "spark.ckpt.durability": "Batch"}, "app")
    assert held.holds("orders-eu")
    assert not held.holds("clicks")
    assert not parse_plugin_settings(confs, "app").holds("orders-eu")
