"""A restore brings the query's outputs along, or is refused: its order, and a death at each step."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from pyspark_checkpoint.errors import Diverged, RefusedError, SettingsError, Unsupported
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.outputs.output import Output
from pyspark_checkpoint.restorer import api as operations
from pyspark_checkpoint.restorer.api import RestoreRequest, dry_run, restore
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.cli.conftest import ckpt
from tests.cli.kit import Shell
from tests.restorer.test_restore_steps import Life, check_unfinished, living
from tests.support.made_location import QUERY_ID, MadeLocation, capture, contents, needed
from tests.support.made_output import MadeOutput, use_output

__all__ = ["ckpt"]
OTHERS = "another query"


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2, 3)


@pytest.fixture
def url(made: MadeLocation, tmp_path: Path) -> str:
    capture(made, str(tmp_path / "store"), 0, 1, 2)
    return str(tmp_path / "store")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> MadeOutput:
    """It has batch 3 too, which nobody has captured."""
    return use_output(monkeypatch, MadeOutput(*((QUERY_ID, batch) for batch in range(4))))


def test_an_output_that_is_ahead_is_refused_with_the_ways(
    url: str, output: MadeOutput, tmp_path: Path
) -> None:
    """Nothing is written, not even where the newest checkpoint is meant."""
    before = contents(Path(url))
    with pytest.raises(Diverged, match=r"drop batch 3 by number.*--sink rollback.*another target"):
        restore(url, str(tmp_path / "fresh"))
    with pytest.raises(Diverged, match="drop batches 2 to 3"):
        dry_run(RestoreRequest(url, str(tmp_path / "fresh"), epoch=1))
    assert contents(Path(url)) == before
    assert not (tmp_path / "fresh").exists()
    assert output.version == 4


def test_the_output_goes_back_after_the_fence_and_before_the_commits(
    url: str, output: MadeOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who still writes until then may bring the output further: that goes too."""
    fresh, take_over = tmp_path / "fresh", operations._take_over

    def taking(history: CheckpointStore, number: int) -> object:
        assert (fresh / "offsets" / "1").exists()
        assert not (fresh / "commits").exists()
        assert output.steps == []
        output.write(QUERY_ID, 4)
        return take_over(history, number)

    def change(work: object) -> None:
        assert not (fresh / "commits").exists()
        newest = CheckpointStore.open(url).load_latest()
        assert newest is not None
        assert newest.kind is ManifestKind.ROLLBACK
        assert callable(work)
        work()

    monkeypatch.setattr(operations, "_take_over", taking)
    output.change = change
    report = restore(url, str(fresh), epoch=1, sink="rollback")
    assert [plan.dropped for plan in report.rolled_back] == [("batch 4", "batch 3", "batch 2")]
    assert output.commits == [(QUERY_ID, 0), (QUERY_ID, 1)]
    assert (fresh / "commits" / "1").exists()


