"""The configuration of seed 004: what it builds, what it refuses, and that a share has real effect."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpoint.compat.state_backend import Backend, DiscoveryMode, StateBackendConfig
from pyspark_checkpoint.errors import CheckpointError, RefusedError, SettingsError
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.staging import StagedItem
from pyspark_checkpoint.testing.faulty_store import FaultyStore

OBJECT_STORE = {"backend": "object_store", "url": "s3://bucket/prefix", "instance_id": "node-1"}


def save(store: CheckpointStore, epoch: int, partitions: range, count: int = 4) -> CheckpointManifest:
    refs = store.stage(
        [StagedItem(b"x" * 600 + bytes([n]), False, epoch, "agg", n) for n in partitions]
    ).refs
    parts = tuple(PartitionSnapshotEntry(n, (ref,)) for n, ref in zip(partitions, refs, strict=True))
    manifest = replace(
        CheckpointManifest.new_with_vnode_count(0, epoch, store.vnode_count),
        operators={"agg": OperatorSnapshotEntry(parts)},
        partition_count=count,
    )
    return store.save(manifest)


def test_the_default_is_in_process_and_not_durable() -> None:
    """Nothing of it is shared, and there is no object store to hand out."""
    config = StateBackendConfig()
    assert (
        config
        == StateBackendConfig.in_process()
        == StateBackendConfig.from_mapping({"backend": "in_process"})
    )
    assert not config.is_durable()
    assert config.build_object_store() is None
    assert config.local_storage_dir() is None
    assert config.vnode_capacity == 256
    save(config.build(), 1, range(4))
    assert config.build().load_latest() is None


def test_local_is_a_durable_directory(tmp_path: Path) -> None:
    """What one build saved, another one loads."""
    config = StateBackendConfig.local(tmp_path / "state")
    assert config.is_durable()
    assert config.local_storage_dir() == tmp_path / "state"
    saved = save(config.build(), 1, range(4))
    assert config.build().load_latest() == saved
    assert saved.instance_id == "local"
    store = config.build_object_store()
    assert store is not None
    assert [info.key for info in store.list("manifests/")] == ["manifests/manifest-0000000001.json"]


def test_local_is_short_for_an_object_store_with_a_file_url(tmp_path: Path) -> None:
    """Both see one history, and say where it is."""
    local = StateBackendConfig.local(tmp_path)
    same = StateBackendConfig.object_store(tmp_path.as_uri(), "node-1")
    assert same.local_storage_dir() == tmp_path
    assert same.is_durable()
    saved = save(local.build(), 1, range(4))
    assert same.build().load_latest() == saved


def test_the_instance_is_written_into_manifests(tmp_path: Path) -> None:
    """So that an audit, and a fenced driver, can say who it was."""
    config = StateBackendConfig.object_store(tmp_path.as_uri(), "node-7")
    assert save(config.build(), 1, range(4)).instance_id == "node-7"


def test_an_object_store_that_is_memory_is_not_durable() -> None:
    """The scheme decides, not the kind of backend."""
    assert not StateBackendConfig.object_store("memory://shared", "a").is_durable()
    assert StateBackendConfig.object_store("s3://bucket/p", "a").is_durable()
    assert StateBackendConfig.object_store("s3://bucket/p", "a").local_storage_dir() is None


def test_equality_is_by_value() -> None:
    """Order of vnodes does not matter; each field does."""
    config = StateBackendConfig.from_mapping(OBJECT_STORE)
    assert config == StateBackendConfig.object_store("s3://bucket/prefix", "node-1")
    assert config.with_vnodes([3, 1]) == config.with_vnodes([1, 3])
    others = [
        config.with_vnodes([1]),
        config.with_instance_id("node-2"),
        config.with_vnode_capacity(512),
        config.with_merger_instance("node-0"),
        config.with_options({"region": "eu-west-1"}),
        StateBackendConfig.local("/x"),
    ]
    assert all(config != other for other in others)


@pytest.mark.parametrize(
    "config",
    [
        StateBackendConfig.in_process().with_vnode_capacity(64),
        StateBackendConfig.local("/data").with_instance_id("n").with_vnodes([1, 2]),
        StateBackendConfig.object_store("s3://b/p", "n").with_vnodes(range(8)).with_merger_instance("m"),
        StateBackendConfig.object_store("s3://b/p", "n").with_options({"region": "x"}),
    ],
)
def test_a_mapping_is_read_back_to_an_equal_value(config: StateBackendConfig) -> None:
    """The tagged union goes both ways."""
    assert StateBackendConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "backend is None .it is one of in_process, local, object_store"),
        ({"backend": "rocksdb"}, "it is one of"),
        ({"backend": "local"}, "needs path"),
        ({"backend": "local", "path": ""}, "path"),
        ({"backend": "local", "path": 5}, "path"),
        ({"backend": "object_store", "url": "s3://b"}, "needs instance_id"),
        ({"backend": "object_store"}, "needs url and instance_id"),
        ({"backend": "in_process", "url": "s3://b"}, "no setting 'url'"),
        ({**OBJECT_STORE, "vnode": [1]}, "did you mean vnodes"),
        ({**OBJECT_STORE, "path": "/x"}, "no setting 'path'"),
        ({**OBJECT_STORE, "url": "ftp://x"}, "ftp"),
        ({**OBJECT_STORE, "url": 5}, "url"),
        ({**OBJECT_STORE, "instance_id": "a/b"}, "slash"),
        ({**OBJECT_STORE, "instance_id": ""}, "instance_id"),
        ({**OBJECT_STORE, "vnodes": []}, "empty"),
        ({**OBJECT_STORE, "vnodes": [1, 1]}, "twice"),
        ({**OBJECT_STORE, "vnodes": [256]}, "0 to 255"),
        ({**OBJECT_STORE, "vnodes": [-1]}, "0 to 255"),
        ({**OBJECT_STORE, "vnodes": [True]}, "0 to 255"),
        ({**OBJECT_STORE, "vnodes": "12"}, "vnodes is not a list"),
        ({**OBJECT_STORE, "vnodes": 3}, "vnodes is not a list"),
        ({**OBJECT_STORE, "vnode_capacity": 0}, "1 to 65535"),
        ({**OBJECT_STORE, "vnode_capacity": "256"}, "1 to 65535"),
        ({**OBJECT_STORE, "vnode_capacity": 70_000}, "1 to 65535"),
        ({**OBJECT_STORE, "discovery": "gossip"}, "gossip is not built"),
        ({**OBJECT_STORE, "discovery": "dns"}, "it is one of static, gossip"),
        ({**OBJECT_STORE, "seed_peers": ["host:1"]}, "not built"),
        ({**OBJECT_STORE, "discovery": "gossip", "seed_peers": ["host:1"]}, "not built"),
        ({**OBJECT_STORE, "merger_instance": "a\nb"}, "control character"),
        ({**OBJECT_STORE, "merger_instance": 7}, "merger_instance"),
        ({**OBJECT_STORE, "options": "x"}, "options"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(values: dict[str, Any], says: str) -> None:
    """Never ignored, and never a foreign exception."""
    with pytest.raises(SettingsError, match=says):
        StateBackendConfig.from_mapping(values)


def test_builders_are_checked_as_mappings_are() -> None:
    """There is no way around the checks."""
    config = StateBackendConfig.object_store("s3://b/p", "n")
    changes: tuple[Callable[[], StateBackendConfig], ...] = (
        lambda: config.with_discovery(DiscoveryMode.GOSSIP),
        lambda: config.with_discovery(DiscoveryMode.STATIC, ["peer:1"]),
        lambda: config.with_vnodes([9999]),
        lambda: config.with_vnodes([]),
        lambda: config.with_vnode_capacity(-1),
        lambda: config.with_instance_id(""),
        lambda: StateBackendConfig.in_process().with_vnodes([1]),
        lambda: StateBackendConfig.in_process().with_merger_instance("m"),
        lambda: StateBackendConfig(Backend.LOCAL),
    )
    for change in changes:
        with pytest.raises(SettingsError):
            change()


def test_the_static_form_of_discovery_is_accepted() -> None:
    """With a merger, which is an instance like others that reads all shares."""
    config = StateBackendConfig.from_mapping(
        {
            **OBJECT_STORE,
            "discovery": "static",
            "seed_peers": [],
            "merger_instance": "node-1",
            "vnodes": None,
        }
    )
    assert config.is_merger
    assert not config.with_merger_instance("node-2").is_merger
    assert config.vnodes is None


def test_credentials_are_in_no_repr() -> None:
    """Options may hold them."""
    config = StateBackendConfig.object_store("s3://b/p", "n").with_options({"secretKey": "hunter2"})
    assert "hunter2" not in repr(config)
    assert "hunter2" not in f"{config}"


def test_a_share_reads_only_its_partitions(tmp_path: Path) -> None:
    """A store opened for a subset neither sees nor fetches the others' artifacts."""
    everything = StateBackendConfig.object_store(tmp_path.as_uri(), "all").with_vnode_capacity(8)
    full = save(everything.build(), 1, range(4))
    share = everything.with_instance_id("one").with_vnodes([1, 5]).build()
    counting = share.store = FaultyStore(share.store)
    mine = share.load_latest()
    assert mine is not None
    assert [part.partition_id for part in mine.operators["agg"].partitions] == [1]
    assert share.load_partition(full, "agg", 1) == [b"x" * 600 + b"\x01"]
    with pytest.raises(CheckpointError):
        share.load_partition(full, "agg", 2)
    assert len([call for call in counting.calls if ".pack" in call.key]) == 1
    assert not [call for call in counting.calls if call.verb == "put"]


