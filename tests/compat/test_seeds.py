"""The seed map: complete, true, and importable."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from pyspark_checkpoint.compat import seeds

MAP = Path(__file__).parents[2] / "docs" / "seed-map.md"
ROW = re.compile(r"^\| (.+?) \| `(pyspark_checkpoint[\w.]*)` \|(.*)\|$")
SEED_NAMES = {
    "000": "ObjectStoreCheckpointStore CheckpointStore with_vnode_count vnode_count save update_manifest "
    "load_latest load_by_id list_ids list prune save_state_data load_state_data cleanup_orphans "
    "validate_checkpoint recover_latest_validated save_with_state ValidationResult RecoveryReport "
    "CheckpointStoreError max_retained prefix",
    "001": "Checkpointer save_manifest load_manifest save_snapshot save_delta load_artifact update_latest "
    "read_latest list_checkpoints delete_checkpoint CheckpointerError CheckpointId CheckpointManifestV2",
    "002": "CheckpointManifest version checkpoint_id epoch timestamp_ms source_offsets sink_epochs "
    "sink_commit_statuses table_offsets operator_states table_store_checkpoint_path watermark "
    "source_watermarks source_names sink_names pipeline_hash vnode_count state_checksum validate "
    "new_with_vnode_count ManifestValidationError ConnectorCheckpoint SinkCommitStatus OperatorCheckpoint "
    "DEFAULT_VNODE_COUNT",
    "003": "ObjectStoreCheckpointer store paths max_concurrent_uploads put_with_retry sha256_hex "
    "write_with_digest save_partitions_concurrent verify_integrity PartitionSnapshotEntry "
    "OperatorSnapshotEntry to_string_id",
    "004": "StateBackendConfig path url instance_id vnode_capacity vnodes merger_instance discovery "
    "seed_peers DiscoveryMode in_process local object_store build local_storage_dir build_object_store "
    "is_durable StateBackend StateBackendBuildError",
}
TYPES = [
    "CheckpointId",
    "CheckpointPaths",
    "CheckpointManifest",
    "CheckpointManifestV2",
    "Checkpointer",
    "ObjectStoreCheckpointer",
    "CheckpointStore",
    "ObjectStoreCheckpointStore",
    "SinkCommitStatus",
    "ConnectorCheckpoint",
    "OperatorCheckpoint",
    "ManifestValidationError",
    "PartitionSnapshotEntry",
    "OperatorSnapshotEntry",
    "verify_integrity",
    "DEFAULT_VNODE_COUNT",
    "StateBackendConfig",
    "DiscoveryMode",
]


def rows() -> list[tuple[str, str]]:
    found = []
    for line in MAP.read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| seed ", "|---")):
            match = ROW.match(line)
            assert match is not None, line
            found.append((match[1], match[2]))
    return found


def resolve(dotted: str) -> object:
    """Import the longest module, then follow attributes."""
    names = dotted.split(".")
    for size in range(len(names), 0, -1):
        try:
            value: object = importlib.import_module(".".join(names[:size]))
        except ModuleNotFoundError:
            continue
        for name in names[size:]:
            value = getattr(value, name)
        return value
    raise AssertionError(dotted)


@pytest.mark.parametrize(("seed", "ours"), rows())
def test_every_name_of_the_map_is_importable(seed: str, ours: str) -> None:
    """A name that was renamed in the code and not in the map is found here."""
    assert resolve(ours) is not None, seed


@pytest.mark.parametrize("seed", sorted(SEED_NAMES))
def test_every_name_of_a_seed_is_in_its_table(seed: str) -> None:
    """Types, methods, fields: nothing of the five seeds is left out."""
    section = MAP.read_text().split(f"## Seed {seed}")[1].split("\n## ")[0]
    first = {name for line in section.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}
    assert set(SEED_NAMES[seed].split()) - first == set()


def test_the_seeds_module_has_every_type_under_its_seed_name() -> None:
    """So that a reader of the seeds can import what he knows."""
    for name in TYPES:
        assert getattr(seeds, name) is not None
        assert name in seeds.__all__
    assert all(hasattr(seeds, name) for name in seeds.__all__)


def test_the_manifest_has_the_17_fields_of_the_seed() -> None:
    """And makes an empty one as the seed does."""
    manifest = seeds.CheckpointManifest.new_with_vnode_count(1, 2, 128)
    fields = SEED_NAMES["002"].split()[1:18]
    assert len(fields) == 17
    assert all(hasattr(manifest, name) for name in fields)
    assert (manifest.checkpoint_id, manifest.epoch, manifest.vnode_count) == (1, 2, 128)
    assert seeds.CheckpointManifest.new(1, 2).vnode_count == seeds.DEFAULT_VNODE_COUNT