@pytest.mark.parametrize("epoch", [1, 2])
def test_dying_at_any_step_of_going_back_leaves_what_repeating_finishes(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Before and after every change of location, history and output. No query finds half of it whole."""
    whole = needed(made, epoch)

    def begun(name: str, life: Life) -> tuple[str, Path, MadeOutput]:
        store, output = tmp_path / f"store-{name}", MadeOutput(*((QUERY_ID, batch) for batch in range(4)))
        shutil.copytree(url, store)
        output.change = life.step
        return str(store), tmp_path / f"fresh-{name}", use_output(monkeypatch, output)

    counted = Life()
    with living(counted):
        store, fresh, _ = begun("counted", counted)
        restore(store, str(fresh), epoch=epoch, sink="rollback")
    for step in range(counted.steps):
        life = Life(step)
        with living(life), pytest.raises(SimulatedCrash):
            store, fresh, output = begun(str(step), life)
            restore(store, str(fresh), epoch=epoch, sink="rollback")
        check_unfinished(fresh, whole)
        output.change = lambda work: work()
        if any(name.startswith("commits/") for name in contents(fresh)):
            assert output.position(QUERY_ID).batch_id == epoch, f"died after step {step}"
        if not fresh.exists() or contents(fresh) != whole:
            restore(store, str(fresh), epoch=epoch, sink="rollback")
        assert contents(fresh) == whole, f"died after step {step}"
        assert output.position(QUERY_ID).batch_id == epoch
        assert output.steps == [f"rolled back to {epoch}"]
        shutil.rmtree(store)
        shutil.rmtree(fresh)


def test_what_somebody_else_committed_is_named_and_stays(
    url: str, output: MadeOutput, tmp_path: Path
) -> None:
    """It would go without a word; whoever means it says so."""
    output.write(OTHERS, 7)
    with pytest.raises(Diverged, match=f"batch 7 of {OTHERS}.*--drop-others"):
        restore(url, str(tmp_path / "fresh"), sink="rollback")
    assert (OTHERS, 7) in output.commits
    assert not (tmp_path / "fresh").exists()
    restore(url, str(tmp_path / "fresh"), sink="rollback", drop_others=True)
    assert output.position(OTHERS).batch_id is None


def test_a_commit_between_plan_and_rollback_is_looked_at_again(
    url: str, output: MadeOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output refuses the plan, and the next one names what has come."""
    plan_roll_back = MadeOutput.plan_roll_back

    def racing(self: MadeOutput, query_id: str, batch_id: int) -> object:
        plan = plan_roll_back(self, query_id, batch_id)
        if (tmp_path / "fresh" / "offsets").exists() and self.position(OTHERS).batch_id is None:
            self.write(OTHERS, 1)
        return plan

    monkeypatch.setattr(MadeOutput, "plan_roll_back", racing)
    with pytest.raises(Diverged, match=f"batch 1 of {OTHERS}"):
        restore(url, str(tmp_path / "fresh"), sink="rollback")
    assert output.position(QUERY_ID).batch_id == 3
    assert not (tmp_path / "fresh" / "commits").exists()
    assert restore(url, str(tmp_path / "fresh"), sink="rollback", drop_others=True).resumed


def test_a_clone_rolls_nothing_back(url: str, output: MadeOutput, tmp_path: Path) -> None:
    """The outputs are of the query that it was cloned from."""
    with pytest.raises(SettingsError, match="leaves the query's outputs"):
        restore(url, str(tmp_path / "fresh"), clone=True, sink="rollback")
    restore(url, str(tmp_path / "fresh"), clone=True, sink="warn")
    assert output.version == 4


def test_a_clone_is_refused_while_its_original_has_later_batches(
    url: str, output: MadeOutput, tmp_path: Path
) -> None:
    """Under its new id nothing would be dropped, and their rows would be there twice."""
    with pytest.raises(Diverged, match="a clone would go on after batch 2: the rows of batch 3 would be"):
        restore(url, str(tmp_path / "fresh"), clone=True)
    assert not (tmp_path / "fresh").exists()
    assert output.version == 4


def test_an_output_that_does_not_answer_is_not_rolled_back_by_guess(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused where it was to go back; otherwise it is said, and the query goes on."""
    output = use_output(monkeypatch, MadeOutput())

    def silent(*_: object) -> object:
        raise Unsupported("no catalog", hint="name one")

    monkeypatch.setattr(output, "position", silent)
    with pytest.raises(RefusedError, match="no catalog"):
        restore(url, str(tmp_path / "fresh"), sink="rollback")
    report = restore(url, str(tmp_path / "fresh"))
    assert "no catalog" in report.notes[0]


def test_an_output_that_cannot_go_back_says_which_way_is_left(
    url: str, output: MadeOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written."""
    monkeypatch.setattr(MadeOutput, "plan_roll_back", Output.plan_roll_back)
    with pytest.raises(Unsupported, match="cannot go back to batch 1"):
        restore(url, str(tmp_path / "fresh"), epoch=1, sink="rollback")
    assert not (tmp_path / "fresh").exists()
    assert output.version == 4
    output.commits = output.commits[:2]
    assert restore(url, str(tmp_path / "fresh"), epoch=1, sink="rollback").rolled_back == ()


@pytest.mark.parametrize(
    ("sink", "becomes"),
    [
        ("KafkaTable@519aceac", "comes twice; known"),
        ("ForeachBatchSink", "comes twice, or is lost where the function drops batches by number"),
        ("HoodieStreamingSink[/table]", "is dropped by its batch numbers"),
        ("strange", "comes twice, or is lost if it drops batches by number"),
    ],
)
def test_what_becomes_of_repeated_batches_is_named_by_their_offsets(
    made: MadeLocation, tmp_path: Path, sink: str, becomes: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An output that can never be asked keeps nobody from going back. Some drop batches by number."""
    url = str(tmp_path / "other")
    capture(made, url, 0, 1, 2, 3, sink=sink)
    with caplog.at_level(logging.WARNING):
        (note,) = restore(url, str(tmp_path / "fresh"), epoch=1).notes
    assert f"what it got after batch 1 {becomes}" in note
    assert "from 1 to 3" in note
    assert note in caplog.text


@pytest.mark.usefixtures("output")
def test_the_command_shows_what_it_does(ckpt: Shell, url: str, tmp_path: Path) -> None:
    """The dry run, and what is done."""
    typed = ("restore", url, "--to", str(tmp_path / "fresh"), "--epoch", "1", "--sink", "rollback")
    assert "would roll back the delta output made to batch 1" in ckpt(*typed, "--dry-run").out
    (plan,) = json.loads(ckpt(*typed, "--dry-run", "--json").out)["roll_backs"]
    assert (plan["kind"], plan["batch_id"], plan["dropped"]) == ("delta", 1, ["batch 3", "batch 2"])
    done = ckpt(*typed)
    assert (done.status, "rolled back: the delta output made" in done.out) == (0, True)


def test_a_checkpoint_that_was_left_is_refused_though_its_number_is_there(
    url: str, output: MadeOutput, tmp_path: Path
) -> None:
    """Taken back to batch 0, the query has run other batches as 1 and 2 since; pruning forgets nothing."""
    history = CheckpointStore.open(url)
    old = history.list_ids()[-1]
    history.savepoint("before", old)
    restore(url, str(tmp_path / "back"), epoch=0, sink="rollback")
    for batch in (1, 2, 3):
        output.write(QUERY_ID, batch)
    again = MadeLocation(tmp_path / "back").commit(0, 1, 2, 3)
    capture(again, url, 1, 2, 3)
    CheckpointStore.open(url).prune(1)
    for choice in ("fail", "rollback"):
        with pytest.raises(Diverged, match=r"taken back to batch 0 since, and the .* has batch 3"):
            restore(url, str(tmp_path / "fresh"), "before", sink=choice)
    assert not (tmp_path / "fresh").exists()
    assert output.position(QUERY_ID).batch_id == 3
    assert restore(url, str(tmp_path / "fresh"), "before", sink="warn").batch_id == 2
