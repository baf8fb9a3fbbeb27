"""Two processes that do one restore into one location: one of them finishes it, once. No Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.errors import Invalid, RefusedError
from pyspark_checkpoint.format.manifest import QueryInfo
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer import api as operations
from pyspark_checkpoint.restorer import execute as restoring
from pyspark_checkpoint.restorer import lock as marking
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER, check_fresh
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.restorer.test_restore_rules import damage
from tests.restorer.test_restore_steps import Life, living
from tests.support.made_location import MadeLocation, capture, contents, needed

QUERY_RUN = "the run of the query"
HALF = "offsets/.3.018bcfe5-6800-7000-8000-000000000000.tmp"


class Interrupted(Exception):
    """Stands for a kill."""


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


@pytest.fixture
def url(made: MadeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(restoring, "GROUP_BYTES", 1)
    capture(made, str(tmp_path / "store"), 0, 1, 2)
    return str(tmp_path / "store")


def once(work: Callable[[], object], *, at_end: bool = False) -> Callable[[int, int], None]:
    """Does something else in the middle of a restore: after its first files, or after its last."""
    told: list[int] = []

    def progress(done: int, total: int) -> None:
        if not told and (not at_end or done == total):
            told.append(done)
            work()

    return progress


def query_starts(made: MadeLocation, url: str, fresh: Path) -> None:
    """The query takes its history over, and writes its next offset log just now."""
    query = QueryInfo(id=made.query_id)
    CheckpointStore.open(url, query=query, run_id=QUERY_RUN).writer().claim()
    (fresh / HALF).write_text("half")


def check_left_alone(made: MadeLocation, url: str, fresh: Path) -> None:
    """The query that runs was neither fenced nor robbed of what it writes."""
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    assert newest.run_id == QUERY_RUN
    assert contents(fresh) == {**needed(made, 2), HALF: b"half"}


@pytest.mark.parametrize("at_end", [False, True], ids=["before its commits", "before it takes over"])
def test_a_restore_that_another_process_finished_stops(
    made: MadeLocation, url: str, tmp_path: Path, at_end: bool
) -> None:
    """The query may run by then: taking its history over would stop it for nothing."""
    fresh = tmp_path / "fresh"

    def other() -> None:
        assert restore(url, str(fresh)).resumed
        query_starts(made, url, fresh)

    with pytest.raises(RefusedError, match="finished it"):
        restore(url, str(fresh), progress=once(other, at_end=at_end))
    check_left_alone(made, url, fresh)


def test_a_restore_that_another_process_finished_takes_nothing_away(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had taken over already, as the other one did after it; what Spark writes now is not its."""
    fresh, take_over = tmp_path / "fresh", operations._take_over

    def taking(history: CheckpointStore, number: int) -> Any:
        monkeypatch.setattr(operations, "_take_over", take_over)
        claimed = take_over(history, number)
        assert restore(url, str(fresh)).resumed
        query_starts(made, url, fresh)
        return claimed

    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh))
    monkeypatch.setattr(operations, "_take_over", taking)
    with pytest.raises(RefusedError, match="finished it"):
        restore(url, str(fresh))
    check_left_alone(made, url, fresh)


