"""What the side process says of a query that starts. Nothing is started here."""

from __future__ import annotations

import threading
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

    def next_event(self, seconds: float) -> dict[str, str] | None:
        """The next one."""
        assert seconds > 0
        return self._events.pop(0)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: self.calls.append(name)


def test_a_plan_that_comes_before_the_start_of_its_query_starts_it() -> None:
    """It was told while no side process ran; refused at once, it would fail the query."""
    start = {"kind": "started", "run_id": "r", "id": "q", "name": "n", "execution": "", "file_manager": ""}
    plan = {**start, "kind": "planned", "batch": "3", "offsets": "v1"}
    door = Door(plan, start, plan)
    serve(door)
    assert door.calls == ["session", "looked", "answer", "session", "looked", "answer"]


class SlowDoor(Door):
    """One query's start takes until a batch of another query is answered."""

    def __init__(self, *events: dict[str, str]) -> None:
        super().__init__(*events)
        self._answered = threading.Event()
        self.is_in_time = False

    def session(self, run_id: str) -> None:
        """There is none; for the slow one that is known late."""
        if run_id == "slow":
            self.is_in_time = self._answered.wait(10.0)

    def answer(self, run_id: str, *_: object) -> None:
        """Said to the batch that waits."""
        self.calls.append(f"answer {run_id}")
        self._answered.set()


def test_the_start_of_one_query_holds_up_no_batch_of_another() -> None:
    """Its location may be restored for half an hour. What it is told itself waits, in its order."""

    def told(kind: str, query: str) -> dict[str, str]:
        facts = {"name": "n", "execution": "", "file_manager": "", "batch": "3", "offsets": "v1"}
        return {"kind": kind, "run_id": query, "id": query, **facts}

    door = SlowDoor(told("started", "slow"), told("planned", "slow"), told("planned", "other"))
    serve(door)
    assert door.is_in_time
    assert door.calls == ["looked", "answer other", "looked", "answer slow"]


def test_what_fails_in_the_start_of_a_query_ends_the_side_process() -> None:
    """The plugin starts a new one, as after any other failure."""

    class Broken(Door):
        def looked(self, *_: object, **__: object) -> None:
            raise ConnectionError("the driver does not answer")

        def next_event(self, seconds: float) -> dict[str, str] | None:
            return super().next_event(seconds) if len(self._events) > 1 else None

    start = {"kind": "started", "run_id": "r", "id": "q", "name": "n", "execution": "", "file_manager": ""}
    with pytest.raises(ConnectionError):
        serve(Broken(start))


def serve(door: Door) -> None:
    """Let a side process take all events of a door, until it is told to stop."""
    settings = parse_plugin_settings({"spark.ckpt.url": "s3://bucket/checkpoints"}, "app")
    SideCar(cast("SideDoor", door), settings).run()
