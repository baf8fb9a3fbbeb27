"""What a commit refuses, because nobody could read it afterwards, and retrying what failed in passing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyspark_checkpoint.errors import (
    FormatError,
    OutcomeUnknown,
    RefusedError,
    SettingsError,
    Unavailable,
    UnknownVersion,
)
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import MAX_SEALED_BYTES, sha256_hex
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    MAX_NUMBER,
    CheckpointId,
    CheckpointPaths,
    manifest_key,
)
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
)
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.manifest_parts import (
    PlannedBatch,
    SinkRecord,
    StateRecord,
    TableMode,
    TableRecord,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.control import rollback_pin_name
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.savepoint import pin_checkpoint
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.testing.faulty_store import Fault, FaultKind, StoreCall, fault_on
from tests.support.history_kit import History, commit, history_of

UUID = "018bcfe5-6800-7000-8000-000000000001"
GOOD = sha256_hex(b"x")


def opened(history: History, **settings: Any) -> CheckpointStore:
    return CheckpointStore(history.store, clock=history.clock, **settings)


def with_artifact(**fields: Any) -> dict[str, Any]:
    ref = ArtifactRef(
        **{"path": None, "size_bytes": 1, "sha256": GOOD, "is_delta": False, "epoch": 0, **fields}
    )
    return {"operators": {"op": OperatorSnapshotEntry((PartitionSnapshotEntry(0, (ref,)),))}}


MODE = TableMode.APPEND
UNREADABLE: dict[str, dict[str, Any]] = {
    "an epoch that is no whole number": {"epoch": 2.0},
    "an epoch that is a truth value": {"epoch": True},
    "an epoch in text": {"epoch": "2"},
    "an epoch below 0": {"epoch": -2},
    "a watermark that is no whole number": {"next_watermark_ms": 1.5},
    "a watermark beyond 64 bits": {"batch_watermark_ms": 1 << 70},
    "a number for a name": {"source_names": (1,)},
    "text for a sink's epoch": {"sink_names": ("s",), "sink_epochs": {"s": "x"}},
    "text for a vnode": {"vnodes": ("a",)},
    "half of a character": {"query": QueryInfo(id="\ud800")},
    "a number in a query's conf": {"query": QueryInfo(conf={"a": 1})},  # type: ignore[dict-item]
    "no name of the query": {"query": QueryInfo(name=None)},  # type: ignore[arg-type]
    "offsets by number": {
        "source_names": ("k",),
        "source_offsets": {"k": ConnectorCheckpoint({0: "5"})},  # type: ignore[dict-item]
    },
    "offsets that are no text": {
        "source_names": ("k",),
        "source_offsets": {"k": ConnectorCheckpoint({"0": 5})},  # type: ignore[dict-item]
    },
    "a set in the table": {"table": {"keys": {1, 2}}},
    "a table that is a list": {"table": [1]},
    "a batch below 0": {"batch_id": -1},
    "a batch in text": {"batch_id": "2"},
    "a mode of a table in text": {"table": TableRecord(operator="t", schema_json="", mode="append")},  # type: ignore[arg-type]
    "a key that is no text": {"table": TableRecord(operator="t", schema_json="", mode=MODE, keys=(1,))},  # type: ignore[arg-type]
    "a table with a fraction of a partition": {
        "table": TableRecord(operator="t", schema_json="", mode=MODE, partitions=1.5)  # type: ignore[arg-type]
    },
    "state of no batch": {"state": StateRecord(0)},
    "a sink of a kind with capitals": {"sinks": (SinkRecord("Delta"),)},
    "a sink of a batch in text": {"sinks": (SinkRecord("delta", batch_id="1"),)},  # type: ignore[arg-type]
    "a sink with an endless target": {"sinks": (SinkRecord("delta", "x" * 5_000),)},
    "a share that is a number": {"share": 1},
    "an assignment below 0": {"assignment_version": -1},
    "a planned file twice": {"planned": PlannedBatch(3, ("offsets/3", "offsets/3"))},
    "a partition in text": {"operators": {"op": OperatorSnapshotEntry((PartitionSnapshotEntry("0", ()),))}},  # type: ignore[arg-type]
    "an artifact with a short digest": with_artifact(inline=b"x", sha256="00"),
    "an artifact with a digest of other letters": with_artifact(inline=b"x", sha256="z" * 64),
    "an artifact of another size": with_artifact(inline=b"xy"),
    "an artifact of a negative epoch": with_artifact(inline=b"x", epoch=-1),
    "an artifact that is nowhere": with_artifact(),
    "a path out of the store": with_artifact(path=f"checkpoints/0000000002-{UUID}/../../_control"),
    "a path with a backslash": with_artifact(path=f"checkpoints/0000000002-{UUID}/a\\b"),
}
DAMAGED_FROM_THE_START: dict[str, dict[str, Any]] = {
    "sinks that are not sorted": {"sink_names": ("b", "a")},
    "a source twice": {"source_names": ("a", "a")},
    "a planned batch that is not later": {"batch_id": 2, "planned": PlannedBatch(2, ())},
    "a planned batch that is not the next": {"batch_id": 2, "planned": PlannedBatch(4, ())},
    "a planned file that is not there": {"batch_id": 2, "planned": PlannedBatch(3, ("offsets/3",))},
    "state of another batch": {"batch_id": 2, "state": StateRecord(1)},
    "a sink that has no name": {"sink_epochs": {"s": 1}},
    "a source that has no name": {"source_offsets": {"k": ConnectorCheckpoint({"0": "5"})}},
    "a vnode that does not exist": {"vnodes": (999,)},
    "an artifact of a later epoch": with_artifact(inline=b"x", epoch=3),
    "a partition twice": {"operators": {"op": OperatorSnapshotEntry((PartitionSnapshotEntry(0, ()),) * 2)}},
    "the checksum of a state that is not there": {"state_checksum": GOOD},
}


@pytest.mark.parametrize("fields", [pytest.param(v, id=k) for k, v in UNREADABLE.items()])
def test_a_commit_refuses_what_could_not_be_read_back(fields: dict[str, Any]) -> None:
    """``encode_manifest``: otherwise the head, once committed, is an error for every reader and writer."""
    history = History()
    store = opened(history)
    store.save(CheckpointManifest.new(1, 1))
    with pytest.raises(RefusedError):
        store.save(replace(CheckpointManifest.new(2, 2), **fields))
    assert history.numbers() == [1]
    assert store.save(CheckpointManifest.new(2, 2)).checkpoint_id == 2


@pytest.mark.parametrize("fields", [pytest.param(v, id=k) for k, v in DAMAGED_FROM_THE_START.items()])
def test_a_commit_refuses_what_recovery_would_pass_over(fields: dict[str, Any]) -> None:
    """``rules.check_content``: recovery goes back behind a checkpoint that does not fit together."""
    history = History()
    store = opened(history)
    store.save(CheckpointManifest.new(1, 1))
    with pytest.raises(RefusedError, match="fit together"):
        store.save(replace(CheckpointManifest.new(2, 2), **fields))
    assert history.numbers() == [1]


def test_an_object_larger_than_any_that_is_read_is_not_written() -> None:
    """The limit of readers holds for writers."""
    huge = replace(CheckpointManifest.new(1, 1), query=QueryInfo(conf={"x": "x" * MAX_SEALED_BYTES}))
    with pytest.raises(RefusedError, match="larger"):
        encode_manifest(huge)


def test_a_commit_that_landed_is_never_called_unavailable() -> None:
    """``Run._check_floor``: "nothing was written" would be a lie once the manifest is there."""
    history, run = history_of(2)
    history.plan = lambda call: (
        Fault(FaultKind.UNAVAILABLE) if (call.verb, call.key) == ("read", CONTROL_KEY) else None
    )
    with pytest.raises(OutcomeUnknown, match="checkpoint 3 is written"):
        commit(run, 2)
    history.plan = lambda call: None
    assert history.head().checkpoint_id == 3
    run.refresh()
    assert commit(run, 2).checkpoint_id == 3


def test_without_pointer_and_first_manifest_a_history_is_damaged_and_not_new() -> None:
    """``head.locate_head``: the pointer is a hint, so that it proves nothing by being absent."""
    history, _ = history_of(4)
    history.inner.delete([LATEST_KEY, manifest_key(1)])
    for action in (
        lambda: find_head(history.inner),
        lambda: opened(history).save(CheckpointManifest.new(0, 9)),
        lambda: opened(history).recover_latest_validated(),
    ):
        with pytest.raises(FormatError, match="manifest-0000000001"):
            action()
    assert 1 not in history.numbers()


def test_artifacts_alone_show_that_a_control_record_was_lost() -> None:
    """``control.has_history``: nothing is staged before there is one, so that this store is not new."""
    history, _ = history_of(2)
    history.inner.delete([LATEST_KEY, CONTROL_KEY, *history.keys("manifests/")])
    with pytest.raises(FormatError, match="_control"):
        opened(history).save(CheckpointManifest.new(0, 9))


def test_a_first_commit_between_two_looks_is_found() -> None:
    """A store that was new a moment ago is neither damaged nor empty."""
    history = History()
    writer = history.run("run-a")
    writer.refresh()
    done: list[int] = []

    def plan(call: StoreCall) -> Fault | None:
        if call.verb == "list" and not done:
            done.append(1)
            other = History(inner=history.inner, clock=history.clock).run("run-b")
            commit(other, 0)
        return None

    history.plan = plan
    found = find_head(history.store)
    assert done
    assert found is not None
    assert found.number == 1


def test_recovery_does_not_go_back_behind_a_newer_format() -> None:
    """A manifest of a later version is not damaged; what it holds would be lost without a word."""
    history, _ = history_of(3)
    data = history.inner.get(manifest_key(3)).split(b',"self_sha256"')[0] + b"}"
    body = data.replace(b'"version":1', b'"version":2')
    digest = sha256_hex(body).encode()
    history.inner.put(manifest_key(3), body[:-1] + b',"self_sha256":"' + digest + b'"}')
    store = opened(history)
    for read in (store.recover_latest_validated, store.load_latest):
        with pytest.raises(UnknownVersion, match=r"version 2.*install the version"):
            read()
    assert store.load_by_id(2) is not None


def test_state_is_saved_again_after_a_failure() -> None:
    """Each try is staged under a name of its own: the first one does not stand in the way."""
    history = History()
    store = opened(history)
    store.save(CheckpointManifest.new(1, 1))
    history.plan = fault_on("put", manifest_key(2), FaultKind.UNAVAILABLE)
    with pytest.raises(Unavailable):
        store.save_with_state(CheckpointManifest.new(2, 2), [b"first try"])
    history.plan = lambda call: None
    store.save_with_state(CheckpointManifest.new(2, 2), [b"second try"])
    assert store.load_state_data(2) == b"second try"


def test_artifacts_are_staged_again_after_a_failure_and_in_several_calls() -> None:
    """Also with other bytes, as an encrypted store's always are."""
    history = History()
    store = opened(history)
    staged = [
        store.stage([StagedItem(text * 600, True, 1, "op", n) for n in (0, 1)]) for text in (b"a", b"b")
    ]
    assert len({ref.path for one in staged for ref in one.refs}) == 2
    parts = tuple(PartitionSnapshotEntry(n, tuple(one.refs[n] for one in staged)) for n in (0, 1))
    saved = store.save(
        CheckpointManifest(checkpoint_id=0, epoch=1, operators={"op": OperatorSnapshotEntry(parts)})
    )
    assert store.load_partition(saved, "op", 1) == [b"a" * 600, b"b" * 600]


