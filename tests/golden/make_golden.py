"""Makes the golden stores of format version 1: ``python -m tests.golden.make_golden``.

Every byte follows from what is written here: no clock, no chance, no store. The files under
``golden/`` are what the first release wrote; they are never made again for the same version. A later
format version gets a directory of its own beside this one, and keeps reading this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyspark_checkpoint.crypto.aead import MANIFEST_KEY_ID, DataKey, encrypt_artifact, manifest_mac
from pyspark_checkpoint.crypto.data_keys import encode_wrapped_key, wrap
from pyspark_checkpoint.crypto.keyring import MasterKey
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.cipher import ArtifactContext
from pyspark_checkpoint.format.envelope import Mac, sha256_hex
from pyspark_checkpoint.format.keys import (
    CONTROL_KEY,
    LATEST_KEY,
    CheckpointId,
    CheckpointPaths,
    committed_key,
    data_key_key,
    failed_key,
    manifest_key,
    seal_key,
)
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    ManifestKind,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
    RequestCount,
)
from pyspark_checkpoint.format.manifest_codec import encode_manifest
from pyspark_checkpoint.format.manifest_parts import (
    DeclaredStore,
    FeedPosition,
    Lineage,
    PlannedBatch,
    SinkRecord,
    StateRecord,
    TableMode,
    TableRecord,
)
from pyspark_checkpoint.format.pack import Part, build_pack
from pyspark_checkpoint.format.records import (
    Control,
    Pin,
    Seal,
    SinkCommitStatus,
    SinkStatusRecord,
    encode_control,
    encode_latest,
    encode_seal,
    encode_status,
)
from pyspark_checkpoint.spark_files.requirements import PARTITIONS
from pyspark_checkpoint.spark_files.state_artifacts import STATE_KIND
from pyspark_checkpoint.table.info import TABLE_KIND

GOLDEN = Path(__file__).parent / "version-1"
STORE_ID = "018bcfe5-6800-7000-8000-0000000000aa"
START_MS = 1_700_000_000_000
MASTER = MasterKey("golden", hashlib.sha256(b"a key for tests only").digest())
DATA_KEY = DataKey("018bcfe5-6800-7000-8000-0000000000d1", hashlib.sha256(b"data").digest())
MANIFEST_KEY = DataKey(MANIFEST_KEY_ID, hashlib.sha256(b"manifest").digest())
TABLE = "table"
FIRST_BATCH = 10
"""Epoch 0 would be this batch: the query has taken the table over from another one."""
STATE = "0-stateStoreSave"
QUERY = QueryInfo("q-1", "clicks", "/data/clicks", "4.1.0", "app", {"spark.sql.shuffle.partitions": "3"})


SCHEMA_JSON = (
    '{"type":"struct","fields":[{"name":"k","type":"string","nullable":false,"metadata":{}},'
    '{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
)


def log_text(name: str) -> str:
    """What Spark writes to a small file of its checkpoint location."""
    if name == "metadata":
        return '{"id":"q-1"}'
    number = int(name.partition("/")[2])
    if name.startswith("commits/"):
        return f'v1\n{{"nextBatchWatermarkMs":{number * 1000}}}'
    conf = f'"conf":{{"{PARTITIONS}":"3"}}'
    head = f'{{"batchWatermarkMs":{(number - 1) * 1000},"batchTimestampMs":{START_MS},{conf}}}'
    return f"v2\n{head}\nrate:{number * 10}\nclicks:-"


def plain_bytes(operator: str, partition: int, epoch: int, name: str = "", lines: int = 60) -> bytes:
    """What every artifact of the golden stores contains."""
    if not operator:
        return log_text(name).encode()
    line = f"{operator or 'file'} {partition} epoch {epoch} {name}".rstrip() + "\n"
    return line.encode() * (1 if name else lines)


class Golden:
    """Builds one store as a mapping from key to bytes."""

    def __init__(self, *, encrypted: bool, lines: int = 60) -> None:
        self.encrypted = encrypted
        self.lines = lines
        self.objects: dict[str, bytes] = {}
        self.manifests: dict[int, tuple[CheckpointManifest, str]] = {}
        self._salts = 0

    @property
    def mac(self) -> Mac | None:
        """What authenticates the manifests."""
        return manifest_mac(MANIFEST_KEY) if self.encrypted else None

    def artifact(
        self, attempt: CheckpointId, operator: str, partition: int, epoch: int, name: str = ""
    ) -> Part:
        """Bytes of a partition, or of a file if it has a name, encrypted if the store is."""
        data, key_id = plain_bytes(operator, partition, epoch, name, self.lines), None
        is_delta = name.endswith(".delta") if name else epoch > 1
        if self.encrypted:
            kind = "delta" if is_delta else "snapshot"
            kind = f"{kind}:{name}" if name else kind
            context = ArtifactContext(STORE_ID, attempt.number, operator, partition, kind)
            self._salts += 1
            salt = hashlib.sha256(f"salt {self._salts}".encode()).digest()[:16]
            data, key_id = encrypt_artifact(DATA_KEY, context, data, salt), DATA_KEY.data_key_id
        ref = ArtifactRef.of_inline(
            data, is_delta=is_delta, epoch=epoch, name=name, data_key_id=key_id, made_by=attempt.number
        )
        return Part(operator, partition, ref)

    def stage(self, attempt: CheckpointId, epoch: int) -> tuple[ArtifactRef, ...]:
        """The rows: partition 0 alone, 1 and 2 in a pack."""
        alone, *packed = [self.artifact(attempt, TABLE, n, epoch) for n in range(3)]
        place = CheckpointPaths.delta if alone.ref.is_delta else CheckpointPaths.snapshot
        path = place(attempt, TABLE, 0)
        self.objects[path] = alone.data
        pack = build_pack(CheckpointPaths.pack(attempt, 0), packed)
        self.objects[pack.path] = pack.data
        return (alone.ref.moved(path, 0), *pack.refs)

    def stage_state(self, attempt: CheckpointId, epoch: int) -> OperatorSnapshotEntry:
        """Spark's state before and after the batch, inline."""
        batch_id = FIRST_BATCH + epoch
        names = (f"{batch_id}.snapshot", f"{batch_id + 1}.delta")
        refs = tuple(self.artifact(attempt, STATE, 0, epoch, name).ref for name in names)
        return OperatorSnapshotEntry((PartitionSnapshotEntry(0, refs),), STATE_KIND)

    def stage_logs(self, attempt: CheckpointId, epoch: int) -> tuple[ArtifactRef, ...]:
        """Spark's logs of the batch, and the offsets of the one that is planned next, inline."""
        batch_id = FIRST_BATCH + epoch
        names = [f"commits/{batch_id - 1}", *(f"offsets/{batch_id + step}" for step in (-1, 0, 1))]
        return tuple(self.artifact(attempt, "", -1, epoch, name).ref for name in ("metadata", *names))

    def publish(self, manifest: CheckpointManifest) -> str:
        """Write a manifest down and return its digest."""
        data = encode_manifest(manifest, mac=self.mac)
        self.objects[manifest_key(manifest.checkpoint_id)] = data
        self.manifests[manifest.checkpoint_id] = (manifest, sha256_hex(data))
        return sha256_hex(data)

    def next(
        self, kind: ManifestKind, epoch: int, run_id: str, content: CheckpointManifest
    ) -> CheckpointManifest:
        """Give ``content`` the next place in the history, and publish it."""
        number = len(self.manifests) + 1
        parent, parent_sha256 = self.manifests.get(number - 1, (None, ""))
        taken = parent is not None and parent.run_id != run_id
        manifest = replace(
            content,
            checkpoint_id=number,
            epoch=epoch,
            kind=kind,
            timestamp_ms=START_MS + number * 1000,
            commit_nonce=f"{number:032x}",
            attempt=attempt_of(number).uuid,
            parent_id=number - 1,
            parent_sha256=parent_sha256,
            generation=1 if parent is None else parent.generation + taken,
            run_id=run_id,
            earlier_runs=(parent.run_id,)
            if parent is not None and taken
            else parent.earlier_runs
            if parent
            else (),
            rollbacks=((number, content.batch_id),)
            if kind is ManifestKind.ROLLBACK and content.batch_id is not None
            else (),
            encryption_key_id=MASTER.key_id if self.encrypted else None,
        )
        self.publish(manifest)
        return manifest

    def lineage(self, epoch: int) -> Lineage:
        """Which epochs the rows follow on."""
        wrote = [
            FeedPosition(number, number, sha256_hex(b"%d" % number)[:32]) for number in range(epoch + 1)
        ]
        return Lineage(wrote[epoch], wrote[epoch - 1] if epoch > 1 else None)

    def epoch(self, epoch: int, kind: ManifestKind, run_id: str) -> CheckpointManifest:
        """Stage and publish an epoch: its deltas on top of what the last epoch left."""
        attempt = attempt_of(len(self.manifests) + 1)
        refs = self.stage(attempt, epoch)
        batch_id = FIRST_BATCH + epoch
        offset = str(batch_id * 10)
        base = self.manifests[1][0].operators[TABLE].partitions if epoch > 1 else ()
        before = {part.partition_id: part.artifacts for part in base}
        parts = tuple(PartitionSnapshotEntry(n, (*before.get(n, ()), refs[n])) for n in range(3))
        content = CheckpointManifest(
            checkpoint_id=0,
            epoch=epoch,
            instance_id="node-1",
            query=QUERY,
            batch_id=batch_id,
            operators={
                TABLE: OperatorSnapshotEntry(parts, TABLE_KIND),
                STATE: self.stage_state(attempt, epoch),
            },
            files=self.stage_logs(attempt, epoch),
            source_offsets={
                "rate": ConnectorCheckpoint({"offset": offset}, epoch, {"description": "Rate ü"}),
                "clicks": ConnectorCheckpoint({}, epoch),
            },
            source_names=("rate", "clicks"),
            batch_watermark_ms=(batch_id - 1) * 1000,
            next_watermark_ms=None,
            source_watermarks={"rate": batch_id * 1000 - 5},
            sink_names=(TABLE,),
            sink_epochs={TABLE: epoch},
            sinks=(
                SinkRecord("ckpt-sink", "s3://bucket/clicks", QUERY.id, batch_id),
                SinkRecord("delta", "s3://bucket/raw", QUERY.id, batch_id, "17"),
                SinkRecord("iceberg", "lake.db.raw", QUERY.id, batch_id, "", "s3://bucket/db/raw"),
            ),
            pipeline_hash=0x1234_5678_9ABC_DEF0,
            partition_count=3,
            table=TableRecord(
                operator=TABLE,
                schema_json=SCHEMA_JSON,
                mode=TableMode.UPSERT,
                keys=("k",),
                sequence_column="n",
                routed=True,
                partitions=3,
                vnodes=256,
                lineage=self.lineage(epoch),
            ),
            state=StateRecord(
                batch_id,
                (DeclaredStore(0, "default", 1),),
                {f"state/0/0/{batch_id + 1}.delta": START_MS},
            ),
            planned=PlannedBatch(batch_id + 1, (f"offsets/{batch_id + 1}",)),
            share="west",
            assignment_version=4,
            requests=RequestCount(3, 1, 4096),
        )
        return self.next(kind, epoch, run_id, content)


