"""A restore that dies at every single step, and what else can happen to one on its way. No Spark."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from pyspark_checkpoint.errors import FormatError, RefusedError, UnknownVersion
from pyspark_checkpoint.format.envelope import encode_sealed
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import ManifestKind
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.restorer import execute as restoring
from pyspark_checkpoint.restorer import file_writer as writing
from pyspark_checkpoint.restorer import lock as marking
from pyspark_checkpoint.restorer.api import restore
from pyspark_checkpoint.restorer.lock import find_interrupted
from pyspark_checkpoint.restorer.plan import IN_USE, RESTORE_MARKER, check_fresh
from pyspark_checkpoint.spark_files.location import LocationSpec
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.testing.faulty_store import SimulatedCrash
from tests.restorer.test_restore_rules import damage
from tests.support.made_location import MadeLocation, capture, contents, needed

STEPS: list[tuple[type[object], str]] = [(LocalStore, "put"), (LocalStore, "delete")]
STEPS += [(writing.DiskWriter, "write_chunks"), (writing.DiskWriter, "sync")]
"""Everything that changes a store or a location. A death at a read is one after the change before it."""


class Life:
    """A process that dies when its n-th change has taken effect, and changes nothing from then on."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.steps = 0
        self._dies_after = dies_after
        self._lock = threading.Lock()

    def step(self, work: Callable[[], Any]) -> Any:
        """Change something, or die."""
        with self._lock:
            self.steps += 1
            number = self.steps
            if self._dies_after is not None and number > self._dies_after:
                raise SimulatedCrash
        done = work()
        if number == self._dies_after:
            raise SimulatedCrash
        return done


@contextmanager
def living(life: Life) -> Iterator[None]:
    """Count, and cut short, what this process does to stores and locations."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, verb in STEPS:
            inner = getattr(owner, verb)

            def stepped(*args: Any, inner: Any = inner, **kwargs: Any) -> Any:
                return life.step(lambda: inner(*args, **kwargs))

            patch.setattr(owner, verb, stepped)
        yield


@pytest.fixture
def made(tmp_path: Path) -> MadeLocation:
    return MadeLocation(tmp_path / "location").commit(0, 1, 2)


@pytest.fixture
def url(made: MadeLocation, tmp_path: Path) -> str:
    capture(made, str(tmp_path / "store"), 0, 1, 2)
    return str(tmp_path / "store")


def check_unfinished(fresh: Path, whole: dict[str, bytes]) -> None:
    """What a query would find after a death: nothing to start from, or the mark, never a wrong byte."""
    found = contents(fresh)
    is_marked = found.pop(RESTORE_MARKER, None) is not None
    seen = {name: data for name, data in found.items() if name.startswith(IN_USE) and "/." not in name}
    assert is_marked or not seen or seen == whole
    assert all(whole[name] == data for name, data in seen.items())
    if any(name.startswith("commits/") for name in seen):
        assert seen == whole, "commits come last"


@pytest.mark.parametrize("epoch", [1, 2])
def test_dying_at_any_step_leaves_what_repeating_finishes(
    made: MadeLocation, url: str, tmp_path: Path, epoch: int
) -> None:
    """An earlier epoch, with its rollback, and the newest: before and after every change there is."""
    whole = needed(made, epoch)
    counted = Life()
    with living(counted):
        shutil.copytree(url, tmp_path / "counted")
        restore(str(tmp_path / "counted"), str(tmp_path / "first"), epoch=epoch)
    assert counted.steps > 15
    for step in range(counted.steps):
        store, fresh = tmp_path / f"store-{step}", tmp_path / f"fresh-{step}"
        shutil.copytree(url, store)
        with living(Life(step)), pytest.raises(SimulatedCrash):
            restore(str(store), str(fresh), epoch=epoch)
        check_unfinished(fresh, whole)
        if not fresh.exists() or contents(fresh) != whole:
            assert restore(str(store), str(fresh), epoch=epoch).epoch == epoch
        assert contents(fresh) == whole, f"died after step {step}"
        assert list(CheckpointStore.open(str(store)).verify()) == []
        newest = CheckpointStore.open(str(store)).load_latest()
        assert newest is not None
        assert newest.epoch == epoch
        assert newest.kind in (ManifestKind.ROLLBACK, ManifestKind.CLAIM)
        shutil.rmtree(store)
        shutil.rmtree(fresh)


def test_what_a_killed_restore_had_half_written_goes_when_it_is_finished(
    made: MadeLocation, url: str, tmp_path: Path
) -> None:
    """A kill leaves hidden files, large ones perhaps; nobody else would ever remove them."""
    fresh = tmp_path / "fresh"
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh), clone=False)
    assert (fresh / RESTORE_MARKER).exists()
    half = fresh / "state/0/0/.1.delta.018bcfe5-6800-7000-8000-000000000000.tmp"
    half.parent.mkdir(parents=True, exist_ok=True)
    half.write_bytes(b"half")
    restore(url, str(fresh))
    assert contents(fresh) == needed(made, 2)


def test_an_interrupted_restore_says_which_one_it_was(made: MadeLocation, url: str, tmp_path: Path) -> None:
    """A newer checkpoint was made meanwhile: `latest` is another one now, and the first can be finished."""
    fresh = tmp_path / "fresh"
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    with living(Life(5)), pytest.raises(SimulatedCrash):
        restore(url, str(fresh))
    made.commit(3)
    capture(made, url, 3)
    with pytest.raises(
        RefusedError, match=f"checkpoint {newest.checkpoint_id}, was interrupted"
    ) as refused:
        restore(url, str(fresh))
    assert f"--at {newest.checkpoint_id}" in str(refused.value)
    assert restore(url, str(fresh), at=newest.checkpoint_id).resumed
    assert contents(fresh) == needed(made, 2)


def test_two_restores_into_one_place_are_one(
    made: MadeLocation, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found it fresh; only one of them gets to mark it."""
    fresh = tmp_path / "fresh"
    check = check_fresh

    def other_first(keys: list[str], *, is_ours: bool) -> None:
        check(keys, is_ours=is_ours)
        monkeypatch.setattr(marking, "check_fresh", check)
        with living(Life(5)), pytest.raises(SimulatedCrash):
            restore(url, str(fresh), epoch=0)

    monkeypatch.setattr(marking, "check_fresh", other_first)
    with pytest.raises(RefusedError, match="has just begun"):
        restore(url, str(fresh), epoch=2)
    assert restore(url, str(fresh), epoch=0).resumed
    assert contents(fresh) == needed(made, 0)


