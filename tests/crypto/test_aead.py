"""Encryption of artifacts and manifests: what opens, what does not, and what is never shown."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.crypto.aead import (
    HEADER_BYTES,
    TAG_BYTES,
    DataKey,
    decrypt_artifact,
    encrypt_artifact,
    manifest_mac,
    unwrap_data_key,
    wrap_data_key,
)
from pyspark_checkpoint.errors import FormatError, MissingKey, RefusedError, UnknownVersion
from pyspark_checkpoint.format.cipher import ArtifactContext
from pyspark_checkpoint.history.store_cipher import DataKeyCipher
from pyspark_checkpoint.testing.manual_clock import ManualClock

SECRET = hashlib.sha256(b"data key").digest()
KEY = DataKey("01890a5d-ac96-774b-bcce-b302099a8057", SECRET)
OTHER = DataKey("01890a5d-ac96-774b-bcce-b302099a8058", hashlib.sha256(b"other").digest())
CONTEXT = ArtifactContext("store", 7, "agg", 3, "delta")
SALT = b"0123456789abcdef"


@given(st.binary(max_size=300), st.integers(4, 9))
def test_what_was_encrypted_is_read_back_and_has_the_promised_size(data: bytes, log2: int) -> None:
    """With any number of segments, the empty artifact included."""
    stored = encrypt_artifact(KEY, CONTEXT, data, SALT, segment_log2=log2)
    assert decrypt_artifact(KEY, CONTEXT, stored) == data
    segments = max(1, -(-len(data) // (1 << log2)))
    assert len(stored) == HEADER_BYTES + len(data) + segments * TAG_BYTES
    assert len(data) < 8 or data not in stored


def test_every_flipped_byte_and_every_cut_is_found() -> None:
    """Header, salt, ciphertext, tags; and segments that are missing at the end or in the middle."""
    stored = encrypt_artifact(KEY, CONTEXT, b"x" * 50, SALT, segment_log2=4)
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1
        with pytest.raises(FormatError):
            decrypt_artifact(KEY, CONTEXT, damaged)
        with pytest.raises(FormatError):
            decrypt_artifact(KEY, CONTEXT, stored[:at])
    step = 16 + TAG_BYTES
    first, second = stored[HEADER_BYTES : HEADER_BYTES + step], stored[HEADER_BYTES + step :][:step]
    head, tail = stored[:HEADER_BYTES], stored[HEADER_BYTES + 2 * step :]
    for reordered in (
        head + second + first + tail,
        head + first + tail,
        head + first + first + second + tail,
    ):
        with pytest.raises(FormatError):
            decrypt_artifact(KEY, CONTEXT, reordered)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(CONTEXT, store_id="another"),
        dataclasses.replace(CONTEXT, checkpoint_number=8),
        dataclasses.replace(CONTEXT, operator="join"),
        dataclasses.replace(CONTEXT, partition=4),
        dataclasses.replace(CONTEXT, kind="snapshot"),
        dataclasses.replace(CONTEXT, operator="agg3", partition=3),
    ],
)
def test_an_artifact_does_not_open_in_another_place(other: ArtifactContext) -> None:
    """Each part of the context is bound: bytes cannot be moved between places of a store."""
    stored = encrypt_artifact(KEY, CONTEXT, b"rows", SALT)
    with pytest.raises(FormatError, match="belong to another place"):
        decrypt_artifact(KEY, other, stored)


def test_context_fields_cannot_be_shifted_into_each_other() -> None:
    """``a`` + ``bc`` is not ``ab`` + ``c``: every field carries its length."""
    stored = encrypt_artifact(KEY, ArtifactContext("s", 1, "ab", 1, "delta:x"), b"rows", SALT)
    with pytest.raises(FormatError):
        decrypt_artifact(KEY, ArtifactContext("sa", 1, "b", 1, "delta:x"), stored)


def test_an_artifact_does_not_open_under_another_key() -> None:
    """And the error names the data key."""
    stored = encrypt_artifact(KEY, CONTEXT, b"rows", SALT)
    with pytest.raises(FormatError, match=OTHER.data_key_id):
        decrypt_artifact(OTHER, CONTEXT, stored)


def test_the_key_and_the_salt_change_every_byte() -> None:
    """Equal rows in two artifacts do not show as equal."""
    one = encrypt_artifact(KEY, CONTEXT, b"x" * 64, SALT)
    other = encrypt_artifact(KEY, CONTEXT, b"x" * 64, b"fedcba9876543210")
    same = sum(a == b for a, b in zip(one[HEADER_BYTES:], other[HEADER_BYTES:], strict=True))
    assert same < 10
    with pytest.raises(FormatError, match="salt"):
        encrypt_artifact(KEY, CONTEXT, b"x", b"short")


def test_an_unknown_version_and_plain_bytes_are_refused_by_name() -> None:
    """The version is in the first bytes."""
    stored = bytearray(encrypt_artifact(KEY, CONTEXT, b"rows", SALT))
    stored[4] = 2
    with pytest.raises(UnknownVersion, match="encryption version 2"):
        decrypt_artifact(KEY, CONTEXT, stored)
    with pytest.raises(FormatError, match="not an encrypted artifact"):
        decrypt_artifact(KEY, CONTEXT, b"PAR1" + bytes(100))


def test_a_wrapped_key_opens_only_with_its_master_key_store_and_id() -> None:
    """A wrapped key that was copied to another store is of no use there."""
    master = bytes(range(32))
    wrapped = wrap_data_key(master, "store", KEY, b"n" * 12)
    assert unwrap_data_key(master, "store", KEY.data_key_id, b"n" * 12, wrapped) == KEY
    assert SECRET not in wrapped
    assert unwrap_data_key(bytes(32), "store", KEY.data_key_id, b"n" * 12, wrapped) is None
    assert unwrap_data_key(master, "other", KEY.data_key_id, b"n" * 12, wrapped) is None
    assert unwrap_data_key(master, "store", OTHER.data_key_id, b"n" * 12, wrapped) is None


def test_manifest_macs_differ_by_key_and_by_body() -> None:
    """And are not the data key's plain HMAC: artifacts and manifests use different keys."""
    mac = manifest_mac(KEY)
    assert len(mac(b"body")) == 64
    assert mac(b"body") == manifest_mac(KEY)(b"body")
    assert len({mac(b"body"), mac(b"bodz"), manifest_mac(OTHER)(b"body")}) == 3


