"""Every type of the seeds under the seed's own name; ``docs/seed-map.md`` says where ours differ."""

from __future__ import annotations

from pyspark_checkpoint.compat.artifact_checkpointer import Checkpointer, ObjectStoreCheckpointer
from pyspark_checkpoint.compat.state_backend import DiscoveryMode, StateBackendConfig
from pyspark_checkpoint.errors import CheckpointError as CheckpointStoreError
from pyspark_checkpoint.errors import CheckpointError as CheckpointerError
from pyspark_checkpoint.errors import IntegrityError, SettingsError, StoreError
from pyspark_checkpoint.errors import IntegrityError as IntegrityMismatch
from pyspark_checkpoint.errors import SettingsError as StateBackendBuildError
from pyspark_checkpoint.format.artifact import ArtifactRef, verify_integrity
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import (
    DEFAULT_VNODE_COUNT,
    CheckpointManifest,
    ConnectorCheckpoint,
    ManifestValidationError,
    OperatorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.format.manifest import CheckpointManifest as CheckpointManifestV2
from pyspark_checkpoint.format.records import SinkCommitStatus
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore
from pyspark_checkpoint.history.checkpoint_store import CheckpointStore as ObjectStoreCheckpointStore
from pyspark_checkpoint.history.recovery import RecoveryReport, ValidationResult
from pyspark_checkpoint.store.base import ObjectStore

StateBackend = CheckpointStore
"""What ``StateBackendConfig.build`` gives."""

__all__ = [
    "DEFAULT_VNODE_COUNT",
    "ArtifactRef",
    "CheckpointId",
    "CheckpointManifest",
    "CheckpointManifestV2",
    "CheckpointPaths",
    "CheckpointStore",
    "CheckpointStoreError",
    "Checkpointer",
    "CheckpointerError",
    "ConnectorCheckpoint",
    "DiscoveryMode",
    "IntegrityError",
    "IntegrityMismatch",
    "ManifestValidationError",
    "ObjectStore",
    "ObjectStoreCheckpointStore",
    "ObjectStoreCheckpointer",
    "OperatorCheckpoint",
    "OperatorSnapshotEntry",
    "PartitionSnapshotEntry",
    "RecoveryReport",
    "SettingsError",
    "SinkCommitStatus",
    "StateBackend",
    "StateBackendBuildError",
    "StateBackendConfig",
    "StoreError",
    "ValidationResult",
    "sha256_hex",
    "verify_integrity",
]