@pytest.mark.parametrize("mark", [b"", b"{", b"[]", b'{"query_id":"x"}', b'{"content_sha256":""}'])
def test_a_mark_that_cannot_be_read_is_no_fresh_location(url: str, tmp_path: Path, mark: bytes) -> None:
    """Whoever wrote it, half of a state may be there."""
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / RESTORE_MARKER).write_bytes(mark)
    with pytest.raises(FormatError, match="not what a restore writes"):
        find_interrupted(LocationSpec(str(fresh)).open())
    (fresh / "offsets").mkdir()
    (fresh / "offsets" / "2").write_text("somebody's")
    with pytest.raises(RefusedError, match="not what a restore writes"):
        restore(url, str(fresh))
    assert contents(fresh) == {RESTORE_MARKER: mark, "offsets/2": b"somebody's"}, "nothing was undone"


def test_a_store_is_no_place_for_a_query(url: str) -> None:
    """A slip of the hand: the history's own place as the location."""
    before = contents(Path(url))
    with pytest.raises(RefusedError, match="store of checkpoints"):
        restore(url, url)
    assert contents(Path(url)) == before


def test_the_newest_whole_checkpoint_is_found_behind_a_damaged_manifest(
    made: MadeLocation, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The history goes on from the one that was restored, by a rollback over the damage."""
    history = CheckpointStore.open(url)
    damaged = max(history.list_ids())
    path = Path(url, manifest_key(damaged))
    path.write_bytes(path.read_bytes().replace(b'"epoch":2', b'"epoch":3', 1))
    with caplog.at_level(logging.WARNING):
        assert restore(url, str(tmp_path / "fresh")).epoch == 1
    assert f"skipped checkpoint {damaged}" in caplog.text
    assert contents(tmp_path / "fresh") == needed(made, 1)
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    assert (newest.kind, newest.epoch) == (ManifestKind.ROLLBACK, 1)


def test_what_a_newer_version_wrote_is_not_thrown_away(url: str, tmp_path: Path) -> None:
    """It is not damaged; going back behind it, with a rollback, would lose it."""
    newest = max(CheckpointStore.open(url).list_ids())
    path = Path(url, manifest_key(newest))
    fields = orjson.loads(path.read_bytes())
    fields.pop("self_sha256")
    path.write_bytes(encode_sealed({**fields, "version": 99}))
    before = contents(Path(url))
    with pytest.raises(UnknownVersion):
        restore(url, str(tmp_path / "fresh"))
    assert contents(Path(url)) == before


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state file is larger than a piece, and is brought to the disk at once."""
    monkeypatch.setattr(restoring, "DISK_PIECE_BYTES", 7_000)
    monkeypatch.setattr(restoring, "CHUNK_BYTES", 7_000)
    monkeypatch.setattr(writing, "_SYNC_NOW_BYTES", 7_000)
    monkeypatch.setattr(writing.LocationWriter, "whole_bytes", 0)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("place", ["memory", "file"])
def test_large_files_are_written_piece_by_piece(made: MadeLocation, tmp_path: Path, place: str) -> None:
    """From a disk and from elsewhere, with several pieces asked for at a time: every byte is right."""
    url = str(tmp_path / "pieces") if place == "file" else "memory://pieces"
    capture(made, url, 2)
    restore(url, str(tmp_path / "fresh"), clone=False)
    assert contents(tmp_path / "fresh") == needed(made, 2)
    restore(url, f"memory://pieces-location/{place}", clone=False)
    there = LocationSpec(f"memory://pieces-location/{place}").open().store
    assert {info.key: there.get(info.key) for info in there.list()} == needed(made, 2)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("how", ["delete", "truncate", "flip"])
def test_a_damaged_large_file_is_never_visible(
    made: MadeLocation, url: str, tmp_path: Path, how: str
) -> None:
    """Its pieces are right until the last: nothing of it has a name before that."""
    newest = CheckpointStore.open(url).load_latest()
    assert newest is not None
    damage(url, newest, how)
    bad = next(ref for ref in newest.artifacts() if ref.path and ref.epoch == newest.epoch)
    with pytest.raises(FormatError):
        restore(url, str(tmp_path / "bad"), at=newest.checkpoint_id)
    names = [name.rpartition("/")[2] for name in contents(tmp_path / "bad")]
    assert bad.name.rpartition("/")[2] not in names or how != "flip"
    check_unfinished(tmp_path / "bad", needed(made, 2))
    assert restore(url, str(tmp_path / "good")).epoch == 1
    assert contents(tmp_path / "good") == needed(made, 1)