def attempt_of(number: int) -> CheckpointId:
    """The attempt that made a checkpoint."""
    return CheckpointId(number, f"018bcfe5-6800-7000-8000-{number:012x}")


def make_store(*, encrypted: bool, epochs: int = 3, lines: int = 60) -> Mapping[str, bytes]:
    """One complete store: every kind of manifest, every kind of record, a pin below the floor.

    With ``epochs=1`` the smallest store that has every kind of object.
    """
    golden = Golden(encrypted=encrypted, lines=lines)
    golden.epoch(1, ManifestKind.EPOCH, "run-a")
    floor, deleted = 1, frozenset[int]()
    if epochs > 1:
        second = golden.epoch(2, ManifestKind.EPOCH, "run-a")
        third = golden.epoch(3, ManifestKind.EPOCH, "run-a")
        golden.next(ManifestKind.CLAIM, 3, "run-b", third)
        golden.epoch(3, ManifestKind.REPLACEMENT, "run-b")
        golden.next(ManifestKind.ROLLBACK, 2, "run-b", replace(second, rollback_of=2))
        _delete_fifth(golden)
        floor, deleted = 2, frozenset({5})
    head = max(golden.manifests)
    _add_records(golden, min(2, head), head)
    pins = {"first": Pin(1, golden.manifests[1][1]), "before-upgrade": Pin(head, golden.manifests[head][1])}
    control = Control(STORE_ID, 7, floor=floor, swept=floor, pins=pins, deleted=deleted)
    golden.objects[CONTROL_KEY] = encode_control(control)
    golden.objects[LATEST_KEY] = encode_latest(head)
    for key in (DATA_KEY, MANIFEST_KEY) if encrypted else ():
        nonce = hashlib.sha256(key.data_key_id.encode()).digest()[:12]
        record = wrap(key, STORE_ID, MASTER, nonce, START_MS)
        golden.objects[data_key_key(key.data_key_id)] = encode_wrapped_key(record)
    return golden.objects


