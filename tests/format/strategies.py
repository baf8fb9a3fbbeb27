"""Hypothesis strategies for everything that the format writes down."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pyspark_checkpoint.clock import uuid7_from
from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.envelope import sha256_hex
from pyspark_checkpoint.format.keys import MAX_NUMBER, CheckpointId, CheckpointPaths
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    ManifestKind,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    QueryInfo,
    RequestCount,
)
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

INT64 = 2**63 - 1

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\\x7f", exclude_categories=("Cc", "Cs")),
    min_size=1,
    max_size=30,
).filter(lambda n: not n.startswith(" ") and not n.endswith((" ", ".")) and len(n.encode()) <= 120)
numbers = st.integers(1, MAX_NUMBER)
uuids = st.builds(
    lambda ms, bits: str(uuid.UUID(int=uuid7_from(ms, bits))),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**74 - 1),
)
attempts = st.builds(CheckpointId, numbers, uuids)
partitions = st.integers(0, 99_999)
data_key_ids = st.none() | st.sampled_from(
    ["01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8058"]
)
paths = st.builds(CheckpointPaths.snapshot, attempts, names, partitions) | st.builds(
    CheckpointPaths.pack, attempts, partitions
)
digests = st.binary(max_size=8).map(sha256_hex)
inline_refs = st.builds(
    lambda data, is_delta, epoch, name, key, decoded: ArtifactRef.of_inline(
        data, is_delta=is_delta, epoch=epoch, name=name, data_key_id=key, decoded_bytes=decoded
    ),
    st.binary(max_size=64),
    st.booleans(),
    st.integers(0, INT64),
    texts,
    data_key_ids,
    st.just(0) | st.integers(0, 2**48),
)
stored_refs = st.builds(
    ArtifactRef,
    path=paths,
    size_bytes=st.integers(0, 2**48),
    sha256=digests,
    is_delta=st.booleans(),
    epoch=st.integers(0, INT64),
    offset=st.integers(0, 2**48),
    name=texts,
    data_key_id=data_key_ids,
    decoded_bytes=st.just(0) | st.integers(0, 2**48),
)
refs = inline_refs | stored_refs
operators = st.builds(
    OperatorSnapshotEntry,
    st.lists(
        st.builds(PartitionSnapshotEntry, partitions, st.lists(refs, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    texts,
)
text_maps = st.dictionaries(texts, texts, max_size=2)
connectors = st.dictionaries(
    texts, st.builds(ConnectorCheckpoint, text_maps, st.integers(0, INT64), text_maps), max_size=2
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-INT64, INT64) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
positions = st.builds(FeedPosition, numbers, st.integers(0, INT64), texts)
tables = st.builds(
    TableRecord,
    operator=names,
    schema_json=texts,
    mode=st.sampled_from(TableMode),
    keys=st.lists(texts, max_size=2).map(tuple),
    sequence_column=st.none() | texts,
    op_column=st.none() | texts,
    routed=st.booleans(),
    partitions=partitions,
    vnodes=partitions,
    replaces=st.booleans(),
    lineage=st.none() | st.builds(Lineage, positions, st.none() | positions),
)
sinks = st.builds(
    SinkRecord,
    st.from_regex(r"[a-z][a-z0-9-]{0,39}", fullmatch=True),
    texts,
    texts,
    st.none() | st.integers(0, INT64),
    texts,
)
planned = st.builds(
    PlannedBatch, st.integers(0, INT64), st.lists(texts, max_size=2, unique=True).map(tuple)
)
stores = st.lists(
    st.builds(DeclaredStore, partitions, texts, partitions),
    max_size=2,
    unique_by=lambda store: (store.operator, store.name),
).map(tuple)
modified = st.dictionaries(texts, st.integers(0, INT64), max_size=2)


def _with_batch(
    manifest: CheckpointManifest, batch_id: int | None, state: tuple[Any, Any] | None
) -> CheckpointManifest:
    """A state belongs to a batch, and is of the manifest's own."""
    record = None if batch_id is None or state is None else StateRecord(batch_id, *state)
    return replace(manifest, batch_id=batch_id, state=record)


_contents = st.builds(
    CheckpointManifest,
    checkpoint_id=numbers,
    epoch=st.integers(0, INT64),
    kind=st.sampled_from(ManifestKind),
    timestamp_ms=st.integers(0, INT64),
    commit_nonce=texts,
    attempt=uuids,
    parent_id=st.integers(0, MAX_NUMBER),
    parent_sha256=digests,
    generation=st.integers(0, INT64),
    run_id=texts,
    instance_id=texts,
    query=st.builds(QueryInfo, texts, texts, texts, texts, texts, text_maps),
    operators=st.dictionaries(names, operators, max_size=2),
    files=st.lists(refs, max_size=2).map(tuple),
    source_offsets=connectors,
    table_offsets=connectors,
    table_store_checkpoint_path=st.none() | texts,
    source_names=st.lists(texts, max_size=2).map(tuple),
    source_watermarks=st.dictionaries(texts, st.integers(-INT64, INT64), max_size=2),
    batch_watermark_ms=st.none() | st.integers(-INT64, INT64),
    next_watermark_ms=st.none() | st.integers(-INT64, INT64),
    sink_names=st.lists(texts, max_size=2).map(tuple),
    sink_epochs=st.dictionaries(texts, st.integers(0, INT64), max_size=2),
    pipeline_hash=st.none() | st.integers(0, INT64),
    vnode_count=st.integers(1, 65_535),
    vnodes=st.none() | st.lists(st.integers(0, 65_534), max_size=3).map(tuple),
    partition_count=partitions,
    sinks=st.lists(sinks, max_size=2).map(tuple),
    table=st.none() | tables,
    planned=st.none() | planned,
    share=st.none() | names,
    assignment_version=st.none() | st.integers(0, INT64),
    encryption_key_id=data_key_ids,
    state_checksum=st.none() | digests,
    rollback_of=st.none() | numbers,
    deleted_sha256=st.none() | digests,
    requests=st.builds(RequestCount, partitions, partitions, partitions),
)
manifests = st.builds(
    _with_batch,
    _contents,
    st.none() | st.integers(0, INT64),
    st.none() | st.tuples(stores, modified),
)
