"""The old driver still commits while the new one begins: the new one goes on, the old one is fenced."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.capture.location_status import LocationStatus
from pyspark_checkpoint.errors import FencedError, Invalid, RefusedError
from pyspark_checkpoint.format.keys import manifest_key, parse_manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import Head
from pyspark_checkpoint.history.run import CLAIM_ROUNDS
from pyspark_checkpoint.listener.checkpointer import QueryCapture
from pyspark_checkpoint.listener.worker import WorkerSettings
from pyspark_checkpoint.outputs.ckpt_sink import LinkedSink
from pyspark_checkpoint.plugin.auto_restore import auto_restore
from pyspark_checkpoint.plugin.plugin_settings import PluginSettings
from pyspark_checkpoint.registry.queries import QueryRoot, register, root_url
from pyspark_checkpoint.restorer import api as operations
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.listener.test_worker import PATIENCE, Watch
from tests.outputs.test_ckpt_sink import save_rows
from tests.restorer.test_restore_steps import Life, living
from tests.support.made_location import QUERY_ID, MadeLocation, contents, needed, open_capture
from tests.support.waiting import wait_until


@contextmanager
def faster(work: Callable[[], object], times: int = 1) -> Iterator[None]:
    """Let somebody else commit right before manifests are created in this block: a perfect race."""
    put, left = LocalStore.put, [times]

    def late(self: LocalStore, key: str, *args: Any, **conditions: Any) -> Any:
        if left[0] and parse_manifest_key(key) is not None:
            left[0] -= 1
            now, left[0] = left[0], 0
            work()
            left[0] = now
        return put(self, key, *args, **conditions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put", late)
        yield


class OldDriver:
    """A driver that goes on: each call commits and captures its next batch."""

    def __init__(self, path: Path, url: str, batches: int = 3) -> None:
        self.made = MadeLocation(path).commit(*range(batches))
        self.url = url
        self.capture: QueryCapture = open_capture(self.made, url)
        self.capture.capture(batches - 1)
        self.next_batch = batches

    def goes_on(self) -> None:
        self.made.commit(self.next_batch)
        self.capture.capture(self.next_batch)
        self.next_batch += 1

    def check_fenced(self) -> None:
        with pytest.raises(FencedError):
            self.goes_on()


def newest(url: str) -> tuple[ManifestKind, int]:
    manifest = CheckpointStore.open(url).load_latest()
    assert manifest is not None
    return manifest.kind, manifest.epoch


def test_the_new_driver_captures_although_the_old_one_was_faster(tmp_path: Path) -> None:
    """Its claim meets an ordinary commit: it claims again, captures, and the old one is fenced."""
    old = OldDriver(tmp_path / "location", str(tmp_path / "store"))
    with faster(old.goes_on, times=3):
        watch = Watch(old.made, old.url, WorkerSettings(0.0, 3600.0))
    try:
        old.made.commit(6, 7)
        assert watch.worker.flush(PATIENCE)
        assert not watch.worker.status.fenced
        assert newest(old.url) == (ManifestKind.EPOCH, 7)
        old.next_batch = 8
        old.check_fenced()
    finally:
        watch.worker.finish(PATIENCE)


def test_a_worker_whose_claim_always_loses_retries(tmp_path: Path) -> None:
    """It gives up for this time only: the next look claims the store."""
    old = OldDriver(tmp_path / "location", str(tmp_path / "store"))
    before = _ended(tmp_path)
    with faster(old.goes_on, times=CLAIM_ROUNDS):
        watch = Watch(old.made, old.url, WorkerSettings(0.0, 0.01), after=before)
        assert watch.begun.wait(PATIENCE)
    try:
        assert watch.worker.flush(PATIENCE)
        assert watch.worker.status.failures == 1
        assert not watch.worker.status.fenced
        assert watch.capture.run.head is not None
        assert watch.capture.run.head.manifest.run_id == watch.facts.run_id
        old.check_fenced()
    finally:
        watch.worker.finish(PATIENCE)


def _ended(tmp_path: Path) -> Any:
    """The worker of an earlier run that is over."""
    before = Watch(
        MadeLocation(tmp_path / "before").commit(0), str(tmp_path / "other"), WorkerSettings(0.0, 3600.0)
    )
    before.worker.finish(PATIENCE)
    return before.worker


def test_the_first_capture_of_a_young_store_is_not_fenced_by_the_old_drivers_first(tmp_path: Path) -> None:
    """Both found the store empty, so that there was nothing to claim."""
    url, made = str(tmp_path / "store"), MadeLocation(tmp_path / "location").commit(0, 1)
    old, new = open_capture(made, url, run_id="old"), open_capture(made, url, run_id="new")
    with faster(lambda: old.capture(0)):
        assert new.capture(1) is not None
    with pytest.raises(FencedError):
        old.capture(1)
    manifest = CheckpointStore.open(url).load_latest()
    assert manifest is not None
    assert (manifest.run_id, manifest.epoch, manifest.checkpoint_id) == ("new", 1, 3)
    claim = CheckpointStore.open(url).load_by_id(2)
    assert claim is not None and (claim.kind, claim.run_id) == (ManifestKind.CLAIM, "new")


def test_a_slow_first_capture_runs_its_start_check_before_it_claims(tmp_path: Path) -> None:
    """Its location was behind what the later run has committed: that one is live, and goes on."""
    url, made = str(tmp_path / "store"), MadeLocation(tmp_path / "location").commit(0)
    status = LocationStatus.of(LocationSpec(str(made.path)).open())

    def check(head: Head) -> None:
        problem = status.find_problem(head.manifest, "slow")
        if problem is not None:
            raise RefusedError(problem)

    slow = open_capture(made, url, run_id="slow", check=check)
    later = open_capture(made, url, run_id="later")

    def goes_on() -> None:
        made.commit(1, 2)
        later.capture(1)
        later.capture(2)

    with faster(goes_on), pytest.raises(RefusedError, match="running on would repeat"):
        slow.capture(0)
    with pytest.raises(RefusedError, match="running on would repeat"):
        slow.capture(2)
    manifest = CheckpointStore.open(url).load_latest()
    assert manifest is not None
    assert (manifest.run_id, manifest.epoch) == ("later", 2)
    made.commit(3)
    assert later.capture(3) is not None, "it was not fenced"


def test_a_query_that_has_ended_does_not_fence_a_faster_run(tmp_path: Path) -> None:
    """The store was empty when it began, and is a later run's by now: its worker ends as a fenced one."""
    url, made = str(tmp_path / "store"), MadeLocation(tmp_path / "location").commit(0)
    gate = threading.Semaphore(1)
    later = open_capture(made, url, run_id="later")
    with gate:
        watch = Watch(made, url, WorkerSettings(0.0, 3600.0), gate)
        later.capture(0)
        watch.worker.end()
    wait_until(lambda: watch.worker.is_done)
    assert watch.worker.status.fenced
    assert watch.captured == []
    made.commit(1)
    assert later.capture(1) is not None, "it was not fenced"