def _add_records(golden: Golden, failed: int, head: int) -> None:
    for number, status, key in (
        (failed, SinkCommitStatus.FAILED, failed_key(failed, "table", 0)),
        (failed, SinkCommitStatus.COMMITTED, committed_key(failed, TABLE)),
        (head, SinkCommitStatus.COMMITTED, committed_key(head, TABLE)),
    ):
        nonce = golden.manifests[number][0].commit_nonce
        record = SinkStatusRecord(number, nonce, "table", status, START_MS, status.value)
        golden.objects[key] = encode_status(record, mac=golden.mac)
    batch_id = golden.manifests[head][0].batch_id
    files = {f"commits/{batch_id}": log_text(f"commits/{batch_id}").encode()}
    nonce = golden.manifests[head][0].commit_nonce
    golden.objects[seal_key(head)] = encode_seal(Seal(head, nonce, START_MS + 7000, files), mac=golden.mac)


def _delete_fifth(golden: Golden) -> None:
    """A deleted checkpoint: its tombstone keeps the chain, its own objects are gone."""
    fifth = golden.manifests[5][0]
    tombstone = CheckpointManifest(
        checkpoint_id=5,
        epoch=fifth.epoch,
        batch_id=fifth.batch_id,
        kind=ManifestKind.TOMBSTONE,
        timestamp_ms=fifth.timestamp_ms,
        commit_nonce=fifth.commit_nonce,
        attempt=fifth.attempt,
        parent_id=fifth.parent_id,
        parent_sha256=fifth.parent_sha256,
        generation=fifth.generation,
        run_id=fifth.run_id,
        earlier_runs=fifth.earlier_runs,
        instance_id=fifth.instance_id,
        query=fifth.query,
        share=fifth.share,
        assignment_version=fifth.assignment_version,
        encryption_key_id=fifth.encryption_key_id,
        deleted_sha256=golden.manifests[5][1],
    )
    golden.objects[manifest_key(5)] = encode_manifest(tombstone, mac=golden.mac)
    prefix = CheckpointPaths.checkpoint_dir(attempt_of(5))
    for key in [key for key in golden.objects if key.startswith(prefix)]:
        del golden.objects[key]


def main() -> None:
    """Write both stores below ``golden/``."""
    for name, encrypted in (("plain", False), ("encrypted", True)):
        for key, data in make_store(encrypted=encrypted).items():
            path = GOLDEN / name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
