"""A property over kill points and epochs: whatever dies and is restored, rows, state and offsets fit."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.coordinated.made_stream import STEPS, Killed, MadeStream, totals_after

LIVES = st.lists(
    st.tuples(
        st.integers(0, 3),  # batches that end well
        st.sampled_from(STEPS[:-1]),  # where the next one is killed
        st.sampled_from(["stay", "restore", "restore before", "restore earlier"]),
        st.booleans(),  # whether maintenance made a snapshot meanwhile
    ),
    min_size=1,
    max_size=4,
)


def check_fit(stream: MadeStream, *, exact: bool) -> None:
    """In every checkpoint that is kept, the state after its batch is what the table has at its epoch."""
    history = stream.history()
    assert list(history.verify()) == []
    for number in history.list_ids():
        manifest = history.load_by_id(number)
        assert manifest is not None
        rows = stream.rows(checkpointId=str(number))
        if exact:
            assert rows == totals_after(manifest.epoch)
            before = stream.stored_state(manifest, "before")
            assert before == (totals_after(manifest.epoch - 1) if manifest.epoch else {})
        if stream.knows_after(manifest):
            assert stream.stored_state(manifest, "after") == rows


def live(stream: MadeStream, lives: list[tuple[int, str, str, bool]]) -> None:
    """Run, die, come back, as often as it is told."""
    for batches, step, way, maintained in lives:
        stream.run(batches)
        with suppress(Killed):
            stream.batch(stop_after=step)
        if maintained:
            stream.maintain(stream.next_batch())
        newest = stream.history().load_latest() if stream.table.exists() else None
        if way == "stay" or newest is None:
            stream.start()
            continue
        stream.lose_location()
        if way == "restore before":
            stream.restore(point="before")
        elif way == "restore earlier" and newest.epoch > 0:
            stream.restore(epoch=newest.epoch - 1)
        else:
            stream.restore()
    stream.run(2)


def check_same(lives: list[tuple[int, str, str, bool]], version: int) -> None:
    """Every checkpoint has exactly what one run would have."""
    with tempfile.TemporaryDirectory() as root:
        stream = MadeStream(Path(root), version=version)
        live(stream, lives)
        last = stream.next_batch() - 1
        assert stream.rows() == stream.whole_state(last + 1) == totals_after(last)
        check_fit(stream, exact=True)


def check_different(lives: list[tuple[int, str, str, bool]], version: int, seed: int) -> None:
    """The table has what the state has, although no attempt is like another."""
    with tempfile.TemporaryDirectory() as root:
        stream = MadeStream(Path(root), version=version, chance=random.Random(seed))
        live(stream, lives)
        assert stream.rows() == stream.whole_state(stream.next_batch())
        check_fit(stream, exact=False)


VERSIONS, SEEDS = st.sampled_from([1, 2]), st.integers(0, 1000)
few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@few
@given(lives=LIVES, version=VERSIONS)
def test_the_same_rows_and_state_as_an_undisturbed_run(
    lives: list[tuple[int, str, str, bool]], version: int
) -> None:
    """A query that does the same every time, killed anywhere, restored or not."""
    check_same(lives, version)


@few
@given(lives=LIVES, version=VERSIONS, seed=SEEDS)
def test_rows_and_state_fit_each_other_when_every_attempt_differs(
    lives: list[tuple[int, str, str, bool]], version: int, seed: int
) -> None:
    """A query with ``rand()``, killed anywhere, restored or not."""
    check_different(lives, version, seed)


@pytest.mark.soak
@many
@given(lives=LIVES, version=VERSIONS, seed=SEEDS)
def test_many_kill_points(lives: list[tuple[int, str, str, bool]], version: int, seed: int) -> None:
    """Both kinds of query, with many more lives."""
    check_same(lives, version)
    check_different(lives, version, seed)