def test_a_checkpoint_made_of_the_one_before_has_its_own_state() -> None:
    """The sidecar that the parent names is replaced, not joined, by the new one."""
    store = opened(History())
    first = store.save_with_state(CheckpointManifest.new(1, 1), [b"one"])
    second = store.save_with_state(replace(first, checkpoint_id=0, epoch=2), [b"two"])
    assert store.load_state_data(2) == b"two"
    assert second.state_checksum == sha256_hex(b"two")
    store.save(replace(second, checkpoint_id=0, epoch=3))
    assert store.load_state_data(3) == b"two"
    assert list(store.verify()) == []


@pytest.mark.parametrize("number", [-1, 0, MAX_NUMBER + 1, 10**15])
def test_a_number_that_no_checkpoint_can_have_is_absent_and_no_damage(number: int) -> None:
    """Asking for it is answered as for any other that is not there."""
    history, _ = history_of(2)
    store = opened(history)
    assert store.load_by_id(number) is None
    assert store.load_state_data(number) is None
    for action in (
        lambda: store.savepoint("sp", number),
        lambda: store.rollback(number),
        lambda: store.delete_checkpoint(number),
        lambda: store.validate_checkpoint(number),
    ):
        with pytest.raises(RefusedError):
            action()


@pytest.mark.parametrize(
    "settings", [{"max_retained": 0}, {"max_retained": -1}, {"max_concurrent_uploads": 0}]
)
def test_settings_that_could_never_work_are_refused_at_once(settings: dict[str, int]) -> None:
    """A retention that fails after every commit would silently keep everything: fault 2."""
    with pytest.raises(SettingsError, match="at least 1"):
        opened(History(), **settings)


