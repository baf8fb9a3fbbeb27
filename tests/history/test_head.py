"""Finding the head at any distance, with few requests."""

from __future__ import annotations

import pytest

from pyspark_checkpoint.errors import FormatError
from pyspark_checkpoint.format import envelope as sealed
from pyspark_checkpoint.format.keys import LATEST_KEY, manifest_key
from pyspark_checkpoint.format.manifest_codec import manifest_fields
from pyspark_checkpoint.format.records import encode_latest
from pyspark_checkpoint.history import lookup
from pyspark_checkpoint.history import manifest_reader as records_io
from pyspark_checkpoint.history.head import find_head, locate_head
from tests.support.history_kit import History, commit, history_of


def test_an_empty_place_and_a_store_without_a_commit_have_no_head() -> None:
    """None is said only then."""
    history = History()
    assert find_head(history.inner) is None
    history.run("run-a").refresh()
    assert find_head(history.inner) is None


@pytest.mark.parametrize("floor", [1, 5, 36])
@pytest.mark.parametrize("hint", [None, 1, 2, 30, 36, 37, 38, 500])
def test_the_head_is_found_from_every_hint(hint: int | None, floor: int) -> None:
    """Below the floor, at the head, beyond it, or without one."""
    history, _ = history_of(37)
    history.prune(38 - floor)
    if hint is None:
        history.inner.delete([LATEST_KEY])
    else:
        history.inner.put(LATEST_KEY, encode_latest(hint))
    assert history.head().checkpoint_id == 37


def test_a_far_head_is_found_with_few_requests() -> None:
    """Gallop and bisect: two times the logarithm of the distance, and a handful more."""
    history, run = history_of(1)
    for epoch in range(1, 1000):
        commit(run, epoch, depth=0)
    history.inner.delete([LATEST_KEY])
    calls = history.calls(lambda: find_head(history.store))
    assert history.head().checkpoint_id == 1000
    assert len(calls) <= 2 * 10 + 8


def test_a_head_under_another_manifests_name_is_damaged() -> None:
    """A manifest that was copied to another number is not that checkpoint."""
    history, _ = history_of(3)
    history.inner.put(manifest_key(3), history.inner.get(manifest_key(2)))
    with pytest.raises(FormatError, match="manifest of checkpoint 2"):
        find_head(history.inner)
    found = locate_head(history.inner)
    assert found is not None
    assert found.number == 3


def test_checkpoints_are_found_by_epoch_and_by_time() -> None:
    """After a replacement the newest one of the epoch counts."""
    history, run = history_of(3)
    times = [history.head().timestamp_ms]
    for epoch in (3, 4):
        history.clock.sleep(10)
        times.append(commit(run, epoch).timestamp_ms)
    commit(run, 4, "again")
    assert lookup.find_number_by_epoch(history.inner, 4) == 6
    assert lookup.find_number_by_epoch(history.inner, 1) == 2
    assert lookup.find_number_by_epoch(history.inner, 9) is None
    assert lookup.find_number_by_time(history.inner, times[1]) == 4
    assert lookup.find_number_by_time(history.inner, times[0] - 1) is None


@pytest.mark.parametrize("damage", ["empty", "truncated", "huge", "newer version", "escaping path"])
def test_a_strange_newest_manifest_is_a_clear_error(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the object, is never read beyond the largest size, and the store is not taken for empty."""
    history, _ = history_of(2)
    key = manifest_key(2)
    good = history.inner.get(key)
    fields = manifest_fields(history.head())
    if damage == "huge":
        monkeypatch.setattr(records_io, "MAX_SEALED_BYTES", 5000)
        monkeypatch.setattr(sealed, "MAX_SEALED_BYTES", 5000)
    bad = {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "huge": b"x" * 1_000_000,
        "newer version": sealed.encode_sealed({**fields, "version": 2}),
        "escaping path": sealed.encode_sealed({**fields, "objects": ["checkpoints/../../etc/passwd"]}),
    }[damage]
    history.inner.put(key, bad)
    with pytest.raises(FormatError, match="manifest-0000000002"):
        find_head(history.inner)
    with pytest.raises(FormatError):
        history.run("run-b").claim()
    assert history.numbers() == [1, 2]
