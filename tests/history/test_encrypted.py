"""Encrypted stores with missing keys: nothing plain goes in, nothing unauthenticated, nothing unnoticed."""

from __future__ import annotations

import base64
import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from pyspark_checkpoint import errors
from pyspark_checkpoint.compat.artifact_checkpointer import ObjectStoreCheckpointer
from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.crypto.keyring import KeyRing, make_key_ring
from pyspark_checkpoint.errors import CheckpointError, FormatError, MissingKey, RefusedError
from pyspark_checkpoint.format.keys import data_key_key, manifest_key
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ManifestKind,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.manifest_reader import find_manifest
from pyspark_checkpoint.history.run import Run
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.store.base import ObjectInfo
from pyspark_checkpoint.testing.faulty_store import FaultKind, FaultyStore, SimulatedCrash, fault_on
from tests.support.history_kit import History

MASTER = b"the master key, never to be seen"
RING = make_key_ring({"k1": MASTER}, "k1")
SECRET = b"SECRET rows " * 100


def stored_manifest(history: History, number: int) -> CheckpointManifest:
    found = find_manifest(history.inner, number)
    assert found is not None
    return found.manifest


def opened(history: History, **settings: Any) -> CheckpointStore:
    return CheckpointStore(history.store, clock=history.clock, **settings)


def save(store: CheckpointStore, epoch: int) -> CheckpointManifest:
    staged = store.stage([StagedItem(SECRET, False, epoch, "op", 0)])
    operators = {"op": OperatorSnapshotEntry((PartitionSnapshotEntry(0, staged.refs),))}
    return store.save(CheckpointManifest(checkpoint_id=0, epoch=epoch, operators=operators))


def encrypted(epochs: int) -> tuple[History, CheckpointStore]:
    history = History()
    store = opened(history, key_ring=RING)
    for epoch in range(epochs):
        save(store, epoch)
    return history, store


def test_a_writer_without_keys_stages_nothing_plain() -> None:
    """Refused before the upload, not after it: plain bytes in an encrypted store have leaked."""
    history, _ = encrypted(1)
    before = history.keys()
    blind = opened(history)
    with pytest.raises(MissingKey, match="k1") as caught:
        blind.stage([StagedItem(SECRET, False, 1, "op", 0)])
    assert caught.value.key_id == "k1"
    with pytest.raises(MissingKey):
        blind.save_state_data(0, [SECRET])
    with pytest.raises(MissingKey):
        blind.claim()
    point = ObjectStoreCheckpointer(history.store, clock=history.clock)
    with pytest.raises(RefusedError, match="k1"):
        point.new_id()
    assert history.keys() == before


def test_a_run_with_keys_stages_nothing_encrypted_in_a_plain_store() -> None:
    """``Run.attempt``: the same, the other way round."""
    history, store = encrypted(0), History()
    opened(store).save(CheckpointManifest.new(1, 1))
    cipher = history[1].writer().cipher
    run = Run(store.store, "run-b", clock=store.clock, cipher=cipher)
    run._head, run._store_id = opened(store).writer().refresh(), store.control().store_id
    with pytest.raises(RefusedError, match="stays plain"):
        run.attempt()


def test_a_store_that_was_begun_encrypted_is_not_continued_plain() -> None:
    """The first writer died before its first manifest; its key is there, and says what the store is."""
    history = History()
    dying = FaultyStore(history.inner, fault_on("put", manifest_key(1), FaultKind.CRASH_BEFORE))
    with pytest.raises(SimulatedCrash):
        save(CheckpointStore(dying, clock=history.clock, key_ring=RING), 0)
    with pytest.raises(MissingKey, match="k1"):
        opened(history).save(CheckpointManifest.new(1, 0))
    assert save(opened(history, key_ring=RING), 0).encryption_key_id == "k1"


