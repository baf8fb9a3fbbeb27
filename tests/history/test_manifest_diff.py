"""What changed between two checkpoints, from their manifests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpoint.format.artifact import ArtifactRef
from pyspark_checkpoint.format.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
)
from pyspark_checkpoint.history.manifest_diff import (
    ArtifactCount,
    Change,
    Move,
    compare_manifests,
    flatten_offsets,
)
from tests.support.history_kit import commit, history_of


def manifest(number: int, **fields: object) -> CheckpointManifest:
    return replace(CheckpointManifest.new(number, number), **fields)  # type: ignore[arg-type]


def inline(text: str, name: str = "") -> ArtifactRef:
    return ArtifactRef.of_inline(text.encode(), is_delta=True, epoch=1, name=name)


def operator(*partitions: tuple[ArtifactRef, ...]) -> OperatorSnapshotEntry:
    return OperatorSnapshotEntry(
        tuple(PartitionSnapshotEntry(at, refs) for at, refs in enumerate(partitions))
    )


def test_offsets_of_spark_are_taken_apart() -> None:
    """Kafka's by topic and partition, a file source's by its log, a rate source's as the number it is."""
    kafka = ConnectorCheckpoint({"offset": '{"t":{"0":5,"1":7}}'})
    assert flatten_offsets(kafka) == {"t.0": "5", "t.1": "7"}
    assert flatten_offsets(ConnectorCheckpoint({"offset": '{"logOffset":3}'})) == {"logOffset": "3"}
    assert flatten_offsets(ConnectorCheckpoint({"offset": "42"})) == {"offset": "42"}
    assert flatten_offsets(ConnectorCheckpoint({"0": "not json {"})) == {"0": "not json {"}
    assert flatten_offsets(ConnectorCheckpoint()) == {}


def test_sources_say_how_far_they_moved() -> None:
    """Each offset that moved, with its distance, also back; sources that came and went."""
    before = manifest(
        1,
        source_offsets={
            "a": ConnectorCheckpoint({"offset": '{"t":{"0":5,"1":7}}'}),
            "same": ConnectorCheckpoint({"offset": "1"}),
            "gone": ConnectorCheckpoint({"offset": "1"}),
        },
    )
    after = manifest(
        2,
        source_offsets={
            "a": ConnectorCheckpoint({"offset": '{"t":{"0":15,"1":4,"2":1}}'}),
            "same": ConnectorCheckpoint({"offset": "1"}),
            "new": ConnectorCheckpoint({"offset": "x"}),
        },
    )
    found = {source.name: source for source in compare_manifests(before, after).sources}
    assert found["a"].moves == (
        Move("t.0", "5", "15"),
        Move("t.1", "7", "4"),
        Move("t.2", None, "1", begins_at=0),
    )
    assert [move.distance for move in found["a"].moves] == [10, -3, 1]
    assert found["a"].distance == 8
    assert {name: source.change for name, source in found.items()} == {
        "a": Change.CHANGED,
        "gone": Change.DROPPED,
        "new": Change.ADDED,
        "same": Change.SAME,
    }


def test_an_added_partition_counts_from_zero_and_a_new_source_does_not() -> None:
    """Spark reads a partition that Kafka got from its first record; a new source begins anywhere."""

    def distance(before: str | None, after: str) -> int | None:
        sources = [
            {} if offset is None else {"k": ConnectorCheckpoint({"offset": offset} if offset else {})}
            for offset in (before, after)
        ]
        found = compare_manifests(*(manifest(n + 1, source_offsets=one) for n, one in enumerate(sources)))
        return found.sources[0].distance

    assert distance('{"t":{"0":5}}', '{"t":{"0":6,"1":40}}') == 41
    assert distance('{"t":{"0":5}}', '{"t":{"0":5},"u":{"0":7}}') == 7
    assert distance(None, '{"t":{"0":1000}}') is None
    assert distance("", '{"t":{"0":1000}}') is None
    assert distance('{"version":1}', '{"version":2,"index":9}') == 1


def test_operators_say_what_they_gained_and_lost() -> None:
    """By partition, name and digest: the same bytes at another place are the same."""
    kept, old, new = inline("kept"), inline("old"), inline("newer")
    elsewhere = replace(kept, path="checkpoints/x", inline=None, offset=9)
    before = manifest(1, operators={"agg": operator((kept, old), (kept,)), "gone": operator((old,))})
    after = manifest(2, operators={"agg": operator((elsewhere, new), (kept,)), "new": operator((new,))})
    found = {one.name: one for one in compare_manifests(before, after).operators}
    agg = found["agg"]
    assert (agg.change, agg.partitions_changed) == (Change.CHANGED, 1)
    assert (agg.added, agg.dropped, agg.kept) == (
        ArtifactCount(1, 5),
        ArtifactCount(1, 3),
        ArtifactCount(2, 8),
    )
    assert (agg.bytes_before, agg.bytes_after) == (11, 13)
    assert found["gone"].change is Change.DROPPED
    assert found["new"].change is Change.ADDED


def test_files_settings_and_runs_are_compared_too() -> None:
    """Everything else that is another one is named, with both values."""
    before = manifest(1, files=(inline("a", "x"), inline("b", "gone")), run_id="r1", next_watermark_ms=5)
    after = manifest(2, files=(inline("c", "x"), inline("b", "new")), run_id="r2")
    found = compare_manifests(before, after)
    assert found.files == (("gone", Change.DROPPED), ("new", Change.ADDED), ("x", Change.CHANGED))
    assert found.facts == (Move("run", "r1", "r2"), Move("watermark", "5", None))


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_checkpoint_is_the_same_as_itself_and_differences_mirror(first: int, second: int) -> None:
    """Nothing changed from a checkpoint to itself; the way back has added and dropped exchanged."""
    history, run = history_of(0)
    made = [commit(run, epoch, depth=2) for epoch in range(5)]
    there = compare_manifests(made[first - 1], made[second - 1])
    back = compare_manifests(made[second - 1], made[first - 1])
    assert [(one.added, one.dropped) for one in there.operators] == [
        (one.dropped, one.added) for one in back.operators
    ]
    assert there.sources[0].distance == (None if first == second else 10 * (second - first))
    same = {source.change for source in there.sources} == {Change.SAME}
    assert same == (first == second)
    assert history.head() == made[-1]
