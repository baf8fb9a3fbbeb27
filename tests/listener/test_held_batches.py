"""Batches that wait until the checkpoint of the one before, with their plan, is in the store. No Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Diverged, FencedError, Unavailable
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import PlannedBatch
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.listener.worker import Answer, HeldBatch, WorkerSettings
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.plan import plan_restore
from pyspark_checkpoint.restorer.replace_stale import LocationRestorer
from pyspark_checkpoint.spark_files.location import LocationSpec
from tests.listener.test_worker import LONG, PATIENCE, Watch
from tests.support.made_location import QUERY_ID, MadeLocation, contents, needed, open_capture
from tests.support.waiting import wait_until


def plan_of(made: MadeLocation, batch: int) -> bytes:
    """What Spark is about to write to ``offsets/K``; it is not there yet."""
    path = made.plan(batch).path / f"offsets/{batch}"
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1)


def test_a_checkpoint_has_the_plan_that_is_not_written_yet(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """The very bytes that Spark is going to write, and nothing of them stays for the next capture."""
    capturer, plan = open_capture(made, url), plan_of(made, 2)
    manifest = capturer.capture_planned(2, plan)
    assert manifest is not None
    assert (manifest.epoch, manifest.planned) == (1, PlannedBatch(2, ("offsets/2",)))
    restore(url, str(tmp_path / "fresh"), clone=True)
    found, wanted = contents(tmp_path / "fresh"), needed(made, 1) | {"offsets/2": plan}
    assert found.keys() == wanted.keys() and found["offsets/2"] == plan
    made.commit(2)
    following = capturer.capture()
    assert following is not None
    assert (following.epoch, following.planned) == (2, None)


def test_a_batch_that_was_captured_already_gets_its_plan_without_an_upload(
    made: MadeLocation, url: str
) -> None:
    """An idle query is captured by the interval; when input comes, only the manifest is left to write."""
    capturer = open_capture(made, url)
    first = capturer.capture()
    second = capturer.capture_planned(2, plan_of(made, 2))
    assert first is not None and second is not None
    assert (second.kind, second.epoch) == (ManifestKind.REPLACEMENT, first.epoch)
    assert second.requests.puts == 1
    assert list(CheckpointStore.open(url).verify()) == []


def test_the_start_of_a_query_can_be_restored_with_its_id_and_the_plan_of_batch_0(
    url: str, tmp_path: Path
) -> None:
    """Otherwise a machine lost in batch 0 leaves rows in the output that nobody knows of."""
    made = MadeLocation(tmp_path / "location")
    capturer, plan = open_capture(made, url), plan_of(made, 0)
    start = capturer.capture_planned(0, plan)
    assert start is not None and start.is_start
    assert (start.epoch, start.batch_id, start.planned) == (0, None, PlannedBatch(0, ("offsets/0",)))
    assert (plan_restore(start).batch_id, plan_restore(start).planned_batch) == (-1, 0)
    restore(url, str(tmp_path / "fresh"))
    assert contents(tmp_path / "fresh") == {
        "metadata": (made.path / "metadata").read_bytes(),
        "offsets/0": plan,
    }
    restore(url, str(tmp_path / "clone"), clone=True)
    assert json.loads((tmp_path / "clone" / "metadata").read_text())["id"] != QUERY_ID


def test_the_first_batch_follows_the_start_and_the_start_never_follows_it(url: str, tmp_path: Path) -> None:
    made = MadeLocation(tmp_path / "location")
    capturer, plan = open_capture(made, url), plan_of(made, 0)
    capturer.capture_planned(0, plan)
    again = capturer.capture_planned(0, plan)
    first = capturer.capture(0) if made.commit(0) else None
    assert again is not None and first is not None
    assert (again.checkpoint_id, first.kind, first.checkpoint_id) == (1, ManifestKind.EPOCH, 2)
    history = CheckpointStore.open(url)
    assert list(history.verify()) == []
    with pytest.raises(Diverged, match="other source offsets"):
        capturer.capture_planned(0, plan)


def test_a_plan_that_the_store_has_otherwise_is_refused_and_the_same_is_taken_again(
    made: MadeLocation, url: str
) -> None:
    """The output may have seen the batch as it was planned first."""
    plan = plan_of(made, 2)
    open_capture(made, url, run_id="before").capture_planned(2, plan)
    later = open_capture(made, url, run_id="later")
    with pytest.raises(Diverged, match="batch 2 is planned with other offsets"):
        later.capture_planned(2, plan.replace(b'"0":2', b'"0":3'))
    assert later.capture_planned(2, plan) is not None


def test_a_location_that_lacks_the_plan_of_its_history_gets_it_and_another_one_is_refused(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """After a crash between checkpoint and log, and for an old copy of a location."""
    plan = plan_of(made, 2)
    manifest = open_capture(made, url).capture_planned(2, plan)
    assert manifest is not None
    history, location = CheckpointStore.open(url), LocationSpec(str(made.path)).open()
    restorer = LocationRestorer()
    missing = restorer.missing_plan(history, manifest, location)
    assert missing == {"offsets/2": plan}
    restorer.write_plan(location, missing)
    assert (made.path / "offsets/2").read_bytes() == plan
    assert restorer.missing_plan(history, manifest, location) == {}
    made.plan(2, '{"topic":{"0":77}}')
    with pytest.raises(Diverged, match="offsets/2 is not that of checkpoint"):
        restorer.missing_plan(history, manifest, location)
    made.commit(2)
    assert restorer.missing_plan(history, manifest, location) == {}, "it has gone on"


class Waiting:
    """A batch that waits, and what it was told."""

    def __init__(self, watch: Watch, batch: int) -> None:
        self.told: list[tuple[Answer, str]] = []
        self._watch, self._batch, self._plan = watch, batch, plan_of(watch.location, batch)
        self.tell()

    def tell(self) -> None:
        """Tell its plan, once more."""
        held = HeldBatch(self._batch, self._plan, lambda answer, text: self.told.append((answer, text)))
        self._watch.worker.hold(held)

    def answers(self) -> list[Answer]:
        return [answer for answer, _ in self.told]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """A query whose batches wait; nothing is captured by its interval."""
    location = MadeLocation(tmp_path / "location").commit(0)
    return Watch(location, str(tmp_path / "store"), WorkerSettings(LONG, LONG, holds=True))


def test_a_batch_is_answered_when_the_one_before_it_is_in_the_store(watch: Watch) -> None:
    """The interval does not hold it up, and nothing is captured before it comes."""
    waiting = Waiting(watch, 1)
    wait_until(lambda: waiting.answers() == [Answer.DURABLE] and watch.epochs() == [0])
    assert [(found.epoch, found.planned) for found in watch.captured] == [
        (0, PlannedBatch(1, ("offsets/1",)))
    ]
    watch.location.commit(1)
    watch.worker.notify()
    following = Waiting(watch, 2)
    wait_until(lambda: following.answers() == [Answer.DURABLE])
    wait_until(lambda: watch.epochs() == [0, 1])
    watch.worker.finish(PATIENCE)


def test_a_committed_batch_is_brought_to_the_store_before_the_next_one_waits(watch: Watch) -> None:
    """Only its manifest is left then. Nothing is committed by that."""
    first = Waiting(watch, 1)
    wait_until(lambda: first.answers() == [Answer.DURABLE])
    prepared, prepare = threading.Event(), watch.capture.prepare

    def noticed() -> None:
        prepare()
        prepared.set()

    watch.capture.prepare = noticed  # type: ignore[method-assign]
    watch.location.commit(1)
    watch.worker.notify_described(("source",), "test")
    watch.worker.notify_committed()
    assert prepared.wait(PATIENCE)
    assert watch.epochs() == [0]
    following = Waiting(watch, 2)
    wait_until(lambda: following.answers() == [Answer.DURABLE])
    watch.worker.finish(PATIENCE)


def test_a_batch_is_let_go_once_and_never_by_the_checkpoint_of_another(watch: Watch) -> None:
    """It is answered before the capture has returned; the next batch may wait already when it does."""
    capture = watch.capture.capture_planned
    told, go = threading.Event(), threading.Event()

    def slow(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        made = capture(batch, offsets, on_durable)
        told.set()
        assert go.wait(PATIENCE)
        return made

    watch.capture.capture_planned = slow  # type: ignore[method-assign]
    first = Waiting(watch, 1)
    assert told.wait(PATIENCE)
    assert first.answers() == [Answer.DURABLE]
    watch.location.commit(1)
    watch.capture.capture_planned = away  # type: ignore[method-assign]
    second = Waiting(watch, 2)
    go.set()
    wait_until(lambda: bool(second.told))
    assert second.answers()[0] is Answer.WAITS
    assert first.answers() == [Answer.DURABLE]
    watch.worker.finish(PATIENCE)


def test_a_plan_that_is_told_again_is_answered_by_the_capture_that_runs(watch: Watch) -> None:
    """The file manager repeats it every five seconds. A store that is slower than that comes to an end."""
    capture, captured = watch.capture.capture_planned, list[int]()
    began, go = threading.Event(), threading.Event()

    def slow(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        captured.append(batch)
        began.set()
        assert go.wait(PATIENCE)
        return capture(batch, offsets, on_durable)

    watch.capture.capture_planned = slow  # type: ignore[method-assign]
    first = Waiting(watch, 1)
    assert began.wait(PATIENCE)
    first.tell()
    go.set()
    wait_until(lambda: bool(watch.epochs()))
    assert first.answers() == [Answer.DURABLE]
    first.tell()
    watch.worker.finish(PATIENCE)
    assert captured == [1]
    assert first.answers() == [Answer.DURABLE] * 2


def test_a_plan_that_is_told_late_disturbs_no_later_batch(watch: Watch) -> None:
    """Its batch is done and captured by now: of what is in the store already nothing is asked again."""
    first = Waiting(watch, 1)
    wait_until(lambda: first.answers() == [Answer.DURABLE])
    watch.location.commit(1)
    assert watch.worker.flush(PATIENCE)
    second = Waiting(watch, 2)
    wait_until(lambda: second.answers() == [Answer.DURABLE])
    first.tell()
    watch.location.commit(2)
    third = Waiting(watch, 3)
    wait_until(lambda: bool(third.told))
    assert third.answers() == [Answer.DURABLE]
    watch.worker.finish(PATIENCE)
    assert first.answers() == [Answer.DURABLE] * 2
    assert (watch.worker.status.failures, watch.worker.status.last_error) == (0, None)


def test_what_becomes_of_one_batch_is_not_told_to_the_next(watch: Watch) -> None:
    """A new side process knows nothing of what the one before it has answered."""
    capture, began, go = watch.capture.capture_planned, threading.Event(), threading.Event()

    def refused(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        if batch == 2:
            return capture(batch, offsets, on_durable)
        began.set()
        assert go.wait(PATIENCE)
        raise Diverged("epoch 0 is before the store's epoch 1")

    watch.capture.capture_planned = refused  # type: ignore[method-assign]
    first = Waiting(watch, 1)
    assert began.wait(PATIENCE)
    watch.location.commit(1)
    second = Waiting(watch, 2)
    go.set()
    wait_until(lambda: bool(second.told))
    assert first.answers() == [Answer.REFUSED]
    assert second.answers() == [Answer.DURABLE]
    watch.worker.finish(PATIENCE)


def test_what_fails_after_a_batch_was_let_go_is_not_told_to_it(watch: Watch) -> None:
    """Nothing takes back that its checkpoint is in the store."""
    capture = watch.capture.capture_planned

    def fails(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        capture(batch, offsets, on_durable)
        raise Unavailable("the store is away")

    watch.capture.capture_planned = fails  # type: ignore[method-assign]
    waiting = Waiting(watch, 1)
    wait_until(lambda: watch.worker.status.failures > 0)
    watch.worker.finish(PATIENCE)
    assert waiting.answers() == [Answer.DURABLE]


def test_a_plan_whose_query_has_ended_is_not_brought_to_the_store(watch: Watch) -> None:
    """Its time was over: the next run plans the batch anew, and would be refused for that."""
    capture, tried = watch.capture.capture_planned, threading.Event()

    def away_at_first(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        if not tried.is_set():
            tried.set()
            return away(batch, offsets, on_durable)
        return capture(batch, offsets, on_durable)

    watch.capture.capture_planned = away_at_first  # type: ignore[method-assign]
    waiting = Waiting(watch, 1)
    assert tried.wait(PATIENCE)
    watch.worker.end()
    wait_until(lambda: watch.worker.is_done)
    assert [(found.epoch, found.planned) for found in watch.captured] == [(0, None)]
    assert Answer.DURABLE not in waiting.answers()


def away(
    batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
) -> CheckpointManifest | None:
    """A store that does not answer."""
    raise Unavailable("the store is away")


def test_a_batch_waits_while_the_store_is_away_and_is_answered_when_it_is_back(watch: Watch) -> None:
    back, capture = threading.Event(), watch.capture.capture_planned

    def away_until_back(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        return (capture if back.is_set() else away)(batch, offsets, on_durable)

    watch.capture.capture_planned = away_until_back  # type: ignore[method-assign]
    waiting = Waiting(watch, 1)
    wait_until(lambda: bool(waiting.told))
    assert waiting.told[0][0] is Answer.WAITS
    assert "the store is away" in waiting.told[0][1]
    back.set()
    wait_until(lambda: waiting.answers()[-1] is Answer.DURABLE)
    watch.worker.finish(PATIENCE)


def test_a_batch_of_a_run_that_was_taken_over_or_has_ended_is_refused(watch: Watch) -> None:
    """The query must not go on without what it was promised."""

    def fenced(
        batch: int, offsets: bytes, on_durable: Callable[[], None] | None = None
    ) -> CheckpointManifest | None:
        raise FencedError("taken over")

    watch.capture.capture_planned = fenced  # type: ignore[method-assign]
    first = Waiting(watch, 1)
    wait_until(lambda: first.answers() == [Answer.REFUSED])
    assert "taken over" in first.told[0][1]
    wait_until(lambda: watch.worker.is_done)
    second = Waiting(watch, 1)
    assert second.answers() == [Answer.REFUSED]