def test_a_missing_key_is_a_finding_and_its_checkpoints_are_passed_over() -> None:
    """Without its wrapped data key an artifact is lost, however right its digest is."""
    history, store = encrypted(1)
    second = opened(history, key_ring=RING)
    save(second, 1)
    lost = second.writer().cipher.data_key_id  # type: ignore[union-attr]
    assert list(store.verify()) == []
    history.inner.delete([data_key_key(lost)])
    reader = opened(history, key_ring=RING)
    assert [(f.object, f.checkpoint_id) for f in reader.verify()] == [(data_key_key(lost), 2)]
    report = reader.recover_latest_validated()
    assert report.chosen_id == 1
    assert data_key_key(lost) in report.report
    assert reader.load_partition(report.manifest, "op", 0) == [SECRET]  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["torn", "another's"])
def test_a_damaged_key_is_a_finding(damage: str) -> None:
    """Torn, or the record of another data key under this name."""
    history, store = encrypted(1)
    mine = data_key_key(store.writer().cipher.data_key_id)  # type: ignore[union-attr]
    data = history.inner.get(mine)
    history.inner.put(
        mine, data[:-5] if damage == "torn" else history.inner.get(data_key_key(MANIFEST_KEY_ID))
    )
    assert [finding.object for finding in opened(history).verify()] == [mine]


def test_without_the_manifests_key_nothing_is_trusted_and_verify_says_so() -> None:
    """Nobody may take its absence for a plain store."""
    history, _ = encrypted(2)
    history.inner.delete([data_key_key(MANIFEST_KEY_ID)])
    findings = list(opened(history).verify())
    assert {finding.object for finding in findings} == {data_key_key(MANIFEST_KEY_ID)}
    with pytest.raises(RefusedError):
        opened(history).save(CheckpointManifest.new(0, 9))


@pytest.fixture(params=["named", "environment"])
def ring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KeyRing | None:
    """The same keys, given by the caller or found in the environment."""
    if request.param == "named":
        return RING
    monkeypatch.setenv("CKPT_KEYRING", f"k1 = {base64.b64encode(MASTER).decode()}")
    return None


@pytest.mark.parametrize("pointer", [True, False])
def test_a_manifests_key_that_is_gone_does_not_make_a_store_plain(
    ring: KeyRing | None, pointer: bool
) -> None:
    """``encryption._says_encrypted``: with a ring nothing is read unproved, nor is the key made anew."""
    history, _ = encrypted(2)
    history.inner.delete([data_key_key(MANIFEST_KEY_ID), *([] if pointer else ["_latest"])])
    before = history.keys()
    reader = opened(history, key_ring=ring)
    for read in (reader.load_latest, lambda: reader.load_by_id(1), lambda: save(reader, 2)):
        with pytest.raises(FormatError, match="is gone"):
            read()
    assert {finding.object for finding in reader.verify()} >= {manifest_key(1), manifest_key(2)}
    with pytest.raises(FormatError, match=r"none of 2 checkpoints is good.*is gone"):
        reader.recover_latest_validated()
    assert history.keys() == before


def test_a_forged_plain_head_does_not_open_the_manifests_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """``plain_only``: with a ring at hand, whatever says that it is encrypted is proved or is damage."""
    history, _ = encrypted(3)
    genuine = stored_manifest(history, 3)
    forged = replace(genuine, encryption_key_id=None, operators={}, next_watermark_ms=7)
    history.inner.put(manifest_key(3), encode_manifest(forged))
    history.inner.delete(history.keys("keys/"))
    monkeypatch.setenv("CKPT_KEYRING", f"k1 = {base64.b64encode(MASTER).decode()}")
    reader = opened(history)
    with pytest.raises(FormatError, match="is encrypted, but the key"):
        reader.load_by_id(2)
    found = {finding.object for finding in reader.verify()}
    assert {manifest_key(1), manifest_key(2)} <= found
    before = history.keys("checkpoints/")
    with pytest.raises(MissingKey):
        reader.delete_checkpoint(2)
    assert history.keys("checkpoints/") == before
    with pytest.raises(RefusedError, match="plain"):
        opened(history, key_ring=RING).load_latest()


