"""Sealed objects: each proves itself, and any change of any byte is found."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.errors import FormatError, IntegrityError, UnknownVersion
from pyspark_checkpoint.format.envelope import (
    MAX_SEALED_BYTES,
    check_version,
    decode_sealed,
    encode_sealed,
)
from pyspark_checkpoint.format.records import (
    Control,
    Pin,
    Seal,
    SinkCommitStatus,
    SinkStatusRecord,
    decode_control,
    decode_latest,
    decode_seal,
    decode_status,
    encode_control,
    encode_latest,
    encode_seal,
    encode_status,
)
from tests.format.strategies import INT64, digests, json_values, names, numbers, texts

NONCE = "0123456789abcdef0123456789abcdef"
objects = st.dictionaries(texts.filter(lambda t: t not in ("mac", "self_sha256")), json_values, min_size=1)


def mac(body: bytes) -> str:
    return hmac.new(b"secret", body, hashlib.sha256).hexdigest()


def other_mac(body: bytes) -> str:
    return hmac.new(b"another", body, hashlib.sha256).hexdigest()


@given(objects)
def test_what_was_sealed_is_read_back_in_any_order_of_members(fields: dict[str, object]) -> None:
    """Equal fields give equal bytes, with and without authentication."""
    reordered = dict(reversed(list(fields.items())))
    for by in (None, mac):
        data = encode_sealed(fields, mac=by)
        assert encode_sealed(reordered, mac=by) == data
        assert decode_sealed(data, "x", mac=by) == fields
    assert decode_sealed(encode_sealed(fields, mac=mac), "x") == fields


@pytest.mark.parametrize("by", [None, mac])
def test_every_flipped_byte_is_found(by: object) -> None:
    """Each bit of each byte, the digest's own included."""
    data = encode_sealed({"version": 1, "name": "é", "n": [1, 2, {"a": None}]}, mac=by)  # type: ignore[arg-type]
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(FormatError):
                decode_sealed(bytes(damaged), "x")


def test_an_object_cut_at_any_length_is_torn() -> None:
    """The empty object included, and one that has grown."""
    data = encode_sealed({"version": 1, "pins": {"a": {"number": 1}}})
    for size in range(len(data)):
        with pytest.raises(FormatError):
            decode_sealed(data[:size], "x")
    for grown in (data + b" ", data + data, b" " + data):
        with pytest.raises(FormatError):
            decode_sealed(grown, "x")


def test_a_right_digest_over_what_is_not_an_object_is_refused() -> None:
    """Bytes that somebody sealed by hand are still parsed with care."""
    for body in (b"[1}", b"{a}", b"\xff}"):
        digest = hashlib.sha256(body).hexdigest().encode()
        with pytest.raises(FormatError, match="not JSON"):
            decode_sealed(body[:-1] + b',"self_sha256":"' + digest + b'"}', "x")


def test_an_object_without_fields_is_never_written() -> None:
    """Its bytes would not be JSON."""
    with pytest.raises(FormatError):
        encode_sealed({})


def test_a_huge_object_is_refused_before_it_is_hashed() -> None:
    """A manifest of gigabytes must not take the reader down."""
    with pytest.raises(FormatError, match="more than any object"):
        decode_sealed(b"x" * (MAX_SEALED_BYTES + 1), "x")


def test_an_unknown_version_is_refused_with_the_cure() -> None:
    """Whatever else is in the object."""
    for version in (0, 2, "1", None, 1.5):
        with pytest.raises(UnknownVersion, match="install the version of pyspark-checkpoint"):
            check_version({"version": version}, "x")


def test_an_authenticated_object_proves_who_wrote_it() -> None:
    """Another key, or no MAC at all, is refused when one is demanded."""
    data = encode_sealed({"version": 1}, mac=mac)
    assert decode_sealed(data, "x", mac=mac) == {"version": 1}
    with pytest.raises(FormatError, match="not written by a holder"):
        decode_sealed(data, "x", mac=other_mac)
    with pytest.raises(FormatError, match="not authenticated"):
        decode_sealed(encode_sealed({"version": 1}), "x", mac=mac)


def test_a_forged_field_with_a_right_digest_fails_authentication() -> None:
    """Whoever can write the bucket can fix a digest, but not a MAC."""
    data = encode_sealed({"epoch": 1, "version": 1}, mac=mac)
    start = data.index(b',"self_sha256"')
    forged = data[:start].replace(b'"epoch":1', b'"epoch":2')
    digest = hashlib.sha256(forged + b"}").hexdigest().encode()
    sealed = forged + b',"self_sha256":"' + digest + b'"}'
    assert decode_sealed(sealed, "x") == {"epoch": 2, "version": 1}
    with pytest.raises(FormatError, match="not written by a holder"):
        decode_sealed(sealed, "x", mac=mac)


