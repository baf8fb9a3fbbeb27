"""Append tables whose settled parts are in lists: all that walks artifacts follows them. Needs no Spark."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyspark_checkpoint.cli.main import main
from pyspark_checkpoint.errors import FormatError, Unavailable
from pyspark_checkpoint.format.manifest import CheckpointManifest
from pyspark_checkpoint.history import settle
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.manifest_diff import compare_manifests
from pyspark_checkpoint.history.replication import copy_store
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.settle import paths_below, unfolded_apart
from pyspark_checkpoint.sink.change_reader import epoch_splits
from pyspark_checkpoint.sink.table_options import parse_read_options
from pyspark_checkpoint.sink.table_reader import read_table
from pyspark_checkpoint.sink.worker_cache import CACHE
from pyspark_checkpoint.store.base import Body, ObjectStore, Version
from pyspark_checkpoint.store.local.local_store import LocalStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.store.open import open_object_store
from pyspark_checkpoint.table import compaction
from tests.support.sink_kit import Query, read_pairs, rows_from

Pairs = list[tuple[int | None, int]]
ORDERS = 6 if int(os.environ.get("SEEDS", "0")) >= 10_000 else 1
"""Random orders of events that are tried; the larger number is that of ``make test-integration``."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of three parts and of two lists, and parts that are settled at some dozens of rows."""
    monkeypatch.setattr(settle, "LIST_PARTS", 3)
    monkeypatch.setattr(settle, "LIST_LISTS", 2)
    monkeypatch.setattr(compaction, "SETTLED_BYTES", 150)


class Table:
    """A table under test and what must be in it, at every checkpoint that is left."""

    def __init__(self, path: str, **options: str) -> None:
        self.path = path
        self.options = options
        self.rows: dict[int, Pairs] = {0: []}
        self.epochs: dict[int, int] = {0: -1}
        self.pins: dict[str, int] = {}
        self.begin()

    @property
    def history(self) -> CheckpointStore:
        return CheckpointStore.open(self.path, self.options)

    @property
    def head(self) -> int:
        return max(self.rows)

    def begin(self) -> None:
        """A new start of the query."""
        CACHE.forget()
        options = {"maxDeltas": "2", **self.options}
        self.query = Query(self.path, jar=False, keys="", options=options)

    def epoch(self, *, again: bool = False, rows: int = 6) -> CheckpointManifest:
        """The next epoch, or the newest one again with other rows of the same number."""
        before = self.head
        epoch = self.epochs[before] + (not again)
        base = self.rows[before]
        if again:
            base = [pair for pair in base if pair[1] != epoch]
        pairs: Pairs = [(n, epoch) for n in range(rows)]
        manifest = self.query.epoch(epoch, pairs)
        number = manifest.checkpoint_id
        self.rows[number], self.epochs[number] = sorted([*base, *pairs]), epoch
        return manifest

    def rollback(self, number: int) -> None:
        made = self.history.rollback(number).checkpoint_id
        self.rows[made], self.epochs[made] = self.rows[number], self.epochs[number]
        self.begin()

    def check(self) -> None:
        """Everything that is left is whole, and is what was written."""
        assert list(self.history.verify()) == []
        for summary in self.history.summaries():
            pairs = read_pairs(self.path, checkpointId=str(summary.number), **self.options)
            assert pairs == self.rows[summary.number], summary.number

    def keys(self) -> set[str]:
        return {info.key for info in open_object_store(self.path).list("checkpoints/")}

    def reachable(self) -> set[str]:
        """All objects that the checkpoints which are left need."""
        store = open_object_store(self.path)
        found: set[str] = set()
        for summary in self.history.summaries():
            found |= summary.paths | paths_below(store, summary.settled)
        return found


def head_of(store: ObjectStore) -> CheckpointManifest:
    head = find_head(store)
    assert head is not None
    return head.manifest