@pytest.mark.parametrize("times", [1, 3])
def test_a_restore_claims_from_a_driver_that_commits_meanwhile(tmp_path: Path, times: int) -> None:
    """What it committed meanwhile is not in the location: the history goes back with it, and says so."""
    old = OldDriver(tmp_path / "old", str(tmp_path / "store"))
    fresh = tmp_path / "fresh"
    with faster(old.goes_on, times):
        assert restore(old.url, str(fresh)).epoch == 2
    assert newest(old.url) == (ManifestKind.ROLLBACK, 2)
    assert contents(fresh) == needed(old.made, 2)
    old.check_fenced()


def app(tmp_path: Path) -> tuple[OldDriver, PluginSettings]:
    """An application that is deployed anew, without its location, while the old one still runs."""
    url, location = str(tmp_path / "store"), tmp_path / "location"
    old = OldDriver(tmp_path / "old", root_url(url, QUERY_ID))
    register(open_object_store(url), QueryRoot("q", QUERY_ID, "app", 1, "", str(location)))
    return old, PluginSettings(url, "app", restore="missing")


def interrupted(tmp_path: Path, steps: int | None = None) -> tuple[OldDriver, PluginSettings]:
    """The automatic restore of checkpoint 1 has died, and the old driver has committed another one."""
    old, settings = app(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        if steps is None:
            patch.setattr(operations, "_take_over", _die)
        with living(Life(steps)), pytest.raises(SimulatedCrash):
            auto_restore(settings)
    assert (tmp_path / "location" / RESTORE_MARKER).exists()
    old.goes_on()
    return old, settings


def _die(*_: object) -> None:
    raise SimulatedCrash


@pytest.mark.parametrize("steps", [2, 5, None], ids=["marked", "half written", "all written"])
def test_an_automatic_restore_starts_over_with_the_newer_checkpoint(
    tmp_path: Path, steps: int | None
) -> None:
    """No application has chosen the one that was interrupted: it is not in the way for ever."""
    old, settings = interrupted(tmp_path, steps)
    (report,) = auto_restore(settings)
    assert (report.epoch, report.resumed) == (3, False)
    assert contents(tmp_path / "location") == needed(old.made, 3)
    assert newest(old.url) == (ManifestKind.CLAIM, 3)
    old.check_fenced()


def test_a_crash_at_any_step_of_starting_over_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """Also between the older mark and the newer one, and while the older files are removed."""
    counted = Life()
    _, settings = interrupted(tmp_path / "counted")
    with living(counted):
        auto_restore(settings)
    assert counted.steps > 10
    for step in range(counted.steps):
        old, settings = interrupted(tmp_path / str(step))
        with living(Life(step)), pytest.raises(SimulatedCrash):
            auto_restore(settings)
        auto_restore(settings)
        assert contents(tmp_path / str(step) / "location") == needed(old.made, 3), f"died after step {step}"
        shutil.rmtree(tmp_path / str(step))


def rolled_back(tmp_path: Path) -> tuple[OldDriver, PluginSettings]:
    """The automatic restore of batch 5 was interrupted when all was written; then the history went back."""
    url, location = str(tmp_path / "store"), tmp_path / "location"
    old = OldDriver(tmp_path / "old", root_url(url, QUERY_ID))
    for _ in range(3):
        old.goes_on()
    register(open_object_store(url), QueryRoot("q", QUERY_ID, "app", 1, "", str(location)))
    settings = PluginSettings(url, "app", restore="missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "_take_over", _die)
        with pytest.raises(SimulatedCrash):
            auto_restore(settings)
    CheckpointStore.open(old.url).rollback(1)
    return old, settings


def test_a_crash_while_a_later_batch_is_removed_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """The older restore was of a later batch: what is left of it is no sign that a query ran there."""
    counted = Life()
    _, settings = rolled_back(tmp_path / "counted")
    with living(counted):
        auto_restore(settings)
    for step in range(counted.steps):
        old, settings = rolled_back(tmp_path / str(step))
        for steps in (step, 1):  # the second dies as soon as it has the mark
            with living(Life(steps)), pytest.raises(SimulatedCrash):
                auto_restore(settings)
        auto_restore(settings)
        assert contents(tmp_path / str(step) / "location") == needed(old.made, 2), f"died after step {step}"
        shutil.rmtree(tmp_path / str(step))


def test_a_query_that_ran_after_a_later_batch_was_removed_is_noticed(tmp_path: Path) -> None:
    """The mark names the later batch only as long as some of it may be there."""
    old, settings = rolled_back(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "_take_over", _die)
        with pytest.raises(SimulatedCrash):
            auto_restore(settings)
    assert newest(old.url) == (ManifestKind.ROLLBACK, 2)
    MadeLocation(tmp_path / "location", seed=3).commit(3, 4)
    left = contents(tmp_path / "location")
    with pytest.raises(RefusedError, match="a query has run there since"):
        auto_restore(settings)
    left.pop(RESTORE_MARKER)
    found = contents(tmp_path / "location")
    assert found.pop(RESTORE_MARKER)
    assert found == left


@pytest.mark.parametrize("data", [b"{ damaged", None], ids=["damaged", "gone"])
def test_an_automatic_restore_falls_back_if_its_checkpoint_is_damaged(
    tmp_path: Path, data: bytes | None
) -> None:
    """The manifest of the interrupted one cannot be read any more: it can never be repeated."""
    old, settings = app(tmp_path)
    old.goes_on()
    with living(Life(5)), pytest.raises(SimulatedCrash):
        auto_restore(settings)
    manifest = Path(old.url) / manifest_key(2)
    manifest.unlink()
    if data is not None:
        manifest.write_bytes(data)
    (report,) = auto_restore(settings)
    assert (report.epoch, report.resumed) == (2, False)
    assert contents(tmp_path / "location") == needed(old.made, 2)


def test_an_automatic_restore_does_not_fall_back_if_its_checkpoint_is_intact(
    tmp_path: Path,
) -> None:
    """Who comes with an older one has looked before the newer one was there."""
    old, settings = app(tmp_path)
    old.goes_on()
    with living(Life(5)), pytest.raises(SimulatedCrash):
        auto_restore(settings)
    left = contents(tmp_path / "location")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "list_ids", lambda self: [1])
        with pytest.raises(RefusedError, match="was interrupted"):
            auto_restore(settings)
    assert contents(tmp_path / "location") == left


def test_a_restore_of_a_chosen_checkpoint_does_not_start_over(tmp_path: Path) -> None:
    """Neither by an automatic one, nor by a later one by hand: that one has to be repeated."""
    old, settings = app(tmp_path)
    location = tmp_path / "location"
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(old.url, str(location))
    old.goes_on()
    left = contents(location)
    with pytest.raises(RefusedError, match="was interrupted"):
        auto_restore(settings)
    assert contents(location) == left
    other, _ = interrupted(tmp_path / "other")
    with pytest.raises(RefusedError, match="was interrupted"):
        restore(other.url, str(tmp_path / "other" / "location"))


def test_a_location_in_which_a_query_ran_does_not_start_over(tmp_path: Path) -> None:
    """Somebody removed the plugin, and ran the query from the unfinished location."""
    _, settings = interrupted(tmp_path)
    MadeLocation(tmp_path / "location", seed=3).commit(3)
    left = contents(tmp_path / "location")
    with pytest.raises(RefusedError, match="a query has run there since"):
        auto_restore(settings)
    assert contents(tmp_path / "location") == left


def test_nothing_starts_over_where_a_mark_cannot_be_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes could remove what the other has written."""
    _, settings = interrupted(tmp_path)
    put, left = LocalStore.put, contents(tmp_path / "location")

    def without_swap(self: LocalStore, key: str, data: Any, **conditions: Any) -> Any:
        if key == RESTORE_MARKER and conditions.get("if_match") is not None:
            raise Invalid("no compare and swap", key=key)
        return put(self, key, data, **conditions)

    monkeypatch.setattr(LocalStore, "put", without_swap)
    with pytest.raises(RefusedError, match="was interrupted"):
        auto_restore(settings)
    assert contents(tmp_path / "location") == left


def with_table(tmp_path: Path) -> tuple[MadeLocation, QueryCapture, PluginSettings, CheckpointStore]:
    """A query that writes to a table, which is a batch ahead of the newest capture, as it may be."""
    url, table_url = str(tmp_path / "store"), str(tmp_path / "table")
    made = MadeLocation(tmp_path / "old").commit(0, 1, 2)
    capture = open_capture(made, root_url(url, QUERY_ID), sink=f"ckpt-sink {table_url}")
    capture.capture(2)
    made.commit(3)
    location = str(tmp_path / "location")
    register(open_object_store(url), QueryRoot("q", QUERY_ID, "app", 1, "", location))
    table = save_rows(table_url, {epoch: epoch for epoch in range(4)})
    return made, capture, PluginSettings(url, "app", restore="missing"), table


def test_the_table_is_rolled_back_after_the_old_driver_is_fenced(tmp_path: Path) -> None:
    """Else a capture of what the table had just lost would come between, and no start could go on."""
    made, capture, settings, table = with_table(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinkedSink, "roll_back", _die)
        with faster(lambda: capture.capture(3)), pytest.raises(SimulatedCrash):
            auto_restore(settings)
    with pytest.raises(FencedError):
        capture.capture(3)
    (report,) = auto_restore(settings)
    assert (report.epoch, report.resumed) == (2, True)
    rows = table.load_latest()
    assert rows is not None and (rows.kind, rows.epoch) == (ManifestKind.ROLLBACK, 2)
    assert contents(tmp_path / "location") == needed(made, 2)


def test_what_the_old_driver_wrote_until_it_was_fenced_is_rolled_back_too(tmp_path: Path) -> None:
    """The table was where it had to be when the restore looked at it first."""
    _, capture, settings, table = with_table(tmp_path)
    capture.capture(3)

    def writes() -> None:
        save_rows(str(tmp_path / "table"), {4: 4})

    with faster(writes):
        (report,) = auto_restore(settings)
    assert report.epoch == 3
    rows = table.load_latest()
    assert rows is not None and (rows.kind, rows.epoch) == (ManifestKind.ROLLBACK, 3)