def test_a_share_writes_only_its_partitions_and_says_which_vnodes_it_covers(tmp_path: Path) -> None:
    """A manifest with another's partition is refused before anything is committed."""
    config = StateBackendConfig.object_store(tmp_path.as_uri(), "one").with_vnode_capacity(8)
    share = config.with_vnodes([5, 1]).build()
    assert save(share, 1, range(1, 2)).vnodes == (1, 5)
    with pytest.raises(RefusedError, match="not in this instance's share"):
        save(share, 2, range(1, 3))
    loaded = config.build().load_latest()
    assert loaded is not None
    assert (loaded.epoch, loaded.vnodes) == (1, (1, 5))


def test_a_key_file_among_the_options_encrypts(tmp_path: Path) -> None:
    """The same option as everywhere; the object store itself does not need it."""
    ring = tmp_path / "ring"
    ring.write_text("k = " + base64.b64encode(bytes(range(32))).decode())
    ring.chmod(0o600)
    config = StateBackendConfig.object_store((tmp_path / "s").as_uri(), "n").with_options(
        {"encryptionKeyFile": str(ring)}
    )
    saved = save(config.build(), 1, range(4))
    assert saved.encryption_key_id == "k"
    assert config.build_object_store() is not None
    assert config.build().load_partition(saved, "agg", 3) == [b"x" * 600 + b"\x03"]


def test_retention_is_passed_on(tmp_path: Path) -> None:
    """``max_retained`` epochs stay."""
    store = StateBackendConfig.local(tmp_path).build(max_retained=2)
    for epoch in range(1, 6):
        save(store, epoch, range(4))
    assert store.list() == [(4, 4), (5, 5)]
