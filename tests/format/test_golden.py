"""Golden files: what the first release wrote is read for ever, and today's code writes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pyspark_checkpoint.crypto.keyring import KeyRing, make_key_ring
from pyspark_checkpoint.errors import FormatError, MissingKey
from pyspark_checkpoint.format.keys import CONTROL_KEY, manifest_key
from pyspark_checkpoint.format.manifest import CheckpointManifest, ManifestKind
from pyspark_checkpoint.format.manifest_parts import DeclaredStore, PlannedBatch, StateRecord
from pyspark_checkpoint.format.records import SinkCommitStatus, decode_control
from pyspark_checkpoint.history.artifact_reader import ArtifactReader
from pyspark_checkpoint.history.head import find_head
from pyspark_checkpoint.history.lookup import find_checkpoint
from pyspark_checkpoint.history.seal import find_seal
from pyspark_checkpoint.history.sink_status import read_status
from pyspark_checkpoint.history.store_cipher import StoreCipher
from pyspark_checkpoint.history.verify import verify_store
from pyspark_checkpoint.spark_files.logs import decode_offset_log
from pyspark_checkpoint.spark_files.positions import SourcePositions
from pyspark_checkpoint.store.base import ObjectStore
from pyspark_checkpoint.store.memory import MemoryStore
from pyspark_checkpoint.table.info import TableInfo
from tests.golden.make_golden import (
    GOLDEN,
    MASTER,
    QUERY,
    START_MS,
    STORE_ID,
    TABLE,
    log_text,
    make_store,
    plain_bytes,
)

RING = make_key_ring({MASTER.key_id: MASTER.secret}, MASTER.key_id)
BOTH = pytest.mark.parametrize("name", ["plain", "encrypted"])


def read_golden(name: str) -> dict[str, bytes]:
    root = GOLDEN / name
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def open_golden(name: str) -> ObjectStore:
    store = MemoryStore()
    for key, data in read_golden(name).items():
        store.put(key, data)
    return store


def cipher_of(name: str, store: ObjectStore, ring: KeyRing | None = RING) -> StoreCipher | None:
    return StoreCipher(store, STORE_ID, ring) if name == "encrypted" else None


def read_all(manifest: CheckpointManifest, reader: ArtifactReader) -> dict[int, bytes]:
    parts = range(manifest.partition_count)
    return {n: b"".join(reader.read_partition(manifest, TABLE, n)) for n in parts}


@BOTH
def test_todays_code_writes_the_same_bytes(name: str) -> None:
    """If this fails the format has changed: raise its version, and keep reading this one."""
    made, golden = make_store(encrypted=name == "encrypted"), read_golden(name)
    assert set(made) == set(golden)
    assert [key for key in sorted(made) if made[key] != golden[key]] == []


@BOTH
def test_a_golden_store_verifies_without_a_key(name: str) -> None:
    """Digests are over stored bytes: nothing is found, and no key is needed."""
    assert list(verify_store(open_golden(name))) == []


@BOTH
def test_a_golden_store_is_read_whole(name: str) -> None:
    """Head, history, artifacts alone, packed and inline, seal, statuses, savepoints."""
    store = open_golden(name)
    cipher = cipher_of(name, store)
    mac = cipher.mac if cipher else None
    head = find_head(store, mac=mac)
    assert head is not None
    manifest = head.manifest
    assert (manifest.checkpoint_id, manifest.epoch, manifest.kind) == (6, 2, ManifestKind.ROLLBACK)
    assert (manifest.rollback_of, manifest.generation, manifest.earlier_runs) == (2, 2, ("run-a",))
    assert manifest.query == QUERY
    assert (manifest.batch_id, manifest.batch_watermark_ms) == (12, 11_000)
    assert manifest.source_names == ("rate", "clicks")
    assert SourcePositions.of_manifest(manifest) == SourcePositions.of_log(
        decode_offset_log(log_text("offsets/12").encode(), "offsets/12")
    )
    assert TableInfo.of_manifest(manifest).schema.names == ("k", "n")
    assert manifest.state == StateRecord(
        12, (DeclaredStore(0, "default", 1),), {"state/0/0/13.delta": START_MS}
    )
    assert [sink.kind for sink in manifest.sinks] == ["ckpt-sink", "delta", "iceberg"]
    assert manifest.sinks[2].location == "s3://bucket/db/raw"
    assert (manifest.share, manifest.assignment_version) == ("west", 4)
    assert manifest.planned == PlannedBatch(13, ("offsets/13",))
    reader = ArtifactReader(store, store_id=STORE_ID, cipher=cipher)
    assert read_all(manifest, reader) == {
        n: plain_bytes(TABLE, n, 1) + plain_bytes(TABLE, n, 2) for n in range(3)
    }
    for ref in manifest.files:
        assert reader.read(ref).decode() == log_text(ref.name)
    seal = find_seal(store, manifest, mac=mac)
    assert seal is not None
    assert list(seal.files) == ["commits/12"]
    assert read_status(store, manifest, "table", mac=mac) is SinkCommitStatus.COMMITTED


@BOTH
def test_every_kind_of_checkpoint_of_a_golden_store_is_known(name: str) -> None:
    """A pin below the floor is there, a deleted one is not, the claim names what its parent names."""
    store = open_golden(name)
    found = {number: find_checkpoint(store, number) for number in range(1, 8)}
    kinds = {number: loaded.manifest.kind for number, loaded in found.items() if loaded is not None}
    assert kinds == {
        1: ManifestKind.EPOCH,
        2: ManifestKind.EPOCH,
        3: ManifestKind.EPOCH,
        4: ManifestKind.CLAIM,
        6: ManifestKind.ROLLBACK,
    }
    assert decode_control(store.get(CONTROL_KEY)).pins["before-upgrade"].number == 6


def test_the_golden_encrypted_store_needs_its_key_and_names_it() -> None:
    """Without a ring, and with another one."""
    store = open_golden("encrypted")
    head = find_head(store)
    assert head is not None
    for ring in (None, make_key_ring({"other": bytes(32)}, "other")):
        cipher = cipher_of("encrypted", store, ring)
        reader = ArtifactReader(store, store_id=STORE_ID, cipher=cipher)
        with pytest.raises(MissingKey, match="golden") as caught:
            reader.read_partition(head.manifest, TABLE, 0)
        assert caught.value.key_id == "golden"


def test_no_byte_of_the_golden_plain_text_is_in_the_encrypted_store() -> None:
    """Neither alone, nor packed, nor inline."""
    for data in read_golden("encrypted").values():
        assert b"partition" not in data or data.startswith(b"{")
        assert b"table 0 epoch" not in data
        assert b"stateStoreSave 0 epoch" not in data
        assert b"batchTimestampMs" not in data


@BOTH
def test_damage_anywhere_in_a_golden_store_is_found(name: str) -> None:
    """A few bytes of each object; all bytes of a small checkpoint are below."""
    assert undetected_flips(open_golden(name), read_golden(name), step=211) == []


def test_every_byte_of_a_small_checkpoint_flipped_in_turn_is_found() -> None:
    """Control record, pointer, manifest, seal, statuses, keys, a pack, an artifact alone."""
    golden = make_store(encrypted=True, epochs=1, lines=2)
    store = MemoryStore()
    for key, data in golden.items():
        store.put(key, data)
    assert list(verify_store(store)) == []
    assert {key.split("/")[0] for key in golden} == {
        "_control",
        "_latest",
        "checkpoints",
        "keys",
        "manifests",
    }
    assert undetected_flips(store, golden, step=1) == []


def undetected_flips(store: ObjectStore, objects: Mapping[str, bytes], step: int) -> list[tuple[str, int]]:
    missed = []
    for key, data in objects.items():
        for at in range(0, len(data), step):
            damaged = bytearray(data)
            damaged[at] ^= 1 << (at % 8)
            store.put(key, bytes(damaged))
            if not is_found(store):
                missed.append((key, at))
        store.put(key, data)
    return missed


def is_found(store: ObjectStore) -> bool:
    try:
        return next(iter(verify_store(store, max_concurrent_reads=1)), None) is not None
    except FormatError:
        return True


def test_every_object_removed_in_turn_is_found() -> None:
    """Except hints, and records whose absence means pending or not sealed."""
    optional = {"_latest", "manifests/manifest-0000000006.seal.json"}
    store, objects = open_golden("plain"), read_golden("plain")
    for key, data in objects.items():
        store.delete([key])
        lost = not is_found(store)
        store.put(key, data)
        assert lost == (key in optional or ".table." in key), key


def test_golden_files_are_kept_as_they_are_by_git() -> None:
    """No line ending is converted: the packs are not text."""
    attributes = (Path(__file__).parents[2] / ".gitattributes").read_text()
    assert "tests/golden/version-*/** -text" in attributes
    assert read_golden("plain")[manifest_key(1)].startswith(b"{")