def test_two_that_begin_an_encrypted_store_at_once_agree_on_its_key() -> None:
    """One finds no key, and then manifests: the other has made both meanwhile, and nothing is gone."""
    history = History()
    late = opened(history, key_ring=RING).writer().cipher
    assert late is not None

    class Slow(FaultyStore):
        def head(self, key: str) -> ObjectInfo:
            if key == "_latest" and not history.numbers():
                save(opened(history, key_ring=RING), 0)
            return super().head(key)

    cipher = StoreCipher(Slow(history.inner), history.control().store_id, RING, history.clock)
    assert cipher.mac(b"body") == late.mac(b"body")


def test_a_tombstone_is_authenticated_or_not_written() -> None:
    """``delete.may_write_tombstone``: one without MAC would be damage for everybody who has the key."""
    history, store = encrypted(4)
    blind = opened(history)
    before = {key: history.inner.get(key) for key in history.keys("")}
    with pytest.raises(MissingKey, match="k1"):
        blind.delete_checkpoint(2)
    assert {key: history.inner.get(key) for key in history.keys("")} == before
    store.delete_checkpoint(2)
    assert list(opened(history, key_ring=RING).verify()) == []


def test_a_prune_without_keys_leaves_a_crashed_deletion_to_a_holder_of_keys() -> None:
    """It prunes all the same: that needs no key."""
    history, _ = encrypted(5)
    dying = FaultyStore(history.inner, fault_on("put", manifest_key(4), FaultKind.CRASH_BEFORE))
    with pytest.raises(SimulatedCrash):
        CheckpointStore(dying, clock=history.clock, key_ring=RING).delete_checkpoint(4)
    blind = opened(history)
    assert blind.prune(keep=2) == 2
    assert list(opened(history, key_ring=RING).verify()) == []
    opened(history, key_ring=RING).prune(keep=2)
    assert _kind(history, 4) is ManifestKind.TOMBSTONE
    assert list(opened(history, key_ring=RING).verify()) == []


def _kind(history: History, number: int) -> ManifestKind:
    return stored_manifest(history, number).kind


def test_a_forged_manifest_is_refused_with_the_key_and_found_by_verify() -> None:
    """Somebody with access to the store but not to the key rewrites the newest manifest."""
    history, store = encrypted(2)
    genuine = stored_manifest(history, 2)
    history.inner.put(manifest_key(2), encode_manifest(replace(genuine, next_watermark_ms=7)))
    with pytest.raises(FormatError, match="authenticated"):
        opened(history, key_ring=RING).load_latest()
    assert [finding.object for finding in store.verify()] == [manifest_key(2)]


def test_master_keys_do_not_travel() -> None:
    """Not by pickle, not by copying into a closure; data keys do, which is what tasks need."""
    history, store = encrypted(1)
    cipher = store.writer().cipher
    assert cipher is not None
    for thing in (RING, RING.active, cipher, store, store.writer()):
        with pytest.raises((RefusedError, TypeError)) as caught:
            pickle.dumps(thing)
        assert MASTER.decode() not in str(caught.value)
    sent = pickle.dumps(cipher.task_cipher())  # type: ignore[attr-defined]
    assert MASTER not in sent
    shown = [repr(thing) for thing in (RING, RING.active, cipher, store, cipher.task_cipher())]  # type: ignore[attr-defined]
    for secret in (MASTER.decode(), base64.b64encode(MASTER).decode(), MASTER.hex()):
        assert all(secret not in text for text in shown)
        assert all(secret.encode() not in history.inner.get(key) for key in history.keys(""))


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CheckpointError) and kind is not CheckpointError
]
_MADE_OF = {"IntegrityError": ("a path", "expected", "actual"), "MissingKey": ("k1", "a message")}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_survives_the_way_from_another_process(kind: type[CheckpointError]) -> None:
    """With all that it says: who took over, which key, which path."""
    error = kind(*_MADE_OF.get(kind.__name__, ("a message",)), hint="do this")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert (str(twin), vars(twin), twin.args) == (str(error), vars(error), error.args)
