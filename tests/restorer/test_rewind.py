"""A query goes back whole: location, outputs and history; killed anywhere it is finished by repeating."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint import rewind
from pyspark_checkpoint.errors import Diverged, FormatError, InUse, RefusedError, SettingsError
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.registry.queries import QueryRoot, register
from pyspark_checkpoint.restorer.api import restore, savepoint
from pyspark_checkpoint.restorer.lock import find_interrupted
from pyspark_checkpoint.restorer.plan import RESTORE_MARKER
from pyspark_checkpoint.restorer.rewind import RewindReport
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.cli.conftest import ckpt
from tests.cli.kit import Shell
from tests.outputs.test_ckpt_sink import save_rows
from tests.restorer.test_restore_rules import damage
from tests.restorer.test_restore_steps import Life, living
from tests.support.made_location import QUERY_ID, MadeLocation, capture, contents, needed
from tests.support.made_output import MadeOutput, use_output
from tests.support.made_stream import MadeStream, totals_after

__all__ = ["ckpt"]
EPOCH = 1


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    """A query at batch 3, of which batches 0 to 2 are captured."""
    return MadeLocation(tmp_path / "location").commit(0, 1, 2, 3)


@pytest.fixture
def url(made: MadeLocation, tmp_path: Path) -> str:
    capture(made, str(tmp_path / "store"), 0, 1, 2)
    return str(tmp_path / "store")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> MadeOutput:
    return use_output(monkeypatch, MadeOutput(*((QUERY_ID, batch) for batch in range(4))))


def beside(location: Path) -> list[Path]:
    """What lies beside a location and begins with its name."""
    return [path for path in location.parent.glob(f"{location.name}.*") if contents(path)]


@contextmanager
def renaming(life: Life) -> Iterator[None]:
    """As ``living``, and renames are steps too. A rename of a store is part of its put."""
    rename = Path.rename

    def stepped(self: Path, target: Path) -> Any:
        return life.step(lambda: rename(self, target)) if self.is_dir() else rename(self, target)

    with living(life), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", stepped)
        for verb in ("put", "delete"):
            inner = getattr(MemoryStore, verb)

            def changing(*args: Any, inner: Any = inner, **kwargs: Any) -> Any:
                return life.step(lambda: inner(*args, **kwargs))

            patch.setattr(MemoryStore, verb, changing)
        yield


def test_a_query_goes_back_whole(made: MadeLocation, url: str, output: MadeOutput, tmp_path: Path) -> None:
    """The old location is kept as it was; nothing is marked any more."""
    whole, before = needed(made, EPOCH), contents(made.path)
    done = rewind(url, epoch=EPOCH)
    assert contents(made.path) == whole
    assert contents(Path(done.set_aside)) == before
    assert beside(made.path) == [Path(done.set_aside)]
    assert output.position(QUERY_ID).batch_id == EPOCH
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, EPOCH)
    assert [(move.before, move.after) for move in done.plan.moves] == [("2", "1")]
    assert "stops at the removed files" in done.plan.readers[0]
    assert not (tmp_path / "fresh").exists()


def test_a_dry_run_says_it_and_changes_nothing(made: MadeLocation, url: str, output: MadeOutput) -> None:
    """What it prints is what is done."""
    before = contents(made.path), contents(Path(url))
    said = rewind(url, epoch=EPOCH, dry_run=True)
    assert (contents(made.path), contents(Path(url)), output.version) == (*before, 4)
    assert said.restored is None
    assert rewind(url, epoch=EPOCH).plan == said.plan


@dataclass
class Killed:
    """A query at batch 3 with an output, and rewinds of it that may die on the way."""

    url: str
    """Its history, of batches 0 to 2; savepoint ``good`` keeps batch 1."""
    made: MadeLocation
    home: Path
    monkeypatch: pytest.MonkeyPatch
    kind: str
    """Where its location is: ``renamed`` (on a disk), ``in place`` (objects), ``gone``."""
    store: str = ""
    place: str = ""
    output: MadeOutput = field(default_factory=MadeOutput)

    def begin(self, name: str) -> None:
        """A copy of everything, of which a rewind may be killed."""
        root = self.home / name
        self.store, self.place = str(root / "store"), str(root / "location")
        shutil.copytree(self.url, self.store)
        self.output = use_output(self.monkeypatch, MadeOutput(*((QUERY_ID, batch) for batch in range(4))))
        if self.kind == "renamed":
            shutil.copytree(self.made.path, self.place)
        elif self.kind == "in place":
            self.place = f"memory://rewound/{root.parent.name}/{name}"
            for path, data in contents(self.made.path).items():
                open_object_store(self.place).put(path, data)

    def rewind(self, life: Life, **way: Any) -> RewindReport:
        """Go back, as long as this life lasts."""
        self.output.change = life.step
        with renaming(life):
            return rewind(self.store, to=self.place, **way)

    def found(self) -> dict[str, bytes]:
        """What is in the location."""
        if self.kind == "in place":
            there = open_object_store(self.place)
            return {info.key: there.get(info.key) for info in there.list()}
        return contents(Path(self.place))

    def everything(self) -> tuple[object, ...]:
        """All that a rewind changes."""
        return self.found(), contents(Path(self.store)), self.output.commits

    def check(self, epoch: int, step: int) -> None:
        """As after a rewind that nobody killed: location, output and history, and nothing marked."""
        assert self.found() == needed(self.made, epoch), f"killed after step {step}"
        assert self.output.position(QUERY_ID).batch_id == epoch
        history = CheckpointStore.open(self.store)
        assert list(history.verify(read_artifacts=False)) == []
        newest = history.load_latest()
        assert newest is not None
        assert newest.epoch == epoch
        aside = [path for path in beside(Path(self.place)) if ".before-rewind-" in path.name]
        assert len(aside) == (self.kind == "renamed"), f"killed after step {step}"

    def rollbacks(self) -> list[int]:
        """To which checkpoints the history was rolled back."""
        history = CheckpointStore.open(self.store)
        made = [history.load_by_id(number) for number in history.list_ids()]
        return [found.rollback_of or 0 for found in made if found and found.kind is ManifestKind.ROLLBACK]


WAYS: dict[str, dict[str, Any]] = {
    "epoch": {"epoch": EPOCH},
    "number": {"at": 2},
    "savepoint": {"at": "good"},
    "time": {"timestamp_ms": 0},
}
"""How batch 1 is chosen; the time is that of its checkpoint."""
KINDS = ("renamed", "in place", "gone")
CHOSEN = [*(("renamed", way) for way in WAYS), *((kind, "number") for kind in KINDS[1:])]


@pytest.fixture
def killed(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Killed:
    history = CheckpointStore.open(url)
    history.savepoint("good", 2)
    chosen = history.load_by_id(2)
    assert chosen is not None
    monkeypatch.setitem(WAYS, "time", {"timestamp_ms": chosen.timestamp_ms})
    return Killed(url, made, tmp_path / "killed", monkeypatch, request.param)


@pytest.mark.parametrize(("killed", "way"), CHOSEN, indirect=["killed"])
def test_a_rewind_killed_at_any_step_is_finished_by_repeating_it(killed: Killed, way: str) -> None:
    """What was done is found: one rollback in the history, one of the output, one location set aside.

    Meanwhile a query finds its old location, the new one, or a mark that stops it.
    """
    counted, whole, before = Life(), needed(killed.made, EPOCH), contents(killed.made.path)
    killed.begin("counted")
    killed.rewind(counted, **WAYS[way])
    killed.check(EPOCH, -1)
    for step in range(counted.steps):
        killed.begin(str(step))
        with pytest.raises(SimulatedCrash):
            killed.rewind(Life(step), **WAYS[way])
        left = killed.found()
        assert RESTORE_MARKER in left or not left or left in (before, whole)
        if killed.output.steps and left and left != whole:
            assert find_interrupted(LocationSpec(killed.place).open()) == QUERY_ID
        killed.rewind(Life(), **WAYS[way])
        killed.check(EPOCH, step)
        assert killed.rollbacks() == [2], f"killed after step {step}"
        assert killed.output.steps == [f"rolled back to {EPOCH}"]
        assert len(beside(Path(killed.place))) == (killed.kind == "renamed")
        shutil.rmtree(killed.home / str(step))


@pytest.mark.parametrize("other", [0, 2])
@pytest.mark.parametrize("killed", KINDS, indirect=True)
def test_another_rewind_after_a_kill_is_refused_or_whole(killed: Killed, other: int) -> None:
    """Nothing is changed, and the first one can be finished; or the query is where the second went."""
    counted, refusals = Life(), 0
    killed.begin("counted")
    killed.rewind(counted, epoch=EPOCH)
    for step in range(counted.steps):
        killed.begin(str(step))
        with pytest.raises(SimulatedCrash):
            killed.rewind(Life(step), epoch=EPOCH)
        before = killed.everything()
        try:
            killed.rewind(Life(), epoch=other)
        except RefusedError:
            refusals += 1
            assert killed.everything() == before
            killed.rewind(Life(), epoch=EPOCH)
            killed.check(EPOCH, step)
            assert killed.rollbacks() == [2]
        else:
            killed.check(other, step)
        shutil.rmtree(killed.home / str(step))
    assert refusals > 0


def refused(work: Callable[[], object], kind: type[Exception], match: str, *unchanged: Path) -> None:
    """Nothing was changed, and nothing is marked."""
    before = [contents(path) for path in unchanged]
    with pytest.raises(kind, match=match):
        work()
    assert [contents(path) for path in unchanged] == before


def test_what_cannot_be_done_is_refused_first(made: MadeLocation, url: str, output: MadeOutput) -> None:
    """Nobody said how far; another's commits would go; another restore there is not finished."""
    places = (made.path, Path(url))
    refused(lambda: rewind(url), SettingsError, "how far back", *places)
    refused(lambda: rewind(url, epoch=9), RefusedError, "no epoch 9", *places)
    output.write("another", 5)
    refused(lambda: rewind(url, epoch=EPOCH), Diverged, "batch 5 of another", *places)
    refused(lambda: rewind(url, epoch=EPOCH, sink="fail"), Diverged, "drop batches 2 to 3", *places)
    mark = {"content_sha256": "other", "query_id": QUERY_ID, "checkpoint_id": 3}
    (made.path / RESTORE_MARKER).write_text(json.dumps(mark))
    again = rewind
    refused(
        lambda: again(url, epoch=EPOCH, drop_others=True), InUse, "checkpoint 3, was interrupted", made.path
    )
    assert output.version == 5