def test_the_process_that_goes_on_has_the_location(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """The one before was not dead after all: it stops. What the later one leaves is finished by a third."""
    fresh = tmp_path / "fresh"

    def die() -> None:
        raise Interrupted

    def other() -> None:
        with pytest.raises(Interrupted):
            restore(url, str(fresh), progress=once(die))

    before = CheckpointStore.open(url).load_latest()
    with pytest.raises(RefusedError, match="another process goes on with this restore"):
        restore(url, str(fresh), progress=once(other))
    assert not (fresh / "commits").exists()
    assert CheckpointStore.open(url).load_latest() == before
    assert restore(url, str(fresh)).resumed
    assert contents(fresh) == needed(made, 2)


def test_a_restore_that_was_taken_over_writes_no_log_any_more(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Its checkpoint may be another one than that of the process which goes on: logs are no one else's."""
    fresh = tmp_path / "fresh"

    def other() -> None:
        mark = json.loads((fresh / RESTORE_MARKER).read_text())
        (fresh / RESTORE_MARKER).write_text(json.dumps({**mark, "nonce": "another process"}))

    with pytest.raises(RefusedError, match="another process goes on with this restore"):
        restore(url, str(fresh), progress=once(other))
    assert not any((fresh / name).exists() for name in ("metadata", "offsets", "commits"))


def test_of_two_that_go_on_at_once_one_has_the_location(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the mark of the dead one; the second to replace it is refused."""
    fresh, check = tmp_path / "fresh", check_fresh
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh))

    def other_first(keys: list[str], *, is_ours: bool) -> None:
        check(keys, is_ours=is_ours)
        monkeypatch.setattr(marking, "check_fresh", check)
        assert restore(url, str(fresh)).resumed
        query_starts(made, url, fresh)

    monkeypatch.setattr(marking, "check_fresh", other_first)
    with pytest.raises(RefusedError, match="has just begun"):
        restore(url, str(fresh))
    check_left_alone(made, url, fresh)


def test_only_what_was_left_over_before_is_removed(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """What is being written since then is somebody's work."""
    fresh = tmp_path / "fresh"
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh))
    left = fresh / "state/0/0/.1.delta.018bcfe5-6800-7000-8000-000000000000.tmp"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("half")
    restore(url, str(fresh), progress=once(lambda: (fresh / HALF).write_text("half"), at_end=True))
    assert contents(fresh) == {**needed(made, 2), HALF: b"half"}


def test_what_another_process_has_restored_is_not_undone(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Both find the newest checkpoint damaged; the first has gone back to the one before, and is done."""
    fresh, newest = tmp_path / "fresh", CheckpointStore.open(url).load_latest()
    assert newest is not None
    damage(url, newest, "flip")

    def other() -> None:
        assert restore(url, str(fresh)).epoch == 1

    with pytest.raises(RefusedError, match="finished it"):
        restore(url, str(fresh), progress=once(other))
    left, wanted = contents(fresh), needed(made, 1)
    assert {path: left.get(path) for path in wanted} == wanted
    late = set(left) - set(wanted)
    assert late <= {path for path in needed(made, 2) if path.startswith("state/")}, (
        "what was under way when the other one finished is a state file, which Spark writes over"
    )


def test_a_mark_of_before_it_said_whose_it_is_is_gone_on_with(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """An older version was interrupted, and this one repeats the restore."""
    fresh = tmp_path / "fresh"
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh))
    fields = json.loads((fresh / RESTORE_MARKER).read_text())
    del fields["nonce"]
    (fresh / RESTORE_MARKER).write_text(json.dumps(fields))
    assert restore(url, str(fresh)).resumed
    assert contents(fresh) == needed(made, 2)


def test_where_nothing_can_be_compared_and_swapped_several_share_the_mark(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop's file systems would lose it while it is replaced. Whoever finishes first is the one."""
    fresh, put = tmp_path / "fresh", LocalStore.put
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh))
    mark = (fresh / RESTORE_MARKER).read_bytes()

    def without_swap(self: LocalStore, key: str, data: Any, **conditions: Any) -> Any:
        if key == RESTORE_MARKER:
            assert conditions.get("if_match") is not None, "it is never replaced as it is"
            raise Invalid("no compare and swap", key=key)
        return put(self, key, data, **conditions)

    def other() -> None:
        assert (fresh / RESTORE_MARKER).read_bytes() == mark
        assert restore(url, str(fresh)).resumed
        query_starts(made, url, fresh)

    monkeypatch.setattr(LocalStore, "put", without_swap)
    with pytest.raises(RefusedError, match="finished it"):
        restore(url, str(fresh), progress=once(other))
    check_left_alone(made, url, fresh)


def test_dying_at_any_step_of_going_on_leaves_what_repeating_finishes(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """Also where the mark is taken over from the one that died before."""

    def interrupted(name: str) -> tuple[str, str]:
        store, fresh = str(tmp_path / f"store-{name}"), str(tmp_path / f"fresh-{name}")
        capture(made, store, 2)
        with living(Life(4)), pytest.raises(SimulatedCrash):
            restore(store, fresh)
        return store, fresh

    counted = Life()
    whole = interrupted("counted")
    with living(counted):
        restore(*whole)
    assert counted.steps > 10
    for step in range(counted.steps):
        store, fresh = interrupted(str(step))
        with living(Life(step)), pytest.raises(SimulatedCrash):
            restore(store, fresh)
        if contents(Path(fresh)) != needed(made, 2):
            assert restore(store, fresh).resumed
        assert contents(Path(fresh)) == needed(made, 2), f"died after step {step}"