def test_a_path_of_another_attempt_must_still_lie_in_the_store() -> None:
    """A good path next to the bad ones above, so that they are refused for what they are."""
    history, run = history_of(1)
    attempt = CheckpointId(2, UUID)
    path = CheckpointPaths.snapshot(attempt, "op", 0)
    history.inner.put(path, b"x")
    ref = ArtifactRef(path, 1, GOOD, False, 1)
    operators = {"op": OperatorSnapshotEntry((PartitionSnapshotEntry(0, (ref,)),))}
    made = run.publish(CheckpointManifest(checkpoint_id=0, epoch=1, operators=operators), run.attempt())
    assert not history.missing(made)


def share_of(store: CheckpointStore, partitions: list[int], epoch: int) -> CheckpointManifest:
    staged = store.stage([StagedItem(b"s" * 600, False, epoch, "op", n) for n in partitions])
    parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in zip(partitions, staged.refs, strict=True))
    return CheckpointManifest(
        checkpoint_id=0,
        epoch=epoch,
        vnode_count=8,
        partition_count=4,
        operators={"op": OperatorSnapshotEntry(parts)},
    )


def test_a_share_does_not_commit_on_top_of_other_shares() -> None:
    """``subset.check_others``: the newest checkpoint would no longer have what the others need."""
    history = History()
    whole = opened(history, vnode_count=8)
    whole.save(share_of(whole, [0, 1, 2, 3], 1))
    mine = opened(history, vnode_count=8, vnodes={1, 5})
    with pytest.raises(RefusedError, match="a URL"):
        mine.save(share_of(mine, [1], 2))
    assert history.numbers() == [1]
    alone = History()
    for epoch in (1, 2):
        mine = opened(alone, vnode_count=8, vnodes={1, 5})
        assert mine.save(share_of(mine, [1], epoch)).vnodes == (1, 5)