def test_parts_move_to_lists_and_every_checkpoint_keeps_its_rows(path: str) -> None:
    """Forty epochs: lists of three levels, manifests that do not grow, and nothing that is missing."""
    table, sizes = Table(path), []
    for _ in range(40):
        manifest = table.epoch()
        sizes.append(len(Path(path, f"manifests/manifest-{manifest.checkpoint_id:010d}.json").read_bytes()))
    table.check()
    levels = [ref.level for ref in manifest.settled()]
    assert max(levels) >= 2
    assert max(sizes[20:]) < 1.2 * max(sizes[:20])
    parts = sum(ref.part_count for ref in manifest.settled())
    assert parts + len([ref for ref in manifest.artifacts() if ref.name != "settled"]) >= 20


def test_a_repeated_epoch_is_never_in_a_list(path: str) -> None:
    """Also if the first run of it has moved parts to a list, or had rows too many to be joined."""
    table = Table(path)
    for turn in range(12):
        table.epoch(rows=30 if turn % 3 else 6)
        manifest = table.epoch(again=True, rows=4)
        assert all(ref.epoch < manifest.epoch for ref in manifest.settled())
    table.check()


@pytest.mark.parametrize("seed", range(ORDERS))
def test_any_sequence_of_events_leaves_what_is_needed_and_removes_the_rest(path: str, seed: int) -> None:
    """Epochs, rollbacks, savepoints, prunes, deletions and clean-ups in any order."""
    chance, table = random.Random(seed), Table(path)
    for _ in range(5):
        table.epoch()
    for step in range(40):
        numbers = [summary.number for summary in table.history.summaries()]
        what = chance.choices(
            ["epoch", "again", "rollback", "savepoint", "unpin", "prune", "delete", "gc", "start"],
            [12, 2, 2, 2, 1, 3, 1, 1, 1],
        )[0]
        if what == "epoch":
            table.epoch()
        elif what == "again":
            table.epoch(again=True)
        elif what == "rollback":
            table.rollback(chance.choice(numbers))
        elif what == "savepoint":
            table.pins[f"s{step}"] = table.history.savepoint(
                f"s{step}", chance.choice(numbers)
            ).checkpoint_id
        elif what == "unpin" and table.pins:
            name = chance.choice(sorted(table.pins))
            del table.pins[name]
            table.history.remove_savepoint(name)
        elif what == "prune":
            table.history.prune(chance.randint(1, 5))
        elif what == "delete":
            control = {*table.pins.values(), table.head}
            free = [n for n in numbers if n not in control and n > max(numbers) - 3]
            if free and not table.pins:
                table.history.delete_checkpoint(chance.choice(free))
        elif what == "gc":
            table.history.cleanup_orphans(grace_ms=-60_000)
        elif what == "start":
            table.begin()
        if what in ("rollback", "prune", "delete", "gc", "unpin"):
            table.check()
    table.check()
    table.history.prune(1)
    table.history.cleanup_orphans(grace_ms=-60_000)
    table.check()
    assert table.keys() == table.reachable()


