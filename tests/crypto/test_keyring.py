"""Key rings, the keys of a store, and a change of the master key."""

from __future__ import annotations

import base64
import hashlib
import logging
from pathlib import Path

import pytest

from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID
from pyspark_checkpoint.crypto.data_keys import decode_wrapped_key, encode_wrapped_key
from pyspark_checkpoint.crypto.keyring import (
    KeyRing,
    find_key_ring,
    load_key_ring,
    make_key_ring,
    parse_key_ring,
)
from pyspark_checkpoint.errors import FormatError, MissingKey, SettingsError
from pyspark_checkpoint.format.cipher import ArtifactContext
from pyspark_checkpoint.format.keys import LATEST_KEY, data_key_key
from pyspark_checkpoint.history.rekey import plan_rekey, read_wrapped_keys, rekey
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.store.base import Body, Version
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.testing.faulty_store import (
    FaultKind,
    FaultyStore,
    SimulatedCrash,
    fault_at,
    fault_on,
)
from pyspark_checkpoint.testing.manual_clock import ManualClock

OLD = hashlib.sha256(b"old").digest()
NEW = hashlib.sha256(b"new").digest()
OLD_RING = make_key_ring({"old": OLD}, "old")
NEW_RING = make_key_ring({"old": OLD, "new": NEW}, "new")
NEW_ONLY = make_key_ring({"new": NEW}, "new")
CONTEXT = ArtifactContext("store", 1, "agg", 0, "delta")


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


def used_store() -> tuple[MemoryStore, str, bytes, str]:
    """A store with two data keys, a manifest key, one artifact and one MAC, under the old master key."""
    store = MemoryStore()
    cipher = StoreCipher(store, "store", OLD_RING, ManualClock("a"))
    stored, mac = cipher.encrypt(b"rows", CONTEXT), cipher.mac(b"body")
    StoreCipher(store, "store", OLD_RING, ManualClock("b")).encrypt(b"more", CONTEXT)
    return store, cipher.data_key_id, stored, mac


# --- the ring ------------------------------------------------------------------------------------


def test_lines_and_json_mean_the_same() -> None:
    """The last line is active unless another is named."""
    lines = f"# mine\nold = {b64(OLD)}\n\nnew={b64(NEW)}\n"
    as_json = f'{{"active": "new", "keys": {{"old": "{b64(OLD)}", "new": "{b64(NEW)}"}}}}'
    assert parse_key_ring(lines) == parse_key_ring(as_json) == NEW_RING
    assert parse_key_ring(lines + "active = old").active_id == "old"
    assert parse_key_ring(f"old={b64(OLD)},new={b64(NEW)}") == NEW_RING
    assert parse_key_ring(f'{{"keys": {{"old": "{b64(OLD)}"}}}}') == OLD_RING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "not a key",
        "old = ???",
        f"old = {b64(OLD[:16])}",
        f"old = {b64(OLD)}\nold = {b64(NEW)}",
        f"old = {b64(OLD)}\nactive = new",
        f"a b = {b64(OLD)}",
        "{",
        "{}",
        '{"keys": {}}',
        '{"keys": {"old": 5}}',
        f'{{"keys": {{"a": "{b64(OLD)}", "b": "{b64(NEW)}"}}}}',
        f'{{"keys": {{"a": "{b64(OLD)}"}}, "activ": "a"}}',
        f"{b64(OLD)} = old",
    ],
)
def test_a_bad_key_ring_is_refused_without_showing_it(text: str) -> None:
    """The error says where, never what."""
    with pytest.raises(SettingsError) as caught:
        parse_key_ring(text)
    for secret in (b64(OLD), b64(NEW), b64(OLD)[:12]):
        assert secret not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    """With the ids that are there, so that the right file can be found."""
    with pytest.raises(MissingKey, match=r"'older'.*has new, old") as caught:
        NEW_RING.find("older")
    assert caught.value.key_id == "older"


def test_a_key_ring_never_shows_its_keys() -> None:
    """Nor does a single master key, nor a cipher that holds the ring."""
    for value in (NEW_RING, NEW_RING.active, StoreCipher(MemoryStore(), "store", NEW_RING)):
        for secret in (OLD, NEW):
            assert repr(secret)[2:12] not in repr(value)
            assert b64(secret)[:10] not in f"{value}"


def test_the_named_file_comes_before_the_variables(tmp_path: Path) -> None:
    """Then CKPT_KEY_FILE, then CKPT_KEYRING, then nothing."""
    file = tmp_path / "ring"
    file.write_text(f"old = {b64(OLD)}")
    file.chmod(0o600)
    variables = {"CKPT_KEYRING": f"new = {b64(NEW)}"}
    assert find_key_ring(file, variables) == OLD_RING
    assert find_key_ring(None, {**variables, "CKPT_KEY_FILE": str(file)}) == OLD_RING
    assert find_key_ring(None, variables) == NEW_ONLY
    assert find_key_ring(None, {}) is None