def test_a_damaged_checkpoint_is_found_before_anything_goes_back(
    made: MadeLocation, url: str, output: MadeOutput, tmp_path: Path
) -> None:
    """On a disk and in place: the history is not taken over, and the location not marked."""
    manifest = CheckpointStore.open(url).load_by_id(2)
    newest = CheckpointStore.open(url).load_latest()
    assert manifest is not None
    damage(url, newest or manifest, "flip")
    place = "memory://damaged/location"
    for path, data in contents(made.path).items():
        open_object_store(place).put(path, data)
    before = contents(made.path), CheckpointStore.open(url).list_ids()
    for to in (None, place):
        with pytest.raises(FormatError):
            rewind(url, at="latest", to=to)
    assert (contents(made.path), CheckpointStore.open(url).list_ids()) == before
    assert find_interrupted(LocationSpec(place).open()) is None
    assert output.version == 4
    rewind(url, epoch=0)
    assert contents(made.path) == needed(MadeLocation(tmp_path / "location"), 0)


def test_a_query_that_runs_is_noticed(made: MadeLocation, url: str, output: MadeOutput) -> None:
    """It has committed a batch since: neither its output nor its location is taken from it."""
    whole = contents(made.path)

    def progress(_done: int, _total: int) -> None:
        (made.path / "offsets" / "4").write_text("v1\n{}\n{}")

    with pytest.raises(InUse, match="a query runs in"):
        rewind(url, epoch=EPOCH, progress=progress)
    assert output.version == 4
    assert contents(made.path) == {**whole, "offsets/4": b"v1\n{}\n{}"}


