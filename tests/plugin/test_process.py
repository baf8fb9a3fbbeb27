"""What the side process says of a query that starts. Nothing is started here."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_checkpoint.errors import Unsupported
from pyspark_checkpoint.plugin.plugin_settings import parse_plugin_settings
from pyspark_checkpoint.plugin.process import SideCar, check_holdable
from pyspark_checkpoint.spark.jvm import SideDoor

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


class Door:
    """What a side process is told, and what it does about it."""

    def __init__(self, *events: dict[str, str]) -> None:
        self._events = [*events, {"kind": "stop"}]
        self.calls: list[str] = []

    def next_event(self, seconds: float) -> dict[str, str]:
        """The next one."""
        assert seconds > 0
        return self._events.pop(0)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: self.calls.append(name)


def test_a_plan_that_comes_before_the_start_of_its_query_starts_it() -> None:
    """It was told while no side process ran; refused at once, it would fail the query."""
    start = {"kind": "started", "run_id": "r", "id": "q", "name": "n", "execution": "", "file_manager": ""}
    plan = {**start, "kind": "planned", "batch": "3", "offsets": "v1"}
    settings = parse_plugin_settings({"spark.ckpt.url": "s3://bucket/checkpoints"}, "app")
    door = Door(plan, start, plan)
    SideCar(cast("SideDoor", door), settings).run()
    assert door.calls == ["session", "looked", "answer", "session", "looked", "answer"]