def test_a_commit_that_dies_after_its_lists_leaves_orphans_and_nothing_else(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are durable before the manifest; the next attempt makes its own, and clean-up takes these."""
    table, lost = Table(path), 0

    def die(*_: object) -> CheckpointManifest:
        raise Unavailable("the process dies here")

    for _ in range(12):
        before = table.keys()
        with monkeypatch.context() as patched:
            patched.setattr(Run, "publish", die)
            with pytest.raises(Unavailable):
                table.epoch()
        lost += sum("/list-" in key for key in table.keys() - before)
        table.begin()
        table.epoch()
    assert lost >= 3
    table.check()
    table.history.cleanup_orphans(grace_ms=-60_000)
    table.check()
    assert table.keys() == table.reachable()


def test_prune_removes_all_below_the_lists_of_a_table_that_was_overwritten(path: str) -> None:
    """The lists are dead then, with everything below them; none is left for the clean-up."""
    table = Table(path)
    for _ in range(25):
        table.epoch()
    assert any(ref.level >= 1 for ref in head_of(open_object_store(path)).settled())
    batch = Query(path, query_id="", jar=False, keys="", options={"takeOver": "true"})
    manifest = batch.commit(batch.write(batch.plan(overwrite=True), -1, rows_from([(1, 1)])), -1)
    assert not list(manifest.settled())
    table.history.prune(1)
    assert table.keys() == table.reachable()
    assert read_pairs(path) == [(1, 1)]
    assert list(table.history.verify()) == []


def test_a_prune_that_dies_among_dead_lists_is_finished_by_the_next(path: str, tmp_path: Path) -> None:
    """What is below a list goes before it, so that the way to the rest is never lost."""
    table = Table(path)
    for _ in range(16):
        table.epoch()
    batch = Query(path, query_id="", jar=False, keys="", options={"takeOver": "true"})
    batch.commit(batch.write(batch.plan(overwrite=True), -1, rows_from([(1, 1)])), -1)
    for last in range(40):
        copy = tmp_path / f"copy-{last}"
        shutil.copytree(path, copy)
        left = [last]

        class Dying(LocalStore):
            """A store whose process dies before a delete."""

            def delete(self, keys: Iterable[str]) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Unavailable("the process dies here")
                super().delete(keys)

        try:
            CheckpointStore(Dying(copy)).prune(1)
            died = False
        except Unavailable:
            died = True
        again = Table(str(copy))
        again.history.prune(1)
        assert again.keys() == again.reachable()
        assert list(again.history.verify()) == []
        if not died:
            break
    assert last > 5
    assert not died


def test_a_copy_follows_lists_and_reads_only_the_new_ones(path: str) -> None:
    """Brought up to date again and again; what the target has is not read from the source."""
    table, target = Table(path), MemoryStore()
    reads: list[str] = []

    class Counted:
        """The source, which notes what is read of it."""

        def __init__(self, inner: ObjectStore) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
            reads.append(key)
            return self._inner.get(key, start=start, end=end)

    source = Counted(open_object_store(path))
    for turn in range(12):
        for _ in range(3):
            table.epoch()
        reads.clear()
        copy_store(source, target)  # type: ignore[arg-type]
        lists = [key for key in reads if "/list-" in key]
        assert len(lists) <= 6, turn
        assert list(CheckpointStore(target).verify()) == []
    assert head_of(target) == head_of(open_object_store(path))
    whole = MemoryStore()
    copy_store(open_object_store(path), whole)
    assert list(CheckpointStore(whole).verify()) == []


@pytest.mark.parametrize("harm", ["missing", "changed", "part"])
def test_damage_below_a_manifest_is_found_by_all_who_look(path: str, harm: str) -> None:
    """A list that is gone or changed, and a part that only a list names."""
    table = Table(path)
    for _ in range(25):
        table.epoch()
    manifest, store = head_of(open_object_store(path)), open_object_store(path)
    top = next(ref for ref in manifest.settled() if ref.level >= 1)
    below = sorted(paths_below(store, [top]))
    victim = top.path if harm != "part" else next(p for p in below if "/list-" not in p)
    file = Path(path, victim)
    if harm == "missing":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    found = list(table.history.verify())
    assert victim in {finding.object for finding in found}
    newest = table.history.validate_checkpoint(manifest.checkpoint_id)
    assert victim in {finding.object for finding in newest.issues}
    with pytest.raises(FormatError):
        read_pairs(path)
    with pytest.raises(FormatError):
        copy_store(store, MemoryStore())
    if harm != "part":
        kept = table.keys()
        with pytest.raises(FormatError):
            table.history.cleanup_orphans(grace_ms=-60_000)
        assert table.keys() == kept


def test_an_encrypted_table_has_lists_that_need_no_key_to_be_followed(path: str, tmp_path: Path) -> None:
    """Rows are encrypted; clean-up and verification work without the key, and reading does not."""
    ring = tmp_path / "ring"
    ring.write_text("k1 = MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n")
    table = Table(path, encryptionKeyFile=str(ring))
    for turn in range(24):
        if turn % 6 == 0:
            table.begin()
        table.epoch()
    assert list(head_of(open_object_store(path)).settled())
    table.check()
    keyless = CheckpointStore(open_object_store(path))
    assert list(keyless.verify()) == []
    keyless.prune(3)
    keyless.cleanup_orphans(grace_ms=-60_000)
    table.check()
    assert table.keys() == table.reachable()
    keys = sorted(Path(path, "keys").glob("*.json"))
    keys[1].unlink()
    assert any("keys/" in finding.object for finding in keyless.verify())


def test_a_stream_of_changes_reads_no_list(path: str) -> None:
    """What an epoch wrote is in its manifest itself; lists are older."""
    table = Table(path)
    for _ in range(25):
        manifest = table.epoch()
    for ref in manifest.settled():
        Path(path, ref.path).unlink()
    found = read_table(parse_read_options({"path": path}))
    splits = list(epoch_splits(found, manifest.epoch))
    chains = [chain for split in splits for chain in split.split.chains]
    assert {ref.epoch for chain in chains for ref in chain.refs} == {manifest.epoch}
    assert len(chains) == 2


def test_parts_that_only_moved_to_a_list_are_no_difference(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison looks into the lists that not both have; and the commands show what is below lists."""
    table = Table(path)
    manifests = [table.epoch() for _ in range(25)]
    store = open_object_store(path)
    before, after = manifests[-2], manifests[-1]
    found = compare_manifests(*unfolded_apart(store, before, after)).operators[0]
    assert found.added.count <= 4
    assert found.dropped.count <= 4
    assert main(["diff", path, str(before.checkpoint_id), str(after.checkpoint_id)]) == 0
    assert main(["show", path]) == 0
    shown = capsys.readouterr().out
    assert "table" in shown
    stored = [len(table.history.load_partition(after, "table", n)) for n in range(2)]
    assert sum(stored) > len([ref for ref in after.artifacts() if ref.name != "settled"])


class DiesBeforeTombstones(LocalStore):
    """A store whose process dies before a tombstone: the objects of the deleted checkpoint are gone."""

    def put(
        self,
        key: str,
        data: Body,
        *,
        if_absent: bool = False,
        if_match: Version | None = None,
        nonce: str | None = None,
    ) -> Version:
        if key.startswith("manifests/manifest-"):
            raise Unavailable("the process dies here")
        return super().put(key, data, if_absent=if_absent, if_match=if_match, nonce=nonce)


def rolled_back(path: str) -> Table:
    """Twelve epochs, and back to the sixth: lists of the checkpoints between are named by them alone."""
    table = Table(path)
    for _ in range(12):
        table.epoch()
    table.rollback(6)
    table.epoch()
    return table


@pytest.mark.parametrize("first", ["gc", "prune", "unpin"])
def test_a_deletion_that_dies_before_its_tombstone_stops_no_cleanup(path: str, first: str) -> None:
    """Lists of a deleted checkpoint may be gone while its manifest still names them."""
    table = rolled_back(path)
    table.history.savepoint("old", 2)
    table.history.prune(9)
    for number in range(7, 13):
        with pytest.raises(Unavailable):
            CheckpointStore(DiesBeforeTombstones(Path(path))).delete_checkpoint(number)
    if first == "gc":
        table.history.cleanup_orphans(grace_ms=-60_000)
    elif first == "unpin":
        table.history.remove_savepoint("old")
    table.history.prune(8)
    table.check()
    table.history.cleanup_orphans(grace_ms=-60_000)
    table.check()
    assert first != "unpin" or table.keys() == table.reachable()


def test_a_pruner_that_remembers_a_checkpoint_goes_on_after_its_deletion(path: str) -> None:
    """A driver read the manifest before somebody else deleted it, and keeps what it has read."""
    table = rolled_back(path)
    driver = table.history
    driver.prune(12)
    for number in range(7, 13):
        table.history.delete_checkpoint(number)
    for keep in (6, 5, 4, 3):
        table.epoch()
        driver.prune(keep)
        table.check()
    table.history.cleanup_orphans(grace_ms=-60_000)
    assert table.keys() == table.reachable()


def test_a_cleanup_during_a_deletion_stops_and_reports_no_damage(path: str) -> None:
    """Somebody deletes checkpoints after the live set was read: their lists are missing then."""
    table = rolled_back(path)

    class Late(LocalStore):
        """A store where others delete checkpoints just before the first list is read."""

        begun = False

        def get(self, key: str, *, start: int | None = None, end: int | None = None) -> bytes:
            if "/list-" in key and not self.begun:
                self.begun = True
                for number in range(7, 13):
                    table.history.delete_checkpoint(number)
            return super().get(key, start=start, end=end)

    plan = CheckpointStore(Late(Path(path))).plan_cleanup(grace_ms=-60_000)
    assert plan.stopped
    assert not plan.keys
    table.history.cleanup_orphans(grace_ms=-60_000)
    table.check()