def test_a_query_that_commits_right_before_the_swap_is_noticed_after_it(
    made: MadeLocation, url: str, output: MadeOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are in the output that went back: repeating takes them out; until then nothing starts."""
    rename, is_late = Path.rename, [True]

    def late(self: Path, target: Path) -> Path:
        if self == made.path and is_late.pop():
            made.commit(4)
            output.write(QUERY_ID, 4)
            is_late.append(False)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    whole = needed(made, EPOCH)
    with pytest.raises(InUse, match="it has written there since"):
        rewind(url, epoch=EPOCH)
    assert output.position(QUERY_ID).batch_id == 4
    assert find_interrupted(LocationSpec(str(made.path)).open()) == QUERY_ID
    rewind(url, epoch=EPOCH)
    assert contents(made.path) == whole
    assert output.position(QUERY_ID).batch_id == EPOCH


def test_the_location_is_where_the_query_started_last(
    made: MadeLocation, tmp_path: Path, output: MadeOutput
) -> None:
    """What a checkpoint says may be older than that: the location was moved since."""
    parent = tmp_path / "parent"
    capture(made, str(parent / QUERY_ID), 0, 1, 2)
    moved = tmp_path / "moved"
    made.path.rename(moved)
    register(open_object_store(str(parent)), QueryRoot("orders", QUERY_ID, "", 1, "", str(moved)))
    savepoint(str(parent), "good", query="orders", at="epoch=0")
    done = rewind(str(parent), query="orders", at="good")
    assert done.plan.location == str(moved)
    assert not made.path.exists()
    assert output.position(QUERY_ID).batch_id == 0


@pytest.mark.usefixtures("output")
def test_a_location_that_is_gone_is_restored_there(made: MadeLocation, url: str) -> None:
    """The machine is lost and the last deployment was bad: one command."""
    whole = needed(made, EPOCH)
    shutil.rmtree(made.path)
    done = rewind(url, epoch=EPOCH)
    assert (contents(made.path), done.set_aside) == (whole, "")
    assert done.restored is not None
    assert done.restored.rolled_back[0].batch_id == EPOCH


def test_a_restore_does_not_take_the_place_of_a_rewind(
    made: MadeLocation, url: str, output: MadeOutput
) -> None:
    """Between two steps the location has the mark of the rewind, and what a query wrote."""
    counted = Life(1)
    with renaming(counted), pytest.raises(SimulatedCrash):
        rewind(url, epoch=EPOCH)
    before = contents(made.path)
    for epoch in (EPOCH, 2):
        with pytest.raises(InUse):
            restore(url, str(made.path), epoch=epoch, sink="warn")
    assert contents(made.path) == before
    assert output.version == 4


@pytest.mark.parametrize("version", [1, 2])
def test_a_query_whose_state_is_in_its_table_goes_back_with_it(tmp_path: Path, version: int) -> None:
    """Rows, state and location by one rollback; then it writes what it would have written."""
    stream = MadeStream(tmp_path, version=version)
    stream.run(6)
    done = rewind(str(stream.table), to=str(stream.location), epoch=2, location_options={})
    assert done.plan.restore.done_batch == 2
    assert stream.rows() == totals_after(2)
    stream.touch_all()
    stream.start()
    assert stream.next_batch() == 3
    stream.run(3)
    assert stream.rows() == stream.whole_state(6) == totals_after(5)


def test_what_another_wrote_to_the_table_is_named_before_its_query_goes_back(tmp_path: Path) -> None:
    """It would no longer be in the table, and nobody has said that it may go."""
    stream = MadeStream(tmp_path, version=1)
    stream.run(4)
    history = CheckpointStore.open(str(stream.table))
    history.save(CheckpointManifest.new(0, 4))
    before = history.list_ids()
    where: dict[str, Any] = {"to": str(stream.location), "epoch": 2, "location_options": {}}
    with pytest.raises(Diverged, match=r"not of this query.*epoch 4 of a batch job"):
        rewind(str(stream.table), **where)
    assert history.list_ids() == before
    rewind(str(stream.table), **where, drop_others=True)
    assert stream.rows() == totals_after(2)


def test_a_table_without_state_goes_back_with_its_query(tmp_path: Path, made: MadeLocation) -> None:
    """As a recorded rollback of its own history; the dry run names the checkpoint."""
    url, table_url = str(tmp_path / "other"), str(tmp_path / "table")
    capture(made, url, 0, 1, 2, 3, sink=f"ckpt-sink {table_url}")
    table = save_rows(table_url, {epoch: epoch for epoch in range(4)})
    done = rewind(url, epoch=EPOCH)
    assert (done.plan.restore.table_target, len(done.plan.readers)) == (2, 1)
    newest = table.load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, EPOCH)
    assert contents(made.path)[f"commits/{EPOCH}"]
    assert not (made.path / "commits" / "2").exists()


@pytest.mark.usefixtures("output")
def test_the_command_prints_what_goes_back_where(ckpt: Shell, url: str, made: MadeLocation) -> None:
    """People get lines, programs the plan."""
    typed = ("rewind", url, "--epoch", str(EPOCH))
    said = ckpt(*typed, "--dry-run").out
    for line in (
        "would go back to batch 1",
        "by a recorded rollback",
        "from 2 to 1",
        "output: the delta output made to batch 1",
        "readers: readers see the earlier rows",
        f"location: {made.path}",
        "nothing was changed",
    ):
        assert line in said
    plan = json.loads(ckpt(*typed, "--dry-run", "--json").out)
    assert (plan["batch_id"], plan["dry_run"], plan["set_aside"]) == (EPOCH, True, None)
    done = ckpt(*typed)
    assert done.status == 0
    assert "is kept as" in done.out
    assert ckpt("rewind", url).status == 2