@given(
    st.builds(
        Control,
        texts,
        st.integers(0, INT64),
        numbers,
        numbers,
        st.dictionaries(names, st.builds(Pin, numbers, digests), max_size=3),
        st.frozensets(numbers, max_size=3),
    )
)
def test_control_records_are_read_back(control: Control) -> None:
    """Pins and deleted numbers included."""
    assert decode_control(encode_control(control)) == control


@given(numbers, texts, st.integers(0, INT64), st.dictionaries(texts, st.binary(max_size=30), max_size=3))
def test_seals_are_read_back(number: int, nonce: str, ms: int, files: dict[str, bytes]) -> None:
    """Any file name and any bytes."""
    seal = Seal(number, nonce, ms, files)
    assert decode_seal(encode_seal(seal), "x") == seal


@given(numbers, texts, texts, st.sampled_from(SinkCommitStatus), st.integers(0, INT64), texts)
def test_status_records_are_read_back(
    number: int, nonce: str, sink: str, status: SinkCommitStatus, ms: int, message: str
) -> None:
    """Every status."""
    record = SinkStatusRecord(number, nonce, sink, status, ms, message)
    assert decode_status(encode_status(record), "x") == record


@given(numbers)
def test_the_pointer_is_read_back(number: int) -> None:
    """And a torn one is an error, which readers may ignore."""
    assert decode_latest(encode_latest(number)) == number
    with pytest.raises(FormatError):
        decode_latest(encode_latest(number)[:-1])


SMALL_RECORDS = [
    (decode_control, encode_control(Control("s", 3, 2, 1, {"p": Pin(1, "ab")}, frozenset({4})))),
    (decode_latest, encode_latest(42)),
    (lambda data: decode_seal(data, "x"), encode_seal(Seal(1, NONCE, 5, {"commits/1": b"v1"}))),
    (
        lambda data: decode_status(data, "x"),
        encode_status(SinkStatusRecord(1, NONCE, "s", SinkCommitStatus.FAILED, 5, "no")),
    ),
]


@pytest.mark.parametrize(("decode", "data"), SMALL_RECORDS)
def test_every_flipped_byte_of_a_small_record_is_found(decode: object, data: bytes) -> None:
    """Fault 12 of the seed system: checksums covered the state and nothing else."""
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(FormatError):
            decode(bytes(damaged))  # type: ignore[operator]


@pytest.mark.parametrize(("decode", "data"), SMALL_RECORDS)
def test_a_small_record_with_a_missing_or_strange_field_is_refused(decode: object, data: bytes) -> None:
    """Each field in turn is left out, and replaced by a list, under a right digest."""
    fields = decode_sealed(data, "x")
    for name in fields:
        without = {k: v for k, v in fields.items() if k != name} or {"x": 1}
        for changed in (without, {**fields, name: [[]]}):
            if name in ("store_id", "commit_nonce", "sink", "message") and changed is not without:
                continue
            with pytest.raises(FormatError):
                decode(encode_sealed(changed))  # type: ignore[operator]


def test_an_integrity_error_has_path_expected_and_actual() -> None:
    """As the seed's error has."""
    data = bytearray(encode_sealed({"version": 1}))
    data[2] ^= 1
    with pytest.raises(IntegrityError) as caught:
        decode_sealed(bytes(data), "manifests/x")
    assert caught.value.path == "manifests/x"
    assert len(caught.value.expected) == len(caught.value.actual) == 64
    assert caught.value.expected != caught.value.actual


def test_what_is_authenticated_as_one_kind_is_no_other() -> None:
    """A seal is no status record, and no manifest, whoever gives it another name."""
    seal = encode_seal(Seal(1, NONCE, 5, {"commits/1": b"v1"}), mac=mac)
    status = encode_status(SinkStatusRecord(1, NONCE, "s", SinkCommitStatus.COMMITTED, 5, ""), mac=mac)
    assert decode_seal(seal, "x", mac=mac).checkpoint_id == 1
    assert decode_status(status, "x", mac=mac).sink == "s"
    for data, decode in ((status, decode_seal), (seal, decode_status), (seal, decode_sealed)):
        with pytest.raises(FormatError, match="not written by a holder"):
            decode(data, "x", mac=mac)
    for data in (encode_seal(Seal(1, NONCE, 5, {})), seal):
        assert decode_seal(data, "x").checkpoint_id == 1, "without keys nothing can be told"
    with pytest.raises(FormatError, match="not authenticated"):
        decode_seal(encode_seal(Seal(1, NONCE, 5, {})), "x", mac=mac)