def test_no_repr_shows_a_secret() -> None:
    """Neither the key nor the cipher that holds it, in any common form."""
    cipher = DataKeyCipher("master", KEY, {OTHER.data_key_id: OTHER})
    for shown in (repr(KEY), str(KEY), repr(cipher), f"{cipher}", repr([cipher])):
        assert KEY.data_key_id in shown
        for secret in (SECRET, OTHER.secret):
            assert repr(secret)[2:12] not in shown
            assert secret.hex()[:10] not in shown


def test_a_task_cipher_travels_by_value_and_reads_what_it_was_given() -> None:
    """Spark sends it to tasks; there it encrypts, and decrypts under the named keys only."""
    cipher = pickle.loads(pickle.dumps(DataKeyCipher("master", KEY, {OTHER.data_key_id: OTHER})))
    stored = cipher.encrypt(b"rows", CONTEXT)
    assert cipher.decrypt(stored, cipher.data_key_id, CONTEXT) == b"rows"
    earlier = encrypt_artifact(OTHER, CONTEXT, b"earlier", SALT)
    assert cipher.decrypt(earlier, OTHER.data_key_id, CONTEXT) == b"earlier"
    with pytest.raises(MissingKey, match="feedbeef") as caught:
        cipher.decrypt(earlier, "feedbeef", CONTEXT)
    assert caught.value.key_id == "feedbeef"


def test_a_task_cannot_authenticate_a_manifest() -> None:
    """Whoever takes an executor over can write artifacts of its run, and no history."""
    with pytest.raises(RefusedError, match="driver"):
        DataKeyCipher("master", KEY).mac(b"body")


def test_two_encryptions_of_one_artifact_use_two_salts() -> None:
    """Also by two copies of one cipher, as two executors have."""
    one, other = DataKeyCipher("master", KEY), DataKeyCipher("master", KEY)
    assert len({c.encrypt(b"rows", CONTEXT) for c in (one, one, other)}) == 3
    fixed = DataKeyCipher("master", KEY, clock=ManualClock())
    assert fixed.encrypt(b"rows", CONTEXT) != fixed.encrypt(b"rows", CONTEXT)
