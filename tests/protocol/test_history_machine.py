"""The public face of a history against a dictionary: whatever is done in whatever order, both agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyspark_checkpoint.errors import FencedError, FormatError, RefusedError
from pyspark_checkpoint.format.keys import manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.store.memory import MemoryStore
from tests.protocol.history_model import Entry, Model
from tests.protocol.simulation.clock import DAY_MS, SimulatedClock

OPERATOR, SINK = "agg", "out"
NAMES = ("red", "green", "blue")
ROWS = st.sampled_from((b"a", b"b" * 600, b"c" * 5000))
BACK = st.integers(-1, 6)
"""How far back from the newest checkpoint; sometimes one that does not exist yet."""


class HistoryMachine(RuleBasedStateMachine):
    """One current run, one run that was replaced, readers that open the store afresh."""

    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore(clock=SimulatedClock(0))
        self.model = Model()
        self.runs = 0
        self.statuses: dict[int, SinkCommitStatus] = {}
        self.repeats: dict[int, int] = {}
        self.previous: CheckpointStore | None = None
        self.history = self._open()

    def _open(self) -> CheckpointStore:
        self.runs += 1
        return CheckpointStore(
            self.store, run_id=f"run-{self.runs}", max_concurrent_uploads=1, clock=SimulatedClock(self.runs)
        )

    def _number(self, back: int) -> int:
        return max(1, self.model.head - back)

    # --- writing ---------------------------------------------------------------------------------

    @rule()
    def start_again(self) -> None:
        """Another start of the query: a new run that has claimed nothing yet."""
        self.previous, self.history = self.history, self._open()

    @rule()
    def claim(self) -> None:
        run_id = self.history.run_id
        if self.model.head and self.model.is_fenced(run_id):
            with pytest.raises(FencedError):
                self.history.claim()
            return
        claimed = self.history.claim()
        if not self.model.head:
            assert claimed is None
            return
        before = self.model.head
        self.model.claim(run_id)
        assert claimed is not None
        assert claimed.checkpoint_id == self.model.head
        if self.model.head > before:
            self._carry_status(before)

    @rule(rows=st.lists(ROWS, min_size=1, max_size=4))
    def commit(self, rows: list[bytes]) -> None:
        for data in rows:
            epoch = self.model.newest.epoch + 1 if self.model.head else 0
            self._commit(self.history, epoch, data)

    @precondition(lambda self: self.model.head)
    @rule(data=ROWS)
    def commit_the_epoch_again(self, data: bytes) -> None:
        self._commit(self.history, self.model.newest.epoch, data)

    @precondition(lambda self: self.previous is not None and self.model.head)
    @rule(data=ROWS)
    def the_previous_run_wakes_up(self, data: bytes) -> None:
        """It is fenced if it had the store before; if it never had, its commit takes over."""
        assert self.previous is not None
        self._commit(self.previous, self.model.newest.epoch + 1, data)

    @precondition(lambda self: self.model.head and self.model.newest.epoch > 0)
    @rule()
    def an_epoch_from_the_past_is_refused(self) -> None:
        if not self.model.is_fenced(self.history.run_id):
            with pytest.raises(RefusedError):
                self._save(self.history, self.model.newest.epoch - 1, b"late")

    @precondition(lambda self: self.model.head)
    @rule()
    def other_offsets_are_refused(self) -> None:
        if not self.model.is_fenced(self.history.run_id):
            with pytest.raises(RefusedError):
                self._save(self.history, self.model.newest.epoch, b"x", offset="elsewhere")

    def _commit(self, history: CheckpointStore, epoch: int, data: bytes) -> None:
        run_id, model = history.run_id, self.model
        if model.head and model.is_fenced(run_id):
            with pytest.raises(FencedError):
                self._save(history, epoch, data)
            return
        parent = model.newest if model.head else Entry("", -1, ())
        entry = parent.with_rows(run_id, epoch, data)
        saved = self._save(history, epoch, data)
        if entry != parent:
            model.add(entry)
        assert (saved.checkpoint_id, saved.epoch, saved.run_id) == (model.head, epoch, run_id)

    def _save(
        self, history: CheckpointStore, epoch: int, data: bytes, offset: str | None = None
    ) -> CheckpointManifest:
        head = history.writer().refresh()
        refs = () if head is None else head.manifest.operators[OPERATOR].partitions[0].artifacts
        staged = history.stage([StagedItem(data, True, epoch, OPERATOR, 0)])
        kept = tuple(ref for ref in refs if ref.epoch < epoch)[-3:]
        partition = PartitionSnapshotEntry(0, (*kept, staged.refs[0]))
        return history.save(
            CheckpointManifest(
                checkpoint_id=0,
                epoch=epoch,
                operators={OPERATOR: OperatorSnapshotEntry((partition,))},
                source_names=("kafka",),
                source_offsets={"kafka": ConnectorCheckpoint({"0": offset or str(epoch)})},
                sink_names=(SINK,),
            )
        )

    # --- keeping order ---------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), back=BACK)
    def savepoint(self, name: str, back: int) -> None:
        if not self.model.head:
            return
        number = self._number(back)
        if self.model.may_pin(name, number):
            assert self._open().savepoint(name, number).checkpoint_id == number
            self.model.pins[name] = number
        else:
            with pytest.raises(RefusedError):
                self._open().savepoint(name, number)

    @rule(name=st.sampled_from(NAMES))
    def remove_savepoint(self, name: str) -> None:
        if name in self.model.pins:
            self._open().remove_savepoint(name)
            del self.model.pins[name]
        elif self.model.head:
            with pytest.raises(RefusedError):
                self._open().remove_savepoint(name)

    @rule(keep=st.integers(1, 4), by_writer=st.booleans())
    def prune(self, keep: int, by_writer: bool) -> None:
        (self.history if by_writer else self._open()).prune(keep)
        if self.model.head:
            self.model.prune(keep)

    @precondition(lambda self: self.model.head)
    @rule(back=BACK)
    def rollback(self, back: int) -> None:
        number = self._number(back)
        if number not in self.model.visible():
            with pytest.raises(RefusedError):
                self._open().rollback(number)
            return
        made = self._open().rollback(number)
        target = self.model.entries[number]
        self.model.add(Entry(made.run_id, target.epoch, target.rows))
        self._carry_status(number)
        assert (made.checkpoint_id, made.rollback_of) == (self.model.head, number)

    @precondition(lambda self: self.model.head)
    @rule(back=BACK)
    def delete(self, back: int) -> None:
        number = self._number(back)
        if self.model.may_delete(number):
            self._open().delete_checkpoint(number)
            self.model.deleted.add(number)
        else:
            with pytest.raises(RefusedError):
                self._open().delete_checkpoint(number)

    @rule()
    def clean_up(self) -> None:
        self._open().cleanup_orphans(grace_ms=-DAY_MS)

    @precondition(lambda self: self.model.head)
    @rule(back=BACK, committed=st.booleans())
    def report_sink(self, back: int, committed: bool) -> None:
        """Committed wins over failed, whichever came first."""
        number = self._number(back)
        status = SinkCommitStatus.COMMITTED if committed else SinkCommitStatus.FAILED
        if number not in self.model.visible():
            with pytest.raises(RefusedError):
                self._open().record_sink_status(number, SINK, status)
            return
        self._open().record_sink_status(number, SINK, status)
        if self.statuses.get(number) is not SinkCommitStatus.COMMITTED:
            self.statuses[number] = status

    def _carry_status(self, parent: int) -> None:
        """The newest checkpoint says again what ``parent`` says, and perhaps others before it."""
        self.repeats[self.model.head] = parent
        number: int | None = parent
        while number in self.model.visible() and number not in self.statuses:
            number = self.repeats.get(number)
        if number in self.model.visible() and self.statuses.get(number) is SinkCommitStatus.COMMITTED:
            self.statuses[self.model.head] = SinkCommitStatus.COMMITTED

    # --- damage ----------------------------------------------------------------------------------

    @precondition(lambda self: self.model.head)
    @rule(data=st.data())
    def recover_from_damage(self, data: st.DataObject) -> None:
        """One object is damaged, recovery steps back just far enough and says so, and it is repaired."""
        needs = {number: self._needs(number) for number in self.model.visible()}
        broken = data.draw(st.sampled_from(sorted(set[str]().union(*needs.values()))))
        good = self.store.get(broken)
        if data.draw(st.booleans()):
            self.store.put(broken, good[:-1] + bytes([good[-1] ^ 1]))
        else:
            self.store.put(broken, good[: len(good) // 2])
        whole = [number for number, objects in needs.items() if broken not in objects]
        try:
            if not whole:
                with pytest.raises(FormatError):
                    self._open().recover_latest_validated()
                return
            report = self._open().recover_latest_validated()
            assert report.chosen_id == whole[-1]
            skipped = {result.checkpoint_id for result in report.skipped}
            assert skipped == {number for number in needs if number > whole[-1]}
            assert any(broken in str(found) for found in verify_store(self.store, max_concurrent_reads=1))
        finally:
            self.store.put(broken, good)

    def _needs(self, number: int) -> set[str]:
        manifest = self._open().load_by_id(number)
        assert manifest is not None
        return {manifest_key(number), *manifest.paths()}

    # --- what must agree -------------------------------------------------------------------------

    @invariant()
    def readers_agree_with_the_model(self) -> None:
        reader, model = self._open(), self.model
        assert reader.list_ids() == model.visible()
        assert reader.list() == [(number, model.entries[number].epoch) for number in model.visible()]
        assert {point.name: point.checkpoint_id for point in reader.savepoints()} == model.pins
        latest = reader.load_latest()
        assert (latest.checkpoint_id if latest is not None else 0) == model.head
        for number in model.visible():
            self._check_content(reader, number)
        for number in set(model.entries) - set(model.visible()):
            assert reader.load_by_id(number) is None

    def _check_content(self, reader: CheckpointStore, number: int) -> None:
        manifest, entry = reader.load_by_id(number), self.model.entries[number]
        assert manifest is not None
        assert (manifest.epoch, manifest.run_id) == (entry.epoch, entry.run_id)
        expected = self.statuses.get(number, SinkCommitStatus.PENDING)
        assert manifest.sink_commit_statuses == {SINK: expected}
        artifacts = manifest.operators[OPERATOR].partitions[0].artifacts
        rows = reader.reader()
        rows._limit = 1  # threads cost more than they bring with a store in memory
        found = rows.read_partition(manifest, OPERATOR, 0)
        assert tuple(zip((ref.epoch for ref in artifacts), found, strict=True)) == entry.rows

    @invariant()
    def nothing_is_damaged(self) -> None:
        assert [str(found) for found in verify_store(self.store, max_concurrent_reads=1)] == []


HistoryMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestHistoryMachine = pytest.mark.timeout(1200)(HistoryMachine.TestCase)