def test_a_key_file_that_others_can_read_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the command that cures it, and without its content."""
    file = tmp_path / "ring"
    file.write_text(f"old = {b64(OLD)}")
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        load_key_ring(file)
    assert "chmod 600" in caplog.text
    assert b64(OLD)[:8] not in caplog.text
    caplog.clear()
    file.chmod(0o600)
    load_key_ring(file)
    assert not caplog.text


def test_a_key_file_that_cannot_be_read_is_a_settings_error(tmp_path: Path) -> None:
    """Absent, a directory, or not text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "binary"):
        with pytest.raises(SettingsError, match="cannot read the key file"):
            load_key_ring(path)


# --- the keys of a store -------------------------------------------------------------------------


def test_a_run_makes_one_data_key_and_a_reader_makes_none() -> None:
    """The record is durable before the first artifact is encrypted; reading writes nothing."""
    store = MemoryStore()
    cipher = StoreCipher(store, "store", OLD_RING, ManualClock())
    assert contents(store) == {}
    stored = [cipher.encrypt(b"rows", CONTEXT) for _ in range(3)]
    assert list(contents(store)) == [data_key_key(cipher.data_key_id)]
    before = contents(store)
    reader = StoreCipher(store, "store", OLD_RING, ManualClock("reader"))
    assert reader.decrypt(stored[0], cipher.data_key_id, CONTEXT) == b"rows"
    assert contents(store) == before


def test_two_runs_have_two_data_keys_and_one_manifest_key() -> None:
    """Both authenticate with the same key, whoever made it."""
    store = MemoryStore()
    one = StoreCipher(store, "store", OLD_RING, ManualClock("one"))
    two = StoreCipher(store, "store", OLD_RING, ManualClock("two"))
    assert one.data_key_id != two.data_key_id
    assert one.mac(b"body") == two.mac(b"body")
    assert len(contents(store)) == 3


def test_two_that_make_the_manifest_key_at_once_agree() -> None:
    """The second create is refused, and the loser takes the winner's key."""
    store = MemoryStore()
    two = StoreCipher(store, "store", OLD_RING, ManualClock("two"))

    class Late(MemoryStore):
        def put(
            self,
            key: str,
            data: Body,
            *,
            if_absent: bool = False,
            if_match: Version | None = None,
            nonce: str | None = None,
        ) -> Version:
            if "keys/" in key:
                two.mac(b"body")
            return store.put(key, data, if_absent=if_absent, if_match=if_match, nonce=nonce)

        def get(self, key: str, **options: object) -> bytes:
            return store.get(key)

    one = StoreCipher(Late(), "store", OLD_RING, ManualClock("one"))
    assert one.mac(b"body") == two.mac(b"body")


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_a_lost_answer_to_making_a_key_is_repeated(kind: FaultKind) -> None:
    """Whether it landed or not, the key in use is the one in the store."""
    store = MemoryStore()
    cipher = StoreCipher(
        FaultyStore(store, fault_on("put", "keys/", kind)), "store", OLD_RING, ManualClock()
    )
    stored = cipher.encrypt(b"rows", CONTEXT)
    reader = StoreCipher(store, "store", OLD_RING)
    assert reader.decrypt(stored, cipher.data_key_id, CONTEXT) == b"rows"


def test_a_manifest_key_that_is_gone_is_an_error_and_not_replaced() -> None:
    """Otherwise whoever deletes it would make every manifest look forged."""
    store, _, _, _ = used_store()
    store.put(LATEST_KEY, b"x")
    store.delete([data_key_key(MANIFEST_KEY_ID)])
    with pytest.raises(FormatError, match="is gone"):
        StoreCipher(store, "store", OLD_RING).mac(b"body")
    assert data_key_key(MANIFEST_KEY_ID) not in contents(store)


@pytest.mark.parametrize(
    ("ring", "says"),
    [
        (None, "needs master key 'old'"),
        (NEW_ONLY, "'old' is not in the key ring"),
        (make_key_ring({"old": NEW}, "old"), "'old' is not the key that wrapped"),
    ],
)
def test_a_wrong_or_missing_master_key_is_named(ring: KeyRing | None, says: str) -> None:
    """No ring, a ring without it, and another key under its id."""
    store, data_key_id, stored, _ = used_store()
    with pytest.raises(MissingKey, match=says) as caught:
        StoreCipher(store, "store", ring).decrypt(stored, data_key_id, CONTEXT)
    assert caught.value.key_id == "old"


def test_a_record_of_another_store_or_key_is_refused() -> None:
    """Records that were moved are found before they are unwrapped."""
    store, data_key_id, stored, _ = used_store()
    with pytest.raises(FormatError, match="another data key or store"):
        StoreCipher(store, "another", OLD_RING).decrypt(stored, data_key_id, CONTEXT)
    store.put(data_key_key(data_key_id), store.get(data_key_key(MANIFEST_KEY_ID)))
    with pytest.raises(FormatError, match="another data key or store"):
        StoreCipher(store, "store", OLD_RING).decrypt(stored, data_key_id, CONTEXT)


