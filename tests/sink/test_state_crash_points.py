"""A property over kill points and epochs: whatever dies and is restored, rows, state and offsets fit."""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pyspark_checkpoint.errors import RefusedError
from tests.support.made_stream import STEPS, Killed, MadeStream, totals_after

pytestmark = pytest.mark.usefixtures("both_ways")

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Nothing here is about a machine that dies, so that no disk has to be waited for."""
Life = tuple[int, str, str, bool, bool]
LIVES = st.lists(
    st.tuples(
        st.integers(0, 3),  # batches that end well
        st.sampled_from(STEPS[:-1]),  # where the next one is killed
        st.sampled_from(["stay", "restore", "restore before", "restore earlier", "old disk"]),
        st.booleans(),  # whether maintenance made a snapshot meanwhile
        st.booleans(),  # whether every task of this life runs once, so that commits list nothing
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


def live(stream: MadeStream, lives: list[Life]) -> None:
    """Run, die, come back, as often as it is told."""
    for batches, step, way, maintained, once in lives:
        stream.query.once = once
        stream.run(batches)
        with suppress(Killed):
            stream.batch(stop_after=step)
        if maintained:
            stream.maintain(stream.next_batch())
        newest = stream.history().load_latest() if stream.table.exists() else None
        if way == "stay" or newest is None:
            stream.start()
            continue
        if way == "old disk":
            come_back(stream)
            continue
        stream.lose_location()
        if way == "restore before":
            stream.restore(point="before")
        elif way == "restore earlier" and newest.epoch > 0:
            stream.restore(epoch=newest.epoch - 1)
        else:
            stream.restore()
    stream.run(2)


def come_back(stream: MadeStream) -> None:
    """The query goes on elsewhere, and then its old disk is there again: it fits still, or is refused."""
    old = stream.location
    stream.restore(point="before")
    stream.run(1)
    stream.maintain(stream.next_batch())
    stream.run(1)
    stream.location = old
    stream.start()
    try:
        stream.batch()
    except RefusedError:
        stream.restore()


def make(root: Path, kind: str, chance: random.Random | None = None) -> MadeStream:
    """A query whose state is of format version 1 or 2, or a snapshot in each version."""
    return MadeStream(root, version=2 if kind == "v2" else 1, zips=kind == "zips", chance=chance)


def check_same(lives: list[Life], kind: str) -> None:
    """Every checkpoint has exactly what one run would have."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        stream = make(Path(root), kind)
        live(stream, lives)
        last = stream.next_batch() - 1
        assert stream.rows() == stream.whole_state(last + 1) == totals_after(last)
        check_fit(stream, exact=True)


def check_different(lives: list[Life], kind: str, seed: int) -> None:
    """The table has what the state has, although no attempt is like another."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        stream = make(Path(root), kind, random.Random(seed))
        live(stream, lives)
        assert stream.rows() == stream.whole_state(stream.next_batch())
        check_fit(stream, exact=False)


KINDS, SEEDS = st.sampled_from(["v1", "v2", "zips"]), st.integers(0, 1000)
DAILY = int(os.environ.get("SEEDS", "0")) >= 10_000
"""Whether all of them are tried, as ``make test-integration`` does."""
few = settings(max_examples=12 if DAILY else 5, suppress_health_check=list(HealthCheck))
many = settings(max_examples=300, suppress_health_check=list(HealthCheck))


SNAPSHOT_TWICE: list[Life] = [(1, "offsets", "stay", True, False), (0, "published", "stay", True, False)]
"""Maintenance makes the snapshot of one version in both lives: the same name, and other shared files."""


@few
@given(lives=LIVES, kind=KINDS)
@example(lives=SNAPSHOT_TWICE, kind="v2")
def test_the_same_rows_and_state_as_an_undisturbed_run(lives: list[Life], kind: str) -> None:
    """A query that does the same every time, killed anywhere, restored or not."""
    check_same(lives, kind)


@few
@given(lives=LIVES, kind=KINDS, seed=SEEDS)
def test_rows_and_state_fit_each_other_when_every_attempt_differs(
    lives: list[Life], kind: str, seed: int
) -> None:
    """A query with ``rand()``, killed anywhere, restored or not."""
    check_different(lives, kind, seed)


@pytest.mark.soak
@many
@given(lives=LIVES, kind=KINDS, seed=SEEDS)
def test_many_kill_points(lives: list[Life], kind: str, seed: int) -> None:
    """Both kinds of query, with many more lives."""
    check_same(lives, kind)
    check_different(lives, kind, seed)
