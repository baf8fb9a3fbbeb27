"""Manifests: written down and read back, bounded in size, and refused when anything is strange."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_checkpoint.crypto.aead import DataKey, manifest_mac
from pyspark_checkpoint.errors import FormatError, IntegrityError, UnknownVersion
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity
from pyspark_checkpoint.format.envelope import encode_sealed, sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import (
    DEFAULT_VNODE_COUNT,
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.manifest_codec import decode_manifest, encode_manifest, manifest_fields
from tests.format.strategies import manifests

NAME = "manifests/manifest-0000000007.json"
UUID = "01890a5d-ac96-774b-bcce-b302099a8057"
KEY = DataKey(UUID, bytes(32))
strange_values = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(0, 3), max_size=2)


def small() -> CheckpointManifest:
    attempt = CheckpointId(7, UUID)
    part = ArtifactRef(CheckpointPaths.pack(attempt, 0), 100, sha256_hex(b"a"), True, 3, 8, "", UUID)
    inline = ArtifactRef.of_inline(b"tiny", is_delta=False, epoch=2, name="commits/2")
    return CheckpointManifest(
        checkpoint_id=7,
        epoch=3,
        timestamp_ms=1,
        attempt=UUID,
        operators={"agg": OperatorSnapshotEntry((PartitionSnapshotEntry(0, (inline, part)),))},
        files=(inline,),
        source_names=("k",),
        source_offsets={"k": ConnectorCheckpoint({"0": "12"})},
    )


def encode_changed(**changes: Any) -> bytes:
    """A manifest with a right digest and wrong fields."""
    return encode_sealed({**manifest_fields(small()), **changes})


@given(manifests)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_every_manifest_is_read_back_byte_for_byte(manifest: CheckpointManifest) -> None:
    """Equal manifests give equal bytes, plain and authenticated."""
    for mac in (None, manifest_mac(KEY)):
        data = encode_manifest(manifest, mac=mac)
        read = decode_manifest(data, NAME, mac=mac)
        assert read == manifest
        assert encode_manifest(read, mac=mac) == data


def test_every_flipped_byte_of_a_manifest_is_found() -> None:
    """Offsets, names and statuses as well as digests of artifacts."""
    data = encode_manifest(small())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(FormatError):
            decode_manifest(bytes(damaged), NAME)


def test_a_manifest_cut_at_any_length_is_torn() -> None:
    """The empty one included."""
    data = encode_manifest(small())
    for size in range(len(data)):
        with pytest.raises(FormatError, match=NAME):
            decode_manifest(data[:size], NAME)


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
def test_an_unknown_version_is_refused_before_its_fields_are_read(version: object) -> None:
    """A newer format may have other fields: the version is what the error is about."""
    with pytest.raises(UnknownVersion, match="install the version"):
        decode_manifest(encode_changed(version=version, operators="new shape"), NAME)


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "/etc/passwd",
        f"checkpoints/0000000007-{UUID}/../../../x",
        "manifests/manifest-0000000001.json",
        "_control",
        f"checkpoints/0000000007-{UUID}/a\nb",
        "",
    ],
)
def test_a_path_that_leaves_the_store_is_refused(path: str) -> None:
    """A forged manifest cannot make a reader fetch, or a pruner delete, what is not an artifact."""
    with pytest.raises(FormatError, match=NAME):
        decode_manifest(encode_changed(objects=[path]), NAME)


@pytest.mark.parametrize("field", sorted(manifest_fields(small())))
def test_a_missing_or_strange_field_is_refused_by_name_of_the_object(field: str) -> None:
    """Under a right digest, so that only the check of the field can find it."""
    fields = manifest_fields(small())
    without = encode_sealed({k: v for k, v in fields.items() if k != field})
    with pytest.raises(FormatError, match=NAME):
        decode_manifest(without, NAME)
    values: tuple[object, ...] = ([[["x"]]], {"x": [[{}]]}, 1.5)
    for strange in values:
        if field == "table" and isinstance(strange, dict):
            continue
        with pytest.raises(FormatError, match=NAME):
            decode_manifest(encode_changed(**{field: strange}), NAME)


@pytest.mark.parametrize(
    "row",
    [
        [],
        [0, 0, 1],
        [0, 0, 1, "x" * 43, 0, 0],
        [5, 0, 1, "A" * 43, 0, 0],
        [0, -1, 1, "A" * 43, 0, 0],
        [0, 0, 1, "A" * 43, 99, 0],
        [0, 0, 1, 7, 0, 0],
        ["!!", 0, 1, "A" * 43, 0, 0],
        ["AAAA", 0, 1, "A" * 43, 0, 0],
        [True, 0, 1, "A" * 43, 0, 0],
        [0, 0, True, "A" * 43, 0, 0],
        [0, 0, 1, "A" * 43, 0, 0, 5],
        [0, 0, 1, "A" * 43, 0, 0, "n", "too many", "fields", "here"],
        {"path": "x"},
    ],
)
def test_a_strange_artifact_row_is_refused(row: Any) -> None:
    """Each field of a row is checked, not only its digest."""
    with pytest.raises(FormatError):
        decode_manifest(encode_changed(files=[row]), NAME)


def test_a_total_that_is_not_the_sum_is_refused() -> None:
    """The total is there for people; it must not lie."""
    with pytest.raises(FormatError, match="total_size_bytes"):
        decode_manifest(encode_changed(total_size_bytes=1), NAME)


def test_a_manifest_of_another_shape_of_json_is_refused() -> None:
    """An array or a text with a right digest."""
    body = b'{"version":1}'
    digest = hashlib.sha256(body).hexdigest().encode()
    with pytest.raises(FormatError):
        decode_manifest(body[:-1] + b',"self_sha256":"' + digest + b'"}', NAME)


def wide_manifest(*, encrypted: bool) -> CheckpointManifest:
    """1,000 partitions, each a snapshot and 10 deltas, as a long-running query has them."""
    attempts = [CheckpointId(n, f"01890a5d-ac96-774b-bcce-{n:012x}") for n in range(90_000_000, 90_000_011)]
    keys = [f"01890a5d-ac96-774b-8cce-{n:012x}" for n in range(3)]

    def ref(partition: int, at: int) -> ArtifactRef:
        digest = sha256_hex(f"{partition} {at}".encode())
        size, offset = 900_000 + partition, 8 + 900_000 * partition
        path = CheckpointPaths.pack(attempts[at], partition // 50)
        key = keys[at % 3] if encrypted else None
        return ArtifactRef(path, size, digest, at > 0, 90_000_000 + at, offset, "", key)

    parts = tuple(
        PartitionSnapshotEntry(partition, tuple(ref(partition, at) for at in range(11)))
        for partition in range(1000)
    )
    return CheckpointManifest(
        checkpoint_id=90_000_011,
        epoch=90_000_010,
        operators={"state": OperatorSnapshotEntry(parts)},
        encryption_key_id="2026-01" if encrypted else None,
    )


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_manifest_of_1000_partitions_with_10_deltas_stays_within_1_mb(encrypted: bool) -> None:
    """Eleven thousand artifacts in 220 packs, with long numbers."""
    manifest = wide_manifest(encrypted=encrypted)
    data = encode_manifest(manifest, mac=manifest_mac(KEY) if encrypted else None)
    assert len(data) <= 1_000_000
    assert decode_manifest(data, NAME) == manifest


@given(st.binary(max_size=64))
def test_any_other_bytes_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    """No foreign exception leaves the decoder."""
    with pytest.raises(FormatError):
        decode_manifest(data, NAME)


@given(st.dictionaries(st.sampled_from(sorted(manifest_fields(small()))), strange_values, max_size=2))
def test_no_field_of_another_type_raises_a_foreign_exception(changes: dict[str, Any]) -> None:
    """What is accepted is a manifest; everything else is a FormatError."""
    try:
        data = encode_changed(**changes)
    except TypeError:
        return
    try:
        decode_manifest(data, NAME)
    except FormatError:
        return


def test_validate_finds_what_does_not_fit() -> None:
    """Each finding names its field; a good manifest has none."""
    good = replace(small(), source_names=("k",))
    assert good.validate(DEFAULT_VNODE_COUNT) == []
    ref = ArtifactRef.of_inline(b"x", is_delta=True, epoch=4)
    twice = OperatorSnapshotEntry((PartitionSnapshotEntry(0, (ref,)), PartitionSnapshotEntry(0, ())))
    bad = replace(
        good,
        version=2,
        checkpoint_id=0,
        epoch=-1,
        timestamp_ms=0,
        vnode_count=128,
        vnodes=(500,),
        sink_epochs={"ghost": 1},
        sink_names=("b", "a"),
        source_names=(),
        operators={"agg": twice},
    )
    fields = {finding.field for finding in bad.validate(DEFAULT_VNODE_COUNT)}
    assert fields == {
        "version",
        "checkpoint_id",
        "epoch",
        "timestamp_ms",
        "vnode_count",
        "vnodes",
        "sink_epochs",
        "sink_names",
        "source_offsets",
        "operators.agg",
    }


def test_verify_integrity_has_path_expected_and_actual() -> None:
    """As in the seed."""
    verify_integrity("p", b"hello", sha256_hex(b"hello"))
    with pytest.raises(IntegrityError) as caught:
        verify_integrity("p", b"hello", "wrong")
    assert (caught.value.path, caught.value.expected) == ("p", "wrong")
    assert caught.value.actual == sha256_hex(b"hello")


def test_the_bytes_are_plain_sorted_json_with_the_digest_last() -> None:
    """Any tool reads it; the digest is over everything before it."""
    data = encode_manifest(small())
    fields = orjson.loads(data)
    assert list(fields)[:-1] == sorted(list(fields)[:-1])
    assert list(fields)[-1] == "self_sha256"
    assert fields["objects"] == [f"checkpoints/0000000007-{UUID}/pack-00000.pack"]