def test_every_flipped_byte_of_a_key_record_is_found_without_a_key() -> None:
    """By its own digest, so that ``verify`` needs no key ring."""
    store, data_key_id, _, _ = used_store()
    data = store.get(data_key_key(data_key_id))
    assert encode_wrapped_key(decode_wrapped_key(data, "x")) == data
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(FormatError):
            decode_wrapped_key(bytes(damaged), "x")


def test_a_task_cipher_reads_earlier_runs_and_has_no_manifest_key() -> None:
    """Only data keys of artifacts go to tasks, also when asked for more."""
    store, data_key_id, stored, _ = used_store()
    driver = StoreCipher(store, "store", OLD_RING, ManualClock("c"))
    task = driver.task_cipher([data_key_id, MANIFEST_KEY_ID])
    assert task.decrypt(stored, data_key_id, CONTEXT) == b"rows"
    with pytest.raises(MissingKey):
        task.decrypt(stored, MANIFEST_KEY_ID, CONTEXT)
    written = task.encrypt(b"new rows", CONTEXT)
    assert driver.decrypt(written, task.data_key_id, CONTEXT) == b"new rows"


# --- a new master key ----------------------------------------------------------------------------


def test_rekey_rewraps_every_key_and_rewrites_nothing_else() -> None:
    """Afterwards the old key can be forgotten; artifacts and MACs are what they were."""
    store, data_key_id, stored, mac = used_store()
    store.put("checkpoints/x", stored)
    before = contents(store)
    plan = rekey(store, "store", NEW_RING, clock=ManualClock("rekey"))
    assert len(plan.rewrap) == 3
    after = contents(store)
    assert {key for key in after if after[key] != before[key]} == {data_key_key(k) for k in plan.rewrap}
    reader = StoreCipher(store, "store", NEW_ONLY)
    assert reader.decrypt(stored, data_key_id, CONTEXT) == b"rows"
    assert reader.mac(b"body") == mac
    assert rekey(store, "store", NEW_ONLY).rewrap == ()


def test_a_dry_run_plans_and_writes_nothing() -> None:
    """The plan names what would be rewritten."""
    store, _, _, _ = used_store()
    before = contents(store)
    plan = rekey(store, "store", NEW_RING, dry_run=True)
    assert (plan.active_id, len(plan.rewrap), plan.current) == ("new", 3, ())
    assert contents(store) == before


def test_rekey_writes_nothing_when_an_old_key_is_missing() -> None:
    """All keys that are needed are checked before the first write."""
    store, _, _, _ = used_store()
    rekey(store, "store", NEW_RING)
    StoreCipher(store, "store", OLD_RING, ManualClock("late")).encrypt(b"x", CONTEXT)
    newest = make_key_ring({"new": NEW, "newest": OLD}, "newest")
    before = contents(store)
    with pytest.raises(MissingKey) as caught:
        rekey(store, "store", newest)
    assert caught.value.key_id == "old"
    assert contents(store) == before


def test_planning_is_pure_and_says_what_is_current() -> None:
    """A second pass has nothing to do."""
    store, _, _, _ = used_store()
    records = read_wrapped_keys(store, "store")
    assert plan_rekey(records, OLD_RING).rewrap == ()
    assert len(plan_rekey(records, OLD_RING).current) == 3


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_a_crash_at_any_call_of_rekey_loses_nothing_and_is_finished_by_the_next(kind: FaultKind) -> None:
    """Between, everything opens with both keys in the ring."""
    counting = FaultyStore(used_store()[0])
    rekey(counting, "store", NEW_RING, clock=ManualClock("rekey"))
    assert len(counting.calls) > 6
    for index in range(len(counting.calls)):
        store, data_key_id, stored, mac = used_store()
        with pytest.raises(SimulatedCrash):
            rekey(FaultyStore(store, fault_at(index, kind)), "store", NEW_RING, clock=ManualClock("rekey"))
        between = StoreCipher(store, "store", NEW_RING)
        assert between.decrypt(stored, data_key_id, CONTEXT) == b"rows"
        assert between.mac(b"body") == mac
        rekey(store, "store", NEW_RING, clock=ManualClock("again"))
        after = StoreCipher(store, "store", NEW_ONLY)
        assert after.decrypt(stored, data_key_id, CONTEXT) == b"rows"
        assert after.mac(b"body") == mac


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.LOST_REQUEST])
def test_a_lost_answer_to_a_swap_is_settled_by_reading(kind: FaultKind) -> None:
    """Neither a second wrap nor an error."""
    store, _, _, _ = used_store()
    faulty = FaultyStore(store, fault_on("put", "keys/", kind))
    rekey(faulty, "store", NEW_RING, clock=ManualClock("rekey"))
    assert {record.master_key_id for record in read_wrapped_keys(store, "store")} == {"new"}
    assert {record.counter for record in read_wrapped_keys(store, "store")} == {1}