@pytest.mark.parametrize("name", ["latest", "7", "0000000007", "~mine", "a/b", "a\x85b", "", " a", "a."])
def test_a_savepoint_name_that_means_something_else_is_refused(name: str) -> None:
    """Wherever a checkpoint is asked for, a number is a number and ``latest`` the newest."""
    history, _ = history_of(2)
    with pytest.raises(RefusedError):
        opened(history).savepoint(name)
    assert history.control().pins == {}


def test_a_rollbacks_own_pin_is_no_savepoint_and_cannot_be_removed_as_one() -> None:
    """It protects the target until the new manifest is there."""
    history, _ = history_of(3)
    store = opened(history)
    pin_checkpoint(history.inner, rollback_pin_name(4, UUID), 2, history.clock)
    with pytest.raises(RefusedError, match="no savepoint"):
        store.remove_savepoint(rollback_pin_name(4, UUID))
    with pytest.raises(RefusedError, match="pinned"):
        store.delete_checkpoint(2)
    assert len(history.control().pins) == 1


def test_the_pin_of_a_crashed_rollback_does_not_keep_a_checkpoint_for_ever() -> None:
    """Its number was taken by another: nobody can need it, and no user could remove it."""
    history, run = history_of(3)
    pin_checkpoint(history.inner, rollback_pin_name(4, UUID), 2, history.clock)
    commit(run, 3)
    store = opened(history)
    store.delete_checkpoint(2)
    assert store.list_ids() == [1, 3, 4]
    assert history.control().pins == {}
    assert list(store.verify()) == []
